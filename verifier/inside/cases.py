"""Tests as data: inputs and expected results of a function (EvalPlus, APPS, LiveCodeBench), and a checker of a program's output.

Only the inputs go to the candidate's process; what it gives back is compared here."""

import ast
import builtins
import json
import math
import os

from firstpass import remote, results, source


def load(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise source.Unusable("the tests are no JSON: %s" % error)


def same(got, expected, tolerance):
    """Equal; or, where there is a tolerance, equal but for floats that close."""
    if type(got) is remote.Proxy:
        return False
    try:
        if got == expected:
            return True
    except Exception:
        pass  # arrays
    if hasattr(got, "tolist") and hasattr(got, "dtype"):
        return same(got.tolist(), expected, tolerance)
    if not tolerance:
        return False
    if isinstance(got, (int, float)) and isinstance(expected, float):
        return math.isclose(got, expected, rel_tol=1e-7, abs_tol=tolerance)
    if isinstance(got, (list, tuple)) and type(got) is type(expected) and len(got) == len(expected):
        return all(same(g, e, tolerance) for g, e in zip(got, expected))
    if isinstance(got, dict) and isinstance(expected, dict) and got.keys() == expected.keys():
        return all(same(got[k], expected[k], tolerance) for k in got)
    return False


def has_floats(value):
    if isinstance(value, float):
        return True
    if isinstance(value, (list, tuple)):
        return any(has_floats(v) for v in value)
    return isinstance(value, dict) and any(has_floats(v) for v in value.values())


def copied(value):
    """A call may change its arguments, and the next use needs them as they were."""
    if type(value) is list:
        return [copied(v) for v in value]
    if type(value) is dict:
        return {k: copied(v) for k, v in value.items()}
    return value


def judge(told, name, call, expected, agree, hidden=False):
    told.begin()
    try:
        got = call()
    except Exception as error:
        told.fails(name, error, expected=results.shown(expected), hidden=hidden)
        return
    if agree(got):
        told.passes(name, hidden)
        return
    text = "AssertionError: %s gave %s, expected %s" % (name, results.shown(got), results.shown(expected))
    told.fails(name, text, results.shown(got), results.shown(expected), hidden=hidden)


def call_text(name, args):
    text = "%s(%s)" % (name, ", ".join(results.shown(a) for a in args))
    return text if len(text) <= results.NAME else text[: results.NAME - 3] + "..."


class Inputs:
    """EvalPlus: base_input and plus_input, and either the expected results of both or the canonical solution that gives them."""

    def __init__(self, spec):
        self.score = spec["score"]
        data = load(spec["tests"])
        if type(data) is not dict:
            raise source.Unusable("the format evalplus needs a JSON object with base_input, plus_input or inputs")
        self.entry = spec["entry_point"] or data.get("entry_point")
        if type(self.entry) is not str or not self.entry.isidentifier():
            raise source.Unusable("the format evalplus needs an entry_point")
        self.known = [self.entry]
        self.inputs = []
        for key in ("inputs", "base_input", "plus_input"):
            given = data.get(key) or []
            if type(given) is not list or any(type(i) is not list for i in given):
                raise source.Unusable("%s must be a list of lists of arguments" % key)
            self.inputs += given
        if not self.inputs:
            raise source.Unusable("the tests have no input")
        self.tolerance = data.get("atol") or 0
        if type(self.tolerance) not in (int, float):
            raise source.Unusable("atol must be a number")
        self.expected = self.find_expected(data)
        self.reference = None
        if self.expected is None:
            self.reference = self.find_reference(spec, data)

    def find_expected(self, data):
        found = []
        for key in ("expected_output", "expected", "base_expected", "plus_expected"):
            given = data.get(key)
            if given is not None:
                if type(given) is not list:
                    raise source.Unusable("%s must be a list" % key)
                found += given
        if found and len(found) != len(self.inputs):
            raise source.Unusable("there are %d inputs and %d expected results" % (len(self.inputs), len(found)))
        return found or None

    def find_reference(self, spec, data):
        text = data.get("canonical_solution")
        if type(text) is not str:
            raise source.Unusable("the tests have neither expected results nor a canonical_solution")
        prompt = data.get("prompt") if type(data.get("prompt")) is str else spec["prompt"] or ""
        for whole in (prompt + text, text):
            try:
                tree = ast.parse(whole)
            except (SyntaxError, ValueError, RecursionError):
                continue
            if any(getattr(n, "name", "") == self.entry for n in tree.body):
                return source.compiled(tree, "canonical_solution")
        raise source.Unusable("the canonical_solution doesn't define %s" % self.entry)

    def run(self, link, told):
        function = remote.bind(link, [self.entry]).get(self.entry)
        if function is None:
            raise NameError("the code defines no %s" % self.entry)
        reference = None
        if self.reference is not None:
            space = {"__name__": "reference", "__builtins__": builtins}
            exec(self.reference, space)
            reference = space[self.entry]
        for number, args in enumerate(self.inputs):
            expected = self.expected[number] if reference is None else reference(*copied(args))
            tolerance = self.tolerance or (1e-6 if has_floats(expected) else 0)

            def agree(got, expected=expected, tolerance=tolerance):
                if same(got, expected, tolerance):
                    return True
                return reference is None and same(as_json(got), expected, tolerance)  # JSON knows no tuples

            judge(told, call_text(self.entry, args), lambda: function(*copied(args)), expected, agree)
            if told.first_failure is not None and not self.score:
                return


def as_json(value):
    """Tuples as lists, keys as JSON has them."""
    if isinstance(value, (list, tuple)):
        return [as_json(v) for v in value]
    if type(value) is dict:
        plain = (int, float, bool, type(None))
        return {json.dumps(k) if type(k) in plain else str(k): as_json(v) for k, v in value.items()}
    return value


class Calls:
    """APPS and LiveCodeBench where they call a function: fn_name, in a class Solution or not, and JSON arguments and results."""

    def __init__(self, spec):
        self.score = spec["score"]
        data = load(spec["tests"])
        self.cases = []  # arguments, expected, name, hidden
        self.loose = spec["format"] == "apps"
        if type(data) is dict and type(data.get("inputs")) is list:
            self.read_apps(data)
        else:
            self.read_cases(data)
        self.entry = spec["entry_point"] or self.entry
        if type(self.entry) is not str or not self.entry.isidentifier():
            raise source.Unusable("these tests need a fn_name, or an entry_point")
        if not self.cases:
            raise source.Unusable("the tests have no case")
        self.known = ["Solution", self.entry]

    def read_apps(self, data):
        self.entry = data.get("fn_name")
        outputs = data.get("outputs")
        if type(outputs) is not list or len(outputs) != len(data["inputs"]):
            raise source.Unusable("inputs and outputs must be lists of equal length")
        for args, expected in zip(data["inputs"], outputs):
            self.cases.append((args if type(args) is list else [args], expected, None, False))

    def read_cases(self, data):
        self.entry = None
        hidden = []
        if type(data) is dict:
            metadata = self.part(data, "metadata", dict) or {}
            self.entry = data.get("fn_name") or metadata.get("func_name") or metadata.get("fn_name")
            hidden = self.part(data, "private_test_cases", list) or []
            data = self.part(data, "public_test_cases", list) or self.part(data, "cases", list) or []
        if type(data) is not list:
            raise source.Unusable("the tests must be a list of cases")
        for case, is_hidden in [(c, False) for c in data] + [(c, True) for c in hidden]:
            if type(case) is not dict or "input" not in case or "output" not in case:
                raise source.Unusable("each case needs an input and an output")
            self.entry = self.entry or case.get("fn_name")
            args, expected = case["input"], case["output"]
            if type(args) is str:  # one JSON value a line
                args = [load(line) for line in args.split("\n") if line.strip()]
            if type(expected) is str and case.get("testtype") == "functional":
                expected = load(expected)
            if type(args) is not list:
                raise source.Unusable("the input of a case must be lines of JSON or a list of arguments")
            self.cases.append((args, expected, case.get("name"), bool(case.get("hidden", is_hidden))))

    @staticmethod
    def part(data, key, kind):
        value = data.get(key)
        if type(value) is str:
            value = load(value)
        if value is not None and type(value) is not kind:
            raise source.Unusable("%s must be a JSON %s" % (key, "list" if kind is list else "object"))
        return value

    def run(self, link, told):
        bound = remote.bind(link, ["Solution", self.entry])
        if self.entry in bound:
            function = bound[self.entry]
        elif "Solution" in bound:
            function = getattr(bound["Solution"](), self.entry)
        else:
            raise NameError("the code defines neither Solution nor %s" % self.entry)
        for args, expected, name, hidden in self.cases:
            tolerance = 1e-9 if has_floats(expected) else 0

            def agree(got, expected=expected, tolerance=tolerance):
                got = as_json(got)
                if same(got, expected, tolerance):
                    return True
                # APPS wraps some results in a list of one.
                wrapped = self.loose and type(expected) is list and len(expected) == 1
                return wrapped and same(got, expected[0], tolerance)

            label = name if type(name) is str else call_text(self.entry, args)
            judge(told, label, lambda: function(*copied(args)), expected, agree, hidden)
            if told.first_failure is not None and not self.score:
                return


class Checker:
    """Judges what programs printed: check(input, output) or check(input, output, expected), true where it is right.  The descriptor
    that elsewhere leads to the candidate holds a JSON list of runs here."""

    def __init__(self, spec):
        self.known = []
        tree = source.parse(spec["tests"], "checker")
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check"]
        if not functions:
            raise source.Unusable("the checker must define check(input, output, expected)")
        arguments = functions[-1].args
        self.takes = 3 if arguments.vararg else len(arguments.args)
        if self.takes not in (2, 3):
            raise source.Unusable("the checker's check() must take (input, output) or (input, output, expected)")
        self.code = source.compiled(tree, "checker")

    def run(self, _, told):
        with open(remote.CALL_SOCKET, "rb", closefd=False) as stream:
            runs = json.loads(os.pread(stream.fileno(), os.fstat(stream.fileno()).st_size, 0))
        space = {"__name__": "checker", "__builtins__": builtins}
        exec(self.code, space)
        for number, (given, output, expected) in enumerate(runs):
            told.begin()
            try:
                good = space["check"](*(given, output, expected)[: self.takes])
            except Exception as error:
                told.fails("case %d" % (number + 1), error)
                continue
            if good:
                told.passes("case %d" % (number + 1))
            else:
                told.fails("case %d" % (number + 1), "the checker refused the output", results.shown(output))
