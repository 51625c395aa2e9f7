"""Bias and bitmaps mean what transformers' own processors mean, alone and among other requests."""

from __future__ import annotations

import base64
import random
from collections.abc import Collection

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from worker.model.sampling import choose, choose_rows, filtered
from worker.protocol.ops import ForwardAndSample, Sampling
from worker.protocol.schema import ErrorCode, ProtocolError, parse

VOCAB = 61
BIAS = {3: 2.5, 7: -100.0, 60: 4.0}


def logits(seed: int = 0, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(batch, VOCAB, generator=generator) * 3).to(torch.bfloat16)


def bitmap(allowed: Collection[int], size: int = 8) -> bytes:
    packed = bytearray(size)
    for token in allowed:
        packed[token // 8] |= 1 << token % 8
    return base64.b64encode(packed)


def biased(bias: dict[int, float] = BIAS, **more: object) -> Sampling:
    return Sampling(
        bias_tokens=tuple(bias),
        bias=tuple(bias.values()),
        **more,  # type: ignore[arg-type]
    )


def refusal(options: Sampling) -> str:
    with pytest.raises(ProtocolError) as caught:
        choose(logits(), options, 0)
    assert caught.value.code is ErrorCode.BAD_FIELD
    return caught.value.text


def test_a_bias_is_the_sequence_bias_of_transformers() -> None:
    seen = torch.zeros(2, 1, dtype=torch.long)
    theirs = SequenceBiasLogitsProcessor({(token,): bias for token, bias in BIAS.items()})
    scores = logits(batch=2).float()
    assert torch.equal(filtered(scores, biased()), theirs(seen, scores))


def test_a_bitmap_is_the_prefix_constraint_of_transformers() -> None:
    luck = random.Random(1)
    seen = torch.zeros(2, 1, dtype=torch.long)
    scores = logits(batch=2).float()
    for count in (1, 8, 9, 30, VOCAB):
        allowed = luck.sample(range(VOCAB), count)
        theirs = PrefixConstrainedLogitsProcessor(lambda _batch, _ids, a=allowed: a, 1)
        ours = filtered(scores, Sampling(allowed_b64=bitmap(allowed)))
        assert torch.equal(ours, theirs(seen, scores))


def test_the_order_is_penalty_bias_suppression_bitmap_temperature() -> None:
    scores, allowed, seen = logits().float(), list(range(0, VOCAB, 2)), (60, 4)
    options = biased(
        repetition_penalty=1.7,
        penalty_tokens=seen,
        suppress_tokens=(8,),
        allowed_b64=bitmap(allowed),
        temperature=0.5,
        top_k=9,
    )
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.7),
            SequenceBiasLogitsProcessor({(token,): bias for token, bias in BIAS.items()}),
            SuppressTokensLogitsProcessor([8]),
            PrefixConstrainedLogitsProcessor(lambda _batch, _ids: allowed, 1),
            TemperatureLogitsWarper(0.5),
            TopKLogitsWarper(9),
        ]
    )
    assert torch.equal(filtered(scores, options), theirs(torch.tensor([seen]), scores))


@pytest.mark.parametrize("size", [1, 2, 8, 40])
def test_bytes_that_lack_allow_nothing_and_bits_past_the_vocabulary_do_nothing(size: int) -> None:
    packed = base64.b64encode(b"\xff" * size)
    scores = filtered(logits().float(), Sampling(allowed_b64=packed))
    expected = [token < 8 * size for token in range(VOCAB)]
    assert scores.isfinite()[0].tolist() == expected


def test_the_model_is_chosen_from_but_logprobs_are_of_the_raw_logits() -> None:
    allowed = [5, 9, 30]
    found = choose(logits(), Sampling(allowed_b64=bitmap(allowed), logprobs=True), 0)
    raw = logits().float()[0]
    best = max(allowed, key=lambda token: float(raw[token]))
    assert (found.token_ids, found.logprob) == ((best,), float(raw.log_softmax(-1)[best]))


def test_steered_rows_among_plain_ones_are_chosen_as_each_alone() -> None:
    rows = logits(seed=3, batch=5)
    options = [
        Sampling(),
        biased(),
        Sampling(allowed_b64=bitmap([2, 11])),
        biased(temperature=1.0, seed=5, allowed_b64=bitmap(range(20))),
        Sampling(),
    ]
    alone = [choose(rows[i : i + 1], options[i], 10 + i) for i in range(5)]
    assert choose_rows(rows, options, range(10, 15)) == alone


def test_what_leaves_nothing_to_choose_is_refused() -> None:
    assert "'allowed_b64' allows none of the 61 tokens" in refusal(Sampling(allowed_b64=b""))
    past = base64.b64encode(b"\0" * 7 + b"\xe0")  # Bits 61 to 63.
    assert "set the bit of at least one" in refusal(Sampling(allowed_b64=past))
    both = Sampling(allowed_b64=bitmap([4]), suppress_tokens=(4,))
    assert "'suppress_tokens' leaves none" in refusal(both)


def test_what_cannot_be_read_is_refused() -> None:
    assert "invalid base64 in allowed_b64" in refusal(Sampling(allowed_b64=b"?"))
    assert "'bias' 1e+300 of token 3" in refusal(biased({3: 1e300}))


def test_a_bias_has_a_number_for_each_token_and_scores_a_row_for_each() -> None:
    request = {"position": 0, "seq_len": 2, "hidden_b64": ""}
    for fields, words in (
        ({"bias_tokens": [1, 2], "bias": [1.0]}, "2 ids and 'bias' 1 numbers"),
        ({"score_tokens": [1, 2, 3]}, "3 ids for 2 rows"),
        ({"score_tokens": [1], "batch": 2}, "one sequence"),
        ({"score_tokens": [1], "as_steps": True}, "one sequence"),
    ):
        with pytest.raises(ProtocolError, match=words):
            parse(ForwardAndSample, {**request, **fields})
