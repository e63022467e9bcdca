"""unittest files: each test method is a test.  Fixtures of methods, classes and modules, subtests, skips and expected failures are
unittest's own; only the result is ours."""

import ast

from firstpass import results


def rewrite(tree, unusable):
    """Without calls of unittest.main() at the top level, which would look for tests in the harness and exit."""

    def is_main(node):
        call = node.value if isinstance(node, ast.Expr) else None
        function = call.func if isinstance(call, ast.Call) else None
        return getattr(function, "attr", getattr(function, "id", "")) == "main"

    tree.body = [n for n in tree.body if not is_main(n)]
    if not any(isinstance(n, ast.ClassDef) for n in ast.walk(tree)):
        raise unusable("the format unittest needs tests with a class of unittest.TestCase")
    import unittest  # noqa: F401, loaded before the children are made

    return tree


def compared(error, failed):
    """Texts of the two values that a failed assertion compared, or None each."""
    if isinstance(error, str):
        return None, None
    if id(error) in failed:
        return failed[id(error)][1:]
    trace = error.__traceback__
    got = expected = None
    while trace is not None:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_name.startswith("assert") and code.co_filename.replace("\\", "/").endswith("unittest/case.py"):
            for one, other in (("first", "second"), ("list1", "list2"), ("member", "container"), ("obj", "cls")):
                if one in local and other in local:
                    got, expected = results.shown(local[one]), results.shown(local[other])
                    return got, expected
            if "expr" in local:
                return results.shown(local["expr"]), "True" if code.co_name == "assertTrue" else "False"
        trace = trace.tb_next
    return got, expected


def name_of(test):
    kind = type(test)
    return "%s.%s" % (kind.__name__, getattr(test, "_testMethodName", "")) if hasattr(test, "_testMethodName") else str(test)


def make_result(link, told, score, failed):
    import unittest

    class Result(unittest.TestResult):
        """Counts a test where the candidate was called by then: one that never is says nothing."""

        def startTest(self, test):
            super().startTest(test)
            told.begin()
            self.calls = link.calls
            self.broken = False

        def addSuccess(self, test):
            if link.calls:
                told.passes(name_of(test))
            else:
                told.skips(name_of(test), "it called nothing of the code")

        def bad(self, test, error, name=None):
            self.broken = True
            got, expected = compared(error, failed) if told.feedback == "full" else (None, None)
            told.fails(name or name_of(test), error, got, expected)
            if not score:
                self.stop()

        def addFailure(self, test, err):
            self.bad(test, err[1])

        addError = addFailure

        def addSubTest(self, test, subtest, err):
            if err is not None:
                self.bad(test, err[1], "%s %s" % (name_of(test), subtest._subDescription()))

        def addSkip(self, test, reason):
            method = getattr(test, getattr(test, "_testMethodName", ""), None)
            own = getattr(type(test), "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False)
            if own or link.calls == getattr(self, "calls", 0):
                told.skips(name_of(test), str(reason))
            else:  # what the candidate gave must not decide whether it is tested
                self.bad(test, "the test skipped itself after it had called the code")

        def addExpectedFailure(self, test, err):
            told.skips(name_of(test), "failed, as expected")

        def addUnexpectedSuccess(self, test):
            self.bad(test, "the test passed although it is marked as an expected failure")

    return Result()


def run(module, link, told, score, failed, _):
    import unittest

    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    collected = suite.countTestCases()
    if not collected:
        told.fails("the tests", "no test was found in the tests", counts=False)
        return
    result = make_result(link, told, score, failed)
    suite.run(result)
    if not result.shouldStop and told.ran < collected and told.first_failure is None:
        told.fails("the tests", "%d of %d tests were run" % (told.ran, collected), counts=False)
