#!/usr/bin/env python3
"""Writes the hand-made seeds of fuzz_cases and fuzz_compare: the shapes that are known, each limit, and what random bytes would not find."""
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
STDIO, APPS, LIVECODEBENCH = b"\0", b"\1", b"\2"
CASE = {"input": "2\n", "output": "4\n"}
NESTED = 'x\\"[[{{'

cases = {
    "list": (STDIO, [CASE, dict(CASE, name="two", hidden=True)]),
    "object": (STDIO, {"cases": [CASE], "compare": "exact", "abs_tol": 1e-6, "rel_tol": 0}),
    "lines": (STDIO, [{"input": ["1", "2"], "output": ["3", ""]}]),
    "pairs": (APPS, {"inputs": ["1", ["2", "3"]], "outputs": ["1", "5"]}),
    "pairs_uneven": (APPS, {"inputs": ["1"], "outputs": []}),
    "function": (APPS, {"fn_name": "f", "inputs": [[1]], "outputs": [2]}),
    "function_of_stdio": (STDIO, {"fn_name": "f", "inputs": ["1"], "outputs": ["2"]}),
    "public_private": (LIVECODEBENCH, {"public_test_cases": json.dumps([CASE]), "private_test_cases": [CASE]}),
    "private_compressed": (LIVECODEBENCH, {"public_test_cases": "[]", "private_test_cases": "eJwDAAAAAAE="}),
    "functional": (LIVECODEBENCH, [dict(CASE, testtype="functional")]),
    "functional_inside": (LIVECODEBENCH, {"cases": [dict(CASE, testtype="functional")]}),
    "functional_inside_itself": (LIVECODEBENCH, {"cases": [{"fn_name": "f"}], "public_test_cases": json.dumps({"fn_name": "f"})}),
    "checker": (STDIO, {"cases": [CASE], "checker": "def check(i, o, e): return i == o"}),
    "checker_no_string": (STDIO, {"cases": [CASE], "checker": 7}),
    "compare_unknown": (STDIO, {"cases": [CASE], "compare": "sets"}),
    "tolerance_negative": (STDIO, {"cases": [CASE], "abs_tol": -1}),
    "tolerance_huge": (STDIO, {"cases": [CASE], "rel_tol": 1e300}),
    "tolerance_text": (STDIO, {"cases": [CASE], "abs_tol": "1"}),
    "no_case": (STDIO, []),
    "no_output": (STDIO, [{"input": "1"}]),
    "number_as_input": (STDIO, [{"input": 1, "output": "1"}]),
    "number_as_line": (STDIO, [{"input": ["1", 2], "output": "1"}]),
    "case_no_object": (STDIO, [CASE, 3]),
    "one_too_many": (STDIO, [{"input": "", "output": ""}] * 10001),
    "braces_in_strings": (STDIO, [{"input": NESTED, "output": NESTED}]),
    "nul_in_string": (STDIO, [{"input": "a\0b", "output": "a\0b"}]),
    "lone_surrogate": (STDIO, [{"input": "\ud800", "output": "x"}]),
}
raw_cases = {
    "empty": STDIO,
    "deep": STDIO + b"[" * 20000,
    "deep_inside_string": LIVECODEBENCH + json.dumps({"public_test_cases": "[" * 20000}).encode(),
    "string_without_end": STDIO + b'[{"input": "abc\\',
    "key_twice": STDIO + b'{"cases": [], "cases": [{"input": "", "output": ""}]}',
    "number_without_end": STDIO + b'{"abs_tol": 1e',
}
compare = {
    "equal": ("4\n", "4"),
    "spaces": ("1  2\t3 \r\n\n", "1 2 3"),
    "numbers": ("1.0 100 -0 .5e1 007", "1 1e2 0 5 7"),
    "signs": ("+1 -1", "1 -1.000"),
    "no_numbers": (". + - e e5 1e 1e+ 0x10 1_0 nan inf", ". + - e e5 1e 1e+ 0x10 1_0 nan inf"),
    "exponents": ("1e999999999999999999999 1e-999999999999999999999", "1e999999999999999999998 0"),
    "zeros": ("0." + "0" * 500 + " " + "0" * 500, "0 0"),
    "digits": ("1" * 401, "1" * 400 + "2"),
    "tolerance": ("0.3333333", "0.33333333333"),
    "lines_more": ("1\n2\n3", "1\n2"),
    "lines_empty": ("\n\n1", "1"),
    "order": ("1 2", "2 1"),
    "bytes": ("\xff\xfe", "\xff"),
    "nothing": ("", "\n \n"),
}

for name, (format, value) in cases.items():
    with open(os.path.join(HERE, "fuzz_cases", name), "wb") as out:
        out.write(format + json.dumps(value).encode())
for name, data in raw_cases.items():
    with open(os.path.join(HERE, "fuzz_cases", name), "wb") as out:
        out.write(data)
for name, (got, expected) in compare.items():
    with open(os.path.join(HERE, "fuzz_compare", name), "wb") as out:
        out.write(got.encode("latin-1") + b"\0" + expected.encode("latin-1"))
