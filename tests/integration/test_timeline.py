"""A timeline of stub stages is drawn from the bundles of real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench.timeline import main

WORDS = ("--prompt-tokens", "40", "--new-tokens", "4", "--requests", "3", "--rounds", "1")


def test_every_way_is_drawn_in_text_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["stub", *WORDS, "--out", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    # Four ways, as a whole and closely.
    assert [sum(line.startswith(f"  stage {stage} ") for line in lines) for stage in (0, 1)] == [
        8,
        8,
    ]
    assert "the same tokens alone and among others: yes" in "\n".join(lines)
    text = page.read_text("utf-8")
    assert text.count("<svg") == 2 + 2 * 8
    # The new tokens of each of four ways, and at least one step of the prompt, on two stages.
    assert text.count('<rect class="op"') >= 4 * 2 * 4
