"""Sizes in bytes as people write them: `20GiB`, `1.5 GB`, `512MiB`."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000 ** (i + 1) for i, prefix in enumerate("kmgt")},
    **{f"{prefix}ib": 1024 ** (i + 1) for i, prefix in enumerate("kmgt")},
}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Read a size; GiB is 1024^3 bytes, GB is 1000^3.

    Raises:
        ValueError: it is no size, or less than one byte; the text says what was expected.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    size_bytes = int(Fraction(match[1]) * unit) if match and unit else 0
    if size_bytes < 1:
        raise ValueError(f"{text!r} is not a size; write for example 20GiB, 1.5GB or 512MiB")
    return size_bytes
