"""verifier/inside/traceless.py: which tests may share one process.  What is let through here must leave nothing behind; test_soak.c
shows that it doesn't."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

path = Path(__file__).parents[2] / "verifier/inside/traceless.py"
spec = importlib.util.spec_from_file_location("traceless", path)
traceless = importlib.util.module_from_spec(spec)
spec.loader.exec_module(traceless)


def judge(tests, prompt="", library=()):
    return traceless.leaves_nothing(library, ast.parse(tests), ast.parse(prompt))


HARMLESS = [
    "assert f(2) == 4",
    "def check(candidate):\n    assert candidate([1, 2]) == [2, 1]\n    assert abs(candidate(0.5) - 0.25) < 1e-6",
    "import math, random\nfor _ in range(9):\n    x = random.randint(1, 9)\n    assert math.isclose(f(x), x ** 0.5)",
    "from collections import Counter, deque\nassert Counter(f('aab')) == Counter(a=2, b=1)",
    "import re\nassert re.fullmatch(r'\\d+', f(2)).group(0) == '4'",
    "from typing import List\ndef helper(xs: List[int]) -> int:\n    return sum(xs)\nassert helper(f(2)) == 4",
    "string = 'abc'\nassert f(string) == string.upper()",
    "def g(copy):\n    return copy.count(1)\nassert g(f(2)) == 1",
    "import copy\nold = [1]\nnew = copy.deepcopy(old)\nf(new)\nassert new != old",
    "def numbers():\n    yield 1\n    yield 2\nassert list(map(f, numbers())) == [2, 4]",
    "try:\n    f(None)\n    assert False\nexcept TypeError as error:\n    assert 'None' in str(error)",
    "seen = {}\nseen[f(1)] = 1\nseen.setdefault(f(2), []).append(3)\nassert len(seen) == 2",
    "import functools\n@functools.lru_cache(None)\ndef g(x):\n    return f(x)\nassert g(2) == 4",
    "import datetime\nassert f(2) == datetime.date(2020, 1, 2)",
]
LEAVING = [
    "import os",
    "import sys",
    "import decimal",
    "import warnings\nwarnings.simplefilter('error')",
    "import locale",
    "import gc",
    "import numpy",
    "from math import *",
    "from . import x",
    "import math\nmath.pi = 3",
    "import math\ndel math.pi",
    "import math\nfor math.pi in f(2): pass",
    "import math\nm = math\nm.pi",
    "import math\nd = [math][0]",
    "import math\nmath = f(2)",
    "import math as m, random as m",
    "import collections\ncollections.abc",
    "import collections as c\nc.abc.sys.modules['x'] = 1",
    "from collections import abc",
    "import random\nrandom.Random",
    "import random\nrandom.setstate(f(2))",
    "import re\nre.purge()",
    "import re\nre.enum.sys",
    "import string\nstring.Formatter().get_field('0.__globals__', (f,), {})",
    "from string import Formatter",
    "import typing\ntyping.get_type_hints(f)",
    "import typing\ntyping.Sized.register(int)",
    "from typing import Iterable\nIterable.register(int)",
    "import typing\ntyping.final(int)",
    "import typing\ntyping.sys",
    "import fractions\nfractions.sys",
    "import functools\nfunctools.update_wrapper(f, f)",
    "import functools\nfunctools.wraps",
    "import functools\nfunctools.total_ordering(int)",
    "import copy\ncopy.dispatch_table[1] = 2",
    "import copy\ncopy._deepcopy_dispatch",
    "class T: pass",
    "async def g(): pass",
    "f.x = 1",
    "f.x += 1",
    "del f.x",
    "with f(2) as f.x: pass",
    "f.__globals__['x'] = 1",
    "f._x",
    "g.gi_frame.f_builtins",
    "error.tb_frame",
    "int.mro()",
    "getattr(f, 'x')",
    "setattr(f, 'x', 1)",
    "type(f)",
    "vars(f)",
    "open('x')",
    "eval('1')",
    "exec('1')",
    "__import__('os')",
    "__builtins__['x'] = 1",
    "global __builtins__\nx = 1",
    "def __firstpass_passed__(n): pass",
    "def g(__builtins__): pass",
    "import math as __builtins__",
    "from math import pi as __builtins__",
    "try:\n    f(2)\nexcept Exception as __builtins__: pass",
    "def g():\n    try:\n        yield 1\n    finally:\n        f(2)",
    "def g():\n    with f(2):\n        yield 1",
    "breakpoint()",
    "super()",
]
IN_PROMPT = [  # the prompt's modules, in the hands of the tests
    ("assert r.enum.sys.modules is f(2)", "import re as r"),
    ("x = r", "import re as r"),
    ("math = 1", "import math"),
    ("import re as m", "import math as m"),
]
LIBRARY = [  # what the tests forgot to import
    (("os", None), False),
    (("sys", None), False),
    (("decimal", "Decimal"), False),
    (("contextlib", "redirect_stdout"), False),
    (("numpy", None), False),
    (("unittest", "TestCase"), False),
    (("math", None), True),
    (("math", "isclose"), True),
    (("collections", "Counter"), True),
]


@pytest.mark.parametrize("tests", HARMLESS)
def test_harmless(tests):
    assert judge(tests)
    assert judge("assert f(2) == 4", tests)


@pytest.mark.parametrize("tests", LEAVING)
def test_leaving(tests):
    ast.parse(tests)
    assert not judge(tests)
    assert not judge("assert f(2) == 4", tests)
    assert not judge("def g():\n    for x in y:\n        pass\n    lambda: 1\n" + tests)


@pytest.mark.parametrize("tests, prompt", IN_PROMPT)
def test_prompt(tests, prompt):
    assert judge("assert f(2) == 4", prompt)
    assert not judge(tests, prompt)


@pytest.mark.parametrize("entry, harmless", LIBRARY)
def test_library(entry, harmless):
    assert judge("assert f(2) == 4", library=[entry]) is harmless


def test_a_module_from_nowhere_is_none():
    assert not judge("x = math", library=[("math", None)])
    assert not judge("math.factorial.__self__", library=[("math", None)])
    assert judge("assert f(2) == math.sqrt(16)", library=[("math", None)])


def test_pattern():
    if hasattr(ast, "MatchClass"):
        assert not judge("match f:\n    case int(__globals__=g):\n        g['x'] = 1")
        assert judge("match f(2):\n    case 4:\n        pass\n    case [x, *rest]:\n        assert False")


def test_all_that_is_usable_is_harmless_where_it_exists():
    for module, names in traceless.USABLE.items():
        for name in names:
            value = getattr(importlib.import_module(module), name, None)
            assert not isinstance(value, (list, dict, set, type(ast))), "%s.%s" % (module, name)


def test_what_a_run_leaves():
    class Link:
        met_objects = False

    traces = traceless.Traces()
    assert traces.has_none(Link())
    link = Link()
    link.met_objects = True
    assert not traces.has_none(link)
    held = bytearray(64 * 1024 * 1024)
    assert not traces.has_none(Link())
    del held
    traces = traceless.Traces()
    assert traces.has_none(Link())
    sys.modules["loaded by a value of the candidate's"] = ast
    try:
        assert not traces.has_none(Link())
    finally:
        del sys.modules["loaded by a value of the candidate's"]
