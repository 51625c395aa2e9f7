"""Compile the patterns by which transformers renames weights when they are first searched for.

transformers makes the tables of all its model types as soon as one is asked for, and an entry for
each weight that it loads: 1,400 patterns, of which a model uses some ten. To compile them took 0.3
of the 5 s of processor time between the start of a worker and its ready line.
"""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any, Self

_LOADING = "transformers.core_model_loading"


class LatePattern:
    """Is `re.compile(text)` from the first use on; a broken one is told of then."""

    __slots__ = ("_text", "_true")

    def __init__(self, text: str) -> None:
        self._text = text
        self._true: re.Pattern[str] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what the compiled pattern has."""
        if name.startswith("__"):
            raise AttributeError(f"a pattern has no attribute {name!r}")
        if self._true is None:
            self._true = re.compile(self._text)
        return getattr(self._true, name)

    def __copy__(self) -> Self:
        """Return itself, as a compiled pattern does."""
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        """Return itself, as a compiled pattern does."""
        return self


def compile_late() -> None:
    """Have transformers' loader make such patterns, for the whole process."""
    loading: Any = importlib.import_module(_LOADING)
    late = ModuleType("re")
    vars(late).update({**vars(re), "compile": _compile})
    loading.re = late


def _compile(text: Any, *flags: Any) -> Any:
    return re.compile(text, *flags) if flags or not isinstance(text, str) else LatePattern(text)
