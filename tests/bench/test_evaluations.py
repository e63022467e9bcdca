"""What bench/plots and bench/agree read out of a folder of `firstpass eval`: figures worked out by hand, and real drawings of them."""

import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import evaluations  # noqa: E402


def candidate(task, index, passed, tokens):
    return {"task": task, "index": index, "passed": passed, "tokens": tokens, "verdict": "passed" if passed else "failed", "code": "x"}


def folder_of(path, mode, lines, per_task):
    curve = [{"k": k, "value": 0.25 * k, "interval": [0.2 * k, 0.25 * k]} for k in (1, 2, 3)]
    path.mkdir()
    (path / "results.json").write_text(json.dumps({"model": "m", "mode": mode, "n": 3, "curve": curve, "per_task": per_task}))
    (path / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"task": "HumanEval/0", "ind')
    return evaluations.Evaluation(path)


def per_task(**passes):
    return [{"task": f"HumanEval/{name[1:]}", "tokens_to_pass": tokens, "first_pass_s": tokens and tokens / 10} for name, tokens in passes.items()]


@pytest.fixture
def every(tmp_path):
    """Task 0 passes at index 1, whatever came first in time; task 1 never."""
    lines = [{"eval": 1, "options": {}}, {"session": 1}, candidate("HumanEval/0", 2, True, 4), candidate("HumanEval/0", 0, False, 10),
             candidate("HumanEval/0", 1, True, 20), *(candidate("HumanEval/1", i, False, 5) for i in range(3)),
             {"race": "HumanEval/0", "cut_tokens": 0}, candidate("Other/9", 0, True, 1)]
    return folder_of(tmp_path / "every", "pass@k", lines, per_task(t0=4, t1=None))


@pytest.fixture
def first(tmp_path):
    """Task 0 passes with the second candidate in time, others are cut off; task 1 never."""
    lines = [{"eval": 1, "options": {}}, candidate("HumanEval/0", 2, False, 4), candidate("HumanEval/0", 0, True, 10),
             {"race": "HumanEval/0", "cut_tokens": 7}, *(candidate("HumanEval/1", i, False, 5) for i in range(2)),
             {"task": "HumanEval/1", "index": 2, "verdict": "broken", "passed": False, "tokens": 100}, {"race": "HumanEval/1", "cut_tokens": 0}]
    return folder_of(tmp_path / "first", "first", lines, per_task(t0=14, t1=None))


def test_cost_where_all_are_judged(every):
    assert [every.cost(k) for k in (1, 2, 3)] == [(10 + 5, 0), (30 + 10, 1), (30 + 15, 1)]
    assert every.costs() == [(2, 40), (3, 45)]


def test_cost_where_the_first_pass_ends_a_task(first):
    assert [first.cost(k) for k in (1, 2, 3)] == [(4 + 5, 0), (14 + 7 + 10, 1), (14 + 7 + 10, 1)]


def test_curve_and_distribution(every):
    assert every.curve()[1] == (2, 0.5, 0.4, 0.5)
    assert every.to_pass("tokens_to_pass") == [4] and every.to_pass("first_pass_s") == [0.4]


def test_plots_are_drawn(every, first, tmp_path):
    out = tmp_path / "plots"
    command = [sys.executable, BENCH / "plots", every.folder, first.folder, "--installed", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("coverage", "fail", "first_pass", "cost"):
        assert xml.etree.ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg"), done.stderr
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "coverage.svg").read_text()
    assert "GPT-4o, one try: 90.2 %" in text and "first (at least)" in text and "HumanEval, 2 tasks" in text
    text = (out / "fail.svg").read_text()
    assert "GPT-4o, one try: 9.8 %" in text and "first (at most)" in text
    assert "1 of 2" in (out / "first_pass.svg").read_text()
    # Runs of one model are told apart by their folders.
    done = subprocess.run([sys.executable, BENCH / "plots", every.folder, every.folder, "--installed", "--out", out], capture_output=True, text=True)
    assert done.returncode == 0 and "m, pass@k, every" in (out / "coverage.svg").read_text(), done.stderr


def test_published_lines_are_for_humaneval_only(tmp_path):
    lines = [{"eval": 1, "options": {}}, candidate("Mbpp/2", 0, True, 4)]
    e = folder_of(tmp_path / "mbpp", "pass@k", lines, [{"task": "Mbpp/2", "tokens_to_pass": 4, "first_pass_s": 1}])
    done = subprocess.run([sys.executable, BENCH / "plots", e.folder, "--installed"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "GPT-4o" not in (e.folder / "coverage.svg").read_text()


def test_a_difference_is_explained():
    """By a real run of the code in a plain Python, and by what both said."""
    loader = importlib.machinery.SourceFileLoader("agree", str(BENCH / "agree"))
    agree = importlib.util.module_from_spec(importlib.util.spec_from_loader("agree", loader))
    loader.exec_module(agree)
    problem = {"prompt": "def f(x):\n", "test": "def check(g):\n    assert g(1) == 2\n", "entry_point": "f"}
    right, wrong = "def f(x):\n    return x + 1\n", "def f(x):\n    return x\n"
    assert agree.plainly(problem, "    pass\n" + right, 30) == "passed"
    assert agree.plainly(problem, "    pass\n" + wrong, 30) == "AssertionError"
    assert agree.plainly(problem, "    pass\nwhile True: pass", 0.5) == "still running after 0.5 s"
    said = lambda verdict, theirs, plain: agree.explain({"passed": verdict == "passed", "verdict": verdict}, {"result": theirs}, plain)
    assert "CPU seconds" in said("passed", "timed out", "passed")
    assert "limit of ours (memory)" in said("memory", "passed", "passed")
    assert "guard" in said("passed", "failed: 'NoneType' object is not callable", "passed")
    assert said("failed", "passed", "AssertionError") == "a plain Python does as ours"
    assert "LOOK" in said("failed", "passed", "passed") and "LOOK" in said("passed", "failed: ", "AssertionError")
