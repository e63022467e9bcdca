"""POST /v1/verify and the formats of tests over HTTP and on the command line."""

import json
import socket
import subprocess
import time

import pytest
from conftest import BINARY, ROOT, SMOL, need_model, serving

GOOD, BAD = "def f(x):\n    return 2 * x\n", "def f(x):\n    return x + 2\n"


@pytest.fixture(scope="module")
def server():
    need_model(SMOL)
    with serving("--verifier.workers", "2") as running:
        yield running


def verify(server, **body):
    answer = server.post("/v1/verify", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_many_codes_in_order(server):
    codes = [GOOD if i % 3 == 0 else f"def f(x):\n    return x * {i}\n" for i in range(200)]
    answer = verify(server, tests="assert f(2) == 4\nassert f(5) == 10\n", codes=codes, entry_point="f")
    assert [r["index"] for r in answer["results"]] == list(range(200))
    for i, result in enumerate(answer["results"]):
        assert (result["verdict"] == "passed") == (i % 3 == 0 or i == 2), (i, result)
        assert result["trust"] == "split"
    assert answer["passed"] == sum(r["verdict"] == "passed" for r in answer["results"])
    assert answer["object"] == "verification" and answer["format"] == "asserts"
    assert sum(r["duplicate"] for r in answer["results"]) == 66
    server.assert_quiet()


def test_feedback(server):
    tests = "assert f(2) == 4\nassert f(5) == 10\n"
    [result] = verify(server, tests=tests, code=BAD, score=True)["results"]
    assert (result["verdict"], result["tests_passed"], result["tests_total"]) == ("failed", 1, 2)
    first, second = result["tests"]
    assert first["status"] == "passed" and first["name"] == "assert f(2) == 4" and first["ms"] > 0
    assert (second["got"], second["expected"], second["status"]) == ("7", "10", "failed")
    [result] = verify(server, tests=tests, code=BAD, score=True, feedback="names")["results"]
    assert "10" not in json.dumps(result["tests"]) and "10" not in result["error"]
    [result] = verify(server, tests=tests, code=BAD, feedback="none")["results"]
    assert "tests" not in result
    [result] = verify(server, tests=tests, code="def f(x):\n    y = []\n    return y[x]\n")["results"]
    assert result["tests"][0]["line"] == 3 and result["tests"][0]["status"] == "error"
    assert "IndexError" in result["tests"][0]["error"]


@pytest.mark.parametrize("tests, name, good, bad", [
    ("def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6\n", "humaneval", GOOD, BAD),
    ("assert f(3) == 6\n", "asserts", GOOD, BAD),
    ("import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(3), 6)\n",
     "unittest", GOOD, BAD),
    ("from solution import f\ndef test_f():\n    assert f(3) == 6\n", "pytest", GOOD, BAD),
    (">>> f(3)\n6\n", "doctest", GOOD, BAD),
    ({"base_input": [[3]], "plus_input": [[4]], "expected_output": [6, 8]}, "evalplus", GOOD, BAD),
    ([{"input": "3", "output": "6"}], "stdio", "print(2 * int(input()))", "print(5)"),
    ({"fn_name": "f", "inputs": [[3]], "outputs": [6]}, "apps", GOOD, BAD),
    ([{"input": "3", "output": "6", "testtype": "functional"}], "livecodebench", GOOD, BAD),
])
def test_formats_are_recognized(server, tests, name, good, bad):
    answer = verify(server, tests=tests, codes=[good, bad], entry_point="f")
    assert answer["format"] == name
    assert [r["verdict"] for r in answer["results"]] == ["passed", "failed"], answer
    if not isinstance(tests, str):  # as text it is the same
        again = verify(server, tests=json.dumps(tests), codes=[good, bad], entry_point="f", format=name)
        assert [r["verdict"] for r in again["results"]] == ["passed", "failed"], again


def test_extraction(server):
    answer = verify(server, tests="assert f(3) == 6\n", codes=[f"Sure:\n```python\n{GOOD}```\nDone.", GOOD])
    assert [(r["verdict"], r["method"]) for r in answer["results"]] == [("passed", "fenced"), ("passed", "raw")]


@pytest.mark.parametrize("body, param, words", [
    ({"code": GOOD}, "tests", "must not be missing"),
    ({"tests": "", "code": GOOD}, "tests", "must not be empty"),
    ({"tests": "assert f(1)"}, "codes", "give either code"),
    ({"tests": "assert f(1)", "code": GOOD, "codes": [GOOD]}, "codes", "give either code"),
    ({"tests": "assert f(1)", "codes": []}, "codes", "1 …"),
    ({"tests": "assert f(1)", "codes": ["x", 5]}, "codes", "item 1 is a number"),
    ({"tests": "assert f(1)", "codes": "x"}, "codes", "a list of strings"),
    ({"tests": "assert f(1)", "code": GOOD, "format": "nonsense"}, "format", "known are humaneval"),
    ({"tests": "assert f(1", "code": GOOD}, "tests", "don't compile"),
    ({"tests": "assert f(1)", "code": GOOD, "timeout_s": -1}, "timeout_s", ""),
    ({"tests": "assert f(1)", "code": GOOD, "colour": 1}, "colour", "no field"),
    ({"tests": [], "code": GOOD}, "tests", "no case"),
    ({"tests": [{"input": 3, "output": "x"}], "code": GOOD}, "tests", "must be strings"),
    ({"tests": {"fn_name": "f", "inputs": [1], "outputs": []}, "code": GOOD}, "tests", "equal length"),
    ({"tests": "assert f(1)", "code": GOOD, "feedback": "all"}, "feedback", "known are none"),
])
def test_bad_requests(server, body, param, words):
    answer = server.post("/v1/verify", body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error", answer.text
    assert error["param"] == param and words in error["message"], error


def test_method(server):
    assert server.http.get("/v1/verify").status_code == 405
    assert server.post("/v1/verify", [1]).status_code == 400


def test_client_leaves(server):
    body = json.dumps({"tests": "assert f(1) == 1\n", "codes": [f"def f(x):\n    while {i + 1}: pass\n" for i in range(50)]})
    before = server.metrics()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        server.wait_metrics(lambda m: m["firstpass_verifier_running"] > 0, "work")
    server.assert_quiet()
    after = server.metrics()
    spent = after["firstpass_verifier_cpu_seconds_total"] - before["firstpass_verifier_cpu_seconds_total"]
    assert spent < 40 * 3, "codes were run for a client that had left"


def test_in_a_race(server):
    body = {"prompt": "def f(x):\n", "max_tokens": 8, "firstpass": {
        "tests": "assert f(3) == 6\n", "entry_point": "f", "max_candidates": 2, "candidates": "verdicts", "feedback": "full"}}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    for candidate in answer.json()["firstpass"]["candidates"]:
        assert candidate["verdict"] == "passed" or "tests" in candidate or candidate["error"]
    body["firstpass"]["feedback"] = "everything"
    assert server.post("/v1/completions", body).status_code == 400


def run(*arguments):
    done = subprocess.run([BINARY, "verify", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_command(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps([{"input": "3", "output": "6"}, {"input": "4", "output": "8"}]))
    (tmp_path / "good.py").write_text("print(2 * int(input()))\n")
    (tmp_path / "bad.py").write_text("print(6)\n")
    status, out, _ = run("--format", "stdio", "--tests", tmp_path / "t.json", tmp_path / "good.py", tmp_path / "bad.py", "--json", "--score")
    good, bad = json.loads(out)["results"]
    assert status == 1 and good["verdict"] == "passed" and good["trust"] == "stdio"
    assert [t["status"] for t in bad["tests"]] == ["passed", "failed"]
    assert (bad["tests"][1]["got"].strip(), bad["tests"][1]["expected"]) == ("6", "8")
    status, out, _ = run("--format", "stdio", "--tests", tmp_path / "t.json", tmp_path / "good.py", "--feedback", "names")
    assert status == 0 and "case 2" in out
    status, _, err = run("--format", "nothing", "--tests", tmp_path / "t.json", tmp_path / "good.py")
    assert status == 2 and "livecodebench" in err
