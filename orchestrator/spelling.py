"""Which known word a word that is not known was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word that is most like the given one; None where none is much like it.

    Case is no difference, and of a very long word only the beginning is looked at.

    Args:
        word: that was given.
        known: that there are.
        likeness: how much must be the same, 0 to 1; see `difflib.SequenceMatcher.ratio`.
    """
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word[:200].lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None
