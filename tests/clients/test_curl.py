"""curl and bare sockets: what proxies and small clients do to a connection."""

import json
import shutil
import socket
import subprocess

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
BODY = json.dumps({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0})


def curl(server, *arguments, path="/v1/completions", data=None):
    done = subprocess.run(["curl", "-sS", "-m", "60", "-o", "-", "-w", "\n%{http_code} %{http_version} %{num_connects}",
                           *arguments, f"{server.url}{path}"], input=data, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    body, _, tail = done.stdout.rpartition("\n")
    status, version, connects = tail.split()
    return int(status), version, body


def test_plain_post(smol):
    status, _, body = curl(smol, "-H", "Content-Type: application/json", "-d", BODY)
    assert status == 200 and json.loads(body)["choices"][0]["text"]


def test_content_type_of_forms(smol):
    """curl -d says application/x-www-form-urlencoded; the body is JSON all the same."""
    assert curl(smol, "-d", BODY)[0] == 200


def test_chunked_body(smol):
    status, _, body = curl(smol, "-H", "Transfer-Encoding: chunked", "-d", BODY)
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 4


def test_expect_100_continue(smol):
    padded = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 2_000_000})
    for extra in ((), ("-H", "Transfer-Encoding: chunked")):
        assert curl(smol, "-H", "Expect: 100-continue", *extra, "--data-binary", "@-", data=padded)[0] == 200
    large = json.dumps({"prompt": "a", "user": "x" * 5_000_000})
    status, _, body = curl(smol, "-H", "Expect: 100-continue", "--data-binary", "@-", data=large)
    assert status == 413 and json.loads(body)["error"]["code"] == "request_too_large"


def test_http_1_0(smol):
    status, _, body = curl(smol, "--http1.0", "-d", BODY)
    assert status == 200 and json.loads(body)["choices"]
    status, _, body = curl(smol, "--http1.0", "-d", json.dumps({**json.loads(BODY), "stream": True}))
    assert status == 200 and body.rstrip().endswith("data: [DONE]")


def test_compressed_answers_are_not_forced(smol):
    assert curl(smol, "--compressed", "-d", BODY)[0] == 200


def test_stream(smol):
    status, _, body = curl(smol, "-N", "-d", json.dumps({**json.loads(BODY), "stream": True}))
    assert status == 200 and body.count("data: ") >= 3


def test_head_options_and_methods(smol):
    assert curl(smol, "-I", path="/health")[0] == 200
    assert curl(smol, "-X", "OPTIONS")[0] == 204
    status, _, body = curl(smol, "-X", "PUT")
    assert status == 405 and json.loads(body)["error"]["code"] == "method_not_allowed"
    assert curl(smol, "-X", "POST", path="/health")[0] == 405


def answers(server, data, n):
    """What comes back over one connection until n status lines have come, or the end."""
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.settimeout(60)
        s.sendall(data)
        got = b""
        while got.count(b"HTTP/1.1 ") < n or not got.rstrip().endswith(b"}"):
            more = s.recv(65536)
            if not more:
                break
            got += more
    return got


def test_pipelining(smol):
    """Three requests at once, the first the slowest: the answers come in order."""
    def post(body, request_id):
        return (f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nx-request-id: {request_id}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
    data = (post(json.dumps({"prompt": "Once", "max_tokens": 40, "ignore_eos": True}), "p1") + post("{", "p2")
            + b"GET /health HTTP/1.1\r\nHost: h\r\nx-request-id: p3\r\nConnection: close\r\n\r\n")
    got = answers(smol, data, 3).decode()
    assert [got.index(f"x-request-id: p{i}") for i in (1, 2, 3)] == sorted(
        got.index(f"x-request-id: p{i}") for i in (1, 2, 3))
    assert [got[at + 9:at + 12] for at in (i for i in range(len(got)) if got.startswith("HTTP/1.1 ", i))] == [
        "200", "400", "200"]


@pytest.mark.parametrize("head", [
    b"GARBAGE\r\n\r\n", b"GET /no\x00where HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /health\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"v" * 100) for i in range(1000)) + b"\r\n",
], ids=range(11))
def test_what_is_no_request(smol, head):
    """Cut, or refused with the status that it has: as the API's error, or, where libmicrohttpd itself finds that it is no HTTP, with
    a page of its own and the connection's end."""
    with socket.create_connection(("127.0.0.1", smol.port)) as s:
        s.settimeout(30)
        got, more = b"", True
        try:
            s.sendall(head)
            while more and not got.endswith(b"}}"):
                more = s.recv(65536)
                got += more
        except OSError:
            pass  # cut in the middle of what it said
    if got:
        heads, _, body = got.partition(b"\r\n\r\n")
        assert heads.split()[1] in (b"400", b"404", b"414", b"431", b"505"), heads
        assert b"Connection: close" in heads or json.loads(body)["error"]["code"]
    smol.assert_serves()
