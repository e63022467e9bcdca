"""The arithmetic of bench/peers, without the peer: floors, medians, intervals, and what is written of them."""

import argparse
import csv
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import clients  # noqa: E402
import measures  # noqa: E402
import peer  # noqa: E402
import report  # noqa: E402


@pytest.mark.parametrize("value, floor, at_most, met", [
    (3.5, 3.5, False, True), (3.49, 3.5, False, False), (0.6, 0.6, True, True), (0.61, 0.6, True, False), (1.0, None, False, None),
])
def test_floor(value, floor, at_most, met):
    assert measures.row("x", None, None, value, "×", floor, at_most)["met"] is met


def run_of(n, speed, share=0.25):
    return {"n": n, "tokens_per_s": speed, "prefill_tokens_per_s": 300.0, "gmac_per_s": 10.0, "share_of_ceiling": share}


def test_summary_is_medians_of_the_rounds():
    sides = {"peer": [{1: (10.0, 100.0)}, {1: (30.0, 90.0)}, {1: (20.0, 80.0)}],
             "firstpass": [{"isa": "avx2", "runs": [run_of(1, v, s)]} for v, s in ((50.0, 0.2), (10.0, 0.3), (40.0, None))]}
    result = measures.summary("0.5b", sides, argparse.Namespace(n=[1]))
    assert result["decode"] == [{"n": 1, "peer_tokens_per_s": 20.0, "tokens_per_s": 40.0, "ratio": 2.0, "gmac_per_s": 10.0,
                                 "share_of_ceiling": 0.25}]
    assert result["prefill"] == {"peer_tokens_per_s": 90.0, "tokens_per_s": 300.0}


def test_rounds_turn_the_order_round(monkeypatch):
    order = []
    monkeypatch.setattr(peer, "batched_bench", lambda *a: order.append("peer") or {1: (1.0, 1.0)})
    monkeypatch.setattr(measures, "own_decode", lambda *a: order.append("own") or {"isa": "x", "runs": [run_of(1, 1.0)]})
    measures.rounds("0.5b", None, None, argparse.Namespace(rounds=3, n=[1]))
    assert order == ["peer", "own", "own", "peer", "peer", "own"]


def test_bootstrap():
    assert measures.bootstrap([0.25] * 40) == (0.25, 0.25)
    low, high = measures.bootstrap([0.0, 1.0] * 50)
    # the mean's standard error is 0.05
    assert 0.38 < low < 0.42 and 0.58 < high < 0.62
    assert measures.bootstrap([0.0, 1.0] * 50) == (low, high)


@pytest.mark.parametrize("text, code", [
    ("Sure:\n```python\ndef f():\n    pass\n```\nDone.", "def f():\n    pass"),
    ("```py\nx\n```\n```\ny\n```", "x"),
    ("```\ncut off", "cut off"),
    ("def f(): pass", "def f(): pass"),
])
def test_extract(text, code):
    assert clients.extract(text) == code


def test_preface():
    problem = {"prompt": "import math\n\ndef g():\n    return 1\n\ndef f(x):\n    '''doc'''\n", "entry_point": "f"}
    assert clients.preface(problem) == "import math\n\ndef g():\n    return 1\n\n"


def test_sampling_goes_on_where_it_stopped(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(clients, "post", lambda url, body: asked.append(body["n"]) or
                        {"choices": [{"message": {"content": "x"}}] * body["n"]})
    tasks, path = [(f"t{i}", {"prompt": "p"}) for i in range(3)], tmp_path / "a.jsonl"
    first = measures.sample("url", path, tasks[:2], 8)
    assert first == {"t0": ["x"] * 8, "t1": ["x"] * 8} and asked == [8, 8]
    assert set(measures.sample("url", path, tasks, 8)) == {"t0", "t1", "t2"} and asked == [8, 8, 8]


def test_build_options():
    options = set(peer.flag_options({"avx2", "fma", "f16c", "bmi2", "avx512f", "amx_int8", "sse2"}))
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=OFF"} <= options
    assert not any("AMX" in option for option in options)
    assert "-DGGML_AVX512=OFF" in peer.flag_options(peer.AVX2_ONLY)


ROWS = [{**row, "commit": "abc"} for row in (measures.ratio("decode, 0.5b, n = 32", 50.0, 150.0, 3.5),
                                             measures.row("peak, \"N\", 64", None, "1 MiB", 1.5, "×", 1.6, True))]
REPORT = {"commit": "abc", "date": "2026-01-01", "machine": {"cpu": "C"}, "threads": 2, "isa": "auto", "peer": "built", "rounds": 3,
          "prompt": 160, "gen": 48, "rows": ROWS}


def test_table_and_csv():
    lines = report.table(ROWS).splitlines()
    assert lines[2] == "| decode, 0.5b, n = 32 | 50.0 | 150.0 | 3.0× | ≥ 3.5× | **no** | abc |"
    assert lines[3].endswith("| 1 MiB | 1.5× | ≤ 1.6× | yes | abc |")
    read = list(csv.DictReader(io.StringIO(report.csv(ROWS))))
    assert read[1]["what"] == "peak, \"N\", 64" and read[1]["met"] == "True" and read[0]["value"] == "3.0"


def test_readme_block():
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    new = report.into_readme(text, report.readme_block(REPORT))
    assert new.startswith("before\n") and new.endswith("\nafter\n") and "old" not in new and "2026-01-01; C, 2 threads" in new
    assert report.into_readme(new, report.readme_block(REPORT)) == new
    with pytest.raises(SystemExit):
        report.into_readme("no marks", "x")


def test_share_of_amx_is_told_with_that_of_vpdpbusd(monkeypatch):
    asked = []
    monkeypatch.setattr(measures, "own_decode", lambda *a, isa: asked.append(isa) or
                        {"runs": [{"gmac_per_s": 100.0 * len(asked), "share_of_ceiling": 0.2 * len(asked)}]})
    last = {"n": 64, "gmac_per_s": 250.0, "share_of_ceiling": 0.05}
    rows = measures.shares("0.5b", None, {"isa": "amx", "decode": [last]}, argparse.Namespace(rounds=3))
    assert [(r["value"], r["floor"], r["met"]) for r in rows] == [(5.0, None, None), (40.0, 50, False)]
    assert asked == ["avx512vnni"] * 3
    rows = measures.shares("0.5b", None, {"isa": "avx2", "decode": [{**last, "share_of_ceiling": 0.51}]}, argparse.Namespace(rounds=3))
    assert [(r["value"], r["met"]) for r in rows] == [(51.0, True)]


def test_a_line_of_this_run_takes_the_place_of_an_earlier_one():
    loader = importlib.machinery.SourceFileLoader("peers_command", str(BENCH / "peers"))
    peers_command = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers_command", loader))
    loader.exec_module(peers_command)
    row = measures.ratio("a", 1.0, 2.0, 1.5)
    together = {"commit": "new", "rows": [{**row, "commit": "old"}, {**row, "what": "b", "commit": "old"}]}
    peers_command.put(together, [{**row, "value": 9}, {**row, "what": "c"}])
    assert [(r["what"], r["commit"]) for r in together["rows"]] == [("a", "new"), ("b", "old"), ("c", "new")]
    assert together["rows"][0]["value"] == 9


def test_svg_is_xml():
    results = [{"model": "0.5b", "decode": [{"n": n, "tokens_per_s": 10.0 * n, "peer_tokens_per_s": 5.0 * n} for n in (1, 8)]}]
    root = xml.etree.ElementTree.fromstring(report.svg(results, "caption"))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_earlier_runs_are_put_together(tmp_path):
    empty = {"memory": {}, "rows_per_token": {}, "first_pass": {}, "perplexity": {}, "pass_at_1": {}, "results": []}
    earlier = tmp_path / "a.json"
    earlier.write_text(json.dumps({**REPORT, **empty, "memory": {"0.5b": {"peak": 1}}}))
    out = tmp_path / "b.json"
    done = subprocess.run([sys.executable, "-B", BENCH / "peers", "--only", "", "--add", earlier, "--json", out, "--csv", tmp_path / "c.csv",
                           "--svg", tmp_path / "d.svg"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["memory"] == {"0.5b": {"peak": 1}} and "decode, 0.5b, n = 32" in done.stdout


def test_wrong_words_are_refused():
    for arguments in (["--models", "7b"], ["--only", "nothing"]):
        done = subprocess.run([sys.executable, "-B", BENCH / "peers", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and "known: " in done.stderr
