"""A headless Chromium, driven through its debugging pipe: no port, no extra package."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE = 60.0


@dataclass
class Browser:
    """One page of a running Chromium, with whatever it complained about."""

    requests: int
    answers: int
    process: "subprocess.Popen[bytes]"
    session: str = ""
    complaints: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    _buffer: bytes = b""
    _number: int = 0

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.requests, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        options = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        return self.call("Runtime.evaluate", **options)["result"].get("value")

    def open(self, path: Path) -> None:
        """Open a file and wait until it is laid out."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + PATIENCE
        ready = "document.readyState === 'complete' && location.href !== 'about:blank'"
        while not self.evaluate(ready) and time.monotonic() < end:
            time.sleep(0.02)
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self.answers], [], [], PATIENCE)[0]:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE} s")
            chunk = os.read(self.answers, 1 << 20)
            if not chunk:
                raise RuntimeError("Chromium ended before it answered")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, parameters: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        if event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))
        if event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        if event == "Network.requestWillBeSent":
            self.loaded.append(parameters["request"]["url"])


@contextmanager
def run_browser(profile: Path) -> Generator[Browser]:
    """Start Chromium with an empty page, and end it afterwards."""
    assert CHROMIUM is not None
    profile.mkdir(parents=True, exist_ok=True)
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    process = subprocess.Popen(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(3, 4),
        preexec_fn=lambda: _place(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    browser = Browser(requests=to_write, answers=from_read, process=process)
    try:
        _attach_(browser)
        yield browser
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(to_write)
        os.close(from_read)


def _place(requests: int, answers: int) -> None:
    """Put the pipes where Chromium looks for them, by way of places neither can be in."""
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in (requests, answers)]
    os.dup2(ends[0], 3)
    os.dup2(ends[1], 4)


def _attach_(browser: Browser) -> None:
    pages: list[dict[str, Any]] = []
    end = time.monotonic() + PATIENCE
    while not pages and time.monotonic() < end:
        targets = browser.call("Target.getTargets")["targetInfos"]
        pages = [target for target in targets if target["type"] == "page"]
    options = {"targetId": pages[0]["targetId"], "flatten": True}
    browser.session = browser.call("Target.attachToTarget", **options)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable")
