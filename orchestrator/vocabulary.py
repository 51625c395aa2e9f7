"""What the token ids of a model stand for."""

from __future__ import annotations

import base64
import binascii
import itertools
from dataclasses import dataclass

from worker.protocol.errors import ErrorCode, ProtocolError
from worker.protocol.ops import VocabularyReply


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Every token of a model.

    Attributes:
        pieces: bytes that each token id stands for, in order; those of an answer's tokens joined
            are its text, but for a leading space that some tokenizers drop. Empty where an id
            stands for none.
        special_tokens: ids that stand for no text of their own, though they have a name.
        chat_template: source of the chat template; None where there is none.
    """

    pieces: tuple[bytes, ...]
    special_tokens: frozenset[int]
    chat_template: str | None

    @staticmethod
    def of(reply: VocabularyReply) -> Vocabulary:
        """Return what a stage's reply tells.

        Raises:
            ProtocolError: `bad_field`: the lengths and the bytes do not agree.
        """
        try:
            joined = base64.b64decode(reply.tokens_b64, validate=True)
        except binascii.Error as error:
            raise ProtocolError(
                ErrorCode.BAD_FIELD, f"'tokens_b64' is no base64: {error}"
            ) from None
        ends = list(itertools.accumulate(reply.token_lengths, initial=0))
        if ends[-1] != len(joined):
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"'token_lengths' are {ends[-1]} bytes together, 'tokens_b64' holds {len(joined)}",
            )
        pieces = tuple(joined[start:end] for start, end in itertools.pairwise(ends))
        return Vocabulary(pieces, frozenset(reply.special_tokens), reply.chat_template)
