"""Logits changed by what a request says of single tokens: added to some, taken from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from transformers.generation.logits_process import LogitsProcessor

from worker.protocol.payload import decode_base64
from worker.protocol.schema import ErrorCode, ProtocolError

# Added to any logit it stays within float32.
_LARGEST = 1e30


class TokenBias(LogitsProcessor):
    """Adds to the logits of single tokens.

    Args:
        tokens: distinct ids within the vocabulary.
        bias: what is added to the logit of each.

    Raises:
        ProtocolError: `bad_field`: a number of absurd size.
    """

    def __init__(self, tokens: Sequence[int], bias: Sequence[float]) -> None:
        for token, each in zip(tokens, bias, strict=True):
            if abs(each) > _LARGEST:
                raise ProtocolError(
                    ErrorCode.BAD_FIELD,
                    f"'bias' {each} of token {token} must be from {-_LARGEST} to {_LARGEST}; give "
                    "a number such as -100 to 100",
                )
        self._tokens = torch.tensor(tokens, dtype=torch.long)
        self._bias = torch.tensor(bias, dtype=torch.float32)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return changed scores, float32 `[batch, vocab]`."""
        changed = scores.index_add(-1, self._tokens, self._bias.expand(scores.shape[0], -1))
        return cast(torch.FloatTensor, changed)


class AllowedTokens(LogitsProcessor):
    """Rules out all tokens but some.

    Args:
        allowed_b64: base64 of a bitmap: token t is bit t % 8, counted from the lowest, of byte
            t // 8. Bytes that lack allow nothing, bits past the vocabulary are ignored.

    Raises:
        ProtocolError: `bad_field`: no base64.
    """

    def __init__(self, allowed_b64: bytes) -> None:
        self._bitmap = decode_base64("allowed_b64", allowed_b64)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return changed scores, float32 `[batch, vocab]`, -inf where ruled out."""
        vocab_size = scores.shape[-1]
        size = (vocab_size + 7) // 8
        packed = torch.frombuffer(
            bytearray(self._bitmap[:size].ljust(size, b"\0")), dtype=torch.uint8
        )
        # What each value of a byte adds to its eight tokens. Added to 150,000 scores by this table
        # it takes 0.16 ms on one core, by bits and a mask of their own 1.6 ms.
        bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
        by_byte = torch.zeros(256, 8).masked_fill(bits == 0, -torch.inf)
        added = by_byte.index_select(0, packed.int()).flatten()[:vocab_size]
        return cast(torch.FloatTensor, scores + added)
