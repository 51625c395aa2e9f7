"""Load a server of two stages for a while, kill stages meanwhile, and say what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from tests.support.history_chain import expected_tokens
from tests.support.load_clients import LoadClient
from tests.support.load_tally import Question, Tally
from tests.support.serving import Server, served
from tests.support.stages import ROOT

MIB = 1024 * 1024
_PLACES, _QUEUE = 32, 48
_HEARTBEAT_S = 0.5
_NUM_QUESTIONS = 24


@dataclass(slots=True, kw_only=True)
class Load:
    """What a server went through.

    Attributes:
        tally: of all requests.
        kills: stages that were killed.
        rss_bytes: of the server before, in the middle and at the end.
        channels: pipes and sockets of the server before and after.
        sessions: KV caches that each worker holds at the end.
        stderr: of the server.
    """

    tally: Tally = field(default_factory=Tally)
    kills: int = 0
    rss_bytes: list[int] = field(default_factory=list)
    channels: list[int] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)
    stderr: str = ""


def questions() -> list[Question]:
    """Return prompts of one chunk and of several, with the answers that undisturbed stages give."""
    random = Random(6)
    asked = []
    for number in range(_NUM_QUESTIONS):
        prompt = f"{number} " + "x" * random.choice((3, 20, 90, 300))
        count = random.choice((1, 4, 12, 30))
        tokens = expected_tokens(prompt, num_stages=2, prefill_chunk=256, max_new_tokens=count)
        text = "".join(chr(97 + token % 26) for token in tokens)
        asked.append(Question(prompt=prompt, max_tokens=count, answer=text))
    return asked


@contextlib.contextmanager
def loaded_server(folder: Path, prefix_reuse: str = "off") -> Iterator[Server]:
    """Serve with two workers whose answers are hashes of all that they were sent.

    With `off` nothing is kept of what has ended: so what is left is lost.
    """
    worker = folder / "worker"
    # Its heartbeat tells how many KV caches it holds.
    command = f'exec {ROOT}/tests/bin/history_worker "$@" --heartbeat-s {_HEARTBEAT_S}'
    worker.write_text(f"#!/bin/sh\n{command}\n")
    worker.chmod(0o755)
    hosts = folder / "hosts.txt"
    hosts.write_text(f"local slots=2 python={worker} env.STAGELINE_TEST_PYTHON={sys.executable}\n")
    stages = ("--hosts", str(hosts), "--stub", "--bundle-dir", str(folder / "bundles"))
    bounds = f"--max-concurrent {_PLACES} --max-queue {_QUEUE} --restarts 20"
    words = f"{bounds} --prefix-reuse {prefix_reuse}".split()
    with served(*words, stages=stages) as server:
        yield server


def play(folder: Path, num_clients: int, duration_s: float, kill_every_s: float) -> Load:
    """Load a server and return what became of it; `folder` is for its files."""
    load, asked = Load(), questions()
    with loaded_server(folder) as server:
        process = psutil.Process(server.process.pid)
        asyncio.run(_answer_once(server, asked))
        load.channels.append(_channels(process.pid))
        load.rss_bytes.append(process.memory_info().rss)
        asyncio.run(_load(server, load, asked, num_clients, duration_s, kill_every_s))
        server.wait_until(lambda: server.metric("stageline_running ") == 0)
        server.wait_until(lambda: server.metric("stageline_queued ") == 0)
        with contextlib.suppress(AssertionError):  # The caller compares them.
            server.wait_until(lambda: _channels(process.pid) <= load.channels[0], 10)
        load.channels.append(_channels(process.pid))
        asyncio.run(_answer_once(server, asked))
        load.sessions = caches_held(server, folder)
    load.stderr = server.stderr
    return load


def caches_held(server: Server, folder: Path) -> list[int]:
    """Return how many KV caches each stage holds, by a heartbeat that is yet to come."""
    # The beat under way may be older than the last release.
    beats = len(_heartbeats(folder))
    server.wait_until(lambda: len(_heartbeats(folder)) >= beats + 4)
    newest = dict(_heartbeats(folder))
    return [newest[stage] for stage in sorted(newest)]


async def _answer_once(server: Server, asked: list[Question]) -> None:
    """Answer each question once, one after the other."""
    tally = Tally()
    for question in asked:
        await LoadClient(0, server.address, tally).read(question)
    assert not tally.faults, tally.faults


async def _load(
    server: Server,
    load: Load,
    asked: list[Question],
    num_clients: int,
    duration_s: float,
    kill_every_s: float,
) -> None:
    process, loop = psutil.Process(server.process.pid), asyncio.get_running_loop()
    end_s = loop.time() + duration_s

    async def behave(number: int) -> None:
        client = LoadClient(number, server.address, load.tally)
        # Half of them behave.
        good = (client.read, client.ask_whole)
        odd = (client.read_slowly, client.send_slowly, client.vanish, client.send_garbage)
        way = good[number // 2 % 2] if number % 2 else odd[number // 2 % 4]
        while loop.time() < end_s:
            try:
                await way(client.random.choice(asked))
            except (OSError, EOFError, ValueError) as error:
                load.tally.end(way.__name__, "cut", f"{type(error).__name__}: {error}")

    async def kill() -> None:
        while loop.time() + kill_every_s < end_s:
            await asyncio.sleep(kill_every_s)
            with contextlib.suppress(ProcessLookupError, IndexError):
                # The one that has lived longest: so each stage has its turn.
                os.kill(server.worker_pids[0], signal.SIGKILL)
                load.kills += 1

    async def weigh() -> None:
        for _ in range(2):
            await asyncio.sleep(duration_s / 2)
            load.rss_bytes.append(process.memory_info().rss)

    await asyncio.gather(*(behave(number) for number in range(num_clients)), kill(), weigh())


def _channels(pid: int) -> int:
    """Return how many pipes and sockets a process holds; files of its bundle come as needed."""
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(link.readlink()))
    return sum(target.startswith(("pipe:", "socket:")) for target in targets)


def _heartbeats(folder: Path) -> list[tuple[int, int]]:
    """Return stage and KV caches of every heartbeat so far."""
    found = []
    (events,) = (folder / "bundles").glob("*/events.jsonl")
    for line in events.read_text().splitlines():
        if '"heartbeat"' in line:
            record = json.loads(line)
            found.append((int(record["stage"]), int(record["line"]["sessions"])))
    return found
