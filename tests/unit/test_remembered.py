"""What was remembered is given back for the same question alone, and whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from worker import remembered as module
from worker.remembered import NOTHING, Remembered

QUESTION = {"torch": "2.13", "shape": [4, 6]}
ANSWER = {"ops": [[1, None], "two"], "is_exact": True}


def test_an_answer_is_given_for_what_it_was_found_for_and_nothing_else(tmp_path: Path) -> None:
    Remembered(tmp_path, ["cpu"]).put("kind", QUESTION, ANSWER)
    asked = [
        Remembered(tmp_path, ["cpu"]).get("kind", dict(reversed(QUESTION.items()))),
        Remembered(tmp_path).within(["cpu"]).get("kind", QUESTION),
        Remembered(tmp_path, ["cpu"]).get("kind", {**QUESTION, "torch": "2.14"}),
        Remembered(tmp_path, ["cpu"]).get("other", QUESTION),
        Remembered(tmp_path, ["another cpu"]).get("kind", QUESTION),
    ]
    assert asked == [ANSWER, ANSWER, None, None, None]


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b"true", b"null"),
        lambda data: data + b" ",
        lambda data: b"\xff" + data[1:],
        lambda data: data.partition(b"\n")[2],
    ],
)
def test_a_file_that_is_not_as_it_was_written_counts_as_absent(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    Remembered(tmp_path).put("kind", QUESTION, ANSWER)
    (path,) = tmp_path.iterdir()
    path.write_bytes(harm(path.read_bytes()))
    assert Remembered(tmp_path).get("kind", QUESTION) is None


def test_an_answer_under_the_name_of_another_counts_as_absent(tmp_path: Path) -> None:
    kept = Remembered(tmp_path)
    kept.put("kind", QUESTION, ANSWER)
    (path,) = tmp_path.iterdir()
    kept.put("kind", "another", ANSWER)
    (other,) = set(tmp_path.iterdir()) - {path}
    path.replace(other)
    assert kept.get("kind", "another") is None


def test_a_disk_that_refuses_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = [Remembered(tmp_path / "file" / "below"), NOTHING]
    for each in kept:
        each.put("kind", QUESTION, ANSWER)
    assert [each.get("kind", QUESTION) for each in kept] == [None, None]


@pytest.mark.parametrize("limit", [("_MOST_ANSWERS", 3), ("_MOST_BYTES", 350)])
def test_the_oldest_of_a_kind_go(
    tmp_path: Path, limit: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, *limit)
    kept = Remembered(tmp_path)
    kept.put("other", 0, "stays")
    for number in range(6):
        kept.put("kind", number, "a" * 40)
    found = [kept.get("other", 0), *(kept.get("kind", number) for number in range(6))]
    assert found == ["stays", None, None, None, *["a" * 40] * 3]
