"""The tests: process T compiles them once, its children B run them, one for each candidate.

B alone holds the tests' text, the nonce and the report.  Of the candidate it sees proxies and rebuilt plain values."""

import ast
import builtins
import gc
import hashlib
import importlib
import json
import os
import random
import sys
import types
import warnings

from firstpass import cases, channel, doctests, inside, pytest_module, pytests, remote, results, source, traceless, unittests

REPORT = 4  # the job's socket
FORKS = 8  # a job's flag, as in wire.h
PASSED, FAILED, GONE, TAMPERED, PREPARED, REFUSED = b"PFGXRE"
# Loaded before the children are made, where the tests or their prompt import them: each would load them anew.
PRELOADED = ("numpy", "pandas", "scipy", "sympy", "unittest", "unittest.mock")


# ---- the formats whose tests are statements: humaneval, asserts, script ----


class Statements:
    def __init__(self, spec):
        self.format = spec["format"]
        tree = source.parse(spec["tests"], "tests")
        prompt = source.parse_prompt(spec["prompt"] or "")
        self.scope = scope = source.Scope(tree, prompt, spec["entry_point"] or self.find_entry(tree, prompt))
        if self.format == "humaneval":
            self.check_humaneval(tree)
        if self.format == "humaneval" or (self.format == "asserts" and spec["entry_point"]):
            scope.only_called()
        scope.want_entry()
        if not scope.names and not scope.uses_solution:
            raise source.Unusable("the tests call nothing that the code would define; give entry_point")
        self.known = scope.known()
        self.repeatable = not scope.uses_solution and traceless.leaves_nothing(scope.library.values(), tree, prompt)
        rewriter = source.Rewriter(spec["tests"], spec["score"])
        tree = rewriter.visit(tree)
        self.asserts = rewriter.asserts
        if not self.asserts:
            raise source.Unusable("the tests have no assert statement")
        self.code = source.compiled(tree, "tests")
        self.prompt = source.compiled(prompt, "prompt") if prompt.body else None

    def find_entry(self, tree, prompt):
        """humaneval: NAME of a check(NAME) at the end of the tests, or the function that the prompt begins."""
        if self.format != "humaneval":
            return ""
        for node in tree.body:
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "check" and len(call.args) == 1:
                if isinstance(call.args[0], ast.Name):
                    return call.args[0].id
        functions = [n.name for n in prompt.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return functions[-1] if functions else ""

    def check_humaneval(self, tree):
        if not any(isinstance(n, ast.FunctionDef) and n.name == "check" for n in tree.body):
            raise source.Unusable("the format humaneval needs tests that define check(candidate)")
        self.calls_check = any(
            isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) and getattr(n.value.func, "id", "") == "check"
            for n in tree.body
        )
        if not self.scope.entry:
            raise source.Unusable(
                "the format humaneval needs an entry_point, or a prompt that ends with its signature"
            )

    def run(self, link, told):
        counting = Counting(self.asserts, link, told)
        space = namespace(self.scope, self.prompt, link, "__main__")
        space.update(counting.hooks())
        try:
            exec(self.code, space)
            if self.format == "humaneval" and not self.calls_check:
                if self.scope.entry not in space:
                    raise NameError("the code defines no %s" % self.scope.entry)
                space["check"](space[self.scope.entry])
        except Exception as error:
            counting.on_escaped(error)
        finally:
            space.clear()  # its functions hold it: what it holds would stay until the next collection


class Counting:
    """What the rewritten assertions call."""

    def __init__(self, asserts, link, told):
        self.asserts = asserts
        self.link = link
        self.told = told
        self.failed = {}  # id(error) -> its assertion's number, got, expected; Channel.faults keeps the error alive

    def hooks(self):
        return {
            "__firstpass_passed__": self.on_passed,
            "__firstpass_failed__": self.on_failed,
            "__firstpass_raised__": self.on_raised,
            "__firstpass_Exception__": Exception,
        }

    def counts(self, number):
        return bool(self.asserts[number].counts and self.link.calls)

    def on_passed(self, number):
        if self.counts(number):
            self.told.passes(self.asserts[number].text)

    def on_failed(self, number, left, right, *message):
        text = "AssertionError: " + channel.cut(self.asserts[number].text)
        if message:
            text += " (%s)" % channel.text_of(message[0], str)
        error = AssertionError(*message)
        self.link.faults[id(error)] = remote.Fault(error, "AssertionError", text)
        self.failed[id(error)] = (number, *self.compared(number, left, right))
        raise error  # counted where it arrives: what the tests catch themselves is no failure

    def compared(self, number, left, right):
        """Texts of what was got and what was expected, as far as the assertion tells."""
        assertion = self.asserts[number]
        if self.told.feedback != "full":
            return None, None
        if not assertion.operator:
            return results.shown(left), None
        if assertion.operator == "Not":
            return results.shown(left), "False"
        pair = results.shown(left), results.shown(right)
        return pair[::-1] if assertion.swapped else pair

    def on_raised(self, number, error):
        found = self.failed.get(id(error), (number, None, None))
        self.told.fails(self.asserts[number].text, error, *found[1:], counts=self.counts(number))

    def on_escaped(self, error):
        if id(error) in self.failed:
            self.on_raised(self.failed[id(error)][0], error)
        else:
            self.told.fails("the tests", error, counts=False)


class Comparing(Counting):
    """Where not an assertion but the function around it is a test."""

    def on_passed(self, number):
        pass


def namespace(scope, prompt, link, name):
    """What the tests' module starts with: the prompt's helpers, forgotten imports, the names of the candidate."""
    space = {"__name__": name, "__builtins__": builtins}
    if "pytest" in scope.tests.imports or "pytest" in scope.library:
        sys.modules["pytest"] = pytest_module.make()
    if doctests.watches_output(scope.tests):
        link.watch_output()
    for known, (module, attribute) in scope.library.items():
        try:
            found = importlib.import_module(module)
            space[known] = getattr(found, attribute) if attribute else found
        except Exception:
            pass  # not installed, or not for this box: the tests will meet a NameError
    if prompt is not None:
        exec(prompt, space)
        space.pop(scope.entry, None)
    for module in scope.modules:
        sys.modules[module] = remote.Solution(link, module)
    space.update(remote.bind(link, scope.names))
    return space


# ---- the formats whose tests are a module: unittest, pytest, doctest ----


class Module:
    RUNNERS = {"unittest": unittests, "pytest": pytests, "doctest": doctests}

    def __init__(self, spec):
        self.runner = self.RUNNERS[spec["format"]]
        self.score = spec["score"]
        text = spec["tests"]
        self.examples = None
        if spec["format"] == "doctest":
            self.examples, text = doctests.prepare(text, spec["prompt"] or "", source.Unusable)
        tree = source.parse(text, "tests")
        prompt = source.parse_prompt(spec["prompt"] or "")
        self.scope = scope = source.Scope(tree, prompt, spec["entry_point"] or "")
        scope.want_entry()
        if not scope.names and not scope.uses_solution:
            raise source.Unusable("the tests use nothing that the code would define; give entry_point")
        self.known = scope.known()
        tree = self.runner.rewrite(tree, source.Unusable)
        rewriter = source.Rewriter(text, False)
        tree = rewriter.visit(tree)
        self.asserts = rewriter.asserts
        self.code = source.compiled(tree, "tests")
        self.prompt = source.compiled(prompt, "prompt") if prompt.body else None

    def run(self, link, told):
        if self.examples is not None:
            link.watch_output()
        counting = Comparing(self.asserts, link, told)
        module = types.ModuleType("tests")
        module.__dict__.update(namespace(self.scope, self.prompt, link, "tests"))
        module.__dict__.update(counting.hooks())
        sys.modules["tests"] = module
        if self.examples is None:
            exec(self.code, module.__dict__)
        self.runner.run(module, link, told, self.score, counting.failed, self.examples)


# ---- in B ----

FORMATS = {name: Statements for name in ("humaneval", "asserts", "script")}
FORMATS.update({name: Module for name in Module.RUNNERS})
FORMATS.update({"evalplus": cases.Inputs, "apps": cases.Calls, "livecodebench": cases.Calls, "checker": cases.Checker})


def outcome_of(suite, link, told):
    """(kind, text, limit) of the report."""
    try:
        suite.run(link, told)
    except (remote.Tampered, remote.Gone, remote.Unloadable) as end:
        link.end = end
    except SystemExit:
        told.fails("the tests", "the tests exited before their end", counts=False)
    except BaseException as error:  # noqa: B036
        told.fails("the tests", error, counts=False)
    # Also where a bare except of the tests swallowed it.
    if isinstance(link.end, remote.Unloadable):
        return FAILED, link.end.args[0], link.end.args[1]
    if isinstance(link.end, remote.Tampered):
        return TAMPERED, str(link.end), ""
    if isinstance(link.end, remote.Gone):
        return GONE, "", ""
    if told.first_failure is not None:
        return (FAILED,) + told.first_failure[:2]
    if not told.total:
        return FAILED, "no assertion that depends on the code was executed", ""
    return PASSED, "", ""


def run_tests(suite, kind, job_socket):
    inside.prepare(kind, job_socket)
    judge(suite)


def judge(suite):
    """All candidates that are given to this process."""
    traces = traceless.Traces() if getattr(suite, "repeatable", False) else None
    given = inside.again()
    while given is not None and run_once(suite, traces, *given):
        gc.collect()  # what hangs together in circles, before the next candidate's time runs
        given = inside.again()


def sow(seed):
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def run_once(suite, traces, nonce, seed):
    """True where another candidate may be judged in this process."""
    sow(seed ^ suite.salt)
    link = remote.Channel()
    told = results.Results(link, suite.feedback)
    try:
        outcome, text, limit = outcome_of(suite, link, told)
        feedback = told.json()
    except MemoryError:
        outcome, text, limit, feedback = FAILED, "MemoryError in the tests' process", "memory", b""
    again = traces is not None and outcome in (PASSED, FAILED) and not limit and traces.has_none(link)
    text = text.encode("utf-8", "backslashreplace")
    inside.report(REPORT, outcome, nonce, told.passed, told.total, again, limit.encode(), text, feedback)
    link.close()
    return again


# ---- in T ----


def preload(texts):
    for name in PRELOADED:
        if any(name in text for text in texts):
            try:
                importlib.import_module(name)
            except Exception:
                pass  # the tests' own import will say why


def made_of(text):
    spec = json.loads(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = FORMATS[spec["format"]](spec)
        suite.feedback = spec["feedback"]
        # The candidate knows its own seed, and must not know from it what the tests will draw.
        suite.salt = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
        preload((spec["tests"], spec["prompt"] or ""))
    return suite


def prepare(spec_fd):
    text = os.pread(spec_fd, os.fstat(spec_fd).st_size, 0)
    os.close(spec_fd)
    gc.disable()  # trees hold no circles, and are gone in a moment
    suite = made_of(text)
    gc.enable()
    return suite


# Small, of what most tests are made of.
REHEARSAL = json.dumps(
    {
        "format": "humaneval",
        "tests": """METADATA = {'author': 'x'}


def check(candidate):
    for i in range(10):
        assert candidate([i, 2 * i], "a") == sorted([i, 2 * i]), "case %d" % i
    assert candidate([], "b") == []
    assert abs(candidate([1.5], "") - 1.5) < 1e-6
    assert not candidate([1, 2, 3], word="c")
""",
        "entry_point": "f",
        "prompt": """from typing import List


def f(numbers: List[int], word: str) -> List[int]:
    \"\"\" Sorts.
    >>> f([2, 1], "a")
    [1, 2]
    \"\"\"
""",
        "score": True,
        "feedback": "full",
    }
).encode()


def rehearse():
    """Goes through tests of ours, in the zygote, as candidate.rehearse()."""
    made_of(REHEARSAL)


def run(_, job):
    """Process T: compiles and reports.  Then it forks B's until its control socket ends; or it is the only B where its tests leave
    nothing behind, until a run does."""
    report, nonce, memory, _, _, flags, fds = job
    spec_fd, control = fds
    inside.limit(memory, 0)
    os.dup2(1, 2)  # /dev/null: what its compiler says about the tests has no end and no reader

    def tell(kind, text, repeatable=False, report=report):
        inside.report(report, kind, nonce, 0, 0, repeatable, b"", text.encode("utf-8", "backslashreplace"), b"")

    try:
        suite = prepare(spec_fd)
    except source.Unusable as error:
        tell(REFUSED, str(error))
        return
    except MemoryError:
        tell(REFUSED, "the tests need too much memory to compile")
        return
    gc.freeze()  # B's collections pass over what they share with it
    repeatable = getattr(suite, "repeatable", False)
    if repeatable and not flags & FORKS:
        inside.prepare(ord("B"), report)
        tell(PREPARED, "\n".join(suite.known), True, REPORT)
        judge(suite)
        return
    tell(PREPARED, "\n".join(suite.known), repeatable)
    os.close(report)

    def handle(kind, job_socket):
        return run_tests(suite, kind, job_socket)

    inside.serve(control, handle)
