"""Paths that are not there: what was probably meant, or what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from orchestrator.spelling import closest

NOTHING: Mapping[str, str] = MappingProxyType({})
# All paths begin alike, which does not make one a misspelling of another.
_LIKENESS = 0.8


def absent_path(path: str, served: Sequence[str], instead: Mapping[str, str] = NOTHING) -> str:
    """Return one sentence for whoever asks for a path that is not served.

    Args:
        path: that was asked for.
        served: the paths that there are.
        instead: what to use where a path ends so.
    """
    seen = f"{path!r:.80} is not served"
    use = next((use for end, use in instead.items() if path.endswith(end)), None)
    if use is not None:
        return f"{seen}; use {use}"
    # A base URL without its /v1, or with one more; the longest first, as one may end as another.
    ends = [(one.removeprefix("/v1"), one) for one in sorted(served, key=len, reverse=True)]
    meant = next((one for end, one in ends if end != "/" and path.endswith(end)), None)
    meant = meant or closest(path, served, _LIKENESS)
    if meant is not None:
        return f"{seen}; did you mean {meant}?"
    return f"{seen}; there are {', '.join(served)}"
