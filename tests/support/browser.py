"""A headless Chromium, spoken to over its debugging pipe: what pages show, say and ask for."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.browser_page import Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60.0


def chromium() -> str | None:
    """Return the program, where there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One browser; ends with `browser()`."""

    def __init__(self, ask_fd: int, tell_fd: int) -> None:
        self._ask_fd, self._tell_fd = ask_fd, tell_fd
        self._unread = b""
        self._number = 0
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    @contextmanager
    def open(self, place: Path | str, *, scripts: bool = True) -> Iterator[Page]:
        """Open a file or an address, wait until it is loaded, and close it at the end."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        if not scripts:
            page.call("Emulation.setScriptExecutionDisabled", value=True)
        url = place if isinstance(place, str) else place.absolute().as_uri()
        self.load(page, "Page.navigate", url=url)
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)

    def load(self, page: Page, method: str, **params: Any) -> None:
        """Call what loads a page, and wait until it is loaded."""
        self._loaded.discard(page.session)
        page.call(method, **params)
        while page.session not in self._loaded:
            self._read_one()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method and wait for its answer; what comes before it goes to the pages."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._ask_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read_one()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read_one(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + DEADLINE_S
        while b"\0" not in self._unread:
            left_s = max(0.0, deadline_s - time.monotonic())
            assert select.select([self._tell_fd], [], [], left_s)[0], "the browser says nothing"
            piece = os.read(self._tell_fd, 1 << 20)
            assert piece, "the browser has ended"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        session, method = message.get("sessionId"), message.get("method")
        if session in self._pages and method:
            self._pages[session].take(method, message["params"])
            if method == "Page.loadEventFired":
                self._loaded.add(session)
        return message


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile in `folder`; it and all it started end with this."""
    ask_read, ask_write = os.pipe()
    tell_read, tell_write = os.pipe()
    command = [
        program,
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *("--disable-extensions", "--no-zygote", "--remote-debugging-pipe", "--mute-audio"),
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    # The browser reads from 3 and writes to 4.
    redirect = ["bash", "-c", f'exec "$@" 3<&{ask_read} 4>&{tell_write}', "bash", *command]
    process = subprocess.Popen(
        redirect,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(ask_read, tell_write),
        start_new_session=True,
        env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
    )
    os.close(ask_read)
    os.close(tell_write)
    found = Browser(ask_write, tell_read)
    try:
        yield found
        helpers = psutil.Process(process.pid).children(recursive=True)
        found.call("Browser.close")
        process.wait(DEADLINE_S)
        # They notice its end by themselves, some a moment later.
        psutil.wait_procs(helpers, DEADLINE_S)
    finally:
        os.close(ask_write)
        os.close(tell_read)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
