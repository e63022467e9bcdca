"""Process A: the candidate's module, and the loop that answers what the tests in B ask of it.

Everything here can be read, replaced and broken by the candidate: nothing here is secret, and B believes none of it."""

import errno
import linecache
import operator
import os
import random
import sys
import traceback
import types

from firstpass import channel, inside

CALL_SOCKET = 3

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
    "exit": lambda value: type(value).__exit__(value, None, None, None),
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
    """(names of its builtin classes, its own name, message, line, limit, plain arguments or None)"""
    names = [c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"]
    try:
        arguments = error.args if all(type(a) in PLAIN for a in error.args) else None
        if arguments is not None:
            arguments = tuple(arguments)
    except BaseException:  # noqa: B036
        arguments = None
    return (
        names,
        str(type(error).__name__),
        channel.text_of(error, str),
        line_of(error),
        limit_of(error),
        arguments,
    )


class Loop:
    def __init__(self, module, failure):
        self.module = module
        self.failure = failure  # what importing the module raised, described
        self.handles = {}
        self.numbers = {}  # id(object) -> handle
        self.request = 0

    # ---- values ----

    def give(self, value):
        if type(value) is RemoteIterator:
            return "iterator", value._number
        if type(value) is Remote:
            return "callback", value._number
        extended = channel.take_extended(value)
        if extended is not None:
            return extended
        number = self.numbers.get(id(value))
        if number is None:
            number = len(self.handles) + 1
            self.handles[number] = value  # keeps it alive, so that its id stays its own
            self.numbers[id(value)] = number
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
        return channel.make_extended(first, second)

    def target(self, target):
        if type(target) is int:
            return self.handles[target]
        return getattr(self.module, target)

    # ---- requests ----

    def bind(self, names):
        found = []
        for name in names:
            if not hasattr(self.module, name):
                found.append(None)
                continue
            value = getattr(self.module, name)
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
        return OPERATIONS[name](*operands), -1, None

    def answer(self, request, operation, payload):
        outer, self.request = self.request, request
        try:
            if self.failure is not None:
                reply = channel.ERROR, inside.encode(self.failure, self.give)
            else:
                run = {
                    channel.BIND: self.bind,
                    channel.CALL: self.call,
                    channel.ATTRIBUTE: self.attribute,
                    channel.OPERATE: self.operate,
                }[operation]
                result = run(*inside.decode(payload, self.get))
                reply = channel.ANSWER, inside.encode(result, self.give)
        except BaseException as error:  # noqa: B036, SystemExit too is an answer
            try:
                reply = channel.ERROR, inside.encode(describe(error), self.give)
            except MemoryError:
                reply = channel.ERROR, inside.encode(
                    (["MemoryError"], "MemoryError", "", 0, "memory", ()), self.give
                )
            del error
        self.request = outer
        flush()
        inside.send(CALL_SOCKET, request, *reply)

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
        inside.send(
            CALL_SOCKET, self.request, channel.CALLBACK, inside.encode((number, args, kwargs), self.give)
        )
        operation, payload = self.serve(True)
        value = inside.decode(payload, self.get)
        if operation == channel.ANSWER:
            return value
        names, _, message, _, _, _ = value
        if names and names[0] == "StopIteration":
            raise StopIteration
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


def load(source):
    """The candidate's module, and what running it raised."""
    module = types.ModuleType("solution")
    module.__file__ = "solution.py"
    sys.modules["solution"] = module
    try:
        text = source.decode("utf-8")
        linecache.cache["solution.py"] = (len(text), None, text.splitlines(True), "solution.py")
        exec(compile(text, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # noqa: B036
        return module, describe(error)
    return module, None


def run(job):
    kind, _, _, memory, seed, cpu, _, fds = job
    code, call, output = fds
    source = os.pread(code, os.fstat(code).st_size, 0)
    inside.enter(kind, memory, cpu, call, -1, output)
    # The zygote's streams were made for /dev/null, which can seek.
    sys.stdout = sys.__stdout__ = open_output(1)
    sys.stderr = sys.__stderr__ = open_output(2)
    random.seed(seed)
    module, failure = load(source)
    flush()
    Loop(module, failure).serve(False)
