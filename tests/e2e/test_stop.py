"""The end: SIGTERM drains, a second one cuts, and no process stays."""

import concurrent.futures
import json
import os
import signal
import time

import httpx
import pytest

from conftest import Server, need_model, SMOL


@pytest.fixture
def server():
    need_model(SMOL)
    server = Server("--engine.context", "2048", "--server.drain_s", "60").ready()
    yield server
    server.close()


def children(pid):
    found = []
    for task in (f"/proc/{pid}/task/{pid}/children",):
        with open(task) as f:
            for child in map(int, f.read().split()):
                found += [child, *children(child)]
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids):
    until = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle(server, number):
    workers = children(server.process.pid)
    assert workers
    server.process.send_signal(number)
    assert server.wait() == 0, server.log
    assert gone(workers)


def busy(m):
    return m["firstpass_candidates_running"] > 0


def test_live_requests_end_and_new_ones_are_refused(server):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        whole = pool.submit(server.post, "/v1/completions",
                            {"prompt": "a", "max_tokens": 120, "ignore_eos": True, "n": 2})
        with server.http.stream("POST", "/v1/completions", json={
                "prompt": "b", "max_tokens": 120, "ignore_eos": True, "stream": True}) as stream:
            server.wait_metrics(lambda m: m["firstpass_races_live"] == 2 and busy(m), "two races")
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(lambda: server.http.get("/health").status_code == 503, "draining")
            refused = server.post("/v1/completions", {"prompt": "c", "max_tokens": 1})
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert server.http.get("/ready").json()["status"] == "draining"
            text = "".join(stream.iter_text())
        assert text.endswith("data: [DONE]\n\n")
        assert json.loads(text.split("\n\n")[-3][6:])["choices"][0]["finish_reason"] == "length"
        answer = whole.result()
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 240
    assert server.wait() == 0, server.log


def test_a_second_signal_cuts(server):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        cut = pool.submit(server.post, "/v1/completions", {"prompt": "a", "max_tokens": 1900, "ignore_eos": True})
        server.wait_metrics(busy, "a race")
        workers = children(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: server.http.get("/health").status_code == 503, "draining")
        server.process.send_signal(signal.SIGTERM)
        assert cut.result().status_code == 503
    assert server.wait() == 0, server.log
    assert gone(workers)


def test_time_to_drain_is_limited():
    need_model(SMOL)
    server = Server("--engine.context", "2048", "--server.drain_s", "0.3").ready()
    try:
        with server.http.stream("POST", "/v1/completions", json={
                "prompt": "a", "max_tokens": 1900, "ignore_eos": True, "stream": True}) as stream:
            lines = stream.iter_text()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = "".join(lines)
        assert '"error"' in rest and rest.endswith("data: [DONE]\n\n")
        assert server.wait() == 0, server.log
    finally:
        server.close()


def test_idle_connections_do_not_hold_it(server):
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0, server.log


def test_killed_it_leaves_no_worker(server):
    workers = children(server.process.pid)
    server.process.kill()
    server.wait()
    assert gone(workers), "workers outlive a killed server"


def test_a_worker_that_dies_is_replaced(server):
    tests = {"tests": "assert f() == 1", "format": "asserts", "max_candidates": 2}
    ask = {"prompt": "def f():\n    return 1\n", "max_tokens": 2, "temperature": 0, "firstpass": tests}
    assert server.post("/v1/completions", ask).status_code == 200
    for pid in children(server.process.pid)[1:]:  # the keeper stays
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    workers = server.metrics()["firstpass_verifier_workers"]
    server.wait_metrics(lambda m: m["firstpass_verifier_workers_replaced_total"] >= workers, "new workers")
    for _ in range(3):
        assert server.post("/v1/completions", ask).status_code == 200, server.log
    assert server.process.poll() is None
