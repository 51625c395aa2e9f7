"""Consecutive tokens of one request, as they go through the stages together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    def first_op(self, rid: RequestId) -> Request[HiddenReply]:
        """Return the first stage's op."""
        if len(self.tokens) == 1 and self.position > 0:
            return DecodeStep(request_id=rid, token_id=self.tokens[0], position=self.position)
        return EmbedAndForward(
            request_id=rid, tokens=self.tokens, position=self.position, as_steps=self.as_steps
        )

    def middle_op(
        self, rid: RequestId, hidden: HiddenReply, *, with_tokens: bool
    ) -> Request[HiddenReply]:
        """Return a middle stage's op; the hidden states' base64 text goes on as it is."""
        return ForwardRange(request_id=rid, **self._onward(hidden, with_tokens))

    def last_op(
        self,
        rid: RequestId,
        hidden: HiddenReply,
        sampling: Sampling | None,
        *,
        with_tokens: bool,
    ) -> ForwardAndSample:
        """Return the last stage's op; without `sampling` no token is chosen."""
        chosen = (
            {"sample": False}
            if sampling is None
            else {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}
        )
        return ForwardAndSample(request_id=rid, **chosen, **self._onward(hidden, with_tokens))

    def _onward(self, hidden: HiddenReply, with_tokens: bool) -> dict[str, Any]:
        return {
            "position": self.position,
            "as_steps": self.as_steps,
            "tokens": self.tokens if with_tokens else None,
            "seq_len": hidden.seq_len,
            "hidden_shape": hidden.hidden_shape,
            "hidden_dtype": hidden.hidden_dtype,
            "hidden_b64": hidden.hidden_b64,
        }
