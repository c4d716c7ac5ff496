"""Two verbs for a browser, over WebDriver (W3C), which is JSON over HTTP."""

import json
import subprocess
import time
import urllib.error
import urllib.request

# As a tenant of a busy machine: a start takes seconds there.
PATIENCE_S = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Driver:
    """A `chromedriver` of our own."""

    def __enter__(self):
        self.process = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in self.process.stdout:
            if "started successfully on port" in line:
                self.url = "http://127.0.0.1:" + line.rsplit(" ", 1)[1].strip().rstrip(".")
                return self
        raise AssertionError("chromedriver does not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Browser:
    """A browser with a profile of its own."""

    def __init__(self, driver, name):
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        self.name = name
        self.url = driver.url + "/session"
        self.url += "/" + self.ask("POST", "", wanted)["sessionId"]

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from error

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def type(self, words):
        """Types at the end of the text, as a person does."""
        found = self.ask("POST", "/element", {"using": "css selector", "value": "#text"})
        self.ask("POST", f"/element/{found[ELEMENT]}/value", {"text": words})

    def sees(self):
        script = "return [document.title, getComputedStyle(document.body).backgroundColor, document.getElementById('text')?.value]"
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})

    def await_sight(self, *wanted):
        """Waits until title, colour and text are these."""
        deadline, seen = time.monotonic() + PATIENCE_S, None
        while seen != list(wanted):
            assert time.monotonic() < deadline, f"{self.name} sees {seen}, not {wanted}"
            try:
                seen = self.sees()
            except RuntimeError as error:
                # Between two pages there is none.
                seen = str(error)

    def close(self):
        self.ask("DELETE", "")
