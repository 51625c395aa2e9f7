"""OpenAI's two objects for the log probabilities of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from orchestrator.serve.openai.token_logprob import TokenLogprob, piece_of
from orchestrator.vocabulary import Vocabulary

# What OpenAI writes for a token that cannot come at all; JSON has no infinity.
_LEAST = -9999.0


class ChatLogprobs:
    """Makes the `logprobs` of chat completions."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def of(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the object of some tokens."""
        return {
            "content": [
                {
                    **self._entry(one.token_id, one.logprob),
                    "top_logprobs": [self._entry(*likely) for likely in one.top],
                }
                for one in tokens
            ],
            "refusal": None,
        }

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        piece = piece_of(self._vocabulary, token_id)
        return {
            # A token may be a part of a character: its bytes are exact, its text cannot be.
            "token": piece.decode("utf-8", "replace"),
            "logprob": _told(logprob),
            "bytes": list(piece),
        }


class TextLogprobs:
    """Makes the `logprobs` of plain completions, for one answer from its beginning.

    `text_offset` counts characters of the choice's `text`; special tokens have no width in it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._chars = 0

    def of(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the object of the tokens that come next."""
        return {
            "tokens": [self._text(one.token_id) for one in tokens],
            "token_logprobs": [_told(one.logprob) for one in tokens],
            "top_logprobs": [self._top(one) for one in tokens],
            "text_offset": [self._offset(one.token_id) for one in tokens],
        }

    def _top(self, one: TokenLogprob) -> dict[str, float | None] | None:
        if one.logprob is None:
            return None
        top: dict[str, float | None] = {}
        # The chosen one stands there even where others were likelier. Of two tokens with one text
        # the likelier stands.
        for token_id, logprob in (*one.top, (one.token_id, one.logprob)):
            top.setdefault(self._text(token_id), _told(logprob))
        return top

    def _text(self, token_id: int) -> str:
        piece = piece_of(self._vocabulary, token_id)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            # As OpenAI writes a part of a character; so two of them stay two keys.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _offset(self, token_id: int) -> int:
        offset = self._chars
        if token_id not in self._vocabulary.special_tokens:
            self._chars += len(self._decoder.decode(piece_of(self._vocabulary, token_id)))
        return offset


def _told(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST)
