"""One request: positions, chunks, ends, limits; the cache is freed whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.bundle.records import NoRecorder, RequestRecord
from orchestrator.chunk import Chunk
from orchestrator.generate import TokenOutput, generate
from orchestrator.request import GenerationRequest, RequestRefused
from worker.protocol.ops import SampledReply, Sampling

PROMPT = "prompt"  # Six tokens: each id is one byte.
EOS = 0


@dataclass
class Scripted:
    """A pipeline whose tokens are bytes and whose answer is given; it notes what it is asked."""

    answer: bytes
    max_context: int | None = None
    fail_at: int | None = None
    asked: list[tuple[bytes, int, Sampling | None]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    block_at: int | None = None
    blocked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def facts(self) -> Any:
        return SimpleNamespace(max_context=self.max_context, eos_token_ids=frozenset({EOS, 1}))

    def history_bytes(self, rid: str) -> int:
        return 7

    async def tokenize(
        self, rid: str, prompt: str | None, messages: object, **more: object
    ) -> tuple[int, ...]:
        return tuple((prompt or "").encode())

    async def detokenize(
        self, rid: str, tokens: Sequence[int], *, show_special: bool = False
    ) -> str:
        return bytes(t for t in tokens if t > 1).decode("utf-8", "replace")

    async def forward(
        self, rid: str, tokens: Sequence[int], position: int, sampling: Sampling | None
    ) -> SampledReply:
        self.asked.append((bytes(tokens), position, sampling))
        if sampling is None:
            return SampledReply()
        index = position + len(tokens) - len(PROMPT)
        if index == self.fail_at:
            raise ConnectionError("lost")
        if index == self.block_at:
            self.blocked.set()
            await asyncio.Event().wait()
        return SampledReply(token_id=self.answer[index], logprob=-0.5)

    async def run(self, rid: str, chunks: Sequence[Chunk], sampling: Sampling) -> SampledReply:
        for chunk in chunks[:-1]:
            await self.forward(rid, chunk.tokens, chunk.position, None)
        return await self.forward(rid, chunks[-1].tokens, chunks[-1].position, sampling)

    async def release(self, rid: str) -> None:
        self.released.append(rid)


class Kept(NoRecorder):
    def __init__(self) -> None:
        self.requests: list[RequestRecord] = []

    def request(self, record: RequestRecord) -> None:
        self.requests.append(record)


def outputs_of(
    pipeline: Scripted, recorder: NoRecorder | None = None, **options: Any
) -> list[TokenOutput]:
    async def collect() -> list[TokenOutput]:
        request = GenerationRequest(**{"request_id": "r", "prompt": PROMPT, **options})
        tokens = generate(pipeline, request, recorder or NoRecorder())  # type: ignore[arg-type]
        async with contextlib.aclosing(tokens):
            return [output async for output in tokens]

    return asyncio.run(collect())


def told(outputs: list[TokenOutput]) -> tuple[bytes, str, str | None, str | None]:
    """Return ids, text, finish reason and matched stop; only the last output has a finish."""
    assert [output.finish is not None for output in outputs] == [False] * (len(outputs) - 1) + [
        True
    ]
    finish = outputs[-1].finish
    assert finish is not None
    ids = bytes(output.token_id for output in outputs)
    return ids, "".join(output.text for output in outputs), finish.reason, finish.matched_stop


def test_positions_follow_each_other_and_only_the_last_chunk_samples() -> None:
    pipeline = Scripted(b"abc")
    outputs_of(pipeline, max_new_tokens=3, prefill_chunk=4)
    greedy = Sampling()
    assert pipeline.asked == [
        (b"prom", 0, None),
        (b"pt", 4, greedy),
        (b"a", 6, greedy),
        (b"b", 7, greedy),
    ]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 6, 7])
def test_any_chunk_size_covers_the_prompt_once(chunk: int) -> None:
    pipeline = Scripted(b"a")
    outputs_of(pipeline, max_new_tokens=1, prefill_chunk=chunk)
    assert b"".join(part for part, _, _ in pipeline.asked) == PROMPT.encode()
    assert [sampling is not None for _, _, sampling in pipeline.asked][-1:] == [True]
    assert all(len(part) <= chunk for part, _, _ in pipeline.asked)


@pytest.mark.parametrize(
    ("answer", "options", "expected"),
    [
        (b"hi\x00", {}, (b"hi\x00", "hi", "stop", None)),
        (b"hi\x01", {}, (b"hi\x01", "hi", "stop", None)),
        (b"h\x00i!", {"ignore_eos": True, "max_new_tokens": 4}, (b"h\0i!", "hi!", "length", None)),
        (b"hi!", {"max_new_tokens": 2}, (b"hi", "hi", "length", None)),
        (b"hi there", {"stop": ("i th",)}, (b"hi th", "h", "stop", "i th")),
        (b"hi there\x00", {"stop": ("e!",)}, (b"hi there\0", "hi there", "stop", None)),
        (b"hi t", {"stop": ("ther",), "max_new_tokens": 4}, (b"hi t", "hi t", "length", None)),
        (b"hi", {"stop": ("i",), "max_new_tokens": 2}, (b"hi", "h", "stop", "i")),
        ("é".encode(), {"max_new_tokens": 1}, (b"\xc3", "\ufffd", "length", None)),
        ("aé🦙".encode() + b"\0", {}, ("aé🦙".encode() + b"\0", "aé🦙", "stop", None)),
    ],
)
def test_how_an_answer_ends(
    answer: bytes, options: dict[str, Any], expected: tuple[bytes, str, str, str | None]
) -> None:
    pipeline = Scripted(answer + b"x")
    assert told(outputs_of(pipeline, **options)) == expected
    assert pipeline.released == ["r"]


def test_a_token_comes_with_its_text_at_once() -> None:
    outputs = outputs_of(Scripted("aé".encode() + b"\0"))
    assert [output.text for output in outputs] == ["a", "", "é", ""]


@pytest.mark.parametrize(("max_new", "context"), [(4, 10), (1, 7), (None, 7)])
def test_a_request_that_just_fits_is_served(max_new: int | None, context: int) -> None:
    _, text, reason, _ = told(
        outputs_of(Scripted(b"abcdef", max_context=context), max_new_tokens=max_new)
    )
    assert (text, reason) == ("abcdef"[: context - 6], "length")


@pytest.mark.parametrize(("max_new", "context"), [(5, 10), (None, 6), (1, 5)])
def test_a_request_that_does_not_fit_is_refused_with_three_numbers(
    max_new: int | None, context: int
) -> None:
    pipeline = Scripted(b"abcdef", max_context=context)
    with pytest.raises(RequestRefused) as caught:
        outputs_of(pipeline, max_new_tokens=max_new)
    assert f"has 6 tokens and {max_new or 1} new ones are asked for" in str(caught.value)
    assert f"the context holds {context}" in str(caught.value)
    assert (pipeline.asked, pipeline.released) == ([], [])


def test_an_empty_prompt_is_refused_before_any_forward() -> None:
    pipeline = Scripted(b"")
    with pytest.raises(RequestRefused, match="the prompt is empty"):
        outputs_of(pipeline, prompt="")
    assert pipeline.asked == []


def test_penalty_tokens_are_the_distinct_ids_so_far() -> None:
    pipeline = Scripted(b"az\0")
    outputs_of(pipeline, sampling=Sampling(repetition_penalty=1.5))
    sent = [sampling.penalty_tokens for _, _, sampling in pipeline.asked if sampling]
    prompt = sorted(set(PROMPT.encode()))
    assert sent == [
        tuple(prompt),
        tuple(sorted({*prompt, *b"a"})),
        tuple(sorted({*prompt, *b"az"})),
    ]


def test_closing_the_generator_sends_no_further_op_and_frees_the_cache() -> None:
    pipeline = Scripted(b"abcdef")
    kept = Kept()

    async def take_two() -> int:
        request = GenerationRequest(request_id="r", prompt=PROMPT)
        tokens = generate(pipeline, request, kept)  # type: ignore[arg-type]
        await anext(tokens)
        await anext(tokens)
        await tokens.aclose()
        asked = len(pipeline.asked)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        return asked

    asked = asyncio.run(take_two())
    # Of the step that was under way at most its op had been sent.
    assert asked <= 3 and len(pipeline.asked) == asked
    assert (pipeline.released, kept.requests[0].finish_reason) == (["r"], "cancelled")


def test_cancelling_the_task_frees_the_cache() -> None:
    pipeline = Scripted(b"abc", block_at=2)

    async def cancel() -> None:
        async def consume() -> None:
            request = GenerationRequest(request_id="r", prompt=PROMPT)
            async for _ in generate(pipeline, request, NoRecorder()):  # type: ignore[arg-type]
                pass

        task = asyncio.create_task(consume())
        await pipeline.blocked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert pipeline.released == ["r"]


def test_a_failure_comes_after_the_text_before_it() -> None:
    pipeline = Scripted(b"abc", fail_at=2)
    kept, seen = Kept(), []

    async def consume() -> None:
        request = GenerationRequest(request_id="r", prompt=PROMPT)
        async for output in generate(pipeline, request, kept):  # type: ignore[arg-type]
            seen.append(output.text)

    with pytest.raises(ConnectionError):
        asyncio.run(consume())
    assert (seen, pipeline.released) == (["a", "b"], ["r"])
    (record,) = kept.requests
    assert (record.finish_reason, record.prompt_tokens, record.completion_tokens) == (
        "error",
        6,
        2,
    )


def test_the_record_has_numbers_and_no_text() -> None:
    kept = Kept()
    outputs_of(Scripted(b"ab\0"), kept, stop=("secret",), sampling=Sampling(top_k=5, seed=7))
    (record,) = kept.requests
    assert (record.rid, record.prompt_tokens, record.completion_tokens, record.finish_reason) == (
        "r",
        6,
        3,
        "stop",
    )
    assert record.options == {
        "top_k": 5,
        "seed": 7,
        "max_new_tokens": None,
        "num_stops": 1,
        "ignore_eos": False,
        "prefill_chunk": 256,
        "chat": False,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "num_biased_tokens": 0,
        "has_grammar": False,
    }
    assert record.history_bytes == 7
    assert record.ttft_ms is not None and record.ttft_ms <= record.duration_ms


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"messages": ()}, "give a prompt, messages or tokens, one of the three"),
        ({"prompt": None}, "give a prompt, messages or tokens, one of the three"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0 and must be at least 1"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0 and must be at least 1"),
    ],
)
def test_a_contradictory_request_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GenerationRequest(**{"request_id": "r", "prompt": "x", **options})


def test_an_empty_stop_is_refused_before_any_forward() -> None:
    pipeline = Scripted(b"a")
    with pytest.raises(ValueError, match="a stop string is empty"):
        outputs_of(pipeline, stop=("",))
    assert pipeline.asked == []
