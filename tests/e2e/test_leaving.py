"""Clients that leave in the middle: what they asked for stops and nothing of it stays."""

import json
import socket
import time

import httpx
import pytest

LONG = {"max_tokens": 1800, "min_tokens": 1800, "ignore_eos": True}
TESTS = {"firstpass": {"tests": "assert f() == 1", "format": "asserts", "max_candidates": 64}}


def send(server, path, body):
    data = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    return s


def running(m):
    return m["firstpass_candidates_running"] > 0


@pytest.mark.parametrize("more", [{"n": 8}, {"n": 8, "stream": True}, TESTS, TESTS | {"stream": True}],
                         ids=["plain", "stream", "race", "race streamed"])
def test_leaving_stops_the_work(smol, more):
    before = smol.metrics()
    s = send(smol, "/v1/completions", {"prompt": "def f():\n", **LONG, **more})
    smol.wait_metrics(running, "candidates in flight")
    s.close()
    left = time.monotonic()
    after = smol.assert_quiet()
    print(f"nothing was left after {time.monotonic() - left:.3f} s")
    assert after["firstpass_http_clients_gone_total"] == before["firstpass_http_clients_gone_total"] + 1
    outcome = 'firstpass_races_ended_total{outcome="abandoned"}'
    assert after[outcome] == before[outcome] + 1
    started = after["firstpass_candidates_started_total"] - before["firstpass_candidates_started_total"]
    finished = after["firstpass_candidates_finished_total"] - before["firstpass_candidates_finished_total"]
    cancelled = after["firstpass_candidates_cancelled_total"] - before["firstpass_candidates_cancelled_total"]
    assert started >= 1 and started <= finished + cancelled
    smol.assert_serves()


def test_half_closed_counts_as_left(smol):
    s = send(smol, "/v1/completions", {"prompt": "a", **LONG})
    smol.wait_metrics(running, "candidates in flight")
    s.shutdown(socket.SHUT_WR)
    smol.assert_quiet()
    s.close()


def test_the_library_breaking_out_of_a_stream(smol):
    client = smol.openai()
    stream = client.completions.create(model=smol.model, prompt="a", max_tokens=1800, stream=True,
                                       extra_body={"ignore_eos": True, "min_tokens": 1800})
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    smol.assert_quiet()


def test_leaving_while_queued_behind_others(smol):
    first = send(smol, "/v1/completions", {"prompt": "a", "n": 64, **LONG})
    smol.wait_metrics(running, "candidates in flight")
    others = [send(smol, "/v1/completions", {"prompt": f"b{i}", "n": 64, **LONG}) for i in range(20)]
    smol.wait_metrics(lambda m: m["firstpass_races_live"] >= 21, "races")
    for s in [first, *others]:
        s.close()
    smol.assert_quiet()


def test_leaving_while_the_prompt_is_read(smol):
    """The moment differs from run to run; whatever it hits, nothing stays."""
    for pause in (0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3):
        s = send(smol, "/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 1500}], "max_tokens": 50,
                                                "n": 4})
        time.sleep(pause)
        s.close()
    smol.assert_quiet()
    smol.assert_serves()


def test_leaving_in_mid_body(smol):
    before = smol.metrics()["firstpass_http_body_bytes"]
    s = socket.create_connection(("127.0.0.1", smol.port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{\"prompt\":")
    smol.wait_metrics(lambda m: m["firstpass_http_body_bytes"] > before, "a body in memory")
    s.close()
    smol.wait_metrics(lambda m: m["firstpass_http_body_bytes"] <= before, "bodies gone")


def test_many_leave_at_random(smol):
    sockets = [send(smol, "/v1/completions", {"prompt": f"{i} ", "n": 4, "max_tokens": 40, "stream": i % 2 == 0})
               for i in range(60)]
    for i, s in enumerate(sockets):
        if i % 3:
            s.close()
            time.sleep(0.01)
    for i, s in enumerate(sockets):
        if i % 3 == 0:
            s.settimeout(120)
            data = b""
            while not (b"data: [DONE]" in data or b"}}}" in data):
                piece = s.recv(65536)
                assert piece, data
                data += piece
            s.close()
    smol.assert_quiet()


def test_httpx_timeout_is_a_leaving(smol):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{smol.url}/v1/completions", json={"prompt": "a", **LONG}, timeout=0.5)
    smol.assert_quiet()
