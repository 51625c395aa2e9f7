"""Timelines as one self-contained page of HTML and SVG, or as a picture of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jinja2

from orchestrator.bundle.html.axis import Axis, Bar
from orchestrator.bundle.html.page import policy_of, style_sheet
from tools.bench.timeline_take import Take, idle_in
from tools.bench.timeline_text import Takes, close_up, longest_ms, middle, stages_of

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_STYLE = ".row { grid-template-columns: 150px minmax(0, 1fr); } .first { stroke: var(--ink); }"
_TEMPLATE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<title>When each stage computed · stageline</title><style>{{ style|safe }}</style></head>
<body><header class="top"><h1>When each stage computed</h1>
{% for line in told %}<p class="small dim">{{ line }}</p>{% endfor %}</header><main>
{% for section in sections %}<section><h2>{{ section.title }}</h2>
<div class="row axis"><div class="who"></div><svg class="lane" height="18">
{% for tick in section.ticks %}<text x="{{ tick.x }}%" y="13" text-anchor="{{
  "start" if tick.x < 3 else "end" if tick.x > 96 else "middle" }}">{{ tick.label }}</text>
{% endfor %}
</svg></div>
{% for lane in section.lanes %}{% if lane.title %}<h3>{{ lane.title }}</h3>{% endif %}
<div class="row c{{ lane.stage % 8 }}"><div class="who">stage {{ lane.stage }}
<span class="host">{{ lane.words }}</span></div>
<svg class="lane" height="24" role="img" aria-label="stage {{ lane.stage }}: {{ lane.words }}">
{% for bar in lane.bars %}<rect class="op" x="{{ bar.x }}%" width="{{ bar.width }}%" y="3"
 height="18"><title>{{ bar.title }}</title></rect>
{% endfor %}{% if lane.first_x is not none %}<line class="first" x1="{{ lane.first_x }}%"
 x2="{{ lane.first_x }}%" y1="0" y2="24"/>{% endif %}</svg></div>
{% endfor %}</section>{% endfor %}</main></body></html>
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """One stage; `title` stands above the first of a way, `first_x` is in percent."""

    title: str
    stage: int
    words: str
    bars: tuple[Bar, ...]
    first_x: float | None


def write_page(path: Path, found: Takes, told: str) -> None:
    """Write the page, or its picture where the file's name ends with `.png`.

    Raises:
        FileNotFoundError: a picture is asked for and no browser is on PATH.
        subprocess.CalledProcessError: the browser failed.
    """
    if path.suffix != ".png":
        path.write_text(page_of(found, told), encoding="utf-8")
        return
    browser = next((program for name in _BROWSERS if (program := shutil.which(name))), None)
    if browser is None:
        raise FileNotFoundError(f"{path}: a .png needs {' or '.join(_BROWSERS)}; name a .html")
    lanes = sum(len(stages_of(takes[0])) for takes in found.values())
    height = 300 + 2 * (60 + 32 * lanes + 40 * len(found))
    with tempfile.TemporaryDirectory(prefix="timeline-") as folder:
        page = Path(folder, "page.html")
        page.write_text(page_of(found, told), encoding="utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        size = f"--window-size=1200,{height}"
        profile = f"--user-data-dir={folder}/profile"
        target = f"--screenshot={path.absolute()}"
        subprocess.run(
            [browser, *flags, profile, size, target, page.as_uri()],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )


def page_of(found: Takes, told: str) -> str:
    """Return the page; `told` is how it was measured, line by line."""
    width_ms = longest_ms(found)
    begins, close_ms = close_up(found)
    wholes = {name: middle(takes).begin_ms for name, takes in found.items()}
    sections = [
        _section("From the request to its last token", found, wholes, width_ms, marks=True),
        _section("Decoding closely", found, begins, close_ms, marks=False),
    ]
    style = style_sheet() + _STYLE
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_TEMPLATE).render(
        style=style, policy=policy_of(style, ""), told=told.splitlines(), sections=sections
    )


def _section(
    title: str, found: Takes, begins: dict[str, float], width_ms: float, *, marks: bool
) -> dict[str, object]:
    lanes: list[Lane] = []
    for name, takes in found.items():
        take, begin_ms = middle(takes), begins[name]
        axis = Axis(begin_ms, begin_ms + width_ms, begin_ms)
        first_x = axis.x(take.prompts_end_ms) if marks else None
        for stage in stages_of(take):
            heading = name if stage == stages_of(take)[0] else ""
            lanes.append(_lane(heading, take, stage, axis, first_x))
    return {"title": title, "ticks": Axis(0.0, width_ms, 0.0).ticks(), "lanes": lanes}


def _lane(heading: str, take: Take, stage: int, axis: Axis, first_x: float | None) -> Lane:
    bars = tuple(
        axis.bar(
            span.start_ms,
            span.end_ms,
            "op",
            f"{span.event.op}, {span.event.seq_len or 1} rows: {span.took_ms:.1f} ms",
        )
        for span in take.spans_of(stage)
        if span.end_ms > axis.begin_ms and span.start_ms < axis.end_ms
    )
    end_ms = min(axis.end_ms, take.end_ms)
    busy = idle_in(take.busy(stage), axis.begin_ms, end_ms).busy_share
    return Lane(heading, stage, f"{busy:.0%} busy", bars, first_x)
