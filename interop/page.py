"""Tests the page of `ferroflow serve` in a headless Chromium, which it drives through a pipe.

    apt-get install chromium
    python interop/page.py --server target/release/ferroflow [--browser chromium]

Prints a line for each check. Without a browser it fails: nothing is skipped.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../crates/serving/tests/models")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FAILED = []
PATIENCE = 30

PIXELS = """
node { name: 'image' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } }
       attr { key: 'shape' value { shape { dim { size: -1 } dim { size: 4 } dim { size: 4 } dim { size: 3 } } } } }
node { name: 'twice' op: 'AddV2' input: 'image' input: 'image' attr { key: 'T' value { type: DT_FLOAT } } }"""
LENGTH = """
node { name: 'file' op: 'Placeholder' attr { key: 'dtype' value { type: DT_STRING } }
       attr { key: 'shape' value { shape { dim { size: -1 } } } } }
node { name: 'length' op: 'StringLength' input: 'file' }"""


def check(name, good, seen=""):
    print("ok  " if good else "FAIL", name, flush=True)
    if not good:
        FAILED.append(name)
        print(f"  saw {seen}"[:2000])


class Browser:
    """Chromium and its DevTools protocol: messages that end with a zero byte, on descriptors 3 and 4."""

    def __init__(self, path, profile):
        to_read, self.to_write = os.pipe()
        self.to_read, to_write = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, path, profile],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.input, self.n, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.input:
            piece = os.read(self.to_read, 1 << 20)
            if not piece:
                sys.exit("the browser ended")
            self.input += piece
        text, self.input = self.input.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.n:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def run(self, script):
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            return f"exception: {done['exceptionDetails']}"
        return done["result"].get("value")

    def wait(self, name, script, want=lambda value: value is True):
        """Waits until an expression has a value, and reports it."""
        end, value = time.time() + PATIENCE, None
        while time.time() < end:
            value = self.run(script)
            if want(value):
                break
            time.sleep(0.1)
        check(name, want(value), value)
        return value

    def upload(self, selector, path):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[path])

    def close(self):
        self.process.terminate()
        self.process.wait()


class Server:
    def __init__(self, binary, models, *flags):
        named = [f"--model={name}={path}" for name, path in models.items()]
        command = [binary, "serve", "--port=0", "--rest-api-port=0", "--host=127.0.0.1", *named, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith("REST"):
                self.url = line.split()[1]
                return
        sys.exit("no server")

    def stop(self):
        self.process.kill()
        self.process.wait()


def png(pixels):
    """A PNG file of rows of (r, g, b)."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(v for pixel in row for v in pixel) for row in pixels)
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def choose(browser, element, value):
    browser.run(f"{element}.value = {json.dumps(value)}; {element}.dispatchEvent(new Event('change'))")


ANSWER = "document.getElementById('answer').textContent"
TOOK = "document.getElementById('took').textContent"
MODELS_TEXT = "document.getElementById('models').innerText"


def predict(browser, name, status, want):
    """Clicks the button and waits for a response with this status."""
    browser.run("document.getElementById('took').textContent = ''; document.querySelector('button').click()")
    browser.wait(f"{name}: status", TOOK, lambda text: str(text).startswith(f"{status}, "))
    text = browser.run(ANSWER)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    check(f"{name}: answer", want(answer), text)


def forms(browser, folder):
    choose(browser, "model", "half")
    browser.run("body.value = JSON.stringify({instances: [1, 2, 5]})")
    predict(browser, "a prediction", 200, lambda a: a == {"predictions": [3.5, 4.0, 5.5]})
    browser.run("body.value = JSON.stringify({instances: ['a']})")
    predict(browser, "a bad request", 400, lambda a: "error" in a)
    choose(browser, "model", "many")
    choose(browser, "signature", "checked")
    browser.wait("the form follows the signature", "JSON.parse(body.value).signature_name === 'checked'")
    predict(browser, "the prefilled request", 400, lambda a: "n must be positive" in a["error"])

    pixels = [[(16 * y, 16 * x, 255 - 16 * x) for x in range(4)] for y in range(4)]
    path = os.path.join(folder, "image.png")
    with open(path, "wb") as f:
        f.write(png(pixels))
    choose(browser, "model", "pixels")
    browser.upload("#image", path)
    browser.wait("an image fills the form", "body.value.includes('255')")
    twice = [[[2.0 * v for v in pixel] for pixel in row] for row in pixels]
    predict(browser, "an image as pixels", 200, lambda a: a == {"outputs": [twice]})
    choose(browser, "model", "length")
    browser.upload("#image", path)
    browser.wait("an image fills the form as a file", "body.value.includes('b64')")
    predict(browser, "an image as a file", 200, lambda a: a == {"outputs": [os.path.getsize(path)]})


def overview(browser, server, model):
    browser.call("Page.navigate", url=server.url + "/")
    browser.wait("all models are listed", MODELS_TEXT,
                 lambda t: all(n in str(t) for n in ("half", "many", "pixels", "length", "broken")))
    text = browser.run(MODELS_TEXT)
    check("signatures are listed", "serving_default(x: float [?]) → y: float [?]" in text, text)
    check("a broken model says why", "END" in text and "saved_model" in text, text)
    timing = browser.run("performance.getEntriesByType('navigation')[0].toJSON()")
    took, size = timing["loadEventEnd"] - timing["startTime"], timing["transferSize"]
    check(f"the page loads in {took:.0f} ms with {size} bytes", took < 2000 and size < 40_000, timing)
    shutil.copytree(os.path.join(model, "2"), os.path.join(model, ".3"))
    os.rename(os.path.join(model, ".3"), os.path.join(model, "3"))
    browser.wait("a new version appears", MODELS_TEXT, lambda t: "3 AVAILABLE" in str(t))


def charts(browser):
    script = """(async () => { for (let i = 0; i < 300; i++)
        await fetch('/v1/models/half:predict', {method: 'POST', body: '{"instances": [1]}'}); return true; })()"""
    check("requests of the page", browser.run(script) is True)
    browser.wait("the rate is shown", "Number(rate.textContent) > 0 || rates.innerHTML")
    points = "document.querySelector('#%s polyline').getAttribute('points').split(' ').map(p => Number(p.split(',')[1]))"
    for chart in ("rates", "latencies"):
        browser.wait(f"the chart of {chart} is drawn", f"Math.min(...{points % chart}) < 10")
    browser.wait("the latency is shown", "document.getElementById('latency').textContent", lambda t: str(t).endswith(" ms"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    parser.add_argument("--browser", help="a Chromium")
    args = parser.parse_args()
    found = args.browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        sys.exit("no Chromium: apt-get install chromium, or --browser PATH")
    folder = tempfile.mkdtemp()
    model = os.path.join(folder, "half")
    shutil.copytree(os.path.join(MODELS, "half"), model)
    os.makedirs(os.path.join(folder, "broken/1"))
    texts = {"pixels.pbtxt": PIXELS, "length.pbtxt": LENGTH, "broken/1/saved_model.pb": "rubbish", "token": "secret"}
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    models = {"half": model, "many": os.path.join(MODELS, "many"), "broken": os.path.join(folder, "broken")}
    models |= {name: os.path.join(folder, f"{name}.pbtxt") for name in ("pixels", "length")}
    server = Server(args.server, models)
    browser = Browser(found, os.path.join(folder, "profile"))
    try:
        overview(browser, server, model)
        forms(browser, folder)
        charts(browser)
        urls = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
        check("nothing else is fetched", all(u.startswith((server.url, "about:")) for u in urls), urls)
        errors = [e["params"] for e in browser.events if e.get("method") == "Runtime.exceptionThrown"]
        check("no script fails", not errors, errors)
        server.stop()
        browser.wait("a stopped server is reported", "memory.textContent.includes('does not answer')")
        server = Server(args.server, {"half": model}, f"--bearer-token-file={folder}/token")
        browser.call("Page.navigate", url=server.url + "/")
        browser.wait("a token is asked for", "!login.hidden")
        browser.run("token.value = 'secret'")
        browser.wait("the token opens the page", MODELS_TEXT, lambda t: "half" in str(t))
        predict(browser, "a prediction with the token", 200, lambda a: "outputs" in a)
    finally:
        browser.close()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(FAILED)} checks failed" if FAILED else "all checks passed")
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
