"""What A and B share: operations, the extended plain types, exceptions by name.

B trusts nothing that comes from A: values are rebuilt by the codec, tags are looked up in fixed tables, classes of exceptions are
builtin ones or stand-ins that B makes itself."""

import builtins
import collections
import datetime
import decimal
import fractions
import re
import sys
import uuid

# Operations of a frame.
BIND, CALL, ATTRIBUTE, OPERATE, OUTPUT, STATE, CALLBACK, ANSWER, ERROR = b"bcaoptkre"

CUT = 500  # characters of a message that cross
ROOM = 24  # frames of Python that an exchange takes at most, beside what it runs for others


class Refused(Exception):
    """A value that can't be handed over."""


class Missing(Exception):
    """A value whose package isn't there, or doesn't load, in this process."""


def take_room(frames=ROOM):
    """RecursionError now, where there is no room for an exchange: in the middle of one it would leave the other end waiting."""
    if frames:
        take_room(frames - 1)


def _seconds(value):
    return (value.days, value.seconds, value.microseconds)


# type -> (tag, its plain content); tag -> rebuild.  Exact types only: a subclass never gets here.
_TAKE = {
    range: ("range", lambda v: (v.start, v.stop, v.step)),
    slice: ("slice", lambda v: (v.start, v.stop, v.step)),
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
    uuid.UUID: ("uuid", lambda v: v.int),
    type({}.keys()): ("keys", list),
    type({}.values()): ("values", list),
    type({}.items()): ("items", list),
}
_MAKE = {
    "range": lambda c: range(*c),
    "slice": lambda c: slice(*c),
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
    "uuid": lambda c: uuid.UUID(int=c),
    "keys": lambda c: dict.fromkeys(c).keys(),
    "values": lambda c: dict(enumerate(c)).values(),
    "items": lambda c: dict(c).items(),
}
# Builtin functions and types cross by name, as `int` given to a function.
_BUILTINS = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}
_BUILTIN_NAMES = {id(value): name for name, value in _BUILTINS.items()}
# Handed over as functions of the tests, these would run the candidate's text in the tests' process.
NOT_CALLED_BACK = {id(v) for v in (exec, eval, compile, open, globals, locals, getattr, setattr, delattr, vars, __import__)}
for _risky in ("exec", "eval", "compile", "open", "input", "breakpoint", "exit", "quit", "help", "globals", "locals"):
    if _risky in _BUILTINS:
        _BUILTIN_NAMES.pop(id(_BUILTINS.pop(_risky)), None)


# ---- numpy, where the interpreter has it ----

_DTYPE = re.compile(r"[<>|=][biufcSU]\d{1,6}\Z")


def _take_numpy(value, kind):
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if kind is numpy.ndarray:
        if not _DTYPE.match(value.dtype.str):
            return None
        return "ndarray", (value.dtype.str, tuple(value.shape), value.tobytes())
    if isinstance(value, numpy.generic) and kind.__module__ == "numpy" and _DTYPE.match(value.dtype.str):
        return "npscalar", (value.dtype.str, value.tobytes(), value.item())
    return None


def _dtype(text):
    try:
        import numpy
    except Exception as error:
        raise Missing("numpy doesn't load in the tests' process (%s)" % error)
    if type(text) is not str or not _DTYPE.match(text):
        raise ValueError("malformed dtype")
    return numpy, numpy.dtype(text)


def _make_array(content):
    text, shape, data = content
    numpy, dtype = _dtype(text)
    if type(data) is not bytes or type(shape) is not tuple or len(shape) > 32:
        raise ValueError("malformed array")
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("malformed shape")
    return numpy.frombuffer(data, dtype).reshape(shape).copy()


def _make_scalar(content):
    text, data, item = content
    if "numpy" not in sys.modules:  # a plain number is equal, and loading numpy takes its time
        if type(item) not in (bool, int, float, complex, bytes, str):
            raise ValueError("malformed scalar")
        return item
    numpy, dtype = _dtype(text)
    if type(data) is not bytes or not data or len(data) != dtype.itemsize:
        raise ValueError("malformed scalar")
    return numpy.frombuffer(data, dtype)[0]


_MAKE["ndarray"] = _make_array
_MAKE["npscalar"] = _make_scalar


# ---- values of subclasses of builtin types: what they are as plain data, beside the handle of the object itself ----

_BASES = {
    tuple: lambda v: tuple.__getitem__(v, slice(None)),
    str: lambda v: str.__getitem__(v, slice(None)),
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    int: int.__pos__,
    float: float.__pos__,
    frozenset: lambda v: frozenset(list(frozenset.__iter__(v))),
}


def base_of(value):
    """(builtin base class, the value as exactly that), or None where there is none or it can change."""
    for base, plain in _BASES.items():
        if isinstance(value, base):
            try:
                made = plain(value)
            except Exception:
                return None
            return (base, made) if type(made) is base else None
    return None


# ---- both directions ----


def take_extended(value):
    """(tag, content) of a value that is plain in a wider sense, or None."""
    kind = type(value)
    found = _TAKE.get(kind)
    if found is not None:
        return found[0], found[1](value)
    name = _BUILTIN_NAMES.get(id(value))
    if name is not None and _BUILTINS[name] is value:
        return "builtin", name
    return _take_numpy(value, kind)


def make_extended(tag, content):
    """The value; ValueError where there is no such tag or the content doesn't fit it."""
    if type(tag) is str:
        if tag == "builtin" and type(content) is str and content in _BUILTINS:
            return _BUILTINS[content]
        make = _MAKE.get(tag)
        if make is not None:
            try:
                return make(content)
            except (MemoryError, Missing):
                raise
            except Exception:
                pass
    raise ValueError("malformed extended value")


def attributes_of(value):
    """What an object of a plain class of somebody's own holds: name -> value, from __dict__ and __slots__."""
    found = {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if type(slots) is str else tuple(slots):
            if type(name) is str and not name.startswith("__"):
                try:
                    found[name] = object.__getattribute__(value, name)
                except AttributeError:
                    pass
    held = getattr(value, "__dict__", None)
    if type(held) is dict:
        found.update((k, v) for k, v in held.items() if type(k) is str)
    return found


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
