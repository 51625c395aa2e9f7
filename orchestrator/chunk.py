"""Consecutive tokens of one request, as they go through the stages together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker.protocol.encodings import Encoding
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Request,
    RequestId,
    Sampling,
)
from worker.protocol.schema import rules_of

_SAMPLING_FIELDS = tuple(field.name for field, _ in rules_of(Sampling))


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which tokens a last stage shall tell the probability of, beside what it does to a chunk.

    Attributes:
        tokens: the one that stands after each row, of which the last rows may have none.
        top_logprobs: how many of the likeliest to name at each place.
    """

    tokens: tuple[int, ...]
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that one op on each stage works on; the boundaries between chunks decide bits.

    Attributes:
        tokens: ids of consecutive tokens.
        position: absolute index of the first.
        as_steps: whether each position is worked on as an op of its own would.
    """

    tokens: tuple[int, ...]
    position: int
    as_steps: bool = False

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.position + len(self.tokens)

    @property
    def is_step(self) -> bool:
        """Whether it is one decode step; several in a row may be packed into one op."""
        return self.position > 0 and (len(self.tokens) == 1 or self.as_steps)

    def first_op(self, rid: RequestId, encoding: str = Encoding.BF16) -> Request[HiddenReply]:
        """Return the first stage's op; its reply has the encoding."""
        if len(self.tokens) == 1 and self.position > 0:
            return DecodeStep(
                request_id=rid,
                token_id=self.tokens[0],
                position=self.position,
                reply_encoding=encoding,
            )
        return EmbedAndForward(
            request_id=rid,
            tokens=self.tokens,
            position=self.position,
            as_steps=self.as_steps,
            reply_encoding=encoding,
        )

    def middle_op(
        self,
        rid: RequestId,
        hidden: HiddenReply,
        *,
        with_tokens: bool,
        encoding: str = Encoding.BF16,
    ) -> Request[HiddenReply]:
        """Return a middle stage's op; the hidden states' base64 text goes on as it is."""
        onward = self._onward(hidden, with_tokens)
        return ForwardRange(request_id=rid, reply_encoding=encoding, **onward)

    def last_op(
        self,
        rid: RequestId,
        hidden: HiddenReply,
        sampling: Sampling | None,
        *,
        with_tokens: bool,
        each: bool = False,
        scoring: Scoring | None = None,
    ) -> ForwardAndSample:
        """Return the last stage's op.

        Args:
            rid: names the KV cache.
            hidden: what the stage before gave.
            sampling: how to choose a token; None chooses none.
            with_tokens: whether the model wants the token ids too.
            each: of a chunk `as_steps`, whether to choose a token after each of its rows.
            scoring: tokens to be scored; its `top_logprobs` stand for those of `sampling` too.
        """
        # The rows of one op count for each other's penalty.
        with_tokens = with_tokens or (
            each and sampling is not None and sampling.repetition_penalty != 1
        )
        chosen: dict[str, Any] = (
            {"sample": False}
            if sampling is None
            else {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}
        )
        if scoring is not None:
            chosen |= {"score_tokens": scoring.tokens, "top_logprobs": scoring.top_logprobs}
        onward = self._onward(hidden, with_tokens)
        return ForwardAndSample(request_id=rid, **chosen, sample_steps=each, **onward)

    def _onward(self, hidden: HiddenReply, with_tokens: bool) -> dict[str, Any]:
        return {
            "position": self.position,
            "as_steps": self.as_steps,
            "tokens": self.tokens if with_tokens else None,
            "seq_len": hidden.seq_len,
            "hidden_shape": hidden.hidden_shape,
            "hidden_dtype": hidden.hidden_dtype,
            "hidden_encoding": hidden.hidden_encoding,
            "hidden_b64": hidden.hidden_b64,
        }
