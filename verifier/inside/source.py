"""The text of the tests, in process T: parsed, its names sorted into the tests' own, the library's and the candidate's, its
assertions made to count.  Nothing of it is run here."""

import ast
import builtins
import importlib.util
import sys

# Modules that tests use without importing them.  Before Python 3.10 the zygote's preloaded ones stand for the standard library.
STANDARD = frozenset(getattr(sys, "stdlib_module_names", sys.modules)) - {"firstpass", "__main__"}
USUAL = {"np": "numpy", "pd": "pandas", **{n: n for n in ("numpy", "pandas", "pytest", "scipy", "sympy")}}
# Names under which people's tests import the code.  Only these, and the entry point's own: any other module that isn't there is a
# missing package, and the candidate must not stand in for it.
SOLUTIONS = frozenset(
    "solution solutions candidate answer submission main module mymodule my_module your_module code_under_test implementation "
    "program app src task".split()
)
# Functions that tests call without importing them.  The candidate must not stand in for them: its own `isclose` would judge its
# own results.  Where the tests call nothing else, such a name is the task's.
_KNOWN = {
    "math": "isclose fabs floor ceil sqrt gcd factorial comb perm prod hypot log log2 log10 exp sin cos tan asin acos atan atan2 "
    "isnan isinf isfinite radians degrees fsum trunc copysign pi inf nan",
    "collections": "Counter defaultdict OrderedDict deque namedtuple ChainMap",
    "itertools": "chain combinations permutations product zip_longest islice accumulate groupby combinations_with_replacement "
    "starmap takewhile dropwhile",
    "functools": "reduce partial lru_cache cmp_to_key wraps",
    "copy": "deepcopy",
    "heapq": "heappush heappop heapify nlargest nsmallest",
    "bisect": "bisect_left bisect_right insort",
    "fractions": "Fraction",
    "decimal": "Decimal",
    "datetime": "timedelta",
    "dataclasses": "dataclass asdict astuple",
    "enum": "Enum IntEnum",
    "io": "StringIO BytesIO",
    "contextlib": "redirect_stdout contextmanager",
    "string": "ascii_lowercase ascii_uppercase ascii_letters",
    "random": "randint",
    "typing": "List Dict Set Tuple Optional Union Any Callable Iterable Iterator Sequence",
    "unittest": "TestCase",
    "numpy.testing": "assert_allclose assert_array_equal assert_almost_equal assert_equal",
}
KNOWN = {name: module for module, names in _KNOWN.items() for name in names.split()}


class Unusable(Exception):
    """The tests can't be run; args[0] says why."""


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


def compiled(tree, what):
    try:
        return compile(ast.fix_missing_locations(tree), what, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unusable("the %s don't compile: %s" % (what, getattr(error, "msg", "") or error))


# ---- names ----


class Names(ast.NodeVisitor):
    """Names that a module loads, and those that it binds anywhere."""

    def __init__(self, tree):
        self.loaded = {}  # in order of appearance
        self.bound = set()
        self.called = {}  # name -> in how many top-level statements
        self.inner = set()  # called within the arguments of another call
        self.imports = {}  # module -> names taken from it
        self.depth = 0
        for statement in getattr(tree, "body", ()):
            before, self.called = self.called, {}
            self.visit(statement)
            for name in self.called:
                before[name] = before.get(name, 0) + 1
            self.called = before

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load):
            self.loaded.setdefault(node.id)
        else:
            self.bound.add(node.id)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name):
            self.called.setdefault(node.func.id)
            if self.depth:
                self.inner.add(node.func.id)
        self.visit(node.func)
        self.depth += 1
        for argument in node.args + node.keywords:
            self.visit(argument)
        self.depth -= 1

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
            self.imports.setdefault(alias.name, [])

    def visit_ImportFrom(self, node):
        names = self.imports.setdefault(node.module or "", [])
        for alias in node.names:
            names.append(alias.name)
            if alias.name != "*":
                self.bound.add(alias.asname or alias.name)


def _is_missing(module):
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError, AttributeError):
        return True


class Scope:
    """Whose each name of the tests is.  entry: the entry point as the client or the format names it, or ""."""

    def __init__(self, tree, prompt, entry):
        self.entry = entry
        self.tests = Names(tree)
        helpers = Names(prompt).bound if prompt is not None else set()
        self.free = self.unbound(helpers - {entry})
        self.modules = self.find_modules()  # names under which the tests import the code
        self.uses_solution = bool(self.modules)
        imported = [n for m in self.modules for n in self.tests.imports[m] if n != "*"]
        called = [n for n in self.free if n in self.tests.called]
        if not self.entry and not imported and not called:  # the candidate continues a function of the prompt's
            self.entry = self.guess([n for n in self.tests.loaded if n in helpers and n in self.tests.called])
            self.free = self.unbound(helpers - {self.entry})
            called = [n for n in self.free if n in self.tests.called]
        strangers = [n for n in called if n not in KNOWN]
        if not self.entry and not imported:
            self.entry = self.guess(strangers or called)
        self.library = {}  # name -> (module, attribute or None): what they forgot to import
        for name in self.free:
            if name == self.entry or name in imported:
                continue
            if name in KNOWN and (self.entry or imported or strangers):
                self.library[name] = KNOWN[name], name
            elif name not in self.tests.called and (name in STANDARD or name in USUAL):
                self.library[name] = USUAL.get(name, name), None
        self.names = [n for n in self.free if n not in self.library]
        self.imported = imported

    def unbound(self, helpers):
        """The names that the tests use, but have neither of themselves nor of the prompt nor of Python."""
        own = self.tests.bound | helpers
        return [n for n in self.tests.loaded if n not in own and not hasattr(builtins, n) and n[:2] != "__"]

    def find_modules(self):
        found = []
        for module in self.tests.imports:
            allowed = module in SOLUTIONS or (self.entry and module == self.entry) or module in self.tests.imports[module]
            if module == "solution" or (allowed and module not in STANDARD and _is_missing(module)):
                found.append(module)
        return found

    def guess(self, called):
        """The function under test: of the names that the tests call but don't have, the one that most of their statements call;
        of equals one that is called within another's arguments, as in `assert close(f(2), 4)`; of equals the first."""
        if not called:
            return ""
        return max(called, key=lambda n: (self.tests.called[n], n in self.tests.inner, -called.index(n)))

    def only_called(self):
        """Beside the entry point the candidate gives functions only, no values for the tests to compare with."""
        self.names = [n for n in self.names if n in self.tests.called or n == self.entry]

    def want_entry(self):
        if self.entry and self.entry not in self.names:
            self.names.append(self.entry)

    def known(self):
        """What the code is expected to define."""
        return list(dict.fromkeys(self.imported + self.names))


# ---- assertions ----


class Assertion:
    def __init__(self, text, counts, line, swapped, operator):
        self.text = text
        self.counts = counts
        self.line = line
        self.swapped = swapped
        self.operator = operator


def _load(name):
    return ast.Name(id=name, ctx=ast.Load())


def _keep(name, value):
    return ast.NamedExpr(ast.Name(id=name, ctx=ast.Store()), value)


class Rewriter(ast.NodeTransformer):
    """Each `assert` becomes a counted one that keeps what it compared.  With `score` it also stops being the end, unless the tests
    catch it themselves."""

    def __init__(self, source, score):
        self.source = source
        self.score = score
        self.asserts = []
        self.in_try = 0

    def visit_Try(self, node):
        self.in_try += 1
        node.body = [self.visit(n) for n in node.body]
        self.in_try -= 1
        for field in ("handlers", "orelse", "finalbody"):
            setattr(node, field, [self.visit(n) for n in getattr(node, field)])
        return node

    visit_TryStar = visit_Try

    def visit_With(self, node):
        # Within `with raises(AssertionError)` the end of the assertion is the point.
        calls = [i.context_expr.func for i in node.items if isinstance(i.context_expr, ast.Call)]
        names = {getattr(f, "id", getattr(f, "attr", "")) for f in calls}
        catches = bool(names & {"raises", "suppress", "assertRaises", "assertRaisesRegex"})
        self.in_try += catches
        self.generic_visit(node)
        self.in_try -= catches
        return node

    visit_AsyncWith = visit_With

    def keep(self, test):
        """(test that keeps its values, whether it is a comparison, swapped)"""
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            calls = [any(isinstance(n, ast.Call) for n in ast.walk(side)) for side in (left, right)]
            kept = ast.Compare(_keep("__firstpass_left__", left), test.ops, [_keep("__firstpass_right__", right)])
            return kept, type(test.ops[0]).__name__, calls == [False, True]
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return ast.UnaryOp(ast.Not(), _keep("__firstpass_left__", test.operand)), "Not", False
        return _keep("__firstpass_left__", test), "", False

    def visit_Assert(self, node):
        text = ast.get_source_segment(self.source, node) or "assert"
        number = len(self.asserts)
        # An assertion about constants says nothing about the candidate.
        counts = any(isinstance(n, (ast.Name, ast.Call)) for n in ast.walk(node.test))
        test, operator, swapped = self.keep(node.test)
        self.asserts.append(Assertion(" ".join(text.split()), counts, node.lineno, swapped, operator))

        def step(name, *arguments):
            return ast.Expr(ast.Call(_load(name), [ast.Constant(number), *arguments], []))

        two = operator not in ("", "Not")
        values = [_load("__firstpass_left__"), _load("__firstpass_right__") if two else ast.Constant(None)]
        failed = step("__firstpass_failed__", *values, *([node.msg] if node.msg else []))
        made = check = ast.If(test, [step("__firstpass_passed__")], [failed])
        if self.score and not self.in_try:
            handler = ast.ExceptHandler(
                _load("__firstpass_Exception__"),
                "__firstpass_error__",
                [step("__firstpass_raised__", _load("__firstpass_error__"))],
            )
            made = ast.Try([check], [handler], [], [])
        ast.copy_location(made, node)
        return ast.fix_missing_locations(made)
