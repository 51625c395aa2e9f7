"""The chat page in a browser: what a user does there, and what can be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.browser import Browser, browser, chromium
from tests.support.browser_page import Page
from tests.support.serving import Server
from tests.support.stages import ROOT

NEWEST = "[...document.querySelectorAll('.answer')].at(-1)"
ENDED = f"{NEWEST} && !{NEWEST}.classList.contains('growing')"


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile in `folder`; skip the test where there is none, but in CI."""
    program = chromium()
    if program is None and not os.environ.get("CI"):
        pytest.skip("no Chromium here")
    assert program is not None, "CI must have Chromium"
    with browser(program, folder) as found:
        yield found


@contextmanager
def scripted(key: str | None = None) -> Iterator[str]:
    """Run tests/support/page_server.py and return its address."""
    command = [sys.executable, "-m", "tests.support.page_server", *([key] if key else [])]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def kill_stage(server: Server, stage: int) -> None:
    """Kill the worker that serves there now."""
    workers = psutil.Process(server.process.pid).children()
    next(worker for worker in workers if f"--stage={stage}" in worker.cmdline()).kill()


def send(page: Page, text: str) -> None:
    """Write a message and send it, by keyboard."""
    page.until("document.activeElement.id === 'message'")
    page.type(text)
    page.press("Enter")


def answer(page: Page, text: str) -> str:
    """Send a message and return the text of its answer."""
    send(page, text)
    page.until(ENDED)
    return newest(page)


def newest(page: Page) -> str:
    """Return the newest answer's text."""
    found = page.ask(f"{NEWEST}.querySelector('.body').innerText")
    assert isinstance(found, str)
    return found


def note(page: Page) -> str:
    """Return what is said of how the newest answer ended."""
    found = page.ask(f"{NEWEST}.querySelector('.note').textContent")
    assert isinstance(found, str)
    return found
