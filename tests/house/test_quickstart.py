"""./quickstart refuses what can't work before it installs or builds anything."""

import pathlib
import socket
import subprocess

import pytest

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "quickstart"


def run(*arguments):
    return subprocess.run([QUICKSTART, *arguments], text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize("arguments, status, message", [
    (["--frob"], 2, "what is --frob?"),
    (["--port"], 2, "--port needs a value"),
    (["--model", ""], 2, "--model needs a value"),
    (["--port", "99999"], 1, "--port 99999: it must be a number from 0 to 65535"),
    (["--port=-1"], 1, "it must be a number"),
    (["--port", "x"], 1, "it must be a number"),
])
def test_arguments(arguments, status, message):
    done = run(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "building" not in done.stderr


def test_help():
    done = run("--help")
    assert done.returncode == 0
    assert "--build-only" in done.stdout


def test_port_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--once", "--port", str(port))
    assert done.returncode == 1
    assert f"port {port} is taken by another program" in done.stderr
    assert "building" not in done.stderr
