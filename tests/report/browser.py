"""Chromium without a window, driven through its DevTools protocol over two pipes; nothing but the
standard library."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")


def installed():
    """Path of a browser, or ``None``."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


WIRE = """import os, sys
os.dup2(int(sys.argv[1]), 63), os.dup2(int(sys.argv[2]), 64)
os.dup2(63, 3), os.dup2(64, 4)
os.execv(sys.argv[3], sys.argv[3:])"""
"""Puts the two pipes where the protocol expects them, and becomes the browser."""


class Browser:
    """One page in one browser."""

    def __init__(self, profile, *flags):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                WIRE,
                str(theirs_in),
                str(theirs_out),
                installed(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "--window-size=1000,1400",
                *flags,
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.read, self.write, self.buffer, self.count, self.session = (
            ours_in,
            ours_out,
            b"",
            0,
            None,
        )
        self.events = []
        deadline = time.monotonic() + 60
        while not (
            targets := [
                t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"
            ]
        ):
            assert time.monotonic() < deadline, "the browser opened no page"
        self.session = self.call(
            "Target.attachToTarget", targetId=targets[0]["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self.count:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self.events.append(found)

    def _next(self, patience=60):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], patience)
            assert ready, "the browser does not answer"
            part = os.read(self.read, 1 << 20)
            assert part, "the browser has gone"
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def open(self, path):
        """Show a local file and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path if "://" in str(path) else path.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def until(self, condition, patience=30):
        deadline = time.monotonic() + patience
        while not self.value(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)

    def value(self, script):
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path):
        path.write_bytes(
            base64.b64decode(
                self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            )
        )

    def choose(self, selector, path):
        node = self.call(
            "DOM.querySelector",
            nodeId=self.call("DOM.getDocument")["root"]["nodeId"],
            selector=selector,
        )
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node["nodeId"])

    def drop(self, selector, path):
        self.value(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})"
        )
        x, y = self.value(
            "(() => { const r = "
            f"document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [r.x + 20, r.y + 10]; })()"
        )
        what = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=what)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def complaints(self):
        """Errors of scripts, what the content policy blocked, and requests beyond local files."""
        found = [
            event["params"]
            for event in self.events
            if event.get("method")
            in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening")
        ]
        return found + [
            url
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
            and not (url := event["params"]["request"]["url"]).startswith(
                ("file:", "blob:", "data:", "about:", "http://127.0.0.1:")
            )
        ]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.read)
        os.close(self.write)
