"""Machine code that was compiled once is not compiled again, and does the same."""

from __future__ import annotations

import base64
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.model import kept_code
from worker.model.kept_code import KeptCode, keep_code_in
from worker.model.native_ops import compiled
from worker.remembered import NOTHING, Remembered

TEXT = "define i64 @more(i64 %n) {\n  %m = add i64 %n, STEP\n  ret i64 %m\n}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    keep_code_in(Remembered(tmp_path))
    yield tmp_path
    keep_code_in(NOTHING)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The codes that were compiled."""
    found: list[bytes] = []
    keep = KeptCode._made

    def watched(self: KeptCode, module: Any, code: bytes) -> None:
        found.append(code)
        keep(self, module, code)

    monkeypatch.setattr(KeptCode, "_made", watched)
    return found


def more_than(number: int, step: int) -> int:
    engine = compiled(TEXT.replace("STEP", str(step)), {})
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("more"))
    return int(function(number))


def test_each_text_is_compiled_once(folder: Path, made: list[bytes]) -> None:
    assert [more_than(1, 2), more_than(5, 2), more_than(1, 3), more_than(5, 3)] == [3, 7, 4, 8]
    assert (len(made), len(list(folder.iterdir()))) == (2, 2)


@pytest.mark.parametrize(
    "harm", ["cut", "altered", "no code", "no text", "no object", "half an object"]
)
def test_what_is_not_whole_is_compiled_anew(harm: str, folder: Path, made: list[bytes]) -> None:
    assert more_than(1, 2) == 3
    (path,) = folder.iterdir()
    text = path.read_text(encoding="utf-8")
    if harm == "cut":
        path.write_text(text[:-9], encoding="utf-8")
    elif harm == "altered":
        other = "B" if text[-9] == "A" else "A"
        path.write_text(text[:-9] + other + text[-8:], encoding="utf-8")
    else:
        on = [kept_code.version("llvmlite"), [TEXT.replace("STEP", "2"), ""]]
        code = base64.b64encode(made[0][: -len(made[0]) // 2]).decode()
        answers = {"no code": "no base64 !", "no text": 7, "no object": "AAAA" * 99}
        answer = answers.get(harm, code)
        Remembered(folder).put("machine-code", on, answer)
    assert (more_than(1, 2), len(made)) == (3, 2)
    assert (more_than(1, 2), len(made)) == (3, 2)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_code_that_others_may_have_written_is_not_run(
    mode: int, folder: Path, made: list[bytes]
) -> None:
    before = os.umask(0)
    try:
        assert more_than(1, 2) == 3
    finally:
        os.umask(before)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(mode)
    assert (more_than(1, 2), len(made)) == (3, 2)
    assert (more_than(1, 2), len(made)) == (3, 2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_code_of_another_user_is_not_run(folder: Path, made: list[bytes]) -> None:
    assert more_than(1, 2) == 3
    (path,) = folder.iterdir()
    os.chown(path, 65534, -1)
    assert (more_than(1, 2), len(made)) == (3, 2)


def test_without_a_folder_nothing_is_kept(made: list[bytes]) -> None:
    assert [more_than(1, 2), more_than(1, 2)] == [3, 3]
    assert len(made) == 2
