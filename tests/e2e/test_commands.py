"""The commands beside `serve`, run as a user runs them: run, verify, doctor, inspect."""

import json
import os
import pathlib
import subprocess

import pytest

from conftest import BINARY, MODELS, QWEN, ROOT, SMOL, need_model

DATA = pathlib.Path(__file__).parent / "data"
PROMPT, TESTS = DATA / "is_prime.txt", DATA / "is_prime_tests.py"
GOOD = "def is_prime(n):\n    return n > 1 and all(n % i for i in range(2, int(n ** 0.5) + 1))\n"


def firstpass(*arguments, stdin=None):
    return subprocess.run([BINARY, *map(str, arguments)], cwd=ROOT, input=stdin, capture_output=True, text=True,
                          timeout=900, env={**os.environ, "FIRSTPASS_MODELS": str(MODELS)})


def files(folder, **codes):
    """Writes NAME.py for each, returns the paths."""
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(code)
    return [folder / f"{name}.py" for name in codes]


# ---- run ----

def test_run_verifies_and_the_code_stands_by_itself(tmp_path):
    need_model(QWEN)
    done = firstpass("run", "--model", QWEN, "--prompt", PROMPT, "--tests", TESTS, "--max-candidates", 32,
                     "--candidates", "verdicts")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    ours = answer["firstpass"]
    assert ours["verified"] is True and answer["object"] == "chat.completion"
    assert ours["winner"]["verdict"] == "passed" and ours["winner"]["tests_passed"] == 7
    counts = ours["counts"]
    assert 1 <= counts["verified"] <= counts["finished"] <= counts["started"] <= 32
    assert counts["cancelled"] + counts["verified"] + counts["broken"] == counts["started"]
    assert "is_prime" in answer["choices"][0]["message"]["content"]
    again = firstpass("verify", "--format", "asserts", "--tests", TESTS, *files(tmp_path, won=ours["winner"]["code"]))
    assert again.returncode == 0, again.stdout + again.stderr


def test_run_same_seed_same_text():
    need_model(SMOL)
    texts = set()
    for width in (1, 4):
        done = firstpass("run", "--model", SMOL, "--completion", "--prompt", "-", "--seed", 2**53 + 1, "--n", 3,
                         "--max-tokens", 12, "--threads", width % 3 + 1, stdin="Once upon a time")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
        texts.add(tuple(c["text"] for c in answer["choices"]))
    assert len(texts) == 1


def test_run_varies_its_candidates(tmp_path):
    need_model(SMOL)
    ladder, = files(tmp_path, ladder='{"temperatures": [0, 1.5]}')
    def texts(*more):
        done = firstpass("run", "--model", SMOL, "--completion", "--prompt", "-", "--seed", 3, "--max-tokens", 12, *more, stdin="Once")
        assert done.returncode == 0, done.stderr
        return [choice["text"] for choice in json.loads(done.stdout)["choices"]]

    varied = texts("--n", 4, "--diversity", ladder)
    assert varied == texts("--n", 4, "--diversity", '{"temperatures": [0, 1.5]}')
    assert [varied[0], varied[2]] == texts("--n", 2, "--temperature", 0) and len(set(varied)) == 3


@pytest.mark.parametrize("on_fail", ["best", "error"])
def test_run_that_fails_says_so(tmp_path, on_fail):
    need_model(SMOL)
    never, = files(tmp_path, never="assert f() == 1 and f() == 2\n")
    done = firstpass("run", "--model", SMOL, "--prompt", "-", "--tests", never, "--max-candidates", 3, "--max-tokens", 8,
                     "--on-fail", on_fail, stdin="Say hello.")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["firstpass"]["verified"] is False
    assert len(answer["choices"]) == (on_fail == "best")
    assert answer["firstpass"]["counts"]["verified"] >= 1 and answer["firstpass"]["counts"]["passed"] == 0


def test_run_stops_at_its_time_limit():
    need_model(SMOL)
    done = firstpass("run", "--model", SMOL, "--prompt", PROMPT, "--tests", TESTS, "--deadline-s", 0.001, "--on-fail", "error")
    assert done.returncode == 1 and "time limit" in done.stderr


@pytest.mark.parametrize("arguments, words", [
    ([], "--prompt"),
    (["--prompt"], "--prompt needs a value"),
    (["--prompt", "/nonexistent/p"], "/nonexistent/p"),
    (["--prompt", PROMPT, "--tests", "/nonexistent/t"], "/nonexistent/t"),
    (["--prompt", PROMPT, "--what"], "--what"),
    (["--prompt", PROMPT, "--chat", "--completion"], "--completion"),
    (["--prompt", PROMPT, "--server.prot", "1"], "--server.prot"),
    (["--prompt", PROMPT, "--model", "/nonexistent/m.gguf"], "/nonexistent/m.gguf"),
])
def test_run_refuses(arguments, words):
    done = firstpass("run", *arguments)
    assert done.returncode == 2 and words in done.stderr and not done.stdout


@pytest.mark.parametrize("arguments, words", [
    (["--max-candidates", 0, "--tests", TESTS], "max_candidates"),
    (["--max-candidates", 10001, "--tests", TESTS], "10000"),
    (["--max-candidates", 2], "tests"),
    (["--temperature", 3], "temperature"),
    (["--seed", "one"], "--seed"),
    (["--format", "perl", "--tests", TESTS], "perl"),
    (["--return", "last", "--tests", TESTS], "return"),
    (["--tests", PROMPT], "compile"),
    (["--diversity", '{"heat": [1]}'], "heat"),
    (["--diversity", '{"temperatures": [1]'], "--diversity is no JSON object"),
    (["--diversity", "/nonexistent/d"], "--diversity: /nonexistent/d"),
])
def test_run_refuses_what_the_api_refuses(arguments, words):
    need_model(SMOL)
    done = firstpass("run", "--model", SMOL, "--prompt", PROMPT, *arguments)
    assert done.returncode == 2 and words in done.stderr and not done.stdout, done.stderr


# ---- verify ----

def test_verify_each_file_in_order(tmp_path):
    codes = files(tmp_path, good=GOOD, wrong="def is_prime(n):\n    return n > 1\n", loop="def is_prime(n):\n    while True: pass\n",
                  again=GOOD, broken="def is_prime(n:\n", exits="import sys\nsys.exit(0)\n")
    done = firstpass("verify", "--format", "asserts", "--tests", TESTS, "--timeout-s", 1, "--json", *codes)
    assert done.returncode == 1, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [r["file"] for r in results] == [str(c) for c in codes]
    assert [r["verdict"] for r in results][:4] == ["passed", "failed", "timeout", "passed"]
    assert results[4]["verdict"] != "passed" and results[5]["verdict"] != "passed"
    assert results[0]["duplicate"] != results[3]["duplicate"]
    assert "AssertionError" in results[1]["error"]
    assert results[0]["tests_passed"] == results[0]["tests_total"] == 7


def test_verify_all_good(tmp_path):
    done = firstpass("verify", "--format", "asserts", "--tests", TESTS, *files(tmp_path, good=GOOD))
    assert done.returncode == 0 and "passed, 7 of 7" in done.stdout


def test_verify_humaneval_continuation(tmp_path):
    prompt, tests, code = files(
        tmp_path, prompt="def add(a, b):\n", tests="def check(candidate):\n    assert candidate(2, 3) == 5\n",
        code="    return a + b\n")
    done = firstpass("verify", "--format", "humaneval", "--tests", tests, "--entry-point", "add", "--prompt", prompt,
                     "--extract", "continuation", code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [
    [], ["--format", "asserts"], ["--format", "asserts", "--tests", TESTS], ["--format", "perl", "--tests", TESTS, TESTS],
    ["--format", "asserts", "--tests", "/nonexistent/t", TESTS], ["--format", "asserts", "--tests", TESTS, "/nonexistent/c"],
    ["--format", "asserts", "--tests", PROMPT, TESTS], ["--format", "asserts", "--tests", TESTS, TESTS, "--timeout-s", "0"],
    ["--format", "asserts", "--tests", TESTS, TESTS, "--memory-mb", "1e9"],
])
def test_verify_refuses(arguments):
    done = firstpass("verify", *arguments)
    assert done.returncode == 2 and done.stderr and not done.stdout


# ---- doctor and inspect ----

def test_doctor_with_a_model():
    need_model(SMOL)
    done = firstpass("doctor", "--model", SMOL)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("cores:", "cpu generic: available", "level:", "seccomp", "python:", "jinja2", SMOL, "memory plan", "weights"):
        assert words in done.stdout


def test_doctor_without_a_model(tmp_path):
    done = firstpass("doctor", "--model-dir", tmp_path, "--model", "none-such")
    assert done.returncode == 0 and "isn't there" in done.stdout and "level:" in done.stdout


def test_doctor_tells_what_stops_the_server():
    done = firstpass("doctor", "--python", "/nonexistent/python", "--model", "none-such")
    assert done.returncode == 3 and "/nonexistent/python" in done.stdout


def test_inspect_a_model():
    need_model(SMOL)
    done = firstpass("inspect", SMOL)
    assert done.returncode == 0
    for words in ("general.architecture", "llama", "token_embd.weight", "tensors, 134.5 million parameters"):
        assert words in done.stdout


def test_inspect_a_directory():
    directory = ROOT / "tests" / "vectors" / "hf" / "tiny-qwen3-fp8"
    done = firstpass("inspect", directory)
    assert done.returncode == 0, done.stderr
    for words in ("general.architecture", "qwen3", "model.layers.0.self_attn.q_norm.weight  BF16 [64]",
                  "model.layers.0.mlp.down_proj.weight  F8_E4M3 [160, 32]", ", 0.1 million parameters"):
        assert words in done.stdout


def test_run_a_directory(tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("def f(x):")
    done = firstpass("run", "--prompt", prompt, "--completion", "--max-tokens", 4, "--n", 1, "--model",
                     ROOT / "tests" / "vectors" / "hf" / "tiny-llama")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["model"] == "tiny-llama" and answer["usage"]["completion_tokens"] >= 1


def test_inspect_refuses(tmp_path):
    bad, = files(tmp_path, bad="GGUF is what this file isn't")
    for path in (bad, tmp_path, tmp_path / "none.gguf"):
        done = firstpass("inspect", path)
        assert done.returncode == 2 and str(path) in done.stderr
