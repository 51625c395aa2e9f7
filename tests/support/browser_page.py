"""One page of a browser: evaluate, type, press, resize, take a picture."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.browser import Browser

UNTIL_S = 30.0
# Each key's number, and the text that it types.
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), " ": (32, " ")}
_TEXT = "document.body.innerText.slice(0, 2000)"


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
        """Evaluate an expression in the page and return its value, or what it promises."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression, or what it promises, is true in the page."""
        waiting = (
            f"new Promise(done => {{ const look = async () => (await ({script})) ? done(true)"
            " : setTimeout(look, 15); look() })"
        )
        limit_ms = 1000 * UNTIL_S
        late = f"new Promise(done => setTimeout(() => done(false), {limit_ms}))"
        answer = self.call(
            "Runtime.evaluate",
            expression=f"Promise.race([{waiting}, {late}])",
            awaitPromise=True,
            returnByValue=True,
        )
        happened = answer["result"].get("value") is True
        assert happened, f"never so: {script}; the page says: {self.ask(_TEXT)}"

    def reload(self) -> None:
        """Load the page again."""
        self.browser.load(self, "Page.reload")

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key: Enter, Escape, Tab, or a space."""
        code, text = KEYS[key]
        down = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        kind = "keyDown" if text else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=kind, text=text, **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", **down)

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
            case "Log.entryAdded" if params["entry"]["level"] not in ("error", "warning"):
                pass
            case "Runtime.exceptionThrown" | "Log.entryAdded":
                self.complaints.append(json.dumps(params))
            case "Runtime.consoleAPICalled" if params.get("type") in ("error", "warning"):
                self.complaints.append(json.dumps(params))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
