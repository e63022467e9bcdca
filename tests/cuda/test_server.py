"""`firstpass serve --backend cuda` on the emulated device, asked over HTTP: it serves, and when the device fails, live
requests get 500 and the process ends, so that whatever watches it can start it anew."""

import os
import pathlib
import re
import subprocess
import threading
import time

import httpx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("FIRSTPASS_BUILD", ROOT / "build")) / "emulated_server"


@pytest.fixture(scope="module")
def model():
    path = subprocess.run([BINARY, "--write-model"], capture_output=True, text=True, check=True).stdout.strip()
    yield path
    os.unlink(path)


class Server:
    def __init__(self, model, fail_when, *args):
        self.process = subprocess.Popen(
            [BINARY, "--fail-when", fail_when, "serve", "--port", "0", "--model", model, "--backend", "cuda",
             "--model-name", "any", "--max-rows", "4", "--context", "512", "--verifier.min_level=0", *args],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.until(lambda: re.search(r"listening on (\S+)", self.log), "address")
        self.http = httpx.Client(base_url=re.search(r"listening on (\S+)", self.log)[1], timeout=300)
        self.until(lambda: self.http.get("/ready").status_code == 200, "readiness")

    def read(self):
        for line in self.process.stderr:
            self.log += line

    def until(self, done, what):
        end = time.monotonic() + 120
        while not done():
            assert self.process.poll() is None, f"ended before {what}: {self.log}"
            assert time.monotonic() < end, f"no {what}: {self.log}"
            time.sleep(0.05)

    def complete(self, **more):
        return self.http.post("/v1/completions", json={"model": "any", "prompt": "def f():", "temperature": 1, "seed": 3,
                                                       "max_tokens": 8, **more})

    def stop(self):
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait(60)
        self.reader.join(10)
        return status


@pytest.mark.parametrize("weights, kv", [("bf16", "bf16"), ("fp8", "bf16"), ("bf16", "fp8")])
def test_it_serves_and_repeats_itself(model, tmp_path, weights, kv):
    server = Server(model, str(tmp_path / "never"), "--weights", weights, "--kv", kv)
    try:
        first = server.complete(n=3)
        assert first.status_code == 200, first.text
        assert [c["text"] for c in first.json()["choices"]] == [c["text"] for c in server.complete(n=3).json()["choices"]]
        assert first.json()["usage"]["completion_tokens"] > 3
        metrics = server.http.get("/metrics").text
        assert re.search(r'^firstpass_\S*steps\S* [1-9]', metrics, re.M), metrics[:2000]
    finally:
        assert server.stop() == 0


def test_a_failed_device_ends_the_process(model, tmp_path):
    server = Server(model, str(tmp_path / "fail"))
    answers = []
    try:
        assert server.complete().status_code == 200
        asking = [threading.Thread(target=lambda: answers.append(server.complete(
            n=2, max_tokens=450, logit_bias={"256": -100})), daemon=True) for _ in range(2)]
        for thread in asking:
            thread.start()
        time.sleep(0.3)
        (tmp_path / "fail").touch()
        for thread in asking:
            thread.join(60)
        assert len(answers) == 2
        for answer in answers:
            assert answer.status_code == 500, answer.text
            error = answer.json()["error"]
            assert "device has failed" in error["message"] and error["type"] == "server_error", error
        assert server.process.wait(60) != 0
    finally:
        server.stop()
    assert "the device failed" in server.log
