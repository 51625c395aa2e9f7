"""What an exit code means is said in the same words by every help and by README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.exit_words import exit_words

README = Path(__file__).parents[2] / "README.md"


def meanings(command: str) -> dict[int, str]:
    """The codes that a help text names, each with its words on one line."""
    lines = re.split(r"\n +(?=\d+  )", exit_words(command))[1:]
    pairs = (" ".join(line.split()).split(" ", 1) for line in lines)
    return {int(code): words for code, words in pairs}


def rows() -> dict[int, str]:
    """The table of README.md."""
    found = re.findall(r"^\| (\d+) \| (.*) \|$", README.read_text("utf-8"), re.MULTILINE)
    return {int(code): words for code, words in found}


def test_the_readme_has_the_words_of_the_help_for_each_code() -> None:
    told = {code: words for code, words in meanings("").items() if code != 130}
    assert {code: rows()[code][: len(words)] for code, words in told.items()} == told


@pytest.mark.parametrize(
    ("command", "codes"), [("cache", [3]), ("doctor", [0, 3, 5]), ("setup", [0, 5])]
)
def test_the_readme_has_what_a_command_means_otherwise(command: str, codes: list[int]) -> None:
    own = {code: f"{command}: {meanings(command)[code]}" for code in codes}
    assert {code: own[code] for code in codes if own[code] in rows()[code]} == own
