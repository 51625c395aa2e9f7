"""Sampling means what transformers means, and a draw depends on (seed, position) alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from worker.backends.base import Sampled
from worker.model.sampling import choose, choose_rows, filtered, uniform
from worker.protocol.ops import ForwardAndSample, Sampling
from worker.protocol.schema import ErrorCode, ProtocolError, parse

VOCAB = 64
PENALTY_TOKENS = (3, 7, 11)
SUPPRESSED = (5, 6)


def logits(seed: int = 0, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(batch, VOCAB, generator=generator) * 3).to(torch.bfloat16)


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    return LlamaForCausalLM(config)


def reference_scores(
    model: LlamaForCausalLM, scores: torch.Tensor, options: dict[str, Any]
) -> torch.Tensor:
    """Let `generate`'s own choice of processors, in its own order, work on the scores."""
    tokens = torch.tensor([options.pop("penalty_tokens", ())], dtype=torch.long)
    config = GenerationConfig(**{"do_sample": True, "top_k": 0, **options})
    processors = model._get_logits_processor(
        generation_config=config, input_ids_seq_length=tokens.shape[1], device="cpu"
    )
    return processors(tokens, scores.float())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_k": 10**6},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.0, "repetition_penalty": 1.7, "penalty_tokens": PENALTY_TOKENS},
        {"temperature": 1.0, "suppress_tokens": SUPPRESSED},
        {
            "temperature": 0.8,
            "top_k": 20,
            "top_p": 0.9,
            "min_p": 0.01,
            "repetition_penalty": 1.2,
            "penalty_tokens": PENALTY_TOKENS,
            "suppress_tokens": SUPPRESSED,
        },
    ],
    ids=lambda options: "+".join(options),
)
def test_each_option_filters_what_generate_filters(
    reference: LlamaForCausalLM, options: dict[str, Any]
) -> None:
    for seed in range(5):
        scores = logits(seed)
        ours = filtered(scores.float(), Sampling(**options))
        assert torch.equal(ours, reference_scores(reference, scores, dict(options)))


def test_each_option_changes_the_scores() -> None:
    scores = logits().float()
    plain = filtered(scores, Sampling(temperature=1.0))
    changed = [
        Sampling(temperature=0.5),
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.0, top_p=0.5),
        Sampling(temperature=1.0, min_p=0.2),
        Sampling(temperature=1.0, repetition_penalty=1.5, penalty_tokens=PENALTY_TOKENS),
        Sampling(temperature=1.0, suppress_tokens=SUPPRESSED),
    ]
    assert not [options for options in changed if torch.equal(filtered(scores, options), plain)]


def test_greedy_is_the_first_maximum_after_penalty_and_suppression() -> None:
    scores = torch.zeros(1, VOCAB)
    scores[0, [9, 20, 30]] = torch.tensor([4.0, 3.0, 3.0])
    assert choose(scores, Sampling(), 0).token_ids == (9,)
    assert choose(scores, Sampling(suppress_tokens=(9,)), 0).token_ids == (20,)
    penalized = Sampling(repetition_penalty=2.0, penalty_tokens=(9, 20))
    assert choose(scores, penalized, 0).token_ids == (30,)


def test_a_draw_is_a_pure_function_of_seed_and_position() -> None:
    options = Sampling(temperature=1.0, seed=42)
    forward = [choose(logits(p), options, p).token_ids for p in range(50)]
    backward = [choose(logits(p), options, p).token_ids for p in reversed(range(50))]
    torch.manual_seed(1)
    assert forward == backward[::-1]
    assert len({choose(logits(), Sampling(temperature=2.0), p).token_ids for p in range(50)}) > 5
    seeds = [-1, 0, 1, 2**70, *range(2, 40)]
    drawn = {choose(logits(), Sampling(temperature=2.0, seed=s), 7).token_ids for s in seeds}
    assert len(drawn) > 5


def test_rows_of_a_batch_draw_for_themselves() -> None:
    same_rows = logits().expand(8, VOCAB)
    drawn = choose(same_rows, Sampling(temperature=3.0, seed=5), 3).token_ids
    assert len(drawn) == 8 and len(set(drawn)) > 2
    assert drawn[0] == choose(logits(), Sampling(temperature=3.0, seed=5), 3).token_ids[0]


def test_uniform_is_fixed_for_all_time_and_within_the_unit_interval() -> None:
    # A seed must give the same answer on every machine and version.
    assert uniform(0, 0, 0) == 0.10427462703881885
    points = [uniform(seed, position, 0) for seed in range(100) for position in range(20)]
    assert all(0 <= point < 1 for point in points) and len(set(points)) == len(points)


def test_draws_follow_the_probabilities() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5, -torch.inf]])
    draws = 4000
    drawn = Counter(
        choose(scores, Sampling(temperature=1.0, seed=seed), 11).token_ids[0]
        for seed in range(draws)
    )
    expected = (scores[0].softmax(-1) * draws).tolist()
    chi_square = sum((drawn[i] - e) ** 2 / e for i, e in enumerate(expected) if e)
    assert drawn[5] == 0
    assert chi_square < 18.47  # 4 degrees of freedom, p = 0.001; the draws are fixed


def test_temperature_0_and_2_differ_and_a_tiny_one_is_greedy() -> None:
    greedy = [choose(logits(p), Sampling(), p).token_ids for p in range(30)]
    tiny = [choose(logits(p), Sampling(temperature=1e-300), p).token_ids for p in range(30)]
    hot = [choose(logits(p), Sampling(temperature=2.0), p).token_ids for p in range(30)]
    assert tiny == greedy != hot


def test_logprobs_are_of_the_raw_logits() -> None:
    scores = logits()
    options = Sampling(temperature=0.3, top_k=2, suppress_tokens=(1,), logprobs=True)
    sampled = choose(scores, Sampling(**{**vars(options), "top_logprobs": 4}), 0)
    raw = scores.float().log_softmax(-1)[0]
    best = raw.topk(4)
    assert sampled.logprob == raw[sampled.token_ids[0]].item()
    assert sampled.top_tokens == tuple(best.indices.tolist())
    assert sampled.top_logprobs == tuple(best.values.tolist())
    assert choose(scores, Sampling(), 0).logprob is None


def test_top_logprobs_name_possible_tokens_alone() -> None:
    scores = torch.full((1, VOCAB), -torch.inf)
    scores[0, [4, 2]] = torch.tensor([1.0, 0.0])
    sampled = choose(scores, Sampling(top_logprobs=10), 0)
    assert sampled.top_tokens == (4, 2)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_broken_logits_are_named_not_sampled(broken: float) -> None:
    scores = logits()
    scores[0, 17] = broken
    with pytest.raises(ProtocolError, match="position 12") as caught:
        choose(scores, Sampling(temperature=1.0), 12)
    assert caught.value.code is ErrorCode.INTERNAL


def test_nothing_left_to_choose_is_refused() -> None:
    with pytest.raises(ProtocolError, match="all 64 tokens") as caught:
        choose(logits(), Sampling(suppress_tokens=tuple(range(VOCAB))), 0)
    assert caught.value.code is ErrorCode.BAD_FIELD


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_past_the_range_of_numbers_is_refused(temperature: float) -> None:
    tokens = tuple(range(VOCAB))
    options = Sampling(repetition_penalty=1e-300, penalty_tokens=tokens, temperature=temperature)
    with pytest.raises(ProtocolError, match=r"repetition_penalty.*1e-300") as caught:
        choose(logits(), options, 0)
    assert caught.value.code is ErrorCode.BAD_FIELD


def test_a_penalty_that_cannot_be_applied_is_refused() -> None:
    request = {"position": 0, "seq_len": 1, "hidden_b64": "", "repetition_penalty": 1.1}
    with pytest.raises(ProtocolError, match="penalty_tokens"):
        parse(ForwardAndSample, request)
    with pytest.raises(ProtocolError, match="batch of 1"):
        parse(ForwardAndSample, {**request, "penalty_tokens": [1], "batch": 2})
    assert parse(ForwardAndSample, {**request, "penalty_tokens": []}).penalty_tokens == ()


def test_many_rows_are_chosen_as_each_alone() -> None:
    rows = logits(seed=4, batch=6)
    rows[1, [5, 9, 40]] = rows[1].max() + 1  # Of equal ones the first.
    rows[2, 3] = torch.nan
    options = [
        Sampling(),
        Sampling(),
        Sampling(),
        Sampling(temperature=1.0, top_k=9, seed=3),
        Sampling(repetition_penalty=1.7, penalty_tokens=PENALTY_TOKENS, top_logprobs=3),
        Sampling(suppress_tokens=tuple(range(VOCAB))),
    ]
    found = choose_rows(rows, options, range(10, 16))
    alone = [told(rows[i : i + 1], options[i], 10 + i) for i in range(6)]
    assert [each.text if isinstance(each, ProtocolError) else each for each in found] == alone
    assert alone[1] == Sampled(token_ids=(5,))
    assert [isinstance(each, str) for each in alone] == [False, False, True, False, False, True]


def told(row: torch.Tensor, options: Sampling, position: int) -> Sampled | str:
    try:
        return choose(row, options, position)
    except ProtocolError as error:
        return error.text
