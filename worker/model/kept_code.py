"""Remember machine code that was compiled at an earlier start, which takes a tenth of a second.

A folder for fetched weights may be shared by many users: code is taken from files alone that this
user has written and that no other may write.
"""

from __future__ import annotations

import base64
import binascii
import struct
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from worker.remembered import NOTHING, Remembered

_KIND = "machine-code"
# Code is compiled once for all stages of a process.
_kept: list[Remembered] = [NOTHING]


def keep_code_in(remembered: Remembered) -> None:
    """Have code that is compiled from now on kept there, and taken from there."""
    _kept[0] = remembered


class KeptCode:
    """The code of one module of llvmlite's.

    Args:
        depends: text, and all else that decides the code beside processor and versions.
    """

    def __init__(self, depends: object) -> None:
        self._remembered = _kept[0]
        self._on = [version("llvmlite"), depends]
        kept = self._remembered.get(_KIND, self._on, own=True)
        self._code: bytes | None = None
        if isinstance(kept, str):
            with suppress(binascii.Error):  # of another form: as good as absent
                code = base64.b64decode(kept, validate=True)
                self._code = code if _is_object(code) else None

    @property
    def is_there(self) -> bool:
        """Whether nothing need be compiled."""
        return self._code is not None

    def attach(self, engine: Any) -> None:
        """Have an engine that has compiled nothing yet take the code, or give it to be kept."""
        engine.set_object_cache(self._made, self._found)

    def _found(self, module: Any) -> bytes | None:
        return self._code

    def _made(self, module: Any, code: bytes) -> None:
        if _is_object(code):
            self._remembered.put(_KIND, self._on, base64.b64encode(code).decode())


def _is_object(code: bytes) -> bool:
    """Say whether it is a whole object of ELF with 64 bits, as LLVM ends the process for others.

    Its header, 64 bytes, tells at 40 where the table of sections begins, at 58 how large an entry
    is and how many there are (System V ABI, "Object Files").
    """
    if len(code) < 64 or code[:6] != b"\x7fELF\x02\x01":
        return False
    (begin,), (size, count) = (
        struct.unpack_from("<Q", code, 40),
        struct.unpack_from("<HH", code, 58),
    )
    return bool(begin + size * count <= len(code))
