"""One compiled grammar, and how far one answer has come in it."""

from __future__ import annotations

from llguidance import LLMatcher

from orchestrator.grammar.refused import GrammarRefused

_REASON_CHARS = 300
# What the library says where no token may come next.
_NO_WAY_ON = "NoExtensionBias"


class CompiledGrammar:
    """A grammar of llguidance, ready for any number of answers; see `Grammar`.

    Args:
        matcher: at the start; not used by others.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def begin(self) -> TokenConstraint:
        """Return what holds for a new answer."""
        return TokenConstraint(self._matcher.deep_copy())


class TokenConstraint:
    """Which tokens may come next in one answer; see `Constraint`.

    Finding them takes below 1 ms for 150k tokens (measured on one core, JSON grammars), so it is
    done in the event loop.

    Args:
        matcher: at the start; not used by others.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._allowed: bytes | None = None

    def allowed(self) -> bytes:
        """Return a bitmap of the tokens that may come next; never an empty one.

        Raises:
            GrammarRefused: to find them takes more than the library's limits.
        """
        if self._allowed is None:
            allowed = self._matcher.compute_bitmask()
            # After an error the library allows an end only, which would look like a whole answer.
            if self._matcher.is_error():
                raise GrammarRefused(self._too_complex())
            self._allowed = allowed
        return self._allowed

    def take(self, token_id: int) -> None:
        """Hear which of them came.

        Raises:
            RuntimeError: none of them: the last stage did not keep to them.
            GrammarRefused: to go on with it takes more than the library's limits.
        """
        allowed = self.allowed()
        self._allowed = None
        if token_id // 8 >= len(allowed) or not allowed[token_id // 8] >> token_id % 8 & 1:
            raise RuntimeError(
                f"token {token_id} was chosen, which the grammar of the answer does not allow"
            )
        if not self._matcher.consume_token(token_id):
            raise GrammarRefused(self._too_complex())

    def _too_complex(self) -> str:
        reason = first_line(self._matcher.get_error())
        if _NO_WAY_ON in reason:
            return "nothing fits what the answer must be; see that each part of it can end"
        return (
            f"what the answer must be became too complex to follow ({reason}); ask for a simpler "
            "form"
        )


def first_line(error: str) -> str:
    """Return the reason in an error text of the library, which goes on with the grammar."""
    # What stands under the first line of a regular expression's error is a drawing of it.
    lines = error.split("\n   1 | ")[0].splitlines() or [""]
    said = [lines[0].rstrip(":"), *(one[7:] for one in lines[1:] if one.startswith("error: "))]
    return ": ".join(said)[:_REASON_CHARS]
