"""llama.cpp over its RPC backend: one server a stage on this machine, and the one that asks them.

Written after the options and the answers of its `llama-server` and `rpc-server`; no binary of them
was at hand to try it with.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tools.bench.plain import Timed

_HERE = "127.0.0.1"
_START_S, _ANSWER_S, _END_S = 300.0, 600.0, 10.0


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

    def answer(self, ids: Sequence[int], new_tokens: int) -> Timed:
        """Decode greedily, past end-of-text tokens; the times are llama.cpp's own.

        Raises:
            OSError, HTTPException, ValueError, KeyError: the answer is not the documented one.
        """
        body = {
            "prompt": list(ids),
            "n_predict": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        status, answer = self._ask("POST", "/completion", body, _ANSWER_S)
        if status != 200:
            raise ValueError(f"llama-server answered {status}: {answer[:200]!r}")
        return timed_of(json.loads(answer))

    def wait(self) -> None:
        """Wait until the model is loaded.

        Raises:
            TimeoutError: it took too long.
        """
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError, HTTPException):
                if self._ask("GET", "/health", None, 2.0)[0] == 200:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"llama-server was not ready after {_START_S:.0f} s")

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> tuple[int, bytes]:
        connection = HTTPConnection(_HERE, self._port, timeout=timeout_s)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def timed_of(answer: dict[str, Any]) -> Timed:
    """Read the answer of `/completion`.

    Raises:
        KeyError: it has no timings.
    """
    timings = answer["timings"]
    return Timed(
        tuple(answer.get("tokens", ())),
        float(timings["prompt_per_second"]),
        float(timings["predicted_per_second"]),
    )


@contextmanager
def serving(files: LlamaFiles, stages: int, threads: int, context: int) -> Iterator[LlamaRpc]:
    """Start one rpc-server a stage, with its share of the threads, and the server in front.

    Raises:
        TimeoutError: the model was not loaded in time.
        OSError: a program cannot be started.
    """
    share = str(max(1, threads // stages))
    with ExitStack() as held:
        ports = [_free_port() for _ in range(stages)]
        for port in ports:
            rpc = [str(files.rpc_server), "--host", _HERE, "--port", str(port), "--threads", share]
            held.enter_context(_running(rpc))
        port = _free_port()
        server = [
            *(str(files.llama_server), "--model", str(files.gguf)),
            *("--host", _HERE, "--port", str(port)),
            *("--rpc", ",".join(f"{_HERE}:{one}" for one in ports)),
            *("--n-gpu-layers", "999", "--threads", share),
            *("--ctx-size", str(context), "--parallel", "1"),
        ]
        held.enter_context(_running(server))
        found = LlamaRpc(port)
        found.wait()
        yield found


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind((_HERE, 0))
        return int(bound.getsockname()[1])
