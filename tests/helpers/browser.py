"""A real browser for tests: Chromium without a window, driven through a pipe by its own protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
CONNECT = """import os, sys
ends = [os.dup(int(end)) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
    os.set_inheritable(place, True)  # also where it stood there already
os.execv(sys.argv[3], sys.argv[3:])"""
"""Becomes the browser, whose protocol speaks on descriptors 3 and 4."""
PATIENCE = 120
"""Seconds to wait for an answer; far more than any takes, so that a browser that hangs does not hang the tests."""
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}


class Page:
    """One tab. events: what the browser told unasked, such as exceptions of the page's script and requests."""

    def __init__(self, write: int, read: int) -> None:
        self.write, self.read, self.buffer, self.number = write, read, b"", 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Load a file and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript; of a promise, what it gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """One key, as if from the keyboard."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **({"text": "\r"} if key == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def point(self, selector: str) -> None:
        """Move the pointer onto an element."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self._middle(selector))

    def click(self, selector: str) -> None:
        where = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a menu."""
        self.ask(
            f"(() => {{ const menu = document.querySelector({selector!r}); menu.value = {value!r};"
            "menu.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def give_file(self, selector: str, path: Path) -> None:
        """Choose a file in a file input."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({selector!r})")["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=found)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot; whole: all of the page, not only what the window shows."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def names(self) -> list[tuple[str, str]]:
        """(role, name) of everything that a screen reader meets."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

    def troubles(self) -> list[dict[str, Any]]:
        """Exceptions, complaints, and requests for anything but the page itself and the pictures in it."""
        self.ask("0")  # whatever happened before is told before this is answered
        requests = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        outside = [e for e in requests if not e["params"]["request"]["url"].startswith(("file:", "data:"))]
        return outside + [e for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]

    def _middle(self, selector: str) -> dict[str, float]:
        # Two frames, so that what scrolling sets off comes first.
        found: dict[str, float] = self.ask(
            f"(async () => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);"
            "const b = e.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.read], [], [], PATIENCE)[0], "the browser does not answer"
            part = os.read(self.read, 1 << 20)
            assert part, "the browser has gone"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser() -> Iterator[Page]:
    """A page in a browser of its own, which ends with the block."""
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        ends = (str(to_browser), str(from_browser))
        line = [sys.executable, "-c", CONNECT, *ends, str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(line, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Page(write, read)
        finally:
            os.close(write)
            os.close(read)
            process.terminate()
            process.wait(30)
