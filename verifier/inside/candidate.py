"""Process A: the candidate's module and the loop that answers what the tests in B ask of it, or the candidate's whole program with
a standard input.

Everything here can be read, replaced and broken by the candidate: nothing here is secret, and B believes none of it."""

import atexit
import collections
import enum
import errno
import gc
import importlib
import inspect
import linecache
import operator
import os
import random
import sys
import threading
import traceback
import types

from firstpass import channel, inside

CALL_SOCKET = 3
PROGRAM, NUMPY = 2, 4  # a job's flags, as in wire.h
PREPARED, MISSING = b"RM"  # reports


def run_coroutine(value):
    import asyncio

    async def wait():
        return await value

    return asyncio.run(wait())


def leave(value, names, message):
    """__exit__, with an error of the tests where there was one."""
    if not names:
        return type(value).__exit__(value, None, None, None)
    error = channel.exception_class(names)(message)
    return bool(type(value).__exit__(value, type(error), error, None))


def snapshot(value):
    """What the tests compare with an object of their own class of the same name."""
    if isinstance(value, enum.Enum):
        return "enum", type(value).__name__, value.name
    return "object", type(value).__name__, channel.attributes_of(value)


def plain(value):
    for base in (list, dict, set):
        if isinstance(value, base):
            return base(value)
    return None


OPERATIONS = {
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "str": str,
    "repr": repr,
    "hash": hash,
    "int": int,
    "float": float,
    "index": operator.index,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "setattr": setattr,
    "delattr": delattr,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "kind": lambda v: next((c.__name__ for c in type(v).__mro__ if c.__module__ == "builtins"), ""),
    "doc": lambda v: v.__doc__,
    "plain": plain,
    "snapshot": snapshot,
    "await": run_coroutine,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "matmul": operator.matmul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": abs,
    "invert": operator.invert,
    "enter": lambda value: type(value).__enter__(value),
    "exit": leave,
}
MUTABLE = {list, dict, set, bytearray}
PLAIN = {int, float, str, bool, bytes, complex, type(None)}


class Remote:
    """A function or iterator of the tests, called back across the socket."""

    def __init__(self, loop, number):
        self._loop = loop
        self._number = number

    def __call__(self, *args, **kwargs):
        return self._loop.call_back(self._number, args, kwargs)


class RemoteIterator(Remote):
    def __iter__(self):
        return self

    def __next__(self):
        return self._loop.call_back(self._number, (), {})


def limit_of(error):
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OSError):
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return "files"
        if error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            return "file_size"
    if isinstance(error, RuntimeError) and "can't start new thread" in channel.text_of(error, str):
        return "processes"
    return ""


def line_of(error):
    line = 0
    try:
        if isinstance(error, SyntaxError) and error.filename == "solution.py":
            return error.lineno or 0
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename == "solution.py":
                line = number
    except BaseException:  # noqa: B036
        pass
    return line if type(line) is int else 0


def describe(error):
    """(names of its builtin classes, its own name, message, line, limit, plain arguments or None, names of its other classes, plain
    attributes)"""
    mro = type(error).__mro__
    names = [c.__name__ for c in mro if c.__module__ == "builtins"]
    kinds = [c.__name__ for c in mro if c.__module__ != "builtins"]
    try:
        arguments = error.args if all(type(a) in PLAIN for a in error.args) else None
        if arguments is not None:
            arguments = tuple(arguments)
        attributes = {k: v for k, v in vars(error).items() if type(k) is str and type(v) in PLAIN and k[:2] != "__"}
    except BaseException:  # noqa: B036
        arguments, attributes = None, {}
    return (
        names,
        str(type(error).__name__),
        channel.text_of(error, str),
        line_of(error),
        limit_of(error),
        arguments,
        kinds,
        attributes,
    )


class Capture:
    """What the candidate prints, for tests that look at it; it still goes where it went."""

    def __init__(self, stream):
        self.stream = stream
        self.pieces = []

    def write(self, text):
        self.pieces.append(text)
        return self.stream.write(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def take(self):
        text = "".join(self.pieces)
        self.pieces.clear()
        return text


class Loop:
    def __init__(self, module, failure):
        self.module = module
        self.failure = failure  # what importing the module raised, described
        self.handles = {}
        self.numbers = {}  # id(object) -> handle
        self.mirrors = {}  # number -> stand-in for an object of the tests
        self.mirrored = {}  # id(stand-in) -> number
        self.known = {}  # number -> its attributes as the tests know them, encoded
        self.replaced = {}  # name -> what the module had before the tests put something of their own there
        self.capture = None
        self.request = 0

    # ---- values ----

    def give(self, value):
        kind = type(value)
        if kind is RemoteIterator:
            return "iterator", value._number
        if kind is Remote:
            return "callback", value._number
        extended = channel.take_extended(value)
        if extended is not None:
            return extended
        if id(value) in self.mirrored:
            return "mine", self.mirrored[id(value)]
        number = self.numbers.get(id(value))
        if number is None:
            number = len(self.handles) + 1
            self.handles[number] = value  # keeps it alive, so that its id stays its own
            self.numbers[id(value)] = number
        if inspect.iscoroutine(value):
            return "coroutine", number
        if isinstance(value, (tuple, str, int, float, frozenset)):
            base = channel.base_of(value)
            if base is not None:
                return "held", (number, base[1])
        return number

    def get(self, first, second):
        if type(first) is int:
            return self.handles[first]
        if first == "callback":
            return Remote(self, second)
        if first == "iterator":
            return RemoteIterator(self, second)
        if first == "entry":
            return self.target(second)
        if first == "mine":
            return self.mirrors[second]
        if first == "base":
            return second
        if first == "enum":
            return self.member(*second)
        if first == "tuple":
            return self.tuple(*second)
        return channel.make_extended(first, second)

    def member(self, name, member, value):
        kind = getattr(self.module, name, None)
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and member in kind.__members__:
            return kind.__members__[member]
        return value

    def tuple(self, name, fields, value):
        kind = getattr(self.module, name, None)
        if isinstance(kind, type) and issubclass(kind, tuple):
            return tuple.__new__(kind, value)
        return collections.namedtuple(name, fields)._make(value) if fields else value

    def target(self, target):
        if type(target) is int:
            return self.handles[target]
        return self.replaced[target] if target in self.replaced else getattr(self.module, target)

    # ---- objects of the tests ----

    def mirror(self, name, methods):
        kind = getattr(self.module, name, None)
        try:
            made = object.__new__(kind if isinstance(kind, type) else types.SimpleNamespace)
        except TypeError:
            made = types.SimpleNamespace()
        if type(made) is types.SimpleNamespace and methods:
            calls = {m: staticmethod(Remote(self, number)) for m, number in methods}
            made = type(name, (), calls)()
        return made

    def state(self, states):
        for number, name, methods, _ in states:
            if number not in self.mirrors:
                self.mirrors[number] = made = self.mirror(name, methods)
                self.mirrored[id(made)] = number
        for number, _, _, blob in states:
            made = self.mirrors[number]
            for name, value in inside.decode(blob, self.get).items():
                object.__setattr__(made, name, value)
            self.known[number] = inside.encode(channel.attributes_of(made), self.give)
        return None, -1, None

    def changed_objects(self):
        changed = []
        for number, made in self.mirrors.items():
            blob = inside.encode(channel.attributes_of(made), self.give)
            if blob != self.known[number]:
                self.known[number] = blob
                changed.append((number, blob))
        return changed or None

    # ---- requests ----

    def bind(self, names):
        found = []
        for name in names:
            if not hasattr(self.module, name):
                found.append(None)
                continue
            value = getattr(self.module, name)
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ != "builtins":
                own = [c.__name__ for c in value.__mro__ if c.__module__ != "builtins"]
                found.append(("exception", (own, [c.__name__ for c in value.__mro__ if c.__module__ == "builtins"])))
                continue
            found.append((True, None) if callable(value) else (False, value))
        return found, -1, None

    def call(self, target, blob):
        args, kwargs = inside.decode(blob, self.get)
        result = self.target(target)(*args, **kwargs)
        same = -1
        for i, argument in enumerate(args):
            if argument is result and type(result) in MUTABLE:
                same = i
        changed = None
        if not all(type(a) in PLAIN for a in args) or kwargs:
            after = inside.encode((args, kwargs), self.give)
            if after != blob:
                changed = after
        return (None if same >= 0 else result), same, changed

    def attribute(self, target, name):
        return getattr(self.target(target), name), -1, None

    def operate(self, name, operands):
        if name == "setglobal":
            if operands[0] not in self.replaced and hasattr(self.module, operands[0]):
                self.replaced[operands[0]] = getattr(self.module, operands[0])
            setattr(self.module, *operands)
            return None, -1, None
        if name == "delglobal":
            delattr(self.module, *operands)
            return None, -1, None
        return OPERATIONS[name](*operands), -1, None

    def output(self):
        if self.capture is None:
            self.capture = sys.stdout = Capture(sys.stdout)
        return self.capture.take(), -1, None

    def answer(self, request, operation, payload):
        outer, self.request = self.request, request
        reply = self.reply(operation, payload)
        self.request = outer
        flush()
        inside.send(CALL_SOCKET, request, *reply)

    def reply(self, operation, payload):
        """The answer's operation and payload."""
        try:
            channel.take_room()
            if self.failure is not None and operation != channel.OUTPUT:
                return channel.ERROR, inside.encode(self.failure, self.give)
            run = {
                channel.BIND: self.bind,
                channel.CALL: self.call,
                channel.ATTRIBUTE: self.attribute,
                channel.OPERATE: self.operate,
                channel.OUTPUT: self.output,
                channel.STATE: self.state,
            }[operation]
            result = run(*inside.decode(payload, self.get))
            objects = self.changed_objects() if self.mirrors else None
            return channel.ANSWER, inside.encode((*result, objects), self.give)
        except BaseException as error:  # noqa: B036, SystemExit too is an answer
            try:
                return channel.ERROR, inside.encode(describe(error), self.give)
            except MemoryError:
                nothing = ["MemoryError"], "MemoryError", "", 0, "memory", (), [], {}
                return channel.ERROR, inside.encode(nothing, self.give)

    def serve(self, inner):
        """Answers until B goes away; inside a callback until its answer comes."""
        while True:
            frame = inside.receive(CALL_SOCKET)
            if frame is None:
                os._exit(0)
            request, operation, payload = frame
            if operation in (channel.ANSWER, channel.ERROR):
                if inner:
                    return operation, payload
                continue
            self.answer(request, operation, payload)

    def call_back(self, number, args, kwargs):
        channel.take_room(2 * channel.ROOM)  # what B asks before its answer takes as much again
        inside.send(
            CALL_SOCKET, self.request, channel.CALLBACK, inside.encode((number, args, kwargs), self.give)
        )
        operation, payload = self.serve(True)
        value = inside.decode(payload, self.get)
        if operation == channel.ANSWER:
            return value
        names, _, message, _, _, _, kinds, _ = value
        if names and names[0] == "StopIteration":
            raise StopIteration
        for name in kinds:
            kind = getattr(self.module, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                raise kind(message)
        raise channel.exception_class(names)(message)


def flush():
    """What was printed must be in the pipe before the answer: the process may be killed right after it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: B036, replaced or closed by the candidate
            pass


def open_output(number):
    """By lines: what was printed before a timeout or a crash must not be lost with the buffer."""
    return open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def load(source, name):
    """The candidate's module, and the error that running it raised, or None."""
    module = types.ModuleType(name)
    module.__file__ = "solution.py"
    sys.modules[name] = module
    try:
        text = source.decode("utf-8")
        linecache.cache["solution.py"] = (len(text), None, text.splitlines(True), "solution.py")
        exec(compile(text, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # noqa: B036
        return module, error
    return module, None


def status_of(error):
    """The exit status of a program that ended with this, told on its standard error as Python does."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or type(code) is int:
            return (code or 0) & 255
        sys.stderr.write(channel.text_of(code, str) + "\n")
        return 1
    try:
        # The harness's own frame is none of the program's business.
        traceback.print_exception(type(error), error, error.__traceback__.tb_next if error.__traceback__ else None)
    except BaseException:  # noqa: B036
        pass
    return 1


def run_program(source):
    """A program of its own: __main__, its threads and exit functions awaited as at any Python's end."""
    atexit._clear()  # what the zygote's modules registered
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    status = status_of(load(source, "__main__")[1])
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:  # noqa: B036
        status = 1
    flush()
    os._exit(status)


def sow(flags, seed):
    """Random numbers of this candidate's own, the same each time.  numpy is there already, or would be in a moment."""
    random.seed(seed)
    if flags & NUMPY:
        try:
            importlib.import_module("numpy").random.seed(seed & 0xFFFFFFFF)
        except BaseException:  # noqa: B036, its own import will say why
            pass


# Small, of what most candidates are made of: it is there to be gone through.
REHEARSAL = b"""from typing import List, Optional
import math

class Pair:
    def __init__(self, first):
        self.first = first

def f(numbers: List[int], word: Optional[str] = "a") -> int:
    '''Adds.'''
    total, seen = 0, {}
    for i, n in enumerate(sorted(numbers, key=lambda n: -n)):
        if n not in seen and n % 2 == 0 or word.lower() != "b":
            seen[n] = "%d-%s" % (i, word)
            total += len(seen) + math.floor(n / 2)
    return [total, "".join(str(x) for x in range(total))][0]
"""


def rehearse():
    """Goes through a candidate of ours as through a real one.  In the zygote: what the interpreter looks up and specialises once
    none of its children does again.  In a child that waits for its job: the memory that it is going to write to is its own
    by then."""
    module, _ = load(REHEARSAL, "solution")
    loop = Loop(module, None)
    call = inside.encode((([3, 1, 2],), {}), None)
    for operation, arguments in ((channel.BIND, (["f", "g"],)), (channel.CALL, ("f", call)), (channel.CALL, ("g", call))):
        loop.reply(operation, inside.encode(arguments, None))
    flush()
    del sys.modules["solution"], linecache.cache["solution.py"]


def open_streams():
    """Standard streams for the children, once: each would pay ninety page faults for them.  Made where the numbers are pipes, as
    theirs will be: the null device, which they are here, can seek."""
    ends, kept = os.pipe(), (os.dup(1), os.dup(2))
    os.dup2(ends[1], 1)
    os.dup2(ends[1], 2)
    STREAMS[:] = open_output(1), open_output(2)
    os.dup2(kept[0], 1)
    os.dup2(kept[1], 2)
    for number in ends + kept:
        os.close(number)


STREAMS = []


def run(kind, job_socket):
    inside.prepare(kind, job_socket)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = STREAMS
    if inside.waits():  # where jobs follow each other closely this would only take time from them
        try:
            rehearse()
        except BaseException:  # noqa: B036, the candidate's own memory and time are not touched by what fails here
            pass
    source, seed, flags = inside.take()
    sow(flags, seed)
    if flags & PROGRAM:
        run_program(source)
    module, error = load(source, "solution")
    failure = describe(error) if error is not None else None
    del error
    flush()
    Loop(module, failure).serve(False)


def serve_flavour(_, job):
    """Process N: loads a package that many candidates import, then forks them until its control socket ends."""
    report, nonce, memory, _, _, _, fds = job
    name_fd, control = fds
    inside.limit(memory, 0)
    name = os.pread(name_fd, 64, 0).decode()
    os.close(name_fd)
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: B036, whatever an installed package raises
        inside.report(report, MISSING, nonce, 0, 0, False, b"", channel.text_of(error, str).encode(), b"")
        return
    gc.collect()
    gc.freeze()
    inside.report(report, PREPARED, nonce, 0, 0, False, b"", b"", b"")
    os.close(report)
    inside.serve(control, run)
