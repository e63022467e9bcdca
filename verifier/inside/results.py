"""What came of the tests, in process B: counts, the first failure, and what a client is told of each test."""

import json
import time

from firstpass import channel

MOST_TESTS = 100  # told one by one; failed ones come first
MOST_BYTES = 60000
VALUE = 200  # characters of a value
NAME = 200


def shown(value):
    text = channel.text_of(value, repr)
    return text if len(text) <= VALUE else text[: VALUE - 3] + "..."


def clean(text):
    """As JSON and its readers can have it: no lone surrogates, no NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


class Skipped(Exception):
    """A test that skips itself."""


class Results:
    """feedback: "none", "names" (values of the tests are withheld, also from the error) or "full"."""

    def __init__(self, link, feedback):
        self.link = link
        self.feedback = feedback
        self.passed = 0
        self.total = 0
        self.ran = 0  # tests looked at, whatever came of them
        self.first_failure = None  # text, limit, line
        self.tests = []
        self.began = time.perf_counter()

    def begin(self):
        self.began = time.perf_counter()

    def passes(self, name, hidden=False):
        self.total += 1
        self.passed += 1
        self.tell(name, "passed", hidden=hidden)

    def skips(self, name, why=""):
        self.tell(name, "skipped", why)

    def fails(self, name, error, got=None, expected=None, status=None, hidden=False, counts=True):
        """error: an exception, or a text.  got and expected: texts, or None."""
        self.total += counts
        text, limit, line = self.explain(error)
        if status is None:
            assertion = isinstance(error, (str, AssertionError))
            status = "failed" if assertion else "error"
        withheld = hidden or self.feedback == "names"
        if withheld:
            text = "%s in %s" % (self.kind(error), self.label(name, hidden))
        if self.first_failure is None:
            self.first_failure = text, limit, line
        self.tell(name, status, text, got, expected, line, hidden)

    def label(self, name, hidden):
        """The name of a test, which may itself hold its values."""
        if hidden or (self.feedback == "names" and name.startswith(("assert", ">>>"))):
            return "test %d" % (self.ran + 1)
        return name if len(name) <= NAME else name[: NAME - 3] + "..."

    def tell(self, name, status, error="", got=None, expected=None, line=0, hidden=False):
        now = time.perf_counter()
        label = self.label(name, hidden)
        self.ran += 1
        if self.feedback != "none":
            test = {"name": clean(label), "status": status, "ms": round((now - self.began) * 1000, 3)}
            if error:
                test["error"] = clean(error)
            if line:
                test["line"] = line
            if not hidden and self.feedback == "full":
                if got is not None:
                    test["got"] = clean(got)
                if expected is not None:
                    test["expected"] = clean(expected)
            self.tests.append(test)
        self.began = now

    def kind(self, error):
        if isinstance(error, str):
            return "AssertionError"
        fault = self.link.faults.get(id(error)) if self.link else None
        return fault.name if fault else type(error).__name__

    def explain(self, error):
        """(text, limit, line of the code)"""
        if isinstance(error, str):
            return channel.cut(error), "", 0
        fault = self.link.faults.get(id(error)) if self.link else None
        if fault is not None:
            return fault.text, fault.limit, fault.line
        message = channel.text_of(error, str)
        text = type(error).__name__
        limit = "memory" if isinstance(error, MemoryError) else ""
        return channel.cut("%s: %s" % (text, message) if message else text), limit, 0

    def json(self):
        tests = self.tests
        if len(tests) > MOST_TESTS:
            bad = [t for t in tests if t["status"] not in ("passed", "skipped")][:MOST_TESTS]
            room = MOST_TESTS - len(bad)
            kept = {id(t) for t in bad}
            for test in tests:
                if room and id(test) not in kept:
                    kept.add(id(test))
                    room -= 1
            tests = [t for t in tests if id(t) in kept]
        text = json.dumps(tests).encode("ascii")
        while len(text) > MOST_BYTES:
            tests = tests[: len(tests) // 2]
            text = json.dumps(tests).encode("ascii")
        return text if tests else b""
