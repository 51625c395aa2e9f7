"""A headless Chromium, spoken to over its debugging pipe: what pages show, say and ask for."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60.0


def chromium() -> str | None:
    """Return the program, where there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@dataclass
class Page:
    """A page that was opened.

    Attributes:
        complaints: what the browser's console was told: errors, refusals of the page's policy.
        requests: every address that was asked for, the page's own first.
    """

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def ask(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol."""
        return self.browser.call(method, self.session, **params)

    def resize(self, width: int, height: int = 1400, *, dark: bool = False) -> None:
        """Give the page a size in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def shoot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def take(self, method: str, params: dict[str, Any]) -> None:
        """Keep what the browser tells of this page."""
        match method:
            case "Runtime.exceptionThrown" | "Log.entryAdded":
                self.complaints.append(json.dumps(params))
            case "Runtime.consoleAPICalled" if params.get("type") in ("error", "warning"):
                self.complaints.append(json.dumps(params))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


class Browser:
    """One browser; ends with `browser()`."""

    def __init__(self, ask_fd: int, tell_fd: int) -> None:
        self._ask_fd, self._tell_fd = ask_fd, tell_fd
        self._unread = b""
        self._number = 0
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    @contextmanager
    def open(self, path: Path, *, scripts: bool = True) -> Iterator[Page]:
        """Open a file, wait until it is loaded, and close it at the end."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        if not scripts:
            page.call("Emulation.setScriptExecutionDisabled", value=True)
        self._loaded.discard(session)
        page.call("Page.navigate", url=path.absolute().as_uri())
        while session not in self._loaded:
            self._read_one()
        yield page
        self.call("Target.closeTarget", targetId=target)

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
        found.call("Browser.close")
        process.wait(DEADLINE_S)
    finally:
        os.close(ask_write)
        os.close(tell_read)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
