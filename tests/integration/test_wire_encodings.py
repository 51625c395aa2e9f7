"""Stages that pack what they send each other: the answer is the same, or nearly where asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchestrator.failures import PipelineMismatch
from orchestrator.stages import Stages
from tests.support.chain import Chain
from tests.support.recovery_lab import QUICK, Ask, Watch, answers, history_spec, inflict
from tests.support.stages import PATIENT, stub_specs
from tests.support.tiny import tiny_checkpoint
from worker.protocol.encodings import Encoding

pytest.importorskip("zstandard")

PLANES, INT8 = Encoding.BF16_PLANES_ZSTD.value, Encoding.INT8_ROW_TOP8.value
PROMPT = [9, 45, 12, 77, 130, 8, 201, 33, 5]


def test_packed_prefill_gives_the_same_answer_also_after_a_stage_was_lost() -> None:
    asked, specs = Ask(2), [history_spec(i, 3, host=f"host-{i}") for i in range(3)]

    async def run() -> tuple[object, ...]:
        watch = Watch()

        def on_token(rid: str, count: int) -> None:
            if (rid, count) == ("r0", 5):
                inflict("kill", watch.pids[1])

        async with await Stages.start(
            specs, recorder=watch, policy=QUICK, timeouts=PATIENT, wire_encoding=PLANES
        ) as pipeline:
            got = await answers(pipeline, watch, asked.requests(), on_token=on_token)
            return got, pipeline.encodings_used, [one.ok for one in watch.recoveries]

    assert asyncio.run(run()) == (asked.expected(3), ("bf16", PLANES), [True])


def test_stages_that_cannot_do_what_was_asked_are_refused_and_ended() -> None:
    async def run() -> None:
        async with await Stages.start(stub_specs(2), timeouts=PATIENT, wire_encoding=INT8):
            pass

    with pytest.raises(PipelineMismatch, match=r"stage 0 on local knows .* asks for int8"):
        asyncio.run(run())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama", vocab_size=300)


def test_planes_give_the_whole_models_logprobs_and_int8_ones_close_to_them(llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        exact = model(torch.tensor([PROMPT])).logits[0, -1].float().log_softmax(-1).tolist()
    chain = Chain(llama, (0, 2, 4, 6))
    found = {}
    for encoding in (PLANES, INT8):
        reply = chain.forward(1, PROMPT, 0, encoding=encoding, top_logprobs=300)
        pairs = zip(reply.top_tokens or (), reply.top_logprobs or (), strict=True)
        found[encoding] = [logprob for _, logprob in sorted(pairs)]
    assert found[PLANES] == pytest.approx(exact, abs=1e-6)
    assert max(abs(a - b) for a, b in zip(found[INT8], exact, strict=True)) < 0.05
