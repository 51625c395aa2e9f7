"""Scores of a text are those of the whole model, however it is cut, and nothing is left behind."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from orchestrator.failures import OpRejected
from orchestrator.request import RequestRefused
from orchestrator.scoring import TokenScore, score
from orchestrator.specs import StageSpec
from orchestrator.stages import Stages
from orchestrator.vocabulary import Vocabulary
from tests.support.chain import Chain
from tests.support.recovery_lab import QUICK, Watch, history_spec, inflict
from tests.support.stages import PATIENT, MemoryRecorder, stub_specs
from tests.support.tiny import tiny_checkpoint
from worker.protocol.ops import Sampling

T = TypeVar("T")
VOCAB = 160


def with_stages(
    specs: Sequence[StageSpec],
    act: Callable[[Stages], Awaitable[T]],
    recorder: MemoryRecorder | None = None,
    **options: Any,
) -> T:
    async def run() -> T:
        async with await Stages.start(
            specs, recorder=recorder, timeouts=PATIENT, **options
        ) as stages:
            return await act(stages)

    return asyncio.run(run())


def stub_score(hidden: bytes, position: int, token: int) -> tuple[float, int]:
    """The stub's chapter of the protocol document, written again from its text."""
    digest = hashlib.sha256(b"pp-stub-sample:" + position.to_bytes(8, "little") + hidden).digest()
    likeliest = int.from_bytes(digest[:4], "little") % 32
    total = math.log(sum(math.exp(-t) for t in range(32)))
    return -((token - likeliest) % 32) - total, likeliest


def stub_rows(tokens: Sequence[int], position: int) -> list[bytes]:
    text = f"pp-stub:{position}|{','.join(map(str, tokens))}"
    seed = hashlib.sha256(text.encode()).digest()
    return [hashlib.sha256(seed + i.to_bytes(8, "little")).digest() for i in range(len(tokens))]


@pytest.mark.parametrize("num_stages", [1, 2])
def test_a_text_is_scored_chunk_by_chunk(num_stages: int) -> None:
    tokens = [5, 9, 31, 0, 7, 7, 12]

    async def act(stages: Stages) -> list[TokenScore]:
        return await score(stages, tokens, top_logprobs=2, prefill_chunk=3)

    found = with_stages(stub_specs(num_stages), act)
    rows = [row for i in (0, 3, 6) for row in stub_rows(tokens[i : i + 3], i)]
    expected = [stub_score(rows[i], i, token) for i, token in enumerate(tokens[1:])]
    assert found[0] == TokenScore(5, None)
    assert [one.token_id for one in found] == tokens
    assert [one.logprob for one in found[1:]] == pytest.approx([one for one, _ in expected])
    likeliest = [one for _, one in expected]
    assert [one.top_tokens for one in found[1:]] == [(t, (t + 1) % 32) for t in likeliest]


def history_specs(num_stages: int = 3) -> list[StageSpec]:
    return [history_spec(i, num_stages, host=f"host-{i}") for i in range(num_stages)]


@pytest.mark.parametrize("lost", [0, 2])
def test_scores_do_not_depend_on_a_lost_stage_and_the_caches_are_freed(lost: int) -> None:
    tokens = [10 + i % 70 for i in range(40)]
    watch = Watch()

    def on_op(record: Any) -> None:
        if record.op == "forward_and_sample":
            watch.on_op = lambda record: None
            inflict("kill", watch.pids[lost])

    async def act(stages: Stages) -> tuple[list[TokenScore], int]:
        watch.on_op = on_op
        found = await score(stages, tokens, top_logprobs=1, prefill_chunk=4)
        await watch.recovered(1)
        return found, stages.history_bytes(watch.ops[0].rid)

    found, held_bytes = with_stages(history_specs(), act, watch, policy=QUICK)
    assert found == undisturbed(tuple(tokens))
    assert held_bytes == 0
    freed = [record.op for record in watch.ops if record.op == "release"]
    assert len(freed) >= 2


def undisturbed(tokens: tuple[int, ...]) -> list[TokenScore]:
    async def act(stages: Stages) -> list[TokenScore]:
        return await score(stages, tokens, top_logprobs=1, prefill_chunk=4)

    return with_stages(history_specs(), act)


def test_what_cannot_be_scored_is_refused_and_the_stages_serve_on() -> None:
    async def act(stages: Stages) -> tuple[str, str, int]:
        with pytest.raises(RequestRefused) as none:
            await score(stages, [])
        with pytest.raises(OpRejected) as outside:
            await score(stages, [1, 2, 100], prefill_chunk=2)
        return str(none.value), outside.value.code, len(await score(stages, [1, 2]))

    told, code, count = with_stages(history_specs(2), act)
    assert (told[:32], code, count) == ("there are no tokens to score; gi", "bad_field", 2)


def test_a_stage_that_cannot_score_is_named() -> None:
    async def act(stages: Stages) -> str:
        facts = stages.facts
        ready = (*facts.ready[:-1], replace(facts.ready[-1], capabilities=()))
        stages._seats._facts = replace(facts, ready=ready)
        with pytest.raises(RequestRefused) as caught:
            await score(stages, [1])
        return str(caught.value)

    assert "cannot score tokens" in with_stages(stub_specs(2), act)


def test_the_vocabulary_of_the_first_stage_spells_what_the_last_one_detokenizes() -> None:
    async def act(stages: Stages) -> tuple[Vocabulary, str]:
        return await stages.vocabulary(), await stages.detokenize("r", (3, 14, 31))

    known, text = with_stages(stub_specs(2), act)
    assert b"".join(known.pieces[i] for i in (3, 14, 31)).decode() == " " + text
    assert (len(known.pieces), known.special_tokens, known.chat_template) == (32, frozenset(), None)


def allowed(*tokens: int) -> Sampling:
    bits = sum(1 << token for token in tokens)
    return Sampling(allowed_b64=base64.b64encode(bits.to_bytes(4, "little")), logprobs=True)


@pytest.mark.parametrize("num_stages", [1, 2])
def test_the_stub_chooses_what_bias_and_bitmap_leave(num_stages: int) -> None:
    async def act(stages: Stages) -> list[int | None]:
        plain = (await stages.forward("r", [1, 2], 0, Sampling())).token_id or 0
        others = [(plain + i) % 32 for i in (3, 2, 9)]
        options = [
            allowed(*others),
            replace(allowed(*others), suppress_tokens=(others[1],)),
            Sampling(bias_tokens=(others[2],), bias=(9.5,)),
            Sampling(bias_tokens=(others[2],), bias=(8.5,)),
        ]
        found = [(await stages.forward("r", [1, 2], 0, each)).token_id for each in options]
        return [None if token is None else (token - plain) % 32 for token in found]

    assert with_stages(stub_specs(num_stages), act) == [2, 3, 9, 0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama", vocab_size=VOCAB)


def reference_logprobs(folder: Path, tokens: Sequence[int], chunk: int) -> torch.Tensor:
    """Return `[tokens, vocab]` float32 of plain transformers over the same chunks."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        found = [
            model(torch.tensor([tokens[i : i + chunk]]), cache=cache).logits[0]
            for i in range(0, len(tokens), chunk)
        ]
    return torch.cat(found).float().log_softmax(-1)


@pytest.mark.parametrize("bounds", [(0, 6), (0, 2, 6)])
def test_scores_of_every_row_are_those_of_plain_transformers(
    llama: Path, bounds: tuple[int, ...]
) -> None:
    tokens, chunk = [(7 * i + 3) % VOCAB for i in range(60)], 40
    expected = reference_logprobs(llama, tokens, chunk)
    chain, scores = Chain(llama, bounds), []
    for start in range(0, len(tokens), chunk):
        after = tuple(tokens[start + 1 : start + chunk + 1])
        ids = tokens[start : start + chunk]
        reply = chain.forward(1, ids, start, sample=False, score_tokens=after, top_logprobs=3)
        assert reply.token_id is None
        scores += reply.scores or ()
    own = [float(expected[i, token]) for i, token in enumerate(tokens[1:])]
    top = expected[:-1].topk(3)
    assert [one["logprob"] for one in scores] == pytest.approx(own, abs=1e-5)
    assert [one["top_tokens"] for one in scores] == top.indices.tolist()
    flat = [value for one in scores for value in one["top_logprobs"]]
    assert flat == pytest.approx(top.values.flatten().tolist(), abs=1e-5)


def test_scoring_changes_neither_the_token_nor_what_follows(llama: Path) -> None:
    chain = Chain(llama, (0, 2, 6))
    tokens, more = list(range(30, 50)), {"logprobs": True, "top_logprobs": 2}
    plain = [chain.forward(1, tokens, 0, **more), chain.forward(1, [9], 20, **more)]
    scored = [
        chain.forward(2, tokens, 0, **more, score_tokens=tuple(tokens[1:])),
        chain.forward(2, [9], 20, **more, score_tokens=(4,)),
    ]
    assert [len(reply.scores or ()) for reply in scored] == [19, 1]
    assert [replace(reply, scores=None) for reply in scored] == plain
