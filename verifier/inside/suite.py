"""The tests: process T compiles them once, its children B run them, one for each candidate.

B alone holds the tests' text, the nonce and the report.  Of the candidate it sees proxies and rebuilt plain values."""

import ast
import builtins
import importlib
import json
import os
import random
import sys
import types
import warnings

from firstpass import channel, inside

CONTROL, CALL_SOCKET, REPORT = 3, 3, 4
PASSED, FAILED, GONE, TAMPERED, PREPARED, REFUSED = b"PFGXRE"
LIMITS = ("memory", "files", "file_size", "processes")
# Modules that tests use without importing them.  Before Python 3.10 the zygote's preloaded ones stand for the standard library.
STANDARD = frozenset(getattr(sys, "stdlib_module_names", sys.modules)) - {"firstpass", "__main__"}
USUAL = {"np": "numpy", "pd": "pandas", **{n: n for n in ("numpy", "pandas", "pytest", "scipy", "sympy")}}


class Tampered(BaseException):
    """The candidate's process broke the protocol.  Not an Exception: the tests can't swallow it."""


class Gone(BaseException):
    """The candidate's process is no more."""


class Unloadable(BaseException):
    """The candidate's module didn't load; args[0] is its error as text."""


# ---- the candidate as the tests see it ----


class Channel:
    def __init__(self):
        self.calls = 0  # answered requests, but for those of names
        self.proxies = {}
        self.functions = []  # of the tests, for callbacks
        self.iterators = {}
        self.remote = {}  # id(exception) -> (exception, text, limit)
        self.end = None  # the Gone or Tampered that ended it: it stays ended

    def take(self, value):
        kind = type(value)
        if kind is Proxy:
            return object.__getattribute__(value, "_number")
        if kind is EntryPoint:
            return "entry", object.__getattribute__(value, "_target")
        extended = channel.take_extended(value)
        if extended is not None:
            return extended
        if id(value) in channel.NOT_CALLED_BACK:
            raise channel.Refused("%s can't be handed to the candidate: it would run here" % value.__name__)
        if hasattr(kind, "__next__"):
            self.functions.append(value.__next__)
            return "iterator", len(self.functions) - 1
        if callable(value):
            self.functions.append(value)
            return "callback", len(self.functions) - 1
        raise channel.Refused("a %s of the tests can't be handed to the candidate" % kind.__name__)

    def make(self, first, second):
        if type(first) is int:
            if first not in self.proxies:
                self.proxies[first] = Proxy(self, first)
            return self.proxies[first]
        if first in ("callback", "iterator"):
            if type(second) is not int or not 0 <= second < len(self.functions):
                raise ValueError("unknown function of the tests")
            return self.functions[second]
        return channel.make_extended(first, second)

    def decode(self, payload):
        try:
            return inside.decode(payload, self.make)
        except (ValueError, TypeError, OverflowError, RecursionError, UnicodeError) as error:
            raise self.stop(Tampered("malformed value: %s" % error))

    def stop(self, end):
        self.end = end
        return end

    def ask(self, operation, *arguments):
        if self.end is not None:
            raise self.end
        request = int.from_bytes(os.urandom(8), "little")
        payload = inside.encode(arguments, self.take)
        try:
            inside.send(CALL_SOCKET, request, operation, payload)
        except OSError:
            raise self.stop(Gone())
        while True:
            try:
                frame = inside.receive(CALL_SOCKET)
            except (ValueError, OSError) as error:
                raise self.stop(Tampered(str(error)))
            if frame is None:
                raise self.stop(Gone())
            answered, kind, payload = frame
            if answered != request:
                raise self.stop(Tampered("an answer that nobody asked for"))
            if kind == channel.CALLBACK:
                self.call_back(request, payload)
            elif kind == channel.ANSWER:
                value = self.decode(payload)
                if type(value) is not tuple or len(value) != 3 or type(value[1]) is not int:
                    raise self.stop(Tampered("malformed answer"))
                self.calls += operation != channel.BIND
                return value
            elif kind == channel.ERROR:
                self.calls += 1
                self.fail(self.decode(payload), operation)
            else:
                raise self.stop(Tampered("unknown operation"))

    def fail(self, described, operation):
        if type(described) is not tuple or len(described) != 6:
            raise self.stop(Tampered("malformed error"))
        names, name, message, line, limit, arguments = described
        if (
            type(names) is not list
            or any(type(v) is not str for v in (name, message, limit))
            or type(line) is not int
        ):
            raise self.stop(Tampered("malformed error"))
        text = channel.cut("%s: %s" % (name, message) if message else name)
        if line:
            text += " (line %d of the code)" % line
        if limit not in LIMITS:
            limit = ""
        if operation == channel.BIND:
            raise self.stop(Unloadable(text, limit))
        kind = channel.exception_class(names)
        try:
            error = kind(*arguments) if name == kind.__name__ and type(arguments) is tuple else kind(text)
        except Exception:
            error = RuntimeError(text)
        self.remote[id(error)] = (error, text, limit)
        raise error

    def call_back(self, request, payload):
        value = self.decode(payload)
        if type(value) is not tuple or len(value) != 3 or type(value[1]) is not tuple or type(value[2]) is not dict:
            raise self.stop(Tampered("malformed call back"))
        number, args, kwargs = value
        if type(number) is not int or not 0 <= number < len(self.functions):
            raise self.stop(Tampered("unknown function of the tests"))
        try:
            kind, answer = channel.ANSWER, inside.encode(self.functions[number](*args, **kwargs), self.take)
        except Exception as error:
            names = [c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"]
            described = names, "", channel.text_of(error, str), 0, "", None
            kind, answer = channel.ERROR, inside.encode(described, self.take)
        try:
            inside.send(CALL_SOCKET, request, kind, answer)
        except OSError:
            raise self.stop(Gone())

    def call(self, target, args, kwargs):
        blob = inside.encode((args, kwargs), self.take)
        value, same, changed = self.ask(channel.CALL, target, blob)
        if changed is not None:
            after = self.decode(changed) if type(changed) is bytes else None
            if type(after) is not tuple or len(after) != 2 or type(after[0]) is not tuple:
                raise self.stop(Tampered("malformed arguments"))
            refresh(args, after[0])
            if type(after[1]) is dict:
                for name in kwargs:
                    merge(kwargs[name], after[1].get(name))
        if same >= 0:
            if same >= len(args):
                raise self.stop(Tampered("no such argument"))
            return args[same]
        return value

    def operate(self, name, *operands):
        return self.ask(channel.OPERATE, name, operands)[0]


def merge(old, new):
    """`old` with the content of `new` where both are the same kind of container, so that it keeps its identity."""
    if type(old) is type(new) and type(old) in (list, dict, set, bytearray, tuple):
        refresh(old, new)
        return old if type(old) is not tuple or len(old) == len(new) else new
    return new


def refresh(old, new):
    if type(old) is tuple:
        for before, after in zip(old, new):
            merge(before, after)
    elif type(old) is list:
        old[:] = [merge(old[i], v) if i < len(old) else v for i, v in enumerate(new)]
    elif type(old) is dict:
        merged = {k: merge(old[k], v) if k in old else v for k, v in new.items()}
        old.clear()
        old.update(merged)
    elif type(old) is set:
        old.clear()
        old.update(new)
    elif type(old) is bytearray:
        old[:] = new


class Proxy:
    """An object that stays in the candidate's process.  It never equals plain data: its own methods, which may lie, are asked
    only where both sides are the candidate's."""

    __slots__ = ("_channel", "_number")

    def __init__(self, channel_, number):
        object.__setattr__(self, "_channel", channel_)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._channel.ask(channel.ATTRIBUTE, self._number, name)[0]

    def __setattr__(self, name, value):
        self._channel.operate("setattr", self, name, value)

    def __call__(self, *args, **kwargs):
        return self._channel.call(self._number, args, kwargs)

    def __eq__(self, other):
        if self is other:
            return True
        return type(other) is Proxy and self._channel.operate("eq", self, other) is True

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(self._number)

    def __bool__(self):
        return self._channel.operate("bool", self) is True

    def __len__(self):
        return self._plain("len", int)

    def __str__(self):
        return self._plain("str", str)

    def __repr__(self):
        return self._plain("repr", str)

    def __int__(self):
        return self._plain("int", int)

    def __float__(self):
        return self._plain("float", float)

    def __index__(self):
        return self._plain("index", int)

    def __iter__(self):
        return Iterator(self._channel.operate("iter", self))

    def __getitem__(self, key):
        return self._channel.operate("getitem", self, key)

    def __setitem__(self, key, value):
        self._channel.operate("setitem", self, key, value)

    def __delitem__(self, key):
        self._channel.operate("delitem", self, key)

    def __enter__(self):
        return self._channel.operate("enter", self)

    def __exit__(self, *_):
        self._channel.operate("exit", self)

    def _plain(self, name, kind):
        value = self._channel.operate(name, self)
        if type(value) is not kind:
            raise TypeError("__%s__ of the candidate's object gave no %s" % (name, kind.__name__))
        return value


def _unary(name):
    def method(self):
        return self._channel.operate(name, self)

    return method


def _binary(name):
    def method(self, other):
        # Against plain data the result would be the candidate's word on the test's own comparison: an object whose
        # `- 4` is 0 would pass every `abs(f(x) - 4) < 1e-6`.
        if type(other) is not Proxy:
            return NotImplemented
        return self._channel.operate(name, self, other)

    return method


for _name in ("neg", "pos", "abs", "invert"):
    setattr(Proxy, "__%s__" % _name, _unary(_name))
for _name in "add sub mul matmul truediv floordiv mod pow and or xor lt le gt ge".split():
    setattr(Proxy, "__%s__" % _name, _binary(_name))


class Iterator:
    """`for x in` an object of the candidate: its StopIteration is the end only here, where an iterator is asked for the next."""

    def __init__(self, proxy):
        self._proxy = proxy

    def __iter__(self):
        return self

    def __next__(self):
        if type(self._proxy) is not Proxy:
            raise TypeError("iter() of the candidate's object gave no iterator")
        link = object.__getattribute__(self._proxy, "_channel")
        try:
            return link.operate("next", self._proxy)
        except RuntimeError as error:
            if link.remote.get(id(error), (None, ""))[1].startswith("StopIteration"):
                raise StopIteration
            raise


Proxy.__next__ = lambda self: next(Iterator(self))


class EntryPoint:
    """A function or class of the candidate by name."""

    def __init__(self, channel_, name):
        self._channel = channel_
        self._target = name
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args, **kwargs):
        return self._channel.call(self._target, args, kwargs)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._channel.ask(channel.ATTRIBUTE, self._target, name)[0]


class Solution(types.ModuleType):
    """`solution` for tests that import it: what they ask for, no more."""

    def __init__(self, link):
        super().__init__("solution")
        self.__dict__["_link"] = link

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        bound = bind(self.__dict__["_link"], [name])
        if name not in bound:
            raise AttributeError("the code defines no %s" % name)
        self.__dict__[name] = bound[name]
        return bound[name]


def bind(link, names):
    """name -> proxy or plain value, for those names that the candidate's module has."""
    found = link.ask(channel.BIND, list(names))[0]
    if type(found) is not list or len(found) != len(names):
        raise link.stop(Tampered("malformed names"))
    bound = {}
    for name, entry in zip(names, found):
        if entry is None:
            continue
        if type(entry) is not tuple or len(entry) != 2:
            raise link.stop(Tampered("malformed names"))
        bound[name] = EntryPoint(link, name) if entry[0] is True else entry[1]
    return bound


# ---- compiling, in T ----


class Rewriter(ast.NodeTransformer):
    """Each `assert` becomes a counted one.  With `score` it also stops being the end, unless the tests catch it themselves."""

    def __init__(self, source, score):
        self.source = source
        self.score = score
        self.texts = []
        self.in_try = 0

    def visit_Try(self, node):
        self.in_try += 1
        node.body = [self.visit(n) for n in node.body]
        self.in_try -= 1
        for field in ("handlers", "orelse", "finalbody"):
            setattr(node, field, [self.visit(n) for n in getattr(node, field)])
        return node

    visit_TryStar = visit_Try

    def visit_Assert(self, node):
        text = ast.get_source_segment(self.source, node) or "assert"
        number = len(self.texts)
        # An assertion about constants says nothing about the candidate.
        counts = any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node.test))
        self.texts.append((" ".join(text.split()), counts, node.lineno))

        def step(name, *arguments):
            function = ast.Name(id=name, ctx=ast.Load())
            return ast.Expr(ast.Call(function, [ast.Constant(number), *arguments], []))

        check = ast.If(
            node.test,
            [step("__firstpass_passed__")],
            [step("__firstpass_failed__", *([node.msg] if node.msg else []))],
        )
        made = [check]
        if self.score and not self.in_try:
            caught = ast.Name(id="__firstpass_error__", ctx=ast.Load())
            handler = ast.ExceptHandler(
                ast.Name(id="__firstpass_Exception__", ctx=ast.Load()),
                "__firstpass_error__",
                [step("__firstpass_raised__", caught)],
            )
            made = [ast.Try([check], [handler], [], [])]
        for statement in made:
            ast.copy_location(statement, node)
            ast.fix_missing_locations(statement)
        return made[0]


class Names(ast.NodeVisitor):
    """Names that a module loads, and those that it binds anywhere."""

    def __init__(self):
        self.loaded = {}  # in order of appearance
        self.bound = set()
        self.called = {}
        self.solution = False
        self.imported = {}

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load):
            self.loaded.setdefault(node.id)
        else:
            self.bound.add(node.id)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name):
            self.called.setdefault(node.func.id)
        self.generic_visit(node)

    def visit_FunctionDef(self, node):
        self.bound.add(node.name)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_arg(self, node):
        self.bound.add(node.arg)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node):
        if node.name:
            self.bound.add(node.name)
        self.generic_visit(node)

    def visit_Import(self, node):
        for alias in node.names:
            self.bound.add((alias.asname or alias.name).split(".")[0])
            self.solution |= alias.name == "solution"

    def visit_ImportFrom(self, node):
        self.solution |= node.module == "solution"
        for alias in node.names:
            if node.module == "solution" and alias.name == "*":
                continue
            self.bound.add(alias.asname or alias.name)
            if node.module == "solution":
                self.imported.setdefault(alias.name)


class Unusable(Exception):
    """The tests can't be run; args[0] says why."""


def names_of(tree):
    names = Names()
    names.visit(tree)
    return names


def parse(source, what):
    try:
        return ast.parse(source, what)
    except SyntaxError as error:
        raise Unusable("the %s don't compile: %s (line %s)" % (what, error.msg, error.lineno))
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unusable("the %s don't compile: %s" % (what, error or type(error).__name__))


def parse_prompt(prompt):
    """The prompt as far as it parses: a signature that waits for its body is cut off, its imports and helpers stay."""
    lines = prompt.splitlines(True)
    while lines:
        try:
            return ast.parse("".join(lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            lines.pop()
            while lines and (lines[-1][:1] in " \t\n\r#)" or not lines[-1].strip()):
                lines.pop()
    return ast.parse("")


class Suite:
    def __init__(self, spec):
        self.format = spec["format"]
        self.score = bool(spec["score"])
        tree = parse(spec["tests"], "tests")
        names = names_of(tree)
        prompt = parse_prompt(spec["prompt"] or "")
        prompt_names = names_of(prompt)
        self.entry = spec["entry_point"] or self.find_entry(tree, names, prompt)
        free = [n for n in names.loaded if n not in names.bound and not hasattr(builtins, n)]
        helpers = prompt_names.bound - {self.entry}
        free = [n for n in free if n not in helpers and not n.startswith("__")]
        self.modules = self.find_modules(free, names)
        free = [n for n in free if n not in self.modules]
        if self.format == "humaneval" or (self.format == "asserts" and spec["entry_point"]):
            free = [n for n in free if n in names.called or n == self.entry]
        self.names = free
        if self.entry and self.entry not in self.names and self.format != "humaneval":
            self.names.append(self.entry)
        if self.format == "humaneval":
            self.check_humaneval(tree, names)
            if self.entry not in self.names:
                self.names.append(self.entry)
        elif not self.names and not names.solution:
            raise Unusable("the tests call nothing that the code would define; give entry_point")
        self.uses_solution = names.solution
        self.known = list(names.imported) + self.names
        rewriter = Rewriter(spec["tests"], self.score)
        tree = ast.fix_missing_locations(rewriter.visit(tree))
        self.asserts = rewriter.texts
        if not self.asserts:
            raise Unusable("the tests have no assert statement")
        try:
            self.code = compile(tree, "tests", "exec", dont_inherit=True)
            self.prompt = compile(prompt, "prompt", "exec", dont_inherit=True) if prompt.body else None
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unusable("the tests don't compile: %s" % (getattr(error, "msg", "") or error))

    def find_modules(self, free, names):
        """name -> module, for free names that mean a module: the candidate must not stand in for it, or its `math.isclose` would
        judge its own results.  A name that is itself called can't mean a module."""
        modules = {}
        for name in free:
            if name != self.entry and name not in names.called and (name in STANDARD or name in USUAL):
                modules[name] = USUAL.get(name, name)
        return modules

    def find_entry(self, tree, names, prompt):
        if self.format == "humaneval":
            for node in tree.body:  # check(NAME) at the end of the tests
                call = node.value if isinstance(node, ast.Expr) else None
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "check" and len(call.args) == 1:
                    if isinstance(call.args[0], ast.Name):
                        return call.args[0].id
            functions = [n.name for n in prompt.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
            return functions[-1] if functions else ""
        if self.format == "asserts":
            for name in names.called:
                if name not in names.bound and not hasattr(builtins, name):
                    return name
        return ""

    def check_humaneval(self, tree, names):
        if not self.entry:
            raise Unusable("the format humaneval needs an entry_point, or a prompt that ends with its signature")
        if not any(isinstance(n, ast.FunctionDef) and n.name == "check" for n in tree.body):
            raise Unusable("the format humaneval needs tests that define check(candidate)")
        self.calls_check = any(
            isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) and getattr(n.value.func, "id", "") == "check"
            for n in tree.body
        )


# ---- running, in B ----


class Run:
    def __init__(self, suite, link):
        self.suite = suite
        self.link = link
        self.passed = 0
        self.total = 0
        self.first_failure = None  # text, limit
        self.failed = {}  # id(error) -> number of its assertion; Channel.remote keeps the error alive

    def count(self, number):
        if self.suite.asserts[number][1] and self.link.calls:
            self.total += 1
            return 1
        return 0

    def on_passed(self, number):
        self.passed += self.count(number)

    def on_failed(self, number, *message):
        text = "AssertionError: " + channel.cut(self.suite.asserts[number][0])
        if message:
            text += " (%s)" % channel.text_of(message[0], str)
        error = AssertionError(*message)
        self.link.remote[id(error)] = (error, text, "")
        self.failed[id(error)] = number
        raise error  # counted where it arrives: what the tests catch themselves is no failure

    def on_raised(self, number, error):
        self.count(number)
        self.note(error)

    def on_escaped(self, error):
        if id(error) in self.failed:
            self.count(self.failed[id(error)])
        self.note(error)

    def note(self, error):
        if self.first_failure is None:
            self.first_failure = self.explain(error)

    def explain(self, error):
        known = self.link.remote.get(id(error))
        if known is not None:
            return known[1], known[2]
        text = type(error).__name__
        message = channel.text_of(error, str)
        limit = "memory" if isinstance(error, MemoryError) else ""
        return channel.cut("%s: %s" % (text, message) if message else text), limit

    def namespace(self):
        space = {
            "__name__": "__main__",
            "__builtins__": builtins,
            "__firstpass_passed__": self.on_passed,
            "__firstpass_failed__": self.on_failed,
            "__firstpass_raised__": self.on_raised,
            "__firstpass_Exception__": Exception,
        }
        for name, module in self.suite.modules.items():
            try:
                space[name] = importlib.import_module(module)
            except Exception:
                pass  # not installed, or not for this box: the tests will meet a NameError
        if self.suite.prompt is not None:
            exec(self.suite.prompt, space)
            space.pop(self.suite.entry, None)
        if self.suite.uses_solution:
            sys.modules["solution"] = Solution(self.link)
        space.update(bind(self.link, self.suite.names))
        return space

    def go(self):
        """(kind, text, limit) of the report."""
        try:
            space = self.namespace()
            exec(self.suite.code, space)
            if self.suite.format == "humaneval" and not self.suite.calls_check:
                if self.suite.entry not in space:
                    raise NameError("the code defines no %s" % self.suite.entry)
                space["check"](space[self.suite.entry])
        except Unloadable as error:
            return FAILED, error.args[0], error.args[1]
        except Tampered as error:
            return TAMPERED, str(error), ""
        except Gone:
            return GONE, "", ""
        except SystemExit:
            return FAILED, "the tests exited before their end", ""
        except BaseException as error:  # noqa: B036
            self.on_escaped(error)
        if type(self.link.end) in (Tampered, Gone):  # swallowed by a bare except of the tests
            return (TAMPERED if type(self.link.end) is Tampered else GONE), "", ""
        if self.first_failure is not None:
            return (FAILED,) + self.first_failure
        if not self.total:
            return FAILED, "no assertion that depends on the code was executed", ""
        return PASSED, "", ""


def run_tests(suite, job):
    kind, report, nonce, memory, seed, cpu, _, fds = job
    inside.enter(kind, memory, cpu, fds[0], report, -1)
    random.seed(seed)
    run = Run(suite, Channel())
    try:
        outcome, text, limit = run.go()
    except MemoryError:
        outcome, text, limit = FAILED, "MemoryError in the tests' process", "memory"
    inside.report(
        REPORT, outcome, nonce, run.passed, run.total, limit.encode(), text.encode("utf-8", "backslashreplace")
    )


def run(job):
    """Process T: compiles, reports, then forks B's until its control socket ends."""
    _, report, nonce, memory, _, cpu, flags, fds = job
    spec_fd, control = fds
    inside.limit(memory, 0)
    os.dup2(1, 2)  # /dev/null: what its compiler says about the tests has no end and no reader
    try:
        spec = json.loads(os.pread(spec_fd, os.fstat(spec_fd).st_size, 0))
        os.close(spec_fd)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            suite = Suite(spec)
    except Unusable as error:
        inside.report(report, REFUSED, nonce, 0, 0, b"", str(error).encode("utf-8", "backslashreplace"))
        return
    except MemoryError:
        inside.report(report, REFUSED, nonce, 0, 0, b"", b"the tests need too much memory to compile")
        return
    inside.report(report, PREPARED, nonce, 0, 0, b"", "\n".join(suite.known).encode("utf-8", "backslashreplace"))
    os.close(report)

    def handle(child):
        return run_tests(suite, child)

    inside.serve(control, handle)
