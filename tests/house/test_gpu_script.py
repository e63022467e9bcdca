"""tests/gpu.sh where there is no GPU: what it says and how it ends.  Its checks run in `tests/run cuda`, emulated."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def script(*args, **extra):
    environment = {k: v for k, v in os.environ.items() if k != "FIRSTPASS_MUST"}
    return subprocess.run([ROOT / "tests/gpu.sh", *args], capture_output=True, text=True, env=dict(environment, **extra),
                          timeout=60)


def test_list_fits_into_eight_minutes():
    done = script("--list")
    assert done.returncode == 0
    seconds = [int(s) for s in re.findall(r"^\S+ +(\d+) s  ", done.stdout, re.M)]
    assert len(seconds) >= 15 and sum(seconds) <= 480
    for word in ("memcheck", "racecheck", "graphs", "decode-8b-fp8", "memory", "kernels-attention"):
        assert word in done.stdout


@pytest.mark.skipif(pathlib.Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_skips():
    done = script()
    assert done.returncode == 77 and "there is no GPU here" in done.stderr
    assert script(FIRSTPASS_MUST="box,gpu").returncode == 1


def test_unknown_checks_are_an_error():
    done = script("--only", "nonsense", "--list")
    assert done.returncode == 2 and "nonsense" in done.stderr
