"""A vocabulary small enough to look at every token, and models that know nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.grammar.grammar import Constraint
from orchestrator.vocabulary import Vocabulary

# Every byte; then what byte-level vocabularies have: pieces that cross the borders of JSON's
# parts, halves of characters, markers of calls, and names.
_JOINED = (
    '{"', '"}', '": ', '":', '", "', '",', "{}", "[]", "}}", "]}", "},", "\n  ", "\n", "  ",
    "true", "false", "null", "12", "3.5", "-1", "e+", "name", "abc", " abc", "\u00e9", "\U0001f642",
    "<tool_call>", "</tool_call>", "<function=", "</parameter>", "</function>", "city",
)  # fmt: skip
_HALVES = (b"\xf0\x9f", b"\x99\x82", b"\xc3", b"a\xc3")
_SPECIAL = (b"<|end|>", b"<|also_end|>", b"[TOOL_CALLS]", b"[ARGS]", b"<|mark|>")
PIECES = (
    *(bytes([one]) for one in range(256)),
    *(text.encode() for text in _JOINED),
    *_HALVES,
    *_SPECIAL,
    b"",
)
_FIRST_SPECIAL = len(PIECES) - 1 - len(_SPECIAL)
ENDS = (_FIRST_SPECIAL, _FIRST_SPECIAL + 1)
VOCABULARY = Vocabulary(
    pieces=PIECES,
    special_tokens=frozenset(range(_FIRST_SPECIAL, len(PIECES) - 1)),
    chat_template=None,
)


def allowed_ids(constraint: Constraint) -> list[int]:
    """Return the tokens that a constraint allows."""
    bitmap = constraint.allowed()
    assert bitmap is not None
    return [one for one in range(len(bitmap) * 8) if bitmap[one // 8] >> one % 8 & 1]


def written_by(
    constraint: Constraint,
    choose: Callable[[Sequence[int]], int],
    see: Callable[[bytes, Sequence[int]], None] = lambda text, allowed: None,
    max_tokens: int = 600,
) -> str | None:
    """Return what a model writes, special tokens with their names; None where it never ends.

    Args:
        constraint: of a new answer.
        choose: picks one of the tokens that are allowed.
        see: is shown the text so far and what is allowed after it.
        max_tokens: after which it never ends.
    """
    text = b""
    for _ in range(max_tokens):
        allowed = allowed_ids(constraint)
        see(text, allowed)
        token_id = choose(allowed)
        constraint.take(token_id)
        if token_id in ENDS:
            return text.decode()
        text += PIECES[token_id]
    return None
