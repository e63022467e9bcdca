"""What can be wrong at the start: each is told in words, and nothing is left running."""

import re
import shutil
import socket
import struct

import pytest

from conftest import BINARY, MODELS, QWEN, SMOL, Process, Server, need_model, serving, skip_or_fail


def fails(*arguments, **options):
    """Starts, expects the end; the log without its progress."""
    process = Process(*arguments, **options)
    try:
        status = process.wait(120)
    finally:
        process.process.kill()
    assert status not in (0, None) and status > 0, f"status {status}\n{process.log}"
    assert "Sanitizer" not in process.log
    return process.log


@pytest.fixture(scope="module")
def smol_file():
    need_model(SMOL)
    return MODELS / f"{SMOL}.gguf"


def test_port_in_use(smol_file):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        log = fails("--port", str(port))
    assert f"port {port}" in log and "in use" in log and "--port" in log


def test_address_that_is_not_ours(smol_file):
    assert "192.0.2.1" in fails("--host", "192.0.2.1")


@pytest.mark.parametrize("arguments, word", [
    (["--port", "70000"], "65535"),
    (["--server.nothing", "1"], "nothing"),
    (["surprise"], "surprise"),
    (["--config", "/nonexistent.json"], "nonexistent"),
])
def test_settings(smol_file, arguments, word):
    assert word in fails(*arguments)


def test_no_model():
    log = fails(model="no-such-model")
    assert "no-such-model" in log and "fetch-model" in log or "no-such-model.gguf" in log


def test_a_folder_as_model(tmp_path):
    assert str(tmp_path) in fails(model=tmp_path)


@pytest.mark.parametrize("size", [0, 3, 24, 1000, 1_000_000, 50_000_000])
def test_truncated_model(smol_file, tmp_path, size):
    path = tmp_path / "cut.gguf"
    with open(smol_file, "rb") as f:
        path.write_bytes(f.read(size))
    log = fails(model=path)
    assert "cut.gguf" in log


def test_not_a_model(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("this is no model\n" * 1000)
    assert "text.gguf" in fails(model=path)


def test_corrupt_model(smol_file, tmp_path):
    """Counts and lengths in the head overwritten with the largest there are."""
    for at in (8, 16, 24):
        path = tmp_path / "bad.gguf"
        shutil.copy(smol_file, path)
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(struct.pack("<Q", 2**64 - 1))
        assert "bad.gguf" in fails(model=path)


def test_unknown_architecture(smol_file, tmp_path):
    path = tmp_path / "other.gguf"
    data = bytearray(smol_file.read_bytes())
    key = b"general.architecture" + struct.pack("<I", 8)
    at = data.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", data, at)
    assert data[at + 8:at + 8 + length] == b"llama"
    data[at + 8:at + 8 + length] = b"mamba"
    path.write_bytes(data)
    assert "mamba" in fails(model=path)


def test_no_python(smol_file):
    assert "/nonexistent/python" in fails("--verifier.python", "/nonexistent/python")


def test_a_python_that_is_none(smol_file):
    assert "/bin/true" in fails("--verifier.python", "/bin/true")


@pytest.mark.parametrize("arguments", [["--verifier.max_level", "1"], ["--verifier.max_level", "2", "--min-level", "3"],
                                       ["--verifier.max_landlock_abi", "0", "--verifier.max_level", "2"]],
                         ids=["level 1", "level 2 of 3", "no landlock"])
def test_a_layer_missing(smol_file, arguments):
    log = fails(*arguments)
    assert "verifier.min_level" in log or "level" in log


def test_a_weaker_sandbox_where_allowed(smol_file):
    with serving("--verifier.max_level", "1", "--min-level", "1") as server:
        assert server.http.get("/ready").json()["sandbox"]["level"] == 1
        assert server.metrics()["firstpass_sandbox_level"] == 1


def test_requests_while_loading():
    """The port answers before the model is there, and says so."""
    need_model(QWEN)
    server = Server(model=QWEN)
    try:
        response = server.http.get("/ready")
        if response.status_code == 200:
            skip_or_fail("slow", "the model was loaded before it could be asked")
        assert response.status_code == 503 and response.json()["status"] == "loading"
        health = server.http.get("/health")
        completion = server.post("/v1/completions", {"prompt": "a"})
        if server.http.get("/ready").status_code == 503:
            assert health.status_code == 503
            assert completion.status_code == 503 and completion.headers["retry-after"]
            assert completion.json()["error"]["type"] == "service_unavailable"
        server.ready()
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
    finally:
        server.close()


def test_memory_plan_is_printed(smol):
    for bucket in ("weights", "kv", "activations", "runtime", "reserve"):
        assert re.search(rf"{bucket}\s+\d+", smol.log), smol.log


def test_binary_without_arguments():
    import subprocess
    done = subprocess.run([BINARY], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and "serve" in done.stderr
    done = subprocess.run([BINARY, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("firstpass ")
    done = subprocess.run([BINARY, "serve", "--print-config"], capture_output=True, text=True)
    assert done.returncode == 0 and "server.port" in done.stdout
