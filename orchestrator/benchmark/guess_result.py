"""What guessing tokens ahead gained, text by text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.benchmark.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessedText:
    """One text, answered with guesses and without.

    Attributes:
        about: what there is to guess.
        first_tokens_per_s: of the guessed answer before all others, which is in no figure.
        ratio: tokens/s with guesses by those without, of each round.
        guessed_tokens: guessed and worked on, in all rounds together.
        right_guesses: how many of those were right.
        same_tokens: whether every answer had the same token ids.
    """

    name: str
    about: str
    prompt_tokens: int
    first_tokens_per_s: float
    plain_tokens_per_s: Figure
    guessed_tokens_per_s: Figure
    ratio: Figure
    guessed_tokens: int
    right_guesses: int
    same_tokens: bool

    @property
    def accepted_share(self) -> float | None:
        """Right guesses by guesses; None where nothing was guessed."""
        return self.right_guesses / self.guessed_tokens if self.guessed_tokens else None

    def to_json(self) -> dict[str, Any]:
        """Return names with units."""
        return {
            "text": self.name,
            "about": self.about,
            "prompt_tokens": self.prompt_tokens,
            "first_request_tokens_per_s": self.first_tokens_per_s,
            "plain_tokens_per_s": self.plain_tokens_per_s.to_json(),
            "guessed_tokens_per_s": self.guessed_tokens_per_s.to_json(),
            "ratio": self.ratio.to_json(),
            "guessed_tokens": self.guessed_tokens,
            "right_guesses": self.right_guesses,
            "accepted_share": self.accepted_share,
            "same_tokens": self.same_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessResult:
    """All texts; `draft_model` is None where the text itself was looked up."""

    draft_model: str | None
    texts: tuple[GuessedText, ...]

    @property
    def kind(self) -> str:
        """As --speculate names it."""
        return "ngram" if self.draft_model is None else "draft"

    @property
    def same_tokens(self) -> bool:
        """Whether guesses changed no token."""
        return all(text.same_tokens for text in self.texts)

    def to_json(self) -> dict[str, Any]:
        """Return names with units."""
        return {
            "kind": self.kind,
            "draft_model": self.draft_model,
            "same_tokens": self.same_tokens,
            "texts": [text.to_json() for text in self.texts],
        }
