/* What each kind of end becomes, for each format; and what the front door promises about its
 * objects. */
#include "tests/verifier/rig.h"

#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

static const size_t MIB = 1024UL * 1024;
static struct rig rig;

static void open_rig(void) { rig_open(&rig, 3); }
static void close_rig(void) { rig_close(&rig); }

struct expectation {
    const char *code;
    enum verdict_kind kind;
    const char *limit; /* "": none; NULL: any */
    const char *error; /* a part of it */
};

/* One suite of ends for f(x) == 2 * x, whatever the format. */
static const struct expectation ends[] = {
    {"def f(x):\n    return 2 * x\n", VERDICT_PASSED, "", ""},
    {"f = lambda x: x + x\n", VERDICT_PASSED, "", ""},
    {"def f(x):\n    return x\n", VERDICT_FAILED, "", "AssertionError: assert"},
    {"def f(x):\n    return str(2 * x)\n", VERDICT_FAILED, "", "AssertionError"},
    {"def f(x):\n    raise KeyError(x)\n", VERDICT_FAILED, "", "KeyError: 2 (line 2"},
    {"class Odd(Exception): pass\ndef f(x):\n    raise Odd('why')\n", VERDICT_FAILED, "",
     "Odd: why"},
    {"def f(x)\n    return 2 * x\n", VERDICT_FAILED, "", "SyntaxError"},
    {"import nothing_of_the_kind\ndef f(x): return 2 * x\n", VERDICT_FAILED, "",
     "ModuleNotFoundError"},
    {"def g(x): return 2 * x\n", VERDICT_FAILED, "", ""},
    {"x = 1\0\n", VERDICT_FAILED, "", ""},
    {"def f(x):\n    while True: pass\n", VERDICT_TIMEOUT, "cpu_time", "CPU time"},
    {"import time\ndef f(x):\n    time.sleep(100)\n", VERDICT_TIMEOUT, "wall_time", "wall clock"},
    {"def f(x):\n    return [0] * 10 ** 10\n", VERDICT_MEMORY, "memory", "MemoryError"},
    {"import os\ndef f(x):\n    os._exit(3)\n", VERDICT_FAILED, "", "exited (status 3)"},
    {"import os\ndef f(x):\n    os.abort()\n", VERDICT_CRASHED, "", "signal 6"},
    {"def f(x):\n    while True: print('x' * 99999)\n", VERDICT_OUTPUT_LIMIT, "output", ""},
    {"def f(x):\n    fs = []\n    while True: fs.append(open(__import__('os').__file__))\n",
     VERDICT_FAILED, "files", "Too many open files"},
    {"import threading, time\ndef f(x):\n    for i in range(3000): "
     "threading.Thread(target=time.sleep, "
     "args=(9,), daemon=True).start()\n",
     VERDICT_FAILED, NULL, "can't start new thread"},
    {"def f(x):\n    open('/tmp/a', 'wb').write(b'x' * (64 << 20))\n", VERDICT_FAILED, "file_size",
     ""},
    {"import os\ndef f(x):\n    os.write(3, b'nonsense' * 9)\n    return 2 * x\n", VERDICT_FORGED,
     "", ""},
    {"def f(x):\n    return f(x)\n", VERDICT_FAILED, "", "RecursionError"},
};
enum { N_ENDS = sizeof ends / sizeof ends[0] };

static const struct {
    enum verifier_format format;
    const char *tests;
} formats[] = {
    {VERIFIER_HUMANEVAL,
     "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n"},
    {VERIFIER_ASSERTS, "assert f(2) == 4\nassert f(5) == 10\n"},
    {VERIFIER_SCRIPT, "y = f(2)\nassert y == 4\nfor i in range(3):\n    assert f(i) == 2 * i, i\n"},
    {VERIFIER_SCRIPT, "from solution import f as g\nassert g(2) == 4\n"},
    {VERIFIER_SCRIPT, "import solution\nassert solution.f(2) == 4\n"},
};

START_TEST(test_ends) {
    const char *codes[N_ENDS];
    for (int i = 0; i < N_ENDS; i++)
        codes[i] = ends[i].code;
    struct verifier_spec spec = rig_spec(formats[_i].format, formats[_i].tests);
    spec.entry_point = "f";
    spec.timeout_s = 1;
    spec.extract = VERIFIER_EXTRACT_RAW;
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    rig_submit(&rig, codes, N_ENDS);
    for (int i = 0; i < N_ENDS; i++) {
        const struct outcome *o = &rig.outcomes[i];
        ck_assert_msg(o->kind == ends[i].kind, "code %d: %s (%s), wanted %s", i,
                      verdict_name(o->kind), o->error, verdict_name(ends[i].kind));
        ck_assert_msg(strstr(o->error, ends[i].error) != NULL, "code %d: error %s", i, o->error);
        if (ends[i].limit)
            ck_assert_msg(!strcmp(o->limit, ends[i].limit), "code %d: limit %s", i, o->limit);
        ck_assert_str_eq(o->trust, "split");
        ck_assert_str_eq(o->method, "raw");
    }
    verifier_tests_close(rig.tests);
}
END_TEST

/* ---- tests that can't be used ---- */

static const struct {
    enum verifier_format format;
    const char *tests, *entry_point, *message;
} unusable[] = {
    {VERIFIER_ASSERTS, "assert f(2 == 4\n", "f", "don't compile"},
    {VERIFIER_ASSERTS, "", "f", "no assert"},
    {VERIFIER_ASSERTS, "assert len('x') == 1\n", NULL, "call nothing"},
    {VERIFIER_HUMANEVAL, "assert f(2) == 4\n", "f", "define check"},
    {VERIFIER_HUMANEVAL, "def check(candidate):\n    assert candidate(1) == 1\n", NULL,
     "entry_point"},
    {VERIFIER_SCRIPT, "print(f(2))\n", "f", "no assert"},
    {VERIFIER_SCRIPT, "x = (\n", "f", "don't compile"},
    {VERIFIER_SCRIPT, "return 5\nassert f(2)\n", "f", "don't compile"},
};

START_TEST(test_unusable) {
    struct verifier_spec spec = rig_spec(unusable[_i].format, unusable[_i].tests);
    spec.entry_point = unusable[_i].entry_point;
    ck_assert(!rig_open_tests(&rig, &spec));
    ck_assert_int_eq(rig.refused.kind, ERR_INPUT);
    ck_assert_msg(strstr(rig.refused.message, unusable[_i].message) != NULL, "%s",
                  rig.refused.message);
}
END_TEST

START_TEST(test_spec_limits) {
    struct verifier_spec good = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\n"), spec = good;
    spec.timeout_s = 0;
    ck_assert(!rig_open_tests(&rig, &spec));
    ck_assert_str_eq(rig.refused.param, "timeout_s");
    spec = good;
    spec.timeout_s = 601;
    ck_assert(!rig_open_tests(&rig, &spec));
    spec = good;
    spec.memory_mb = 0;
    ck_assert(!rig_open_tests(&rig, &spec));
    ck_assert_str_eq(rig.refused.param, "memory_mb");
    spec = good;
    spec.tests = "assert f(2) == '\xff'\n";
    spec.tests_len = strlen(spec.tests);
    ck_assert(!rig_open_tests(&rig, &spec));
    /* One byte over the limit of the tests' size, and the limit itself. */
    char *big = err_alloc(MIB + 2, 1);
    memset(big, '\n', MIB + 1);
    memcpy(big, good.tests, good.tests_len);
    spec = good;
    spec.tests = big;
    spec.tests_len = MIB + 1;
    ck_assert(!rig_open_tests(&rig, &spec));
    spec.tests_len = MIB;
    ck_assert_str_eq(verdict_name(rig_judge(&rig, &spec, "def f(x): return 4")->kind), "passed");
    free(big);
}
END_TEST

START_TEST(test_source_size) {
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\n");
    spec.extract = VERIFIER_EXTRACT_RAW;
    static const char code[] = "def f(x): return 4\n";
    char *big = err_alloc(MIB + 2, 1);
    memset(big, '#', MIB + 1);
    memcpy(big, code, strlen(code));
    const struct outcome *o = rig_judge(&rig, &spec, big);
    ck_assert_int_eq(o->kind, VERDICT_FAILED);
    ck_assert_str_eq(o->limit, "source_size");
    big[MIB] = 0;
    ck_assert_int_eq(rig_judge(&rig, &spec, big)->kind, VERDICT_PASSED);
    free(big);
}
END_TEST

/* ---- what must count and what must not ---- */

static const struct {
    enum verifier_format format;
    bool score;
    const char *tests, *code;
    enum verdict_kind kind;
    int passed, total; /* -1: any */
    const char *error;
} counts[] = {
    {VERIFIER_ASSERTS, false, "assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 3\n",
     "def f(x): return x", VERDICT_PASSED, 3, 3, ""},
    {VERIFIER_ASSERTS, false, "assert f(1) == 1\nassert f(2) == 9\nassert f(3) == 3\n",
     "def f(x): return x", VERDICT_FAILED, 1, 2, "f(2) == 9"},
    {VERIFIER_ASSERTS, true, "assert f(1) == 1\nassert f(2) == 9\nassert f(3) == 3\n",
     "def f(x): return x", VERDICT_FAILED, 2, 3, "f(2) == 9"},
    {VERIFIER_ASSERTS, true, "assert f(1) == 1\nassert f(2) == 9\nassert f(3) == 3\n",
     "def f(x): return 1 // (x - 2) * 0 + x", VERDICT_FAILED, 2, 3, "ZeroDivisionError"},
    /* Constants say nothing, and neither does what comes before the first call. */
    {VERIFIER_SCRIPT, true, "assert True\nassert 1 == 1\nx = 5\nassert x == 5\nassert f(1) == 1\n",
     "def f(x): return 2", VERDICT_FAILED, 0, 1, ""},
    {VERIFIER_SCRIPT, false, "f(1)\nassert True\n", "def f(x): return 2", VERDICT_FAILED, 0, 0,
     "no assertion"},
    {VERIFIER_SCRIPT, false, "for x in []:\n    assert f(x) == 1\n", "def f(x): return 2",
     VERDICT_FAILED, 0, 0, "no assertion"},
    {VERIFIER_SCRIPT, false, "assert f(1) == 2\nimport sys\nsys.exit(0)\nassert f(2) == 3\n",
     "def f(x): return 2", VERDICT_FAILED, -1, -1, "before their end"},
    {VERIFIER_SCRIPT, false, "import os\nassert f(1) == 2\nos._exit(0)\n", "def f(x): return 2",
     VERDICT_FAILED, -1, -1, "own process"},
    /* What the tests catch themselves stays theirs. */
    {VERIFIER_SCRIPT, true,
     "try:\n    f(0)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok\n",
     "def f(x): raise ValueError", VERDICT_PASSED, 1, 1, ""},
    {VERIFIER_SCRIPT, true,
     "try:\n    assert f(0) == 1\nexcept AssertionError:\n    pass\nassert f(0) == 2",
     "def f(x): return 2", VERDICT_PASSED, 1, 1, ""},
    {VERIFIER_ASSERTS, false,
     "assert f(1) > 0\ntry:\n    assert f(1) == 2\nexcept AssertionError:\n    assert f(1) == 3\n",
     "def f(x): return 3", VERDICT_PASSED, 2, 2, ""},
    {VERIFIER_ASSERTS, false,
     "assert f(1) > 0\ntry:\n    assert f(1) == 2\nexcept AssertionError:\n    assert f(1) == 3\n",
     "def f(x): return 4", VERDICT_FAILED, 1, 2, "f(1) == 3"},
    {VERIFIER_ASSERTS, false,
     "assert f(1) > 0\ntry:\n    assert f(1) == 2\nexcept AssertionError:\n    raise\n",
     "def f(x): return 4", VERDICT_FAILED, 1, 2, "f(1) == 2"},
    {VERIFIER_ASSERTS, false, "try:\n    assert f(1) == 2\nexcept AssertionError:\n    pass\n",
     "def f(x): return 4", VERDICT_FAILED, 0, 0, "no assertion"},
    {VERIFIER_ASSERTS, true, "try:\n    assert f(1) == 2\nfinally:\n    pass\n",
     "def f(x): return 4", VERDICT_FAILED, 0, 1, "f(1) == 2"},
    /* Gone stays gone, whatever the tests swallow. */
    {VERIFIER_SCRIPT, false,
     "try:\n    f(0)\nexcept BaseException:\n    pass\ntry:\n    f(1)\nexcept:\n    pass\nok = "
     "True\nassert ok\n",
     "import os\ndef f(x): os._exit(0)", VERDICT_FAILED, -1, -1, "exited"},
    {VERIFIER_HUMANEVAL, false, "def check(candidate):\n    assert candidate(1) == 1\ncheck(f)\n",
     "def f(x): return x", VERDICT_PASSED, 1, 1, ""},
    {VERIFIER_HUMANEVAL, false, "def check(c):\n    assert c(1) == 1, 'one'\n",
     "def f(x): return 0", VERDICT_FAILED, 0, 1, "(one)"},
    /* Names of the tests stay the tests'. */
    {VERIFIER_SCRIPT, false, "def g(x): return 7\nassert f(1) == 1 and g(1) == 7\n",
     "def f(x): return 1\ndef g(x): return 8", VERDICT_PASSED, 1, 1, ""},
    /* So do the modules that they forgot to import; what they call is the code's, whatever it is
     * called. */
    {VERIFIER_SCRIPT, false, "assert math.floor(f(2.5)) == 2\nassert copy(3) == 9\n",
     "def f(x): return x\ndef copy(x): return 3 * x", VERDICT_PASSED, 2, 2, ""},
    {VERIFIER_SCRIPT, false, "assert math.isclose(f(2), 2)\n",
     "def f(x): return 0\nclass math: isclose = staticmethod(lambda *a: True)", VERDICT_FAILED, 0,
     1, "math.isclose(f(2), 2)"},
    {VERIFIER_ASSERTS, false, "assert f(2) == double(1)\n",
     "def f(x): return x\ndef double(x): return 2 * x", VERDICT_PASSED, 1, 1, ""},
    {VERIFIER_ASSERTS, false, "assert f(2) == WANTED\n", "WANTED = 7\ndef f(x): return WANTED",
     VERDICT_FAILED, 0, 0, "NameError"},
    {VERIFIER_SCRIPT, false, "assert f(2) is Color.RED\n",
     "import enum\nclass Color(enum.Enum): RED = 2\nf = Color", VERDICT_PASSED, 1, 1, ""},
    /* A module's name may be the task's. */
    {VERIFIER_ASSERTS, false, "assert sum(1, 2) == 3\nassert string.digits\n",
     "def sum(a, b): return a + b\nclass string: digits = ''", VERDICT_PASSED, 2, 2, ""},
    /* A task may ask for a builtin's name, when it is the entry point. */
    {VERIFIER_ASSERTS, false, "assert sum(10, 15) == 6\n", "def sum(a, b): return 6",
     VERDICT_PASSED, 1, 1, ""},
};

START_TEST(test_counts) {
    struct verifier_spec spec = rig_spec(counts[_i].format, counts[_i].tests);
    spec.score = counts[_i].score;
    spec.entry_point = strstr(counts[_i].tests, "sum(") ? "sum" : "f";
    const struct outcome *o = rig_judge(&rig, &spec, counts[_i].code);
    ck_assert_msg(o->kind == counts[_i].kind, "%s: %s", verdict_name(o->kind), o->error);
    if (counts[_i].passed >= 0) ck_assert_int_eq(o->passed, counts[_i].passed);
    if (counts[_i].total >= 0) ck_assert_int_eq(o->total, counts[_i].total);
    ck_assert_msg(strstr(o->error, counts[_i].error) != NULL, "%s", o->error);
}
END_TEST

/* ---- values that cross ---- */

static const struct {
    const char *tests, *code;
} values[] = {
    {"for v in [None, True, False, 0, -1, 2**63, -2**63, 2**64, 10**400, -10**400, 1.5, "
     "float('inf'), 1j, '', 'h\\u00e9\\U0001f600', "
     "'\\ud800', b'', b'\\0\\xff', bytearray(b'ab'), [], [1, [2, [3]]], (), (1,), {}, {'a': [1]}, "
     "{(1, 2): {3}}, set(), {1, 2}, "
     "frozenset({1}), range(3), range(0, 10, 3)]:\n    got = f(v)\n    assert got == v and "
     "type(got) is type(v), v\n",
     "def f(x): return x"},
    {"import math\nassert math.isnan(f(float('nan')))\nassert str(f(-0.0)) == '-0.0'\n",
     "def f(x): return x"},
    {"from decimal import Decimal\nfrom fractions import Fraction\nimport datetime as d, "
     "collections as c\n"
     "for v in [Decimal('1.10'), Fraction(2, 3), d.datetime(2020, 1, 2, 3, 4, 5, 6), d.date(2020, "
     "1, 2), d.time(1, 2), d.timedelta(1, 2, 3), "
     "d.datetime(2020, 1, 2, tzinfo=d.timezone.utc), c.Counter('aab'), c.OrderedDict([(2, 1), (1, "
     "2)]), c.deque([1, 2], 5)]:\n"
     "    got = f(v)\n    assert got == v and type(got) is type(v), v\nassert f(c.defaultdict(int, "
     "{1: 2})) == {1: 2}\n",
     "def f(x): return x"},
    {"a = [3, 1, 2]\nassert f(a) is None\nassert a == [1, 2, 3]\n", "def f(x): x.sort()"},
    {"a = [[2, 1], {'k': [5]}, {1}]\nb = a[0]\nf(a)\nassert a == [[1, 2], {'k': [5, 6]}, {1, 2}, "
     "9]\nassert a[0] is b\n",
     "def f(x):\n    x[0].sort()\n    x[1]['k'].append(6)\n    x[2].add(2)\n    x.append(9)"},
    {"a = [1]\nassert f(a) is a\nd = {}\nf(x=d)\nassert d == {'k': 1}\n",
     "def f(x):\n    if isinstance(x, dict): x['k'] = 1\n    return x"},
    {"assert f(lambda v: v + 1, 2) == 3\nassert f(len, [1, 2]) == 2\nassert f(int, '12') == "
     "12\nassert f(abs, -1) == 1\n",
     "def f(g, x): return g(x)"},
    {"def inner(v):\n    return f(None, v - 1) if v > 0 else 0\nassert f(inner, 3) == 4\nassert "
     "f(None, 7) == 7\n",
     "def f(g, x): return x if g is None else 2 + g(x)"},
    {"def bad(v): raise KeyError(v)\ntry:\n    f(bad, 1)\n    ok = 0\nexcept KeyError:\n    ok = "
     "1\nassert ok and f(len, 'ab') == 2\n",
     "def f(g, x): return g(x)"},
    {"assert f(iter([1, 2, 3]), 0) == 6\nassert f((v for v in [1, 2]), 0) == 3\nassert f(map(int, "
     "'12'), 0) == 3\n",
     "def f(g, x): return sum(g)"},
    {"assert list(f(3)) == [0, 1, 2]\nassert sum(f(4)) == 6\ng = f(2)\nassert next(g) == 0 and "
     "next(g) == 1 and next(g, 'end') == 'end'\n",
     "def f(n):\n    for i in range(n): yield i"},
    {"s = f()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s.pop() == 2 and s.items == [1] and "
     "s[0] == 1 and bool(s)\nassert str(s) == 'S1' "
     "and [v for v in s] == [1]\n",
     "class f:\n    def __init__(self): self.items = []\n    def push(self, v): "
     "self.items.append(v)\n    def pop(self): return self.items.pop()\n"
     "    def __len__(self): return len(self.items)\n    def __getitem__(self, i): return "
     "self.items[i]\n    def __str__(self): return 'S%d' % len(self)\n"
     "    def __iter__(self): return iter(self.items)\n"},
    {"a, b = f(1, 2), f(1, 2)\nassert a == b and a != f(2, 2) and (a + b).x == 2 and a < f(3, "
     "3)\nassert a != (1, 2)\n",
     "import dataclasses\n@dataclasses.dataclass(order=True)\nclass f:\n    x: int\n    y: int\n   "
     " def __add__(self, o): return f(self.x + o.x, self.y + o.y)\n"},
    /* eval as a function to call back would run the candidate's text in the tests' process. */
    {"try:\n    f(eval, '1')\n    ok = 0\nexcept Exception as e:\n    ok = 'would run here' in "
     "str(e)\nassert ok and f(len, 'ab') == 2\n",
     "def f(g, x): return g(x)"},
    /* What a function of the tests gives and can't be handed over is an error where it was called.
     */
    {"assert f(lambda: object(), 0) == 'no'\nassert f(lambda: 5, 0) == 5\n",
     "def f(g, x):\n    try: return g()\n    except Exception as e: return 'no' if 'of the tests' "
     "in str(e) else str(e)"},
    {"try:\n    f('x')\nexcept ValueError as e:\n    got = str(e)\nassert 'invalid literal' in "
     "got\n",
     "def f(x): return int(x)"},
    {"try:\n    f('x')\nexcept ValueError as e:\n    got = 1\nassert got\n",
     "class Mine(ValueError): pass\ndef f(x): raise Mine('x')"},
    {"with f() as v:\n    assert v == 5\n",
     "class f:\n    def __enter__(self): return 5\n    def __exit__(self, *a): return None\n"},
    {"assert f(2) == [1, 2] and f.__name__ == 'f'\nassert f(x=1) == [1]\n",
     "def f(x): return list(range(1, x + 1))"},
    {"import random\na = f()\nassert 0 <= a < 1\n",
     "import random\ndef f(): return random.random()"},
    {"assert f(3) == 6\n", "import asyncio\nasync def g(x):\n    await asyncio.sleep(0)\n    "
                           "return 2 * x\ndef f(x): return asyncio.run(g(x))"},
    {"assert f() == ['a.txt'] and f() == ['a.txt']\n",
     "import os\ndef f():\n    open('a.txt', 'w').write('x')\n    return os.listdir('.')"},
};

START_TEST(test_values) {
    struct verifier_spec spec = rig_spec(VERIFIER_SCRIPT, values[_i].tests);
    spec.entry_point = "f";
    const struct outcome *o = rig_judge(&rig, &spec, values[_i].code);
    ck_assert_msg(o->kind == VERDICT_PASSED, "%s: %s | %s", verdict_name(o->kind), o->error,
                  o->output);
}
END_TEST

START_TEST(test_prompt_helpers) {
    /* The tests use the prompt's helper and import; the candidate's own version of the helper must
     * not matter. */
    static const char prompt[] =
        "import math\nfrom typing import List\n\n\ndef twice(x):\n    return 2 * x\n\n\ndef f(x: "
        "List[int]) -> int:\n    \"\"\"doc\"\"\"\n";
    struct verifier_spec spec =
        rig_spec(VERIFIER_HUMANEVAL,
                 "def check(candidate):\n    assert candidate([2]) == twice(math.floor(2.5))\n");
    spec.prompt = prompt;
    spec.prompt_len = strlen(prompt);
    spec.extract = VERIFIER_EXTRACT_AUTO;
    static const struct {
        const char *code, *method;
        enum verdict_kind kind;
    } cases[] = {
        {"    return twice(x[0])\n", "continuation", VERDICT_PASSED},
        {"    return 3\n\nprint(f([1]))\n", "continuation", VERDICT_FAILED},
        {"    return g(x[0])\n\ndef g(y):\n    return 2 * y\n", "continuation", VERDICT_PASSED},
        {"```python\ndef f(x: List[int]) -> int:\n    return 2 * x[0]\n```\n", "fenced",
         VERDICT_PASSED},
        {"```python\ndef twice(x):\n    return 99\ndef f(x):\n    return 99\n```\n", "fenced",
         VERDICT_FAILED},
        {"Sure:\n```\ndef f(x):\n    return x[0] * 2\n```\nIt works.", "fenced", VERDICT_PASSED},
        {"def f(x):\n    return x[0] * 2\n", "raw", VERDICT_PASSED},
        {"no code here at all", "continuation", VERDICT_FAILED},
    };
    const char *codes[8];
    for (int i = 0; i < 8; i++)
        codes[i] = cases[i].code;
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    rig_submit(&rig, codes, 8);
    for (int i = 0; i < 8; i++) {
        ck_assert_msg(rig.outcomes[i].kind == cases[i].kind, "code %d: %s: %s\n%s", i,
                      verdict_name(rig.outcomes[i].kind), rig.outcomes[i].error,
                      rig.outcomes[i].code);
        ck_assert_str_eq(rig.outcomes[i].method, cases[i].method);
    }
    verifier_tests_close(rig.tests);
}
END_TEST

START_TEST(test_output_is_kept) {
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\n");
    spec.extract = VERIFIER_EXTRACT_RAW;
    const struct outcome *o = rig_judge(&rig, &spec,
                                        "import sys\ndef f(x):\n    print('first')\n    "
                                        "print('second', file=sys.stderr)\n    return 4\n");
    ck_assert_int_eq(o->kind, VERDICT_PASSED);
    ck_assert_str_eq(o->output, "first\nsecond\n");
    /* Before an endless loop too. */
    spec.timeout_s = 0.5;
    o = rig_judge(&rig, &spec, "def f(x):\n    print('before')\n    while 1: pass\n");
    ck_assert_int_eq(o->kind, VERDICT_TIMEOUT);
    ck_assert_str_eq(o->output, "before\n");
    /* Head and tail of much. */
    spec.timeout_s = 5;
    o = rig_judge(&rig, &spec,
                  "def f(x):\n    print('HEAD' + 'x' * 500000 + 'TAIL')\n    return 4\n");
    ck_assert_int_eq(o->kind, VERDICT_PASSED);
    ck_assert_int_lt((int)o->output_len, 66000);
    ck_assert_int_gt((int)o->output_len, 60000);
    ck_assert(!strncmp(o->output, "HEAD", 4));
}
END_TEST

/* Bytes in what the workers share as their standard error: it lives in memory as long as they. */
static long long errors_bytes(void) {
    long long sum = 0;
    int found = 0;
    for (int fd = 0; fd < 1024; fd++) {
        char path[32], target[64] = "";
        struct stat st;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) <= 0 || fstat(fd, &st)) continue;
        if (strncmp(target, "/memfd:errors", 13) != 0) continue;
        found++;
        sum += st.st_size;
    }
    ck_assert_int_gt(found, 0);
    return sum;
}

START_TEST(test_warnings_fill_nothing) {
    struct verifier_spec first = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\n");
    ck_assert_int_eq(rig_judge(&rig, &first, "def f(x): return 4")->kind, VERDICT_PASSED);
    long long before = errors_bytes(); /* the workers are there now */
    struct verifier_spec spec = rig_spec(
        VERIFIER_SCRIPT, "def g(a):\n    a is 1\n    a is 2\n    a is 'x'\n    '\\d'\n"
                         "import sys, warnings\nprint('words', file=sys.stderr)\n"
                         "with warnings.catch_warnings(record=True) as seen:\n"
                         "    warnings.warn('here')\nassert f(2) == 4 and len(seen) == 1\n");
    const struct outcome *o = rig_judge(&rig, &spec, "def f(x):\n    x is 5\n    return 2 * x\n");
    ck_assert_msg(o->kind == VERDICT_PASSED, "%s: %s", verdict_name(o->kind), o->error);
    ck_assert_int_eq(errors_bytes(), before);
}
END_TEST

/* The tests break their own harness after the lock-down: that is no word about the candidate. */
START_TEST(test_broken_harness) {
    struct verifier_spec spec =
        rig_spec(VERIFIER_ASSERTS,
                 "import sys\nassert f(2) == 4\nsys._getframe(1).f_locals['told'].passed = None\n");
    spec.entry_point = "f";
    const struct outcome *o = rig_judge(&rig, &spec, "def f(x): return 4");
    ck_assert_msg(o->kind == VERDICT_BROKEN, "%s: %s", verdict_name(o->kind), o->error);
}
END_TEST

START_TEST(test_determinism) {
    struct verifier_spec spec = rig_spec(VERIFIER_SCRIPT, "assert f() == 0, f()\n");
    spec.entry_point = "f";
    static const char code[] = "import random\ns = str(list({'a', 'b', 'c', 'd'})) + "
                               "str(random.random())\ndef f(): return s\n";
    char first[800], again[800];
    snprintf(first, sizeof first, "%s", rig_judge(&rig, &spec, code)->error);
    snprintf(again, sizeof again, "%s", rig_judge(&rig, &spec, code)->error);
    ck_assert_str_eq(first, again);
    spec.seed++;
    snprintf(again, sizeof again, "%s", rig_judge(&rig, &spec, code)->error);
    ck_assert_str_ne(first, again);
}
END_TEST

START_TEST(test_names) {
    struct err e = {0};
    enum verifier_format format;
    enum verifier_extract extract;
    ck_assert(verifier_format_parse("asserts", &format, &e) && format == VERIFIER_ASSERTS);
    ck_assert(!verifier_format_parse("nonsense", &format, &e));
    ck_assert_ptr_nonnull(strstr(e.message, "humaneval"));
    ck_assert(verifier_extract_parse("raw", &extract, &e) && extract == VERIFIER_EXTRACT_RAW);
    ck_assert(!verifier_extract_parse("", &extract, &e));
    ck_assert_str_eq(verdict_name(VERDICT_OUTPUT_LIMIT), "output_limit");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("verdicts");
    TCase *tc = tcase_create("verdicts");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_add_loop_test(tc, test_ends, 0, sizeof formats / sizeof formats[0]);
    tcase_add_loop_test(tc, test_unusable, 0, sizeof unusable / sizeof unusable[0]);
    tcase_add_test(tc, test_spec_limits);
    tcase_add_test(tc, test_source_size);
    tcase_add_loop_test(tc, test_counts, 0, sizeof counts / sizeof counts[0]);
    tcase_add_loop_test(tc, test_values, 0, sizeof values / sizeof values[0]);
    tcase_add_test(tc, test_prompt_helpers);
    tcase_add_test(tc, test_output_is_kept);
    tcase_add_test(tc, test_warnings_fill_nothing);
    tcase_add_test(tc, test_broken_harness);
    tcase_add_test(tc, test_determinism);
    tcase_add_test(tc, test_names);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
