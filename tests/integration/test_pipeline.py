"""Stages together: right order, right bytes, one cause, nothing left."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import psutil
import pytest

from orchestrator.failures import Crashed, NotReady, PipelineMismatch, StageFailure
from orchestrator.pipeline_facts import facts_of
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tests.support.stages import PATIENT, MemoryRecorder, peer_spec, stub_spec, stub_specs
from worker.protocol.ops import SampledReply, Sampling
from worker.protocol.ready import Ready

T = TypeVar("T")


def with_pipeline(
    specs: Sequence[StageSpec],
    act: Callable[[Stages], Awaitable[T]],
    recorder: MemoryRecorder | None = None,
) -> T:
    async def run() -> T:
        async with await Stages.start(specs, recorder=recorder, timeouts=PATIENT) as pipeline:
            return await act(pipeline)

    return asyncio.run(run())


def stub_token(tokens: Sequence[int], position: int, num_stages: int) -> int:
    """The stub of the protocol document, written again from its text."""

    def stretch(seed: bytes) -> bytes:
        size = len(tokens) * 16 * 2
        blocks = (
            hashlib.sha256(seed + i.to_bytes(8, "little")).digest() for i in range(size // 32 + 1)
        )
        return b"".join(blocks)[:size]

    at = position.to_bytes(8, "little")
    text = f"pp-stub:{position}|{','.join(map(str, tokens))}"
    hidden = stretch(hashlib.sha256(text.encode()).digest())
    for _ in range(num_stages - 2):
        hidden = stretch(hashlib.sha256(b"pp-stub-fr:" + at + hidden).digest())
    drawn = hashlib.sha256(b"pp-stub-sample:" + at + hidden).digest()
    return int.from_bytes(drawn[:4], "little") % 32


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_tokens_pass_through_every_stage_in_order(num_stages: int) -> None:
    async def act(pipeline: Stages) -> list[SampledReply]:
        prompt = await pipeline.tokenize("r", "a b c")
        replies = [
            await pipeline.forward("r", prompt[:2], 0, None),
            await pipeline.forward("r", prompt[2:], 2, Sampling()),
            await pipeline.forward("r", (5, 6, 7), 3, Sampling(temperature=0.5, seed=-1)),
        ]
        await pipeline.release("r")
        return replies

    assert with_pipeline(stub_specs(num_stages), act) == [
        SampledReply(),
        SampledReply(token_id=stub_token([101], 2, num_stages)),
        SampledReply(token_id=stub_token([5, 6, 7], 3, num_stages)),
    ]


def test_layers_of_ones_own_choice_make_the_same_pipeline() -> None:
    layers = [(0, 1), (1, 127), (127, 128)]
    specs = [replace(stub_spec(i, 3), layers=given) for i, given in enumerate(layers)]

    async def act(pipeline: Stages) -> tuple[object, ...]:
        reply = await pipeline.forward("r", (1, 2), 0, Sampling())
        facts = pipeline.facts
        return reply.token_id, facts.num_layers, facts.hidden_dim, facts.vocab_size

    assert with_pipeline(specs, act) == (stub_token([1, 2], 0, 3), 128, 16, 32)


def test_the_first_cause_is_raised_by_calls_to_healthy_stages_too() -> None:
    recorder = MemoryRecorder()

    async def act(pipeline: Stages) -> list[str]:
        texts = []
        for _ in range(2):
            with pytest.raises(Crashed) as caught:
                await pipeline.forward("r", (1,), 0, Sampling())
            texts.append(str(caught.value))
        with pytest.raises(Crashed):
            await pipeline.tokenize("r", "healthy")
        return texts

    specs = [peer_spec("honest", 0, 3), peer_spec("dies_mid_op", 1, 3), peer_spec("honest", 2, 3)]
    sentence = (
        "stage 1 on dies_mid_op was killed by SIGKILL while serving forward_range: by someone or "
        "something on that host; nothing here points to memory"
    )
    assert with_pipeline(specs, act, recorder) == [sentence] * 2
    assert [record.sentence for record in recorder.failures] == [sentence]


def test_a_lost_stage_ends_the_op_in_flight_on_another_stage() -> None:
    async def act(pipeline: Stages) -> str:
        waiting = asyncio.ensure_future(pipeline.tokenize("r", "never answered"))
        await asyncio.sleep(0)
        assert pipeline.stages[1].ready is not None
        psutil.Process(pipeline.stages[1].ready.pid).kill()
        with pytest.raises(Crashed) as caught:
            await waiting
        return str(caught.value)

    specs = [peer_spec("never_answers", 0, 2), peer_spec("honest", 1, 2)]
    assert with_pipeline(specs, act).startswith("stage 1 on honest was killed by SIGKILL while id")


def test_one_stage_that_cannot_start_ends_the_others_and_is_the_one_named() -> None:
    recorder = MemoryRecorder()
    specs = [
        peer_spec("honest", 0, 3),
        peer_spec("never_ready", 1, 3),
        peer_spec("no_memory", 2, 3),
    ]
    with pytest.raises(NotReady) as caught:
        with_pipeline(specs, lambda pipeline: pipeline.release("r"), recorder)
    assert (str(caught.value), caught.value.exit_code) == (
        "stage 2 on no_memory cannot serve: needs 9.0 GiB, 4.0 GiB are free",
        4,
    )
    assert len(recorder.exits) == 3


def test_cancelling_a_start_leaves_nothing() -> None:
    recorder = MemoryRecorder()

    async def run() -> None:
        specs = [peer_spec("never_ready", stage, 2) for stage in range(2)]
        loading = asyncio.Event()
        start = asyncio.ensure_future(
            Stages.start(
                specs,
                recorder=recorder,
                timeouts=PATIENT,
                on_status=lambda s: loading.set() if s.phase == "loading" else None,
            )
        )
        await loading.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(run())
    assert [end.expected for end in recorder.exits] == [True, True]


def test_cancelling_a_start_at_its_very_beginning_leaves_nothing() -> None:
    async def run() -> None:
        start = asyncio.ensure_future(Stages.start(stub_specs(2), timeouts=PATIENT))
        for _ in range(3):
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(run())


def test_closing_twice_and_killing_are_safe() -> None:
    async def act(pipeline: Stages) -> None:
        pipeline.kill()
        await pipeline.aclose()
        await pipeline.aclose()

    recorder = MemoryRecorder()
    with_pipeline(stub_specs(2), act, recorder)
    assert [(end.signal, end.expected) for end in recorder.exits] == [("SIGKILL", True)] * 2


def test_a_wrong_option_is_the_workers_own_sentence_and_code() -> None:
    spec = StageSpec(stage=0, num_stages=1, options=WorkerOptions(stub=True, quantization="float3"))
    with pytest.raises(StageFailure, match="refused its configuration: ") as e:
        with_pipeline([spec], lambda pipeline: pipeline.release("r"))
    assert (e.value.exit_code, "float3" in str(e.value)) == (2, True)


def ready(start: int, end: int, **changes: object) -> Ready:
    fields = {
        "pid": 1,
        "protocol_version": "1.0",
        "version": "0",
        "layer_range": (start, end),
        "total_blocks": 10,
        "hidden_dim": 4,
        "vocab_size": 100,
        **changes,
    }
    return Ready(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        (
            [ready(0, 5), ready(6, 10)],
            (
                "stage 1 on local holds layers 6:10, but layer 5 is the next one due; give layers "
                "that follow each other in the order of the stages"
            ),
        ),
        (
            [ready(5, 10), ready(0, 5)],
            (
                "stage 0 on local holds layers 5:10, but layer 0 is the next one due; give layers "
                "that follow each other in the order of the stages"
            ),
        ),
        (
            [ready(0, 5), ready(5, 9)],
            "the stages hold layers 0:9 of 10; layers 9:10 are on no stage",
        ),
        (
            [ready(0, 5), ready(5, 10, hidden_dim=8)],
            (
                "stage 1 on local has hidden_dim 8, stage 0 on local has 4; give every stage the "
                "same model and revision"
            ),
        ),
        (
            [ready(0, 5, model_type="gpt2"), ready(5, 10, model_type="llama")],
            (
                "stage 1 on local has model_type llama, stage 0 on local has gpt2; give every "
                "stage the same model and revision"
            ),
        ),
    ],
)
def test_stages_that_are_not_one_model_are_refused(stages: list[Ready], sentence: str) -> None:
    with pytest.raises(PipelineMismatch) as caught:
        facts_of(stub_specs(len(stages)), stages)
    assert str(caught.value) == sentence


def test_facts_are_the_narrowest_of_all_stages() -> None:
    stages = [
        ready(0, 5, eos_token_ids=(1, 2), max_context=90, capabilities=("a", "b")),
        ready(5, 10, eos_token_ids=(2, 3), max_context=50, capabilities=("b",), needs_tokens=True),
    ]
    facts = facts_of(stub_specs(2), stages)
    assert (
        facts.eos_token_ids,
        facts.max_context,
        facts.capabilities,
        facts.shared_capabilities,
        facts.needs_tokens,
    ) == ({1, 2, 3}, 50, {"a", "b"}, {"b"}, True)
