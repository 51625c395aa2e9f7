"""The page of a bundle in a real browser: whole, silent, harmless, at every width."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.bundle.html.page import page_of
from orchestrator.bundle.reader import read_bundle
from tests.support import page_bundles
from tests.support.browser import Browser, browser, chromium

FITS = "document.documentElement.scrollWidth <= innerWidth"
INJECTED = """[...document.querySelectorAll('*')].filter(e =>
  ['IMG', 'IFRAME', 'OBJECT', 'FORM', 'BASE', 'LINK'].includes(e.tagName)
  || [...e.attributes].some(a => a.name.startsWith('on') || /^(href|src)$/.test(a.name)
     && !a.value.startsWith('#'))).length"""
STEERING = (
    "/[\\u0000-\\u0008\\u000e-\\u001f\\u202a-\\u202e\\u2066-\\u2069]/"
    ".test(document.body.textContent)"
)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None and not os.environ.get("CI"):
        pytest.skip("no Chromium here")
    assert program is not None, "CI must have Chromium"
    with browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


def page(make: Callable[[Path], None], folder: Path) -> Path:
    make(folder / "b")
    path = folder / "page.html"
    path.write_text(page_of(read_bundle(folder / "b")), "utf-8")
    return path


def test_the_page_of_a_recovered_run_tells_the_facts(chrome: Browser, tmp_path: Path) -> None:
    path = page(page_bundles.recovered, tmp_path)
    with chrome.open(path) as shown:
        for width in (1280, 420):
            shown.resize(width)
            assert shown.ask(FITS), f"scrolls sideways at {width}"
        text = shown.ask("document.body.innerText")
        drawn = shown.ask("[document.querySelector('canvas').width > 0, document.title]")
        ops = shown.ask("document.getElementById('range').textContent")
    facts = (
        "The run finished; a lost stage was brought back",
        "stage 1 on gpu2.lan was killed by SIGKILL in decode",
        "gpu2.lan -> gpu9.lan",
        "stage 1 on gpu9.lan serves again (try 2 of 3; 52 positions of 1 request replayed)",
        "recovered",
        "forward_and_sample",
        "at most 1.5 GB; 4 GB free (cgroup)",
        "max_new_tokens",
        "<13 characters>",
    )
    assert [fact for fact in facts if fact not in text] == []
    assert drawn == [
        True,
        "The run finished; a lost stage was brought back · stageline 2027-01-15 08:00:00",
    ]
    assert ops.endswith(", 300 ops")
    assert (shown.complaints, shown.requests) == ([], [path.as_uri()])


def test_hostile_text_stays_text(chrome: Browser, tmp_path: Path) -> None:
    path = page(page_bundles.hostile, tmp_path)
    with chrome.open(path) as shown:
        shown.resize(420)
        found = {
            "injected": shown.ask(INJECTED),
            "scripts": shown.ask("document.scripts.length"),
            "steering": shown.ask(STEERING),
            "owned": shown.ask("document.title.includes('owned')"),
            "told": shown.ask("document.body.innerText.includes('<img src=x onerror=')"),
            "drawn": shown.ask("document.querySelector('canvas').height > 0"),
            "fits": shown.ask(FITS),
        }
    assert found == {
        "injected": 0,
        "scripts": 2,
        "steering": False,
        "owned": False,
        "told": True,
        "drawn": True,
        "fits": True,
    }
    assert (shown.complaints, shown.requests) == ([], [path.as_uri()])


def test_without_scripts_the_ops_are_drawn_all_the_same(chrome: Browser, tmp_path: Path) -> None:
    path = page(page_bundles.crashed, tmp_path)
    with chrome.open(path, scripts=False) as shown:
        shown.resize(1280)
        still = "document.querySelectorAll('.still rect.op').length"
        hidden = "getComputedStyle(document.querySelector('.zoom')).display"
        assert (shown.ask(still), shown.ask(hidden)) == (60, "none")


def test_thousands_of_ops_of_many_stages_stay_usable(chrome: Browser, tmp_path: Path) -> None:
    path = page(page_bundles.wide, tmp_path)
    with chrome.open(path) as shown:
        shown.resize(1280)
        before = shown.ask("document.getElementById('range').textContent")
        shown.ask("document.querySelector('[data-do=in]').click()")
        zoomed = shown.ask("document.getElementById('range').textContent")
        took_ms = shown.ask(
            "(() => { const t = performance.now(); dispatchEvent(new Event('resize'));"
            " return performance.now() - t })()"
        )
        elements = shown.ask("document.querySelectorAll('*').length")
    assert before != zoomed
    assert before.endswith("4960 ops")
    assert took_ms < 500
    assert elements < 6000
    assert path.stat().st_size < 1_500_000
