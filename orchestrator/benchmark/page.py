"""One HTML page about a bench that loads nothing and runs no script."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from orchestrator.benchmark.guess_result import GuessResult
from orchestrator.benchmark.plot import HEIGHT, WIDTH, guess_bars, stage_bars, throughput
from orchestrator.benchmark.result import BenchResult
from orchestrator.benchmark.tables import (
    GUESS_HEADINGS,
    LEVEL_HEADINGS,
    STAGE_HEADINGS,
    alone_rows,
    guess_heading,
    guess_method,
    guess_rows,
    headline,
    level_rows,
    method,
    stage_row,
)
from orchestrator.bundle.html.page import policy_of, style_sheet
from orchestrator.bundle.words import printable

_HERE = Path(__file__).parent


def page_of(result: BenchResult) -> str:
    """Return the whole page."""
    style = style_sheet() + (_HERE / "page.css").read_text("utf-8")
    return _template().render(
        style=style,
        policy=policy_of(style, ""),
        result=result,
        title=printable(result.model, 200),
        headline=headline(result),
        method=method(result),
        alone=alone_rows(result),
        stage_headings=STAGE_HEADINGS,
        stages=[stage_row(stage) for stage in result.stages],
        level_headings=LEVEL_HEADINGS,
        levels=level_rows(result),
        line=throughput(result),
        bars=stage_bars(result),
        guessed=_guessed(result.guesses),
        width=WIDTH,
        height=HEIGHT,
    )


def _guessed(guesses: GuessResult | None) -> dict[str, Any] | None:
    if guesses is None:
        return None
    return {
        "heading": guess_heading(guesses),
        "headings": GUESS_HEADINGS,
        "rows": guess_rows(guesses),
        "method": guess_method(guesses),
        "bars": guess_bars(guesses),
    }


@cache  # Compiling a template takes longer than filling it; it never changes.
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE, encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html")
