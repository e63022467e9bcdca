#!/usr/bin/env python3
"""Writes the hand-made seeds of fuzz_eval_tasks: each shape of record, and each way to be none."""

import gzip
import json
import pathlib

OUT = pathlib.Path(__file__).parent / "fuzz_eval_tasks"
HUMAN = {"task_id": "HumanEval/0", "prompt": "def f(x):\n    \"\"\"Twice x.\"\"\"\n", "entry_point": "f",
         "canonical_solution": "    return 2 * x\n", "test": "def check(candidate):\n    assert candidate(2) == 4\n"}
PLUS = {**HUMAN, "base_input": [[1], [2]], "plus_input": [[3]], "atol": 0}
MBPP = {"task_id": 2, "text": "Write f.", "test_setup_code": "import math", "test_list": ["assert f(2) == 4"]}
SANE = {"task_id": 3, "prompt": "Write f.", "test_imports": ["import math"], "test_list": ["assert f(2) == 4"]}
CASES = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
LCB = {"question_id": "abc", "question_content": "Twice.", "starter_code": "", "public_test_cases": json.dumps(CASES),
       "private_test_cases": "eJxLTEoGAAJNASc=", "metadata": "{}"}
APPS = {"problem_id": 1, "question": "Twice.", "input_output": json.dumps({"inputs": ["1"], "outputs": ["2"]})}
OTHER = {"id": "t", "prompt": "Write f.", "tests": [{"input": "1", "output": "2"}], "format": "stdio"}

shapes = {"human": HUMAN, "plus": PLUS, "mbpp": MBPP, "sanitized": SANE, "lcb": LCB, "apps": APPS, "other": OTHER}
seeds = {name: json.dumps(task).encode() for name, task in shapes.items()}
seeds["all"] = b"\n\n".join(seeds.values()) + b"\r\n"
seeds["array"] = json.dumps(list(shapes.values())).encode()
seeds["gzip"] = gzip.compress(seeds["human"], mtime=0)
seeds["gzip-members"] = gzip.compress(seeds["human"] + b"\n", mtime=0) + gzip.compress(seeds["mbpp"], mtime=0)
seeds["gzip-cut"] = seeds["gzip"][:-9]
seeds["gzip-bomb"] = gzip.compress(b" " * (4 << 20), mtime=0)
seeds["large-number"] = seeds["plus"].replace(b"[3]", b"[" + b"9" * 40 + b"]")
seeds["huge-real"] = seeds["plus"].replace(b"[3]", b"[1e999]")
seeds["large-elsewhere"] = seeds["other"].replace(b'"1"', b"9" * 40)
seeds["twice"] = seeds["human"] + b"\n" + seeds["human"]
seeds["deep"] = b"[" * 100000
seeds["nul"] = seeds["human"].replace(b"Twice", b"T\\u0000")
seeds["raw-nul"] = seeds["human"].replace(b"Twice", b"T\0")
seeds["latin"] = seeds["human"].replace(b"Twice", b"\xe9")
seeds["types"] = b'{"prompt": 1, "tests": {}, "entry_point": []}\n{"test_list": {}, "text": null}\n[1]\n3\n"x"'
seeds["empty-list"] = b'{"text": "x", "test_list": []}'
seeds["list-of-numbers"] = b'{"text": "x", "test_list": [1]}'
seeds["empty"] = b" \n"
seeds["long-id"] = seeds["human"].replace(b"HumanEval/0", b"i" * 201)
for name, data in seeds.items():
    (OUT / name).write_bytes(data)
