"""Remember machine code that was compiled at an earlier start, which takes a tenth of a second.

A folder for fetched weights may be shared by many users: code is taken from files alone that this
user has written and that no other may write.
"""

from __future__ import annotations

import base64
import binascii
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
                self._code = base64.b64decode(kept, validate=True)

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
        self._remembered.put(_KIND, self._on, base64.b64encode(code).decode())
