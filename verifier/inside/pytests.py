"""pytest files, run without pytest: functions test_*, classes Test*, fixtures of all scopes, parametrize, skip, skipif, xfail,
usefixtures, setup and teardown by name, capsys and monkeypatch.

Loading pytest takes 250 ms and a plugin of ours would still live in its process; what people write in a test file is little of it."""

import ast
import inspect
import io
import itertools
import sys
import types

from firstpass import pytest_module, results, unittests

SCOPES = ("function", "class", "module", "package", "session")


def rewrite(tree, unusable):
    names = [getattr(n, "name", "") for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if not any(n.startswith("test") for n in names):
        raise unusable("the format pytest needs functions or methods test_*")
    if any(isinstance(n, (ast.Name, ast.Attribute)) and getattr(n, "id", getattr(n, "attr", "")) == "TestCase" for n in ast.walk(tree)):
        unittests.rewrite(tree, unusable)
    return tree


class Fixture:
    def __init__(self, name, function, marker, owner=None):
        self.name = name
        self.function = function
        self.marker = marker
        self.owner = owner  # the class whose method it is
        self.needs = [p for p in inspect.signature(function).parameters if not (owner and p == "self")]


class Item:
    """One run of a test function, with its parameters chosen."""

    def __init__(self, name, function, owner):
        self.name = name
        self.function = function
        self.owner = owner
        self.needs = []
        self.values = {}  # parametrize: argument -> value
        self.indices = {}  # fixture with params -> index of its parameter
        self.marks = []
        self.ids = []


class Request:
    """The fixture `request`."""

    def __init__(self, runner, item, scope):
        self.runner = runner
        self.node = types.SimpleNamespace(name=item.name, get_closest_marker=lambda n: next((m for m in item.marks if m.name == n), None))
        self.item = item
        self.function = item.function
        self.cls = item.owner
        self.instance = runner.instance
        self.module = runner.module
        self.fixturename = None
        self.scope = scope

    def getfixturevalue(self, name):
        return self.runner.value(name, self.item)

    def addfinalizer(self, function):
        self.runner.finalizers[self.scope].append(function)


class Output:
    """The fixture capsys."""

    def __init__(self):
        self.out, self.err = io.StringIO(), io.StringIO()
        self.before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.out, self.err

    def readouterr(self):
        texts = [s.getvalue() for s in (self.out, self.err)]
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        return Captured(*texts)

    def close(self):
        sys.stdout, sys.stderr = self.before


class Captured(tuple):
    def __new__(cls, out, err):
        made = super().__new__(cls, (out, err))
        made.out, made.err = out, err
        return made


def marks_of(target):
    found = getattr(target, "pytestmark", [])
    return [m.mark if isinstance(m, pytest_module.MarkDecorator) else m for m in (found if isinstance(found, (list, tuple)) else [found])]


def id_of(value, name, number):
    if isinstance(value, (bool, int, float, type(None))):
        return str(value)
    if isinstance(value, str):
        return value if value.isprintable() else ascii(value)[1:-1]
    return getattr(value, "__name__", None) if callable(value) and hasattr(value, "__name__") else "%s%d" % (name, number)


class Collector:
    def __init__(self, module):
        self.module = module
        self.fixtures = {}  # (class or None, name) -> Fixture
        self.items = []
        self.collect(module.__dict__, None)
        for value in list(module.__dict__.values()):
            if isinstance(value, type) and value.__name__.startswith("Test") and value.__module__ == "tests":
                if not issubclass(value, self.test_case()) and "__init__" not in value.__dict__:
                    names = {}
                    for kind in reversed(value.__mro__[:-1]):
                        names.update(kind.__dict__)
                    self.collect(names, value)

    @staticmethod
    def test_case():
        return getattr(sys.modules.get("unittest"), "TestCase", ())

    def collect(self, names, owner):
        functions = []
        for name, value in list(names.items()):
            plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            marker = getattr(plain, "__firstpass_fixture__", None) if isinstance(plain, types.FunctionType) else None
            if marker is not None:
                fixture = Fixture(marker.name or name, plain, marker, owner)
                self.fixtures[owner, fixture.name] = fixture
            elif isinstance(plain, types.FunctionType) and name.startswith("test") and plain.__module__ == "tests":
                functions.append((name, plain))
        for name, function in functions:
            self.add(name, function, owner)

    def fixture(self, name, owner):
        return self.fixtures.get((owner, name)) or self.fixtures.get((None, name))

    def add(self, name, function, owner):
        marks = marks_of(function)
        if owner is not None:
            for kind in owner.__mro__[:-1]:
                marks = marks + marks_of(types.SimpleNamespace(pytestmark=kind.__dict__.get("pytestmark", [])))
        marks = marks + marks_of(self.module)
        choices = [self.choices(m) for m in marks if m.name == "parametrize"]
        needs = [p for n, p in enumerate(inspect.signature(function).parameters) if not (owner is not None and n == 0)]
        choices += self.fixture_choices(needs, marks, owner)
        for chosen in itertools.product(*choices) if choices else [()]:
            item = Item(name, function, owner)
            item.needs = needs
            item.marks = list(marks)
            for values, indices, extra, label in chosen:
                item.values.update(values)
                item.indices.update(indices)
                item.marks = list(extra) + item.marks
                item.ids.append(label)
            label = "[%s]" % "-".join(item.ids) if item.ids else ""
            item.name = ("%s.%s%s" % (owner.__name__, name, label)) if owner else name + label
            self.items.append(item)

    @staticmethod
    def choices(mark):
        """[(arguments, indirect parameters of fixtures, marks, id)]"""
        arguments = dict(zip(("argnames", "argvalues", "indirect", "ids"), mark.args))
        arguments.update(mark.kwargs)
        names = arguments["argnames"]
        if isinstance(names, str):
            names = [n.strip() for n in names.split(",") if n.strip()]
        ids, indirect = arguments.get("ids"), arguments.get("indirect", False)
        found = []
        for number, given in enumerate(arguments["argvalues"]):
            marks, label = [], None
            if isinstance(given, pytest_module.ParameterSet):
                marks, label, given = given.marks, given.id, given.values
            elif len(names) == 1:
                given = (given,)
            values = dict(zip(names, given))
            if len(values) != len(names) or len(list(given)) != len(names):
                raise ValueError("parametrize: %d names and %d values" % (len(names), len(list(given))))
            if label is None and callable(ids):
                made = [ids(v) for v in values.values()]
                label = "-".join(str(m) if m is not None else id_of(v, n, number) for m, (n, v) in zip(made, values.items()))
            elif label is None and ids is not None:
                label = str(list(ids)[number])
            if label is None:
                label = "-".join(str(id_of(v, n, number)) for n, v in values.items())
            through = names if indirect is True else list(indirect or [])
            indices = {n: ("value", values.pop(n)) for n in through if n in values}
            found.append((values, indices, marks, label))
        return found

    def fixture_choices(self, needs, marks, owner):
        """One list for each fixture with params that the test needs, also through others."""
        wanted = list(needs) + [n for m in marks if m.name == "usefixtures" for n in m.args]
        wanted += [f.name for f in self.fixtures.values() if f.marker.autouse and f.owner in (None, owner)]
        seen, choices = set(), []
        while wanted:
            name = wanted.pop(0)
            fixture = self.fixture(name, owner)
            if fixture is None or name in seen:
                continue
            seen.add(name)
            wanted += fixture.needs
            if fixture.marker.params is not None:
                found = []
                for number, given in enumerate(fixture.marker.params):
                    extra, label = [], None
                    if isinstance(given, pytest_module.ParameterSet):
                        extra, label, given = given.marks, given.id, given.values[0]
                    ids = fixture.marker.ids
                    if label is None and ids is not None:
                        label = str(ids(given) if callable(ids) else list(ids)[number])
                    found.append(({}, {name: ("value", given)}, extra, label or str(id_of(given, name, number))))
                choices.append(found)
        return choices


class Runner:
    def __init__(self, module, link, told, score, failed):
        self.module = module
        self.link = link
        self.told = told
        self.score = score
        self.failed = failed
        self.collector = None
        self.instance = None
        self.owner = None
        self.cache = {scope: {} for scope in SCOPES}
        self.finalizers = {scope: [] for scope in SCOPES}

    # ---- fixtures ----

    def value(self, name, item):
        if name in item.values:
            return item.values[name]
        fixture = self.collector.fixture(name, item.owner)
        if fixture is None:
            return self.builtin(name, item)
        scope = fixture.marker.scope
        chosen = item.indices.get(name)
        key = (fixture, id(chosen[1]) if chosen else None)
        cached = self.cache[scope].get(name)
        if cached is not None and cached[0] == key:
            return cached[1]
        if cached is not None:
            self.cache[scope].pop(name)
        arguments = {}
        for need in fixture.needs:
            if need == "request":
                request = Request(self, item, scope)
                request.fixturename = name
                if chosen:
                    request.param = chosen[1]
                arguments[need] = request
            else:
                arguments[need] = self.value(need, item)
        function = fixture.function
        if fixture.owner is not None:
            function = function.__get__(self.instance)
        made = function(**arguments)
        if inspect.isgenerator(made):
            generator, made = made, next(made)
            self.finalizers[scope].append(lambda: self.resume(generator))
        self.cache[scope][name] = key, made, chosen  # kept alive, so that its id stays its own
        return made

    @staticmethod
    def resume(generator):
        for _ in generator:
            raise RuntimeError("a fixture yielded twice")

    def builtin(self, name, item):
        cached = self.cache["function"].get(name)
        if cached is not None:
            return cached[1]
        if name == "request":
            made = Request(self, item, "function")
            chosen = item.indices.get(name)
            if chosen:
                made.param = chosen[1]
        elif name in ("capsys", "capfd", "capsysbinary"):
            made = Output()
            self.finalizers["function"].append(made.close)
        elif name == "monkeypatch":
            made = pytest_module.MonkeyPatch()
            self.finalizers["function"].append(made.undo)
        elif name in ("tmp_path", "tmpdir", "tmp_path_factory", "tmpdir_factory"):
            raise LookupError("the fixture %s isn't there: tests have no directory to write to in the sandbox" % name)
        else:
            raise LookupError("fixture '%s' not found" % name)
        self.cache["function"][name] = None, made, None
        return made

    def finish(self, scope):
        error = None
        while self.finalizers[scope]:
            try:
                self.finalizers[scope].pop()()
            except Exception as caught:
                error = error or caught
        self.cache[scope].clear()
        if error is not None:
            raise error

    def by_name(self, holder, *names):
        """setup_module and the like."""
        for name in names:
            function = getattr(holder, name, None)
            if function is not None and callable(function):
                given = len(inspect.signature(function).parameters)
                function(*(None,) * min(given, 1))
                return

    # ---- tests ----

    def enter_class(self, owner):
        if owner is self.owner:
            return
        self.leave_class()
        self.owner = owner
        if owner is not None:
            self.by_name(owner, "setup_class")

    def leave_class(self):
        if self.owner is not None:
            owner, self.owner = self.owner, None
            self.finish("class")
            self.by_name(owner, "teardown_class")

    def skipped(self, item):
        for mark in item.marks:
            if mark.name == "skip":
                return str(mark.kwargs.get("reason", mark.args[0] if mark.args else "unconditional skip"))
            if mark.name == "skipif":
                condition = mark.args[0] if mark.args else mark.kwargs.get("condition", False)
                if isinstance(condition, str):
                    condition = eval(condition, self.module.__dict__)
                if condition:
                    return str(mark.kwargs.get("reason", "condition"))
        return None

    def expected_to_fail(self, item):
        for mark in item.marks:
            if mark.name == "xfail":
                condition = mark.args[0] if mark.args else mark.kwargs.get("condition", True)
                if isinstance(condition, str):
                    condition = eval(condition, self.module.__dict__)
                if condition:
                    return mark
        return None

    def call(self, item):
        self.enter_class(item.owner)
        self.instance = item.owner() if item.owner is not None else None
        for fixture in list(self.collector.fixtures.values()):
            if fixture.marker.autouse and fixture.owner in (None, item.owner):
                self.value(fixture.name, item)
        for mark in item.marks:
            if mark.name == "usefixtures":
                for name in mark.args:
                    self.value(name, item)
        if self.instance is not None:
            self.by_name(self.instance, "setup_method", "setup")
        else:
            self.by_name(self.module, "setup_function")
        try:
            arguments = {name: self.value(name, item) for name in item.needs}
            function = item.function if self.instance is None else item.function.__get__(self.instance)
            made = function(**arguments)
            if inspect.iscoroutine(made):
                import asyncio

                asyncio.run(made)
        finally:
            if self.instance is not None:
                self.by_name(self.instance, "teardown_method", "teardown")
            else:
                self.by_name(self.module, "teardown_function")

    def run(self, item):
        told = self.told
        told.begin()
        why = self.skipped(item)
        if why is not None:
            told.skips(item.name, why)
            return
        before, error = self.link.calls, None
        try:
            try:
                self.call(item)
            finally:
                self.finish("function")
        except Exception as caught:
            error = caught
        self.judge(item, error, self.link.calls > before)

    def judge(self, item, error, called):
        told = self.told
        mark = self.expected_to_fail(item)
        if isinstance(error, (results.Skipped, pytest_module.XFailed)) or type(error).__name__ == "SkipTest":
            if called:  # what the candidate gave must not decide whether it is tested
                told.fails(item.name, "the test skipped itself after it had called the code")
            else:
                told.skips(item.name, str(error))
        elif mark is not None and error is not None:
            told.skips(item.name, "failed, as expected")
        elif mark is not None:
            if mark.kwargs.get("strict"):
                told.fails(item.name, "the test passed although it is marked xfail(strict)")
            else:
                told.skips(item.name, "passed, although marked xfail")
        elif error is not None:
            got, expected = unittests.compared(error, self.failed) if told.feedback == "full" else (None, None)
            told.fails(item.name, error, got, expected)
        elif self.link.calls:
            told.passes(item.name)
        else:
            told.skips(item.name, "it called nothing of the code")

    def run_all(self):
        self.collector = Collector(self.module)
        cases = self.unittest_cases()
        if not self.collector.items and cases is None:
            self.told.fails("the tests", "no test was found in the tests", counts=False)
            return
        self.by_name(self.module, "setup_module")
        for item in self.collector.items:
            self.run(item)
            if self.told.first_failure is not None and not self.score:
                return
        self.leave_class()
        if cases is not None:
            cases.run(unittests.make_result(self.link, self.told, self.score, self.failed))
        for scope in ("module", "package", "session"):
            self.finish(scope)
        self.by_name(self.module, "teardown_module")

    def unittest_cases(self):
        unittest = sys.modules.get("unittest")
        if unittest is None:
            return None
        suite = unittest.defaultTestLoader.loadTestsFromModule(self.module)
        return suite if suite.countTestCases() else None


def run(module, link, told, score, failed, _):
    Runner(module, link, told, score, failed).run_all()
