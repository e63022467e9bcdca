"""`firstpass bench`: what it tells adds up; how fast anything is, is nobody's business here."""

import json
import math
import subprocess

import pytest

from conftest import BINARY, ROOT, SMOL, need_model
from test_commands import firstpass

TEXT = ROOT / "bench" / "perplexity.txt"


@pytest.mark.parametrize("more, rows", [(["--no-share"], 1.0), (["--temperature", 0], 0.25)])
def test_decode_tells_the_roofline(more, rows):
    need_model(SMOL)
    done = firstpass("bench", "decode", "--model", SMOL, "--n", "4", "--prompt", 40, "--gen", 8, "--repeat", 2, "--threads", 2,
                     "--json", *more)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["threads"] == 2 and told["shared"] is ("--no-share" not in more) and len(told["runs"]) == 2
    ceiling, memory = told["ceiling"], told["memory"]
    assert memory["weight_bytes"] < memory["peak_resident_bytes"] and memory["kv_pool_bytes"] > 0
    for run in told["runs"]:
        assert run["n"] == 4 and run["rows_per_token"] == pytest.approx(rows, abs=0.01)
        # The thread that takes the time may hear of the prompt's end some steps of the eight late; twice the time would be a fault.
        assert 0 < sum(run["seconds_by_operation"].values()) < run["decode_seconds"] * 2
        assert run["share_of_ceiling"] == pytest.approx(run["gmac_per_s"] / ceiling["gmac_per_s"], rel=1e-3)
        assert run["share_of_bandwidth"] == pytest.approx(run["gb_per_s"] / ceiling["gb_per_s"], rel=1e-3)


def test_perplexity_counts_the_second_halves(tmp_path):
    need_model(SMOL)
    text = tmp_path / "text"
    text.write_text(TEXT.read_text()[:3000])
    done = firstpass("bench", "perplexity", "--model", SMOL, "--file", text, "--chunk", 64, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["chunks"] == told["tokens"] // 64 > 4 and told["scored"] == told["chunks"] * 31
    assert 1 < told["perplexity"] < 1000 and math.isfinite(told["perplexity"])
    shuffled = tmp_path / "shuffled"
    shuffled.write_text(" ".join(sorted(text.read_text().split(), key=lambda word: word[::-1])))
    worse = firstpass("bench", "perplexity", "--model", SMOL, "--file", shuffled, "--chunk", 64, "--json")
    assert json.loads(worse.stdout)["perplexity"] > 1.5 * told["perplexity"]


@pytest.mark.parametrize("arguments, told", [
    ([], "usage"), (["speed"], "usage"), (["decode", "--n", "0"], "--n"), (["perplexity"], "--file TEXT is missing"),
    (["perplexity", "--file", "/nowhere"], "/nowhere"), (["perplexity", "--file", "x", "--chunk", "3"], "from 4"),
])
def test_wrong_words(arguments, told):
    done = subprocess.run([BINARY, "bench", *arguments, "--model", SMOL], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and told in done.stderr, done.stderr
