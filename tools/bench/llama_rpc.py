"""llama.cpp over its RPC backend: one server a stage on this machine, and the one that asks them.

Tried with llama.cpp 0.5.0 (commit 0c1e570).
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import perf_counter
from typing import Any

from orchestrator.benchmark.stream import StreamSample
from tools.bench.native import Native, running

_HERE = "127.0.0.1"
_ANSWER_S = 600.0


@dataclass(frozen=True, slots=True)
class LlamaFiles:
    """The programs, and the model in their format."""

    llama_server: Path
    rpc_server: Path
    gguf: Path


class LlamaRpc:
    """A running llama.cpp; made by `serving`."""

    def __init__(self, port: int) -> None:
        self._port = port

    def answer(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[StreamSample]:
        """Decode the prompts at once, greedily and past end-of-text tokens, as a client sees it.

        Raises:
            OSError, HTTPException, ValueError, KeyError: an answer is not the documented one.
        """
        ready = threading.Barrier(len(prompts))
        with ThreadPoolExecutor(len(prompts)) as threads:
            asked = [threads.submit(self._stream, ids, new_tokens, ready) for ids in prompts]
            return [one.result() for one in asked]

    def _stream(
        self, ids: Sequence[int], new_tokens: int, ready: threading.Barrier
    ) -> StreamSample:
        body = {
            "prompt": list(ids),
            "n_predict": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "return_tokens": True,
        }
        connection = HTTPConnection(_HERE, self._port, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            try:
                connection.connect()
            except OSError:
                ready.abort()  # The others wait for this one.
                raise
            text = json.dumps(body)
            ready.wait(_ANSWER_S)
            begun_ms = perf_counter() * 1e3
            connection.request("POST", "/completion", text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"llama-server answered {answer.status}: {answer.read(200)!r}")
            return sample_of(len(ids), begun_ms, timed_lines(answer))

    def is_ready(self) -> bool:
        """Tell whether the model is loaded."""
        with contextlib.suppress(OSError, HTTPException):
            with contextlib.closing(HTTPConnection(_HERE, self._port, timeout=2.0)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        return False


def timed_lines(lines: Iterable[bytes]) -> Iterator[tuple[float, bytes]]:
    """Give each line with the moment of its arrival, in ms."""
    for line in lines:
        yield perf_counter() * 1e3, line


def sample_of(
    prompt_tokens: int, begun_ms: float, lines: Iterable[tuple[float, bytes]]
) -> StreamSample:
    """Read the server-sent events of `/completion`.

    A token that ends within a character comes with no event of its own: its time is that of the
    next one, its id is not told.

    Raises:
        ValueError: no token came.
        KeyError: an event is not of an answer.
    """
    token_ms: list[float] = []
    ids: list[int] = []
    for ms, line in lines:
        if not line.startswith(b"data: "):
            continue
        event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        token_ms.extend([ms] * (int(event["tokens_predicted"]) - len(token_ms)))
        ids.extend(event["tokens"])
    if not token_ms:
        raise ValueError("llama-server decoded no token")
    return StreamSample(prompt_tokens, begun_ms, tuple(token_ms), tuple(ids))


@contextmanager
def serving(
    files: LlamaFiles, *, stages: int, threads: int, context: int, streams: int
) -> Iterator[LlamaRpc]:
    """Start one rpc-server a stage, with its share of the threads, and the server in front.

    Args:
        files: what to start.
        stages: equal parts that the layers are split into.
        threads: of all stages.
        context: tokens of each answer and its prompt at most.
        streams: answers at once.

    Raises:
        TimeoutError: the model was not loaded in time.
        RuntimeError: a program ended; with the end of what it said.
        OSError: a program cannot be started.
    """
    share = str(max(1, threads // stages))
    with ExitStack() as held:
        ports = [_free_port() for _ in range(stages)]
        for port in ports:
            rpc = [str(files.rpc_server), "--host", _HERE, "--port", str(port), "--threads", share]
            # the server in front takes only what listens when it starts
            held.enter_context(running(rpc)).wait(partial(_listens, port))
        port = _free_port()
        server = [
            *(str(files.llama_server), "--model", str(files.gguf)),
            *("--host", _HERE, "--port", str(port)),
            *("--rpc", ",".join(f"{_HERE}:{one}" for one in ports)),
            *("--device", ",".join(f"RPC{stage}" for stage in range(stages))),
            *("--n-gpu-layers", "999", "--tensor-split", ",".join(["1"] * stages)),
            *("--threads", share, "--fit", "off", "--cache-ram", "0"),
            *("--ctx-size", str(context * streams), "--parallel", str(streams)),
        ]
        found = LlamaRpc(port)
        front: Native = held.enter_context(running(server))
        front.wait(found.is_ready)
        yield found


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((_HERE, port), timeout=2.0):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind((_HERE, 0))
        return int(bound.getsockname()[1])
