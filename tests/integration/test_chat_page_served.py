"""The chat page on a real server over two stages: streams, stops, tabs, a stage that is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.browser import Browser
from tests.support.browser_page import Page
from tests.support.chat_page import (
    ENDED,
    NEWEST,
    answer,
    kill_stage,
    newest,
    note,
    open_browser,
    send,
)
from tests.support.serving import Server, served

TOKENS = 60
ENDLESS = 100_000
RUNNING = "fetch('/stageline/status').then(r => r.json()).then(s => s.running)"
CUT = "Cut at the limit of tokens. Settings has the limit."
SOME = f"{NEWEST}.querySelector('.body').innerText.length > 60"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as found:
        yield found


def set_up(page: Page, max_tokens: int = TOKENS) -> Page:
    page.resize(1280, 860)
    settings = json.dumps({"temperature": 0, "maxTokens": max_tokens})
    page.ask(f"sessionStorage.setItem('stageline.settings', {json.dumps(settings)})")
    return page


def plain_answer(server: Server, text: str, max_tokens: int = TOKENS) -> str:
    """Return the whole answer to a message, not streamed and to nobody's page."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    content = json.loads(server.ask("POST", "/v1/chat/completions", body)[2])
    found = content["choices"][0]["message"]["content"]
    assert isinstance(found, str)
    return found.strip()


def test_the_page_shows_the_answer_that_the_server_gives(chrome: Browser, server: Server) -> None:
    with chrome.open(server.url) as page:
        text = answer(set_up(page), "why is that")
        speed = page.ask(f"{NEWEST}.querySelector('.meta').textContent")
        layers = page.ask("[...document.querySelectorAll('.what')].map(e => e.textContent)")
        ended = note(page), page.complaints
    assert (text.strip(), ended) == (plain_answer(server, "why is that"), (CUT, []))
    assert f"· {TOKENS} tokens ·" in speed
    assert layers == ["layers 0:64 of 128 · cpu · stub", "layers 64:128 of 128 · cpu · stub"]


def test_two_tabs_at_once_get_their_own_answers(chrome: Browser, server: Server) -> None:
    with chrome.open(server.url) as left:
        send(set_up(left, ENDLESS), "the left one")
        left.until(SOME)
        with chrome.open(server.url) as right:
            shown = answer(set_up(right), "and the right one").strip()
            at_once = right.ask(RUNNING)
        left.press("Escape")
        left.until(ENDED)
        begun = newest(left).strip()
    plain = plain_answer(server, "the left one", 20)
    expected = plain_answer(server, "and the right one"), plain, 1
    assert (shown, begun[: len(plain)], at_once) == expected


def test_a_stop_ends_the_work_on_the_server(chrome: Browser, server: Server) -> None:
    with chrome.open(server.url) as page:
        send(set_up(page, ENDLESS), "go on")
        page.until(SOME)
        page.press("Escape")
        page.until(f"{RUNNING}.then(running => running === 0)")
        assert (note(page), page.ask(ENDED)) == ("Stopped.", True)


def test_a_stage_that_is_killed_and_comes_back_changes_no_answer(
    chrome: Browser, server: Server
) -> None:
    with chrome.open(server.url) as page:
        send(set_up(page, 4 * TOKENS), "and then")
        page.until(SOME)
        kill_stage(server, 1)
        page.until(ENDED)
        shown = newest(page).strip(), note(page)
    restarts = server.metric("stageline_stage_restarts_total")
    states = [stage["state"] for stage in server.get_json("/stageline/status")["stages"]]
    expected = plain_answer(server, "and then", 4 * TOKENS), CUT
    assert (shown, restarts, states) == (expected, 1, ["ready", "ready"])


def test_a_stage_that_does_not_come_back_is_told(chrome: Browser) -> None:
    with served("--restarts", "0") as server, chrome.open(server.url) as page:
        send(set_up(page, ENDLESS), "and then")
        page.until(SOME)
        kill_stage(server, 1)
        page.until(ENDED)
        told = note(page)
        page.until("!document.getElementById('trouble').hidden")
        retry = page.ask(f"{NEWEST}.querySelector('.retry').checkVisibility()")
    begins = "The answer broke off: stage 1 on local was killed by SIGKILL"
    assert (told[: len(begins)], retry) == (begins, True)
