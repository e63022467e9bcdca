"""What tests get as the module `pytest`: its names as people use them, without pytest.

raises, approx, fixture, mark, param, skip, fail, importorskip, warns; pytests.py runs what they mark."""

import math
import re
import sys
import types
import warnings

from firstpass import results


class Failed(AssertionError):
    """pytest.fail()"""


class XFailed(Exception):
    """pytest.xfail()"""


class Mark:
    def __init__(self, name, args=(), kwargs=None):
        self.name = name
        self.args = args
        self.kwargs = kwargs or {}


class MarkDecorator:
    def __init__(self, mark):
        self.mark = mark
        self.name = mark.name

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and not self.mark.args and (
            isinstance(args[0], (types.FunctionType, type)) and self.name not in ("parametrize", "usefixtures")
        ):
            target = args[0]
            # A class's marks must not become those of the class that it inherits from.
            own = list(target.__dict__.get("pytestmark", ()))
            target.pytestmark = own + [self.mark]
            return target
        return Marked(Mark(self.name, self.mark.args + args, {**self.mark.kwargs, **kwargs}))


class Marked(MarkDecorator):
    """With its arguments: what it is called with is what it marks."""

    def __call__(self, target):
        target.pytestmark = list(target.__dict__.get("pytestmark", ())) + [self.mark]
        return target


class MarkGenerator:
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return MarkDecorator(Mark(name))


class ParameterSet:
    def __init__(self, values, marks=(), id=None):
        self.values = values
        self.marks = [m.mark for m in (marks if isinstance(marks, (list, tuple)) else [marks])]
        self.id = id


def param(*values, marks=(), id=None):
    return ParameterSet(values, marks, id)


class FixtureMarker:
    def __init__(self, scope="function", params=None, autouse=False, ids=None, name=None):
        self.scope = scope
        self.params = params
        self.autouse = autouse
        self.ids = ids
        self.name = name

    def __call__(self, function):
        function.__firstpass_fixture__ = self
        return function


def fixture(function=None, *, scope="function", params=None, autouse=False, ids=None, name=None):
    marker = FixtureMarker(scope, list(params) if params is not None else None, autouse, ids, name)
    return marker(function) if function is not None else marker


# ---- raises, warns ----


class ExceptionInfo:
    value = None

    @property
    def type(self):
        return type(self.value)

    @property
    def typename(self):
        return type(self.value).__name__

    @property
    def tb(self):
        return self.value.__traceback__

    def match(self, pattern):
        if not re.search(pattern, str(self.value)):
            raise AssertionError("Regex pattern did not match.\n Regex: %r\n Input: %r" % (pattern, str(self.value)))
        return True

    def errisinstance(self, kind):
        return isinstance(self.value, kind)

    def exconly(self):
        return "%s: %s" % (self.typename, self.value)

    def __str__(self):
        return repr(self)

    def __repr__(self):
        return "<ExceptionInfo %r>" % (self.value,)


class Raises:
    def __init__(self, expected, match):
        self.expected = expected
        self.match = match
        self.info = ExceptionInfo()

    def __enter__(self):
        return self.info

    def __exit__(self, kind, error, _):
        if kind is None:
            names = [getattr(k, "__name__", str(k)) for k in (self.expected if isinstance(self.expected, tuple) else (self.expected,))]
            raise Failed("DID NOT RAISE %s" % " or ".join(names))
        if not issubclass(kind, self.expected):
            return False
        self.info.value = error
        if self.match is not None:
            self.info.match(self.match)
        return True


def raises(expected, *args, match=None, **kwargs):
    kinds = expected if isinstance(expected, tuple) else (expected,)
    if not kinds or any(not isinstance(k, type) or not issubclass(k, BaseException) for k in kinds):
        raise TypeError("expected exception must be a class of exceptions, not %s" % (expected,))
    context = Raises(expected, match)
    if not args:
        return context
    with context as info:
        args[0](*args[1:], **kwargs)
    return info


class Warns(warnings.catch_warnings):
    def __init__(self, expected, match):
        super().__init__(record=True)
        self.expected = expected
        self.pattern = match

    def __enter__(self):
        self.seen = super().__enter__()
        warnings.simplefilter("always")
        return self.seen

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if kind is None:
            found = [w for w in self.seen if issubclass(w.category, self.expected)]
            if not any(self.pattern is None or re.search(self.pattern, str(w.message)) for w in found):
                raise Failed("DID NOT WARN. No warnings of type %s were emitted." % (self.expected,))


def warns(expected=Warning, match=None):
    return Warns(expected, match)


# ---- approx ----


class Approx:
    """Equal within max(rel * |expected|, abs); of lists, tuples and dicts item by item."""

    __hash__ = None
    __array_ufunc__ = None  # numpy must leave the comparison to us
    __array_priority__ = 100

    def __init__(self, expected, rel=None, abs=None, nan_ok=False):
        self.expected = expected
        self.rel = rel
        self.abs = abs
        self.nan_ok = nan_ok

    def tolerance(self, expected):
        least = 1e-12 if self.abs is None else self.abs
        if self.rel is None and self.abs is not None:
            return least
        return max(least, (1e-6 if self.rel is None else self.rel) * math.fabs(abs(expected)))

    def near(self, got, expected):
        if hasattr(expected, "tolist"):
            expected = expected.tolist()
        if hasattr(got, "tolist") and hasattr(got, "dtype"):
            got = got.tolist()
        if isinstance(expected, dict):
            if not isinstance(got, dict) or got.keys() != expected.keys():
                return False
            return all(self.near(got[k], expected[k]) for k in expected)
        if isinstance(expected, (list, tuple)):
            if not isinstance(got, (list, tuple)) or len(got) != len(expected):
                return False
            return all(self.near(g, e) for g, e in zip(got, expected))
        plain = (int, float, complex)
        if not isinstance(expected, plain) or isinstance(expected, bool) or not isinstance(got, plain):
            return got == expected and type(got) is not object
        if got == expected:
            return True
        if expected != expected:
            return self.nan_ok and got != got
        if isinstance(expected, float) and math.isinf(expected):
            return False
        return abs(got - expected) <= self.tolerance(expected)

    def __eq__(self, got):
        try:
            return self.near(got, self.expected) is True
        except (TypeError, ValueError):
            return False

    def __ne__(self, got):
        return not self == got

    def __repr__(self):
        if isinstance(self.expected, (int, float)):
            return "%r ± %.1e" % (self.expected, self.tolerance(self.expected))
        return "approx(%r)" % (self.expected,)


def approx(expected, rel=None, abs=None, nan_ok=False):
    return Approx(expected, rel, abs, nan_ok)


# ---- ends ----


def skip(reason="", allow_module_level=False, msg=None):
    raise results.Skipped(msg or reason)


def fail(reason="", pytrace=True, msg=None):
    raise Failed(msg or reason or "Failed")


def xfail(reason=""):
    raise XFailed(reason)


def importorskip(name, minversion=None, reason=None):
    try:
        __import__(name)
    except ImportError:
        raise results.Skipped(reason or "could not import %r" % name)
    return sys.modules[name]


class MonkeyPatch:
    def __init__(self):
        self.undone = []

    def setattr(self, target, name, *value, raising=True):
        if isinstance(target, str):  # "module.name", value
            import importlib

            value = (name,)
            path, _, name = target.rpartition(".")
            try:
                target = importlib.import_module(path)
            except ImportError:
                above, _, last = path.rpartition(".")
                target = getattr(importlib.import_module(above), last)
        missing = object()
        old = getattr(target, name, missing)
        if old is missing and raising:
            raise AttributeError("%r has no attribute %r" % (target, name))
        self.undone.append(lambda: delattr(target, name) if old is missing else setattr(target, name, old))
        setattr(target, name, value[0])

    def delattr(self, target, name, raising=True):
        missing = object()
        old = getattr(target, name, missing)
        if old is missing:
            if raising:
                raise AttributeError(name)
            return
        self.undone.append(lambda: setattr(target, name, old))
        delattr(target, name)

    def setitem(self, target, name, value):
        missing = object()
        old = target.get(name, missing)
        self.undone.append(lambda: target.pop(name, None) if old is missing else target.__setitem__(name, old))
        target[name] = value

    def delitem(self, target, name, raising=True):
        if name not in target and not raising:
            return
        old = target[name]
        self.undone.append(lambda: target.__setitem__(name, old))
        del target[name]

    def setenv(self, name, value, prepend=None):
        import os

        self.setitem(os.environ, name, str(value))

    def delenv(self, name, raising=True):
        import os

        self.delitem(os.environ, name, raising)

    def undo(self):
        while self.undone:
            self.undone.pop()()


def make():
    """The module itself."""
    module = types.ModuleType("pytest")
    names = "fixture param raises warns approx skip fail xfail importorskip MonkeyPatch ExceptionInfo".split()
    for name in names:
        setattr(module, name, globals()[name])
    module.mark = MarkGenerator()
    module.__version__ = "8.0.0"
    module.main = lambda *_, **__: 0
    module.exit = fail
    module.deprecated_call = lambda match=None: Warns((DeprecationWarning, PendingDeprecationWarning), match)
    module.skip.Exception = results.Skipped
    module.fail.Exception = Failed
    for name in ("FixtureRequest", "CaptureFixture", "Item", "Config", "TempPathFactory", "LogCaptureFixture"):
        setattr(module, name, type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)}))
    module.PytestWarning = type("PytestWarning", (UserWarning,), {})
    module.PytestUnraisableExceptionWarning = module.PytestWarning
    return module
