"""The Python API: open, ask many at once, cancel, end; with stub workers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    GenerationRequest,
    HostsError,
    Pipeline,
    Recorder,
    RequestRefused,
    StageFailure,
)
from tests.support.cli import ROOT, environment, stub_answer

PROMPT = "four words of prompt"
STUB: dict[str, Any] = {"stub": True, "no_bundle": True}


def test_the_example_of_the_document_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/api.md").read_text("utf-8"), re.S)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60
    )
    answer = " ".join(map(str, stub_answer(PROMPT, 2, 5)))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{answer}\n{answer}\n", "")


def test_many_requests_at_once_get_their_own_answers() -> None:
    prompts = [f"prompt number {n}" for n in range(12)]

    async def run() -> list[tuple[int, ...]]:
        async with Pipeline.open(local=2, **STUB) as pipeline:
            whole = (pipeline.complete(prompt, max_new_tokens=9) for prompt in prompts)
            return [answer.token_ids for answer in await asyncio.gather(*whole)]

    assert asyncio.run(run()) == [tuple(stub_answer(prompt, 2, 9)) for prompt in prompts]


def test_a_closed_generator_stops_the_work_and_the_next_request_is_served() -> None:
    async def run() -> tuple[int, tuple[int, ...]]:
        async with Pipeline.open(hosts=["local slots=2  # lines of a file"], **STUB) as pipeline:
            endless = pipeline.generate(PROMPT, max_new_tokens=10_000_000)
            async with contextlib.aclosing(endless) as tokens:
                async for token in tokens:
                    first = token.token_id
                    break
            return first, (await pipeline.complete(PROMPT, max_new_tokens=2)).token_ids

    expected = tuple(stub_answer(PROMPT, 2, 2))
    assert asyncio.run(run()) == (expected[0], expected)


def test_a_chat_tokens_and_a_request_are_asked_alike() -> None:
    async def run() -> list[list[int]]:
        async with Pipeline.open(**STUB) as pipeline:
            ids = await pipeline.stages.tokenize("ids", PROMPT)
            request = GenerationRequest(request_id="mine", prompt=PROMPT, max_new_tokens=3)
            asked = (
                pipeline.chat([{"role": "user", "content": PROMPT}], max_new_tokens=3),
                pipeline.generate(ids, max_new_tokens=3),
                pipeline.submit(request),
            )
            return [[token.token_id async for token in tokens] for tokens in asked]

    assert asyncio.run(run()) == [stub_answer(PROMPT, 1, 3)] * 3


def test_a_lost_stage_is_a_notice_or_a_failure(tmp_path: Path) -> None:
    async def run(restarts: int) -> tuple[list[str], tuple[int, ...]]:
        notices: list[str] = []
        async with Pipeline.open(
            local=2, restarts=restarts, on_notice=notices.append, **STUB
        ) as pipeline:
            os.kill(pipeline.facts.ready[1].pid, signal.SIGKILL)
            answer = await pipeline.complete(PROMPT, max_new_tokens=40)
            return [notice.partition(";")[0] for notice in notices], answer.token_ids

    notices, ids = asyncio.run(run(3))
    assert (notices[0][:38], ids) == (
        "stage 1 on local was killed by SIGKILL", tuple(stub_answer(PROMPT, 2, 40)),
    )  # fmt: skip
    with pytest.raises(StageFailure, match="stage 1 on local was killed by SIGKILL"):
        asyncio.run(run(0))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, ValueError, "give model_id=… (a folder or a hub id), or stub=True"),
        ({"stub": True, "on_notice": 5}, TypeError, "on_notice=5 must be a function"),
        ({"stub": True, "hosts": ["local", "a=b"]}, HostsError, "hosts:2: "),
    ],
)
def test_what_cannot_be_opened_is_told(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    async def run() -> None:
        async with Pipeline.open(**options):
            raise AssertionError("it was opened")

    with pytest.raises(kind, match=re.escape(message)):
        asyncio.run(run())


def test_what_cannot_be_asked_is_refused_and_the_pipeline_serves_on() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"temperature": -1.0}, "temperature is -1.0 and must be a finite number >= 0"),
        ({"top_p": 2.0}, "top_p is 2.0 and must be a number between 0 and 1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0 and must be at least 1"),
        ({"stop": ["a", ""]}, "a stop string is empty"),
        ({"top_k": -1}, "top_k is -1 and must be a non-negative int"),
    ]

    async def run() -> int:
        async with Pipeline.open(**STUB) as pipeline:
            for options, message in wrong:
                with pytest.raises(RequestRefused, match=re.escape(message)):
                    await pipeline.complete(PROMPT, **options)
            return (await pipeline.complete(PROMPT, max_new_tokens=1)).token_ids[0]

    assert asyncio.run(run()) == stub_answer(PROMPT, 1, 1)[0]


def test_what_is_no_request_is_told_by_the_call_itself() -> None:
    user = {"role": "user", "content": "hi"}
    prompt = "a text or a sequence of token ids"
    message = "{'role': 'user', 'content': 'Hello'}"

    async def run() -> list[str]:
        async with Pipeline.open(**STUB) as opened:
            pipeline: Any = opened
            asked: list[Callable[[], object]] = [
                lambda: pipeline.generate(5),
                lambda: pipeline.generate(b"abc"),
                lambda: pipeline.generate("a", max_tokens=4),
                lambda: pipeline.generate("a", max_context=4),
                lambda: pipeline.chat([user], tools=5),
                lambda: pipeline.chat("hi"),
                lambda: pipeline.chat([user, {"role": "user"}]),
                lambda: pipeline.complete(user),
                lambda: pipeline.complete("a", tools=[]),
                lambda: pipeline.score(None),
                lambda: pipeline.score("a", top_logprobs="2"),
            ]
            told = []
            for ask in asked:
                with pytest.raises((TypeError, RequestRefused)) as raised:
                    answer = ask()
                    assert inspect.isawaitable(answer), "the call itself should have raised"
                    await answer
                told.append(f"{raised.type.__name__}: {raised.value}")
            return told

    assert asyncio.run(run()) == [
        f"TypeError: prompt=5 must be {prompt}",
        f"TypeError: prompt=b'abc' must be {prompt}",
        "TypeError: there is no option 'max_tokens'; did you mean max_new_tokens?",
        "TypeError: max_context says what is opened: give it to Pipeline.open",
        "TypeError: tools=5 must be a sequence of mappings or None",
        f"RequestRefused: messages='hi' must be a sequence of one message or more, as [{message}]",
        (
            "RequestRefused: messages[1]={'role': 'user'} must be a mapping with a role and a "
            f"content, as {message}"
        ),
        (
            "TypeError: asked={'content': 'hi', 'role': 'user'} must be a text, a sequence of "
            "token ids, or the messages of a chat in a list"
        ),
        "TypeError: there is no option 'tools'; see docs/api.md",
        f"TypeError: prompt=None must be {prompt}",
        "TypeError: top_logprobs='2' must be an int",
    ]


def test_the_recorder_of_the_document_gets_the_facts_and_prefixes_tell_theirs() -> None:
    (code,) = re.findall(r"```py\n(.*?)```", (ROOT / "docs/api.md").read_text("utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    made: list[Any] = []

    def record(inner: Recorder) -> Any:
        made.append(names["Counting"](inner))
        return made[0]

    async def run() -> str:
        async with Pipeline.open(record=record, **STUB) as pipeline:
            await pipeline.complete(PROMPT, max_new_tokens=3)
            return repr(pipeline.prefixes)

    told = asyncio.run(run())
    assert (told, made[0].ops > 3) == (
        (
            "<Prefixes reuse=turns lookups=1 hits=0 prompt_tokens=4 cached_tokens=0 kept=1 "
            "kept_tokens=6>"
        ),
        True,
    )


def test_the_bundle_says_how_the_block_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with Pipeline.open(stub=True, bundle_dir=tmp_path) as pipeline:
            await pipeline.complete("a zebra", max_new_tokens=1)
            raise KeyError("zebra")

    with pytest.raises(KeyError):
        asyncio.run(run())
    (bundle,) = tmp_path.iterdir()
    kept = b"".join(path.read_bytes() for path in bundle.rglob("*") if path.is_file())
    assert (b"KeyError" in kept, b"zebra" in kept) == (True, False)
