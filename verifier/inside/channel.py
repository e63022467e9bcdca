"""What A and B share: operations, the extended plain types, exceptions by name.

B trusts nothing that comes from A: values are rebuilt by the codec, tags are looked up in fixed tables, classes of exceptions are
builtin ones only."""

import builtins
import collections
import datetime
import decimal
import fractions

# Operations of a frame.
BIND, CALL, ATTRIBUTE, OPERATE, CALLBACK, ANSWER, ERROR = b"bcaokre"

CUT = 500  # characters of a message that cross


class Refused(Exception):
    """A value that can't be handed over."""


def _seconds(value):
    return (value.days, value.seconds, value.microseconds)


# type -> (tag, its plain content); tag -> rebuild.  Exact types only: a subclass never gets here.
_TAKE = {
    range: ("range", lambda v: (v.start, v.stop, v.step)),
    decimal.Decimal: ("decimal", str),
    fractions.Fraction: ("fraction", lambda v: (v.numerator, v.denominator)),
    datetime.datetime: ("datetime", lambda v: v.isoformat()),
    datetime.date: ("date", lambda v: v.isoformat()),
    datetime.time: ("time", lambda v: v.isoformat()),
    datetime.timedelta: ("timedelta", _seconds),
    collections.Counter: ("counter", dict),
    collections.defaultdict: ("defaultdict", dict),
    collections.OrderedDict: ("ordered", lambda v: list(v.items())),
    collections.deque: ("deque", lambda v: (list(v), v.maxlen)),
}
_MAKE = {
    "range": lambda c: range(*c),
    "decimal": decimal.Decimal,
    "fraction": lambda c: fractions.Fraction(*c),
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda c: datetime.timedelta(*c),
    "counter": collections.Counter,
    "defaultdict": lambda c: collections.defaultdict(None, c),
    "ordered": collections.OrderedDict,
    "deque": lambda c: collections.deque(*c),
}
# Builtin functions and types cross by name, as `int` given to a function.
_BUILTINS = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}
_BUILTIN_NAMES = {id(value): name for name, value in _BUILTINS.items()}
# Handed over as functions of the tests, these would run the candidate's text in the tests' process.
NOT_CALLED_BACK = {id(v) for v in (exec, eval, compile, open, globals, locals, getattr, setattr, delattr, vars, __import__)}
for _risky in ("exec", "eval", "compile", "open", "input", "breakpoint", "exit", "quit", "help", "globals", "locals"):
    if _risky in _BUILTINS:
        _BUILTIN_NAMES.pop(id(_BUILTINS.pop(_risky)), None)


def take_extended(value):
    """(tag, content) of a value that is plain in a wider sense, or None."""
    found = _TAKE.get(type(value))
    if found is not None:
        return found[0], found[1](value)
    name = _BUILTIN_NAMES.get(id(value))
    if name is not None and _BUILTINS[name] is value:
        return "builtin", name
    return None


def make_extended(tag, content):
    """The value; ValueError where there is no such tag or the content doesn't fit it."""
    if type(tag) is str:
        if tag == "builtin" and type(content) is str and content in _BUILTINS:
            return _BUILTINS[content]
        make = _MAKE.get(tag)
        if make is not None:
            try:
                return make(content)
            except MemoryError:
                raise
            except Exception:
                pass
    raise ValueError("malformed extended value")


def cut(text):
    return text if len(text) <= CUT else text[: CUT - 3] + "..."


def text_of(value, how):
    """str() or repr() of something whose own methods may raise anything."""
    try:
        made = how(value)
        return cut(made) if type(made) is str else "<no text>"
    except BaseException as error:  # noqa: B036, a candidate's __str__ may raise SystemExit
        if isinstance(error, MemoryError):
            return "out of memory"
        return "<no text: __%s__ raised>" % how.__name__


def exception_class(names):
    """The nearest builtin class of an exception that came by the names of its bases; RuntimeError where it isn't one that
    tests may see.  StopIteration would end the test's own loops, SystemExit its process."""
    for name in names:
        found = getattr(builtins, name, None) if type(name) is str else None
        if isinstance(found, type) and issubclass(found, Exception):
            if issubclass(found, (StopIteration, StopAsyncIteration)):
                return RuntimeError
            return found
    return RuntimeError
