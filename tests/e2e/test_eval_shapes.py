"""Every shape of task file through `firstpass eval`: asked, judged right and wrong, killed with SIGKILL and gone on with.

The model is small and solves little by itself.  So the answers begin with code of ours, one prompt variant with a program that is right
for all tasks, the other with one that is wrong for all: what is tested is how each shape is read, asked and judged."""

import gzip
import json
import signal
import time

import pytest

from conftest import SMOL, need_model
from test_eval import candidates, evaluate, journal, start, what

RIGHT = '''import sys

def add(a, b):
    return a + b

class Solution:
    def twice(self, x: int) -> int:
        return 2 * x

if __name__ == "__main__":
    line = sys.stdin.readline()
    print(2 * int(line) if line.strip() else 4)
'''
WRONG = '''def add(a, b):
    return a - b

class Solution:
    def twice(self, x: int) -> int:
        return x

if __name__ == "__main__":
    print("no")
'''
PROGRAM = "def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n"
CHECK = "def check(candidate):\n    assert candidate(2, 3) == 5\n"
STDIN = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}, {"input": "21\n", "output": "42\n", "testtype": "stdin"}])
FUNCTIONAL = json.dumps([{"input": "1", "output": "2", "testtype": "functional"}])
STARTER = "class Solution:\n    def twice(self, x: int) -> int:\n"

SHAPES = [
    {"task_id": "HumanEval/900", "prompt": PROGRAM, "entry_point": "add", "canonical_solution": "    return a + b\n", "test": CHECK},
    {"task_id": "HumanEval/901", "prompt": PROGRAM, "entry_point": "add", "canonical_solution": "    return a + b\n", "test": CHECK,
     "base_input": [[1, 2]], "plus_input": [[10 ** 30, 1], ["a", "b"]], "atol": 0, "contract": ""},
    {"task_id": "Mbpp/902", "prompt": '"""\nWrite a function to add.\nassert add(1, 2) == 3\n"""\n', "entry_point": "add",
     "canonical_solution": "def add(a, b):\n    return a + b\n", "base_input": [[1, 2]], "plus_input": [[0.5, 1]], "atol": 1e-6},
    {"task_id": 3, "text": "Write a function add(a, b).", "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "test_setup_code": "",
     "challenge_test_list": []},
    {"task_id": 4, "prompt": "Write a function add(a, b).", "test_imports": ["import math"], "test_list": ["assert math.isclose(add(1, 2), 3)"]},
    {"question_id": "lcb-stdin", "question_content": "Print twice the number.", "starter_code": "", "metadata": "{}",
     "public_test_cases": STDIN, "private_test_cases": STDIN},
    {"question_id": "lcb-pickled", "question_content": "Print twice the number.", "starter_code": "", "metadata": "{}",
     "public_test_cases": STDIN, "private_test_cases": "eJxLTEoGAAJNASc="},
    {"question_id": "lcb-functional", "question_content": "Return twice the number.", "starter_code": STARTER,
     "metadata": json.dumps({"func_name": "twice"}), "public_test_cases": FUNCTIONAL, "private_test_cases": "[]"},
    {"problem_id": 7, "question": "Print twice the number.", "starter_code": "",
     "input_output": json.dumps({"inputs": ["1\n", "5\n"], "outputs": ["2\n", "10\n"]}), "difficulty": "interview"},
    {"problem_id": 8, "question": "Return twice the number.", "starter_code": STARTER,
     "input_output": json.dumps({"fn_name": "twice", "inputs": [[1]], "outputs": [[2]]})},
    {"id": "cases", "prompt": "Print 4.", "tests": [{"input": "", "output": "4"}], "format": "stdio"},
    {"id": "check", "prompt": "Write add(a, b).", "tests": CHECK, "entry_point": "add"},
    {"id": "asserts", "prompt": "Write add(a, b).", "tests": "assert add(1, 2) == 3", "format": "asserts"},
    {"prompt": "Write add(a, b).", "tests": "import unittest\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(add(1, 2), 3)\n"},
]
N = 4


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text("\n".join(map(json.dumps, SHAPES)))
    return path


def options():
    answers = [{"assistant": f"```python\n{code}```\n"} for code in (RIGHT, WRONG)]
    return ("--model", SMOL, "--context", 2048, "--n", N, "--max-tokens", 6, "--no-plots", "--diversity", json.dumps({"prompts": answers}))


def check_judged(folder):
    """Candidates 0 and 2 of each task are right, 1 and 3 wrong."""
    found = candidates(folder)
    assert len(found) == N * len(SHAPES)
    for (task, index), line in found.items():
        assert line["prompt"] == index % 2
        assert line["passed"] == (index % 2 == 0), (task, line["verdict"], line["error"], line["code"])
        assert line["tests_total"] >= 1 and line["verdict"] in ("passed", "failed")


def test_every_shape_is_judged(shapes, tmp_path):
    need_model(SMOL)
    out, _ = evaluate(shapes, "--out", tmp_path / "out", *options())
    check_judged(tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [task["error"] for task in results["per_task"]] == [None] * len(SHAPES)
    assert results["solved"] == len(SHAPES) and results["failed_tasks"] == 0 and results["public_only_tasks"] == 1
    assert results["pass_at_k"]["1"] == 0.5 and results["pass_at_k"]["4"] == 1
    assert "1 tasks were judged by their public cases only" in out
    ids = [task["task"] for task in results["per_task"]]
    assert len(set(ids)) == len(SHAPES) and {"HumanEval/900", "HumanEval/901", "Mbpp/902", "3", "lcb-stdin", "cases"} <= set(ids)
    # An array of them, in gzip, has the same tasks.  (Whole numbers of more than 64 bits, as EvalPlus has them, are for lines.)
    array = tmp_path / "shapes.json.gz"
    array.write_bytes(gzip.compress(json.dumps(SHAPES).replace(str(10 ** 30), str(10 ** 9)).encode()))
    evaluate(array, "--out", tmp_path / "array", *options())
    assert what(tmp_path / "array") == what(tmp_path / "out")


@pytest.mark.parametrize("mode", ["pass@k", "first"])
def test_killed_anywhere_nothing_is_lost_or_done_twice(shapes, tmp_path, mode):
    need_model(SMOL)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    evaluate(shapes, "--out", whole, *options(), "--mode", mode)
    path, kept, kills = pieces / "candidates.jsonl", b"", 0
    for least in (1, 5, 12):
        process = start(shapes, "--out", pieces, "--in-flight", 2, *options(), "--mode", mode)
        while process.poll() is None and (not path.exists() or len(candidates(pieces)) < least):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        now = path.read_bytes()
        assert now.startswith(kept), "what was written is never changed"
        kept = now[:now.rindex(b"\n") + 1]
        candidates(pieces)  # none twice
    assert kills >= 2, "killed in the middle"
    with path.open("ab") as file:
        file.write('{"task": "HumanEval/900", "index": 3, "code": "é'.encode()[:-1])  # as a kill in the middle of a write leaves it
    evaluate(shapes, "--out", pieces, *options(), "--mode", mode)
    assert path.read_bytes().startswith(kept)
    if mode == "pass@k":
        check_judged(pieces)
        assert what(pieces) == what(whole)
    results = {folder: json.loads((folder / "results.json").read_text()) for folder in (whole, pieces)}
    assert results[pieces]["sessions"] == 4 and results[pieces]["solved"] == results[whole]["solved"] == len(SHAPES)
    made = [line for line in journal(pieces) if "task" in line]
    assert results[pieces]["candidates"] == len(made) == sum(task["judged"] for task in results[pieces]["per_task"])
    # Every candidate made in either is the same one.
    mine, theirs = what(pieces), what(whole)
    assert all(mine[key] == theirs[key] for key in mine.keys() & theirs.keys())
    # With all of it done, nothing more is.
    before = path.read_bytes()
    evaluate(shapes, "--out", pieces, *options(), "--mode", mode)
    assert path.read_bytes() == before
