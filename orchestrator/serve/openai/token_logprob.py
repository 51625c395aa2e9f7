"""How likely the tokens of an answer were, told in step with its text."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass

from orchestrator.generate import TokenOutput
from orchestrator.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token and those that were likeliest at its place.

    Attributes:
        logprob: natural log of its probability; None for the first token of a prompt.
        top: ids and log probabilities of the likeliest tokens.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


def piece_of(vocabulary: Vocabulary, token_id: int) -> bytes:
    """Return the bytes of a token; none where the id is past those that stand for something."""
    return vocabulary.pieces[token_id] if token_id < len(vocabulary.pieces) else b""


class ShownLogprobs:
    """Holds back the log probabilities of tokens whose text is held back.

    So the tokens told are those of the text shown, and none that lies behind the beginning of a
    stop string.

    Args:
        vocabulary: the bytes of the tokens.
        with_end: tell of the end-of-text token, too. Programs that score a prompt by `echo` drop
            the last entry, as that of the one token they must generate: so there must be one.
    """

    def __init__(self, vocabulary: Vocabulary, *, with_end: bool = False) -> None:
        self._vocabulary = vocabulary
        self._with_end = with_end
        self._held: deque[tuple[int, TokenLogprob]] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Characters of the tokens so far, and of the text that is shown.
        self._token_chars = 0
        self._shown_chars = 0

    def take(self, output: TokenOutput) -> tuple[TokenLogprob, ...]:
        """Return what may be told once a token's text is shown."""
        self._shown_chars += len(output.text)
        finish = output.finish
        is_cut = finish is not None and finish.matched_stop is not None
        is_end = finish is not None and finish.reason == "stop" and not is_cut
        if self._with_end or not is_end:
            self._hold(output)
        is_whole = finish is not None and not is_cut
        told = []
        while self._held and (is_whole or self._held[0][0] < self._shown_chars):
            told.append(self._held.popleft()[1])
        return tuple(told)

    def _hold(self, output: TokenOutput) -> None:
        """Keep a token with the place in the text where its own begins."""
        top = tuple(zip(output.top_tokens, output.top_logprobs, strict=True))
        one = TokenLogprob(token_id=output.token_id, logprob=output.logprob, top=top)
        self._held.append((self._token_chars, one))
        if output.token_id not in self._vocabulary.special_tokens:
            piece = piece_of(self._vocabulary, output.token_id)
            self._token_chars += len(self._decoder.decode(piece))
