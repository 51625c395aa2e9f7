"""The chat page in a real browser, on scripted answers: each ending, each way to act."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.browser import Browser
from tests.support.browser_page import Page
from tests.support.chat_page import (
    ENDED,
    NEWEST,
    answer,
    newest,
    note,
    open_browser,
    scripted,
    send,
)

RUNNING = "fetch('/stageline/status').then(r => r.json()).then(s => s.running)"
FOCUS = "document.activeElement.id || document.activeElement.textContent"
FITS = "document.documentElement.scrollWidth <= innerWidth"
INK = """(() => { const style = getComputedStyle(document.body);
  return [style.color, style.backgroundColor].map(text => Number(/\\d+/.exec(text)[0])) })()"""
SPEED = re.compile(r"[\d.]+ tokens/s · 3 tokens · first after [\d.]+ m?s")
LOST = "stage 1 on node-b.lan was killed by SIGKILL in decode; restarts did not help"
HOSTILE = (
    "<img src=x onerror=document.title='owned'> <script>document.title='owned'</script> "
    "**<b onclick=x>bold</b>** `<i>code</i>` [link](javascript:document.title='owned')\n\n"
    "- <iframe src=//example.org></iframe>\n\n"
    "```<svg onload=x>\n</pre><form>\n```\n\n# <base href=x>"
)
MARKDOWN = {
    "*a* **b _c_** `d*` 2*3*4": "<p><em>a</em> <strong>b _c_</strong> <code>d*</code> 2*3*4</p>",
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "- a\n  - b\n- c": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>",
    "* a\n\n3. b": '<ul><li>a</li></ul><ol start="3"><li>b</li></ol>',
    "2) a\n3) b": '<ol start="2"><li>a</li><li>b</li></ol>',
    "## a\nb\n---\n> c\n> d": "<h4>a</h4><p>b</p><hr><blockquote>c\nd</blockquote>",
    "```py\nx = 1\n```\nz": "[py|x = 1]<p>z</p>",
    "```\nnot ended": "[code|not ended]",
    "a ** b **": "<p>a ** b **</p>",
    "``a`b``": "<p><code>a`b</code></p>",
}
AS_TEXT = """import('/page/markdown.js').then(({ blocksOf, elementOf }) => %s.map(text => {
  return blocksOf(text).map(block => {
    const found = elementOf(block);
    if (block.kind === 'code') {
      const [name, code] = [found.querySelector('span'), found.querySelector('code')];
      return `[${name.textContent}|${code.textContent}]`;
    }
    found.querySelectorAll('[dir]').forEach(one => one.removeAttribute('dir'));
    found.removeAttribute('dir');
    return block.kind === 'list' ? found.innerHTML : found.outerHTML;
  }).join('') }))"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with scripted() as found:
        yield found


@pytest.fixture(scope="module")
def tab(chrome: Browser, url: str) -> Iterator[Page]:
    with chrome.open(url) as found:
        yield found


@pytest.fixture
def page(tab: Page) -> Page:
    """Return the page as new; another tab would take half a second."""
    tab.ask("document.getElementById('new-chat').click(), sessionStorage.clear()")
    tab.resize(1280, 860)
    tab.reload()
    tab.complaints.clear()
    tab.requests.clear()
    tab.until("document.querySelectorAll('.stages li').length === 3")
    return tab


def test_an_answer_streams_tells_its_speed_and_asks_nobody_else(page: Page, url: str) -> None:
    text = answer(page, "say Hello **there** you")
    speed = page.ask(f"{NEWEST}.querySelector('.meta').textContent")
    assert (text, note(page), page.complaints) == ("Hello there you", "", [])
    assert SPEED.fullmatch(speed), speed
    assert {urlsplit(asked).netloc for asked in page.requests} == {urlsplit(url).netloc}


def test_the_conversation_goes_along_but_for_what_got_no_answer(page: Page) -> None:
    page.ask("document.getElementById('open-settings').click()")
    page.type("Be brief.")
    page.ask("document.getElementById('save-settings').click()")
    answer(page, "say one")
    answer(page, "refuse")
    sent = json.loads(answer(page, "messages"))
    assert sent == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "say one"},
        {"role": "assistant", "content": "one"},
    ]


@pytest.mark.parametrize("way", ["Esc", "the button"])
def test_a_stop_ends_the_work_and_keeps_what_came(page: Page, way: str) -> None:
    send(page, "forever")
    page.until(f"{NEWEST}.innerText.includes('two three one')")
    running = page.ask(RUNNING)
    if way == "Esc":
        page.press("Escape")
    else:
        page.ask("document.getElementById('stop').click()")
    page.until(ENDED)
    page.until(f"{RUNNING}.then(running => running === 0)")
    assert (running, note(page), page.ask(FOCUS)) == (1, "Stopped.", "message")
    assert newest(page).startswith("one two three one")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("cut", "Cut at 3 tokens: this server's own limit."),
        ("break", f"The answer broke off: {LOST}"),
        ("vanish", "The answer broke off: The connection to the server was lost."),
        ("refuse", "the prompt has 5000 tokens; at most 4096 are served here"),
    ],
)
def test_an_ending_that_is_none_is_told_and_can_be_tried_again(
    page: Page, asked: str, told: str
) -> None:
    text = answer(page, asked)
    first = (text, note(page))
    page.ask(f"{NEWEST}.querySelector('.retry').click()")
    page.until(ENDED)
    turns = page.ask("document.querySelectorAll('.turn').length")
    expected = ("" if asked == "refuse" else "one two three", told)
    assert (first, (newest(page), note(page)), turns) == (expected, expected, 1)


def test_hostile_text_stays_text(page: Page) -> None:
    answer(page, "say " + HOSTILE)
    injected = page.ask(
        "[...document.querySelectorAll('.turn *')].filter(e => ['IMG', 'IFRAME', 'SCRIPT', 'SVG',"
        " 'FORM', 'BASE', 'B', 'I', 'A'].includes(e.tagName) || [...e.attributes].some(a =>"
        " a.name.startsWith('on') || ['href', 'src'].includes(a.name))).length"
    )
    text = newest(page)
    shown = [part for part in ("<img src=x", "</pre><form>", "<iframe", "<base") if part in text]
    assert (injected, page.ask("document.title"), len(shown), page.complaints) == (
        0,
        "scripted/model-8B · Stageline",
        4,
        [],
    )


def test_the_policy_refuses_markup_and_inline_scripts(page: Page) -> None:
    page.ask(
        "(() => { const s = document.createElement('style'); s.textContent = '*{opacity:0}';"
        " document.head.append(s) })()"
    )
    tries = page.ask(
        "['<b>x</b>'].map(text => { try { document.body.innerHTML = text; return 'taken' }"
        " catch (error) { return error.name } }).concat(getComputedStyle(document.body).opacity)"
    )
    page.ask("fetch('https://stageline.invalid/').catch(() => null)")
    refused = [name for name in ("style-src", "connect-src") if name in str(page.complaints)]
    source = page.ask("fetch('/page/status.py').then(response => response.status)")
    assert (tries, refused, source) == (["TypeError", "1"], ["style-src", "connect-src"], 404)


def test_markdown_becomes_elements(page: Page) -> None:
    found = page.ask(AS_TEXT % json.dumps(list(MARKDOWN)))
    assert dict(zip(MARKDOWN, found, strict=True)) == MARKDOWN


def test_what_is_read_out_is_whole_sentences(page: Page) -> None:
    send(page, "say It works. And goes on and ends")
    page.until(ENDED)
    spoken = page.ask("[...document.querySelectorAll('#speech p')].map(p => p.textContent)")
    assert spoken == ["It works.", "And goes on and ends"]


def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    page.until("document.activeElement.id === 'message'")
    page.type("say a")
    page.press("Enter", shift=True)
    page.type("b")
    typed = page.ask("document.getElementById('message').value")
    page.press("Enter")
    page.until(ENDED)
    page.ask("document.getElementById('new-chat').focus()")
    visited = []
    for _ in range(5):
        page.press("Tab")
        visited.append(page.ask(FOCUS))
    outline = page.ask("getComputedStyle(document.activeElement).outlineStyle")
    page.ask("document.getElementById('open-settings').focus()")
    page.press("Enter")
    page.until("document.activeElement.id === 'system'")
    page.press("Escape")
    back = page.ask(FOCUS)
    page.ask(f"{NEWEST}.querySelector('.retry').focus()")
    page.press("Enter")
    page.until(f"{ENDED} && document.activeElement.id === 'message'")
    assert (typed, visited, outline, back, newest(page)) == (
        "say a\nb",
        ["open-settings", "toggle-panel", "Copy", "Retry", "message"],
        "solid",
        "open-settings",
        "a\nb",
    )


def test_a_reload_keeps_the_conversation_and_another_tab_has_its_own(
    page: Page, chrome: Browser, url: str
) -> None:
    answer(page, "say kept")
    page.reload()
    with chrome.open(url) as other:
        theirs = other.ask("document.querySelectorAll('.turn').length")
    assert (newest(page), theirs) == ("kept", 0)


def test_a_key_is_asked_for_once_and_a_wrong_one_again(chrome: Browser) -> None:
    key_open = "document.getElementById('key').open"
    trouble = "document.getElementById('key-trouble').checkVisibility()"
    with scripted("right") as url, chrome.open(url) as page:
        said = []
        for key in ("wrong", "right"):
            page.until(f"{key_open} && document.activeElement.id === 'key-value'")
            said.append(page.ask(trouble))
            page.type(key)
            page.press("Enter")
            page.until(f"!{key_open} || document.getElementById('key-value').value === ''")
        page.until("document.querySelectorAll('.stages li').length === 3")
        page.ask("document.getElementById('message').focus()")
        assert answer(page, "say in") == "in"
        page.reload()
        page.until("document.querySelectorAll('.stages li').length === 3")
        assert (said, page.ask(key_open)) == ([False, True], False)


def test_a_narrow_screen_has_the_stages_in_a_drawer(page: Page) -> None:
    answer(page, "say " + "long" * 100 + "\n```\n" + "wide " * 100 + "\n```")
    page.resize(320, 640)
    page.until("document.getElementById('panel').inert")
    away = page.ask(FITS)
    page.ask("document.getElementById('toggle-panel').click()")
    page.until("document.getElementById('panel').getBoundingClientRect().right <= 320")
    opened = page.ask(
        f"[{FITS}, document.activeElement.id, document.getElementById('panel').inert]"
    )
    page.press("Escape")
    shut = page.ask(f"[document.activeElement.id, document.getElementById('panel').inert, {FITS}]")
    assert (away, opened, shut) == (True, [True, "panel", False], ["toggle-panel", True, True])


def test_dark_and_light_follow_the_system(page: Page) -> None:
    seen = []
    for dark in (False, True):
        page.resize(1280, 860, dark=dark)
        ink, ground = page.ask(INK)
        seen.append(ink > ground)
    assert seen == [False, True]


def test_the_panel_tells_who_holds_what_and_how_busy_each_is(page: Page) -> None:
    rows = page.ask("[...document.querySelectorAll('.stages li')].map(li => li.innerText)")
    assert [row.split("\n") for row in rows[:2]] == [
        ["0", "node-a.lan", "ready", "layers 0:13 of 36 · cuda:0 · bfloat16", "62 % busy"],
        ["1", "node-b.lan", "coming back", "layers 13:30 of 36 · cuda:0 · bfloat16", "48 % busy"],
    ]
