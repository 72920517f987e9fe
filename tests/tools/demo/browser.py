"""Chromium without a window, driven by WebDriver's protocol: JSON to chromedriver."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request

from tests.chromium import OPTIONS

DRIVER = shutil.which("chromedriver")
START_SECS, WAIT_SECS = 60, 60


class Browser:
    """A tab. Its profile, which has to be empty, is in `folder`; nothing outlives `close`."""

    def __init__(self, folder):
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._session = None
        try:
            said = (re.search(r"on port (\d+)\.", line) for line in self._driver.stdout)
            self._url = f"http://127.0.0.1:{next(filter(None, said))[1]}"
            options = {"args": [*OPTIONS, f"--user-data-dir={folder}"]}
            given = {"alwaysMatch": {"goog:chromeOptions": options,
                                     "goog:loggingPrefs": {"browser": "ALL"}}}  # fmt: skip
            self._session = self._post("/session", capabilities=given)["sessionId"]
            self._url += f"/session/{self._session}"
        except BaseException:
            self.close()
            raise

    def close(self):
        """Ends the browser, then the driver."""
        try:
            if self._session:
                self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._driver.stdout.close()

    def open(self, url):
        """Loads a page."""
        self._post("/url", url=url)

    def run(self, script):
        """What a function with this body returns in the page."""
        return self._post("/execute/sync", script=script, args=[])

    def wait_for(self, script):
        """What a script returns as soon as that is true."""
        end = time.monotonic() + WAIT_SECS
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"{script}: {self.run('return document.body.innerText')}"
            time.sleep(0.1)
        return found

    def press(self, *keys):
        """Presses keys, one after the other; WebDriver's codes for those without a letter."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._post("/actions", actions=[{"type": "key", "id": "keys", "actions": steps}])

    def choose(self, selector, file):
        """Puts a file into an input of the page."""
        element = self._post("/element", using="css selector", value=selector)
        self._post(f"/element/{next(iter(element.values()))}/value", text=str(file))

    def drop(self, file, x, y):
        """Drags a file from elsewhere to a place in the page, and drops it."""
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.devtools("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def resize(self, width, height, *, dark=False):
        """Shows the page on a screen of so many pixels, in light or dark colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self):
        """The screen, as PNG."""
        return base64.b64decode(self._ask("GET", "/screenshot"))

    def complaints(self):
        """Errors and warnings in the page's console since the last call."""
        return [entry["message"] for entry in self._post("/se/log", type="browser")]

    def devtools(self, command, **params):
        """A command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", cmd=command, params=params)

    def _post(self, path, **body):
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=START_SECS) as response:
            return json.load(response)["value"]
