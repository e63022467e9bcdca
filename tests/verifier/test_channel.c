/* Hostile candidates that write raw bytes into the channel to their tests: whatever they write, no
 * pass, no harm to the worker; and one that speaks the protocol well by hand, which passes. */
#include "tests/verifier/rig.h"

#include <stdio.h>

static struct rig rig;

/* `answer(body, kind)` writes one frame as the answer to the request under way. */
static const char speaks[] =
    "import os, struct, sys\n"
    "def request():\n"
    "    frame = sys._getframe()\n"
    "    while 'request' not in frame.f_locals: frame = frame.f_back\n"
    "    return frame.f_locals['request']\n"
    "def n(tag, count): return tag + struct.pack('<I', count)\n"
    "def i(v): return b'i' + struct.pack('<q', v)\n"
    "def s(text): return n(b's', len(text)) + text\n"
    "def put(data):\n"
    "    while data: data = data[os.write(3, data):]\n"
    "def answer(body, kind='r'):\n"
    "    put(struct.pack('<IQB', len(body), request(), ord(kind)) + body)\n"
    "def whole(value): return n(b't', 4) + value + i(-1) + b'NN'\n"
    "def error(names, name, arguments):\n"
    "    return (n(b't', 8) + n(b'l', len(names)) + b''.join(map(s, names)) + s(name) + s(b'') +\n"
    "            i(0) + s(b'') + arguments + n(b'l', 0) + n(b'D', 0))\n";

/* What f(x) does beside returning None.  Long ones go on in a second literal. */
/* NOLINTBEGIN(bugprone-suspicious-missing-comma) */
static const char *const attempts[] = {
    /* frames */
    "put(b'')",
    "put(b'\\0')",
    "put(b'\\0' * 12)",
    "put(b'\\0' * 13)",
    "put(b'\\xff' * 1000)",
    "put(struct.pack('<IQB', (1 << 26) + 1, request(), ord('r')))",
    "put(struct.pack('<IQB', 1 << 26, request(), ord('r')) + b'l\\1\\0\\0\\0' * 1000)",
    "put(struct.pack('<IQB', 0, request(), ord('r')))",
    "put(struct.pack('<IQB', 5, request(), 0))",
    "answer(whole(i(4)), 'z')",
    "answer(whole(i(4)), 'b')",
    "answer(whole(i(4)), 'c')",
    "put(struct.pack('<IQB', 26, request() ^ 1, ord('r')) + whole(i(4)))",
    "put(struct.pack('<IQB', 26, 0, ord('r')) + whole(i(4)))",
    /* shapes of an answer */
    "answer(b'N')",
    "answer(i(4))",
    "answer(n(b't', 0))",
    "answer(n(b't', 3) + i(4) + i(-1) + b'N')",
    "answer(n(b't', 5) + i(4) + i(-1) + b'NNN')",
    "answer(n(b'l', 4) + i(4) + i(-1) + b'NN')",
    "answer(n(b't', 4) + i(4) + b'NNN')",
    "answer(n(b't', 4) + i(4) + b'TNN')",
    "answer(n(b't', 4) + i(4) + i(99) + b'NN')",
    "answer(n(b't', 4) + i(4) + i(2 ** 63 - 1) + b'NN')",
    "answer(n(b't', 4) + i(4) + i(-1) + i(7) + b'N')",
    "answer(n(b't', 4) + i(4) + i(-1) + n(b'b', 3) + b'NNN' + b'N')",
    "answer(n(b't', 4) + i(4) + i(-1) + n(b'b', 6) + n(b't', 2) + b'N' + b'N')",
    "answer(n(b't', 4) + i(4) + i(-1) + b'N' + i(0))",
    "answer(n(b't', 4) + i(4) + i(-1) + b'N' + n(b'l', 1) + b'N')",
    "answer(n(b't', 4) + i(4) + i(-1) + b'N' + n(b'l', 1) + n(b't', 2) + i(0) + n(b'b', 0))",
    ("answer(n(b't', 4) + i(4) + i(-1) + b'N' + n(b'l', 1) + n(b't', 2) + i(0) + n(b'b', 5) + "
     "n(b'D', 0))"),
    "answer(n(b't', 4) + i(4) + i(-1) + b'N' + n(b'l', 1) + n(b't', 2) + i(-1) + n(b'b', 5) + "
    "n(b'D', 0))",
    /* values */
    "answer(whole(b'?'))",
    "answer(whole(b''))",
    "answer(whole(i(4)) + b'N')",
    "answer(whole(n(b's', 2) + b'\\xff\\xff'))",
    "answer(whole(n(b's', 2 ** 32 - 1)))",
    "answer(whole(b'I\\1' + struct.pack('<I', 2 ** 31)))",
    "answer(whole(b'I\\0' + struct.pack('<I', 1 << 20) + b'\\xff' * (1 << 20)))",
    "answer(whole(n(b'l', 1) * 101 + b'N'))",
    "answer(whole(n(b'l', 1) * 100000))",
    "answer(whole(n(b't', 1 << 24) * 90 + b'N' * (1 << 24)))",
    "answer(whole(n(b'S', 1) + n(b'l', 0)))",
    "answer(whole(n(b'D', 1) + n(b'D', 0) + b'N'))",
    "answer(whole(n(b'D', 2 ** 31)))",
    "answer(whole(n(b'l', 9000000) + b'N' * 9000000))",
    "answer(whole(b'h' + struct.pack('<Q', 2 ** 64 - 1)))",
    "answer(whole(b'h1234'))",
    "answer(whole(b'xNN'))",
    "answer(whole(b'x' + i(1) + i(2)))",
    "answer(whole(b'x' + s(b'nothing') + b'N'))",
    "answer(whole(b'x' + s(b'builtin') + s(b'eval')))",
    "answer(whole(b'x' + s(b'builtin') + s(b'exec')))",
    "answer(whole(b'x' + s(b'builtin') + s(b'__import__')))",
    "answer(whole(b'x' + s(b'builtin') + n(b'l', 0)))",
    "answer(whole(b'x' + s(b'callback') + i(0)))",
    "answer(whole(b'x' + s(b'iterator') + i(-1)))",
    "answer(whole(b'x' + s(b'entry') + s(b'os')))",
    "answer(whole(b'x' + s(b'range') + n(b't', 1) + s(b'a')))",
    "answer(whole(b'x' + s(b'range') + n(b't', 3) + i(0) + i(1) + i(0)))",
    "answer(whole(b'x' + s(b'decimal') + s(b'x')))",
    "answer(whole(b'x' + s(b'fraction') + n(b't', 2) + i(1) + i(0)))",
    "answer(whole(b'x' + s(b'datetime') + s(b'9' * 100000)))",
    "answer(whole(b'x' + s(b'deque') + n(b't', 2) + n(b'l', 0) + i(-1)))",
    "answer(whole(b'x' + s(b'counter') + n(b'l', 1) + n(b'l', 0)))",
    "answer(whole(b'x' + (b'x' + s(b'range')) * 99 + b'N'))",
    "answer(whole(b'x' + s(b'object') + i(0)))",
    "answer(whole(b'x' + s(b'object') + i(-1)))",
    "answer(whole(b'x' + s(b'held') + n(b't', 2) + i(1) + n(b'l', 0)))",
    "answer(whole(b'x' + s(b'held') + n(b't', 2) + b'N' + i(1)))",
    "answer(whole(b'x' + s(b'held') + b'N'))",
    "answer(whole(b'x' + s(b'coroutine') + i(-1)))",
    "answer(whole(b'x' + s(b'coroutine') + b'N'))",
    /* errors */
    "answer(b'N', 'e')",
    "answer(n(b't', 8) + b'N' * 8, 'e')",
    "answer(n(b't', 6) + b'N' * 6, 'e')",
    "answer(error([], b'', b'N')[:-5], 'e')",
    "answer(error([b'SystemExit'], b'SystemExit', n(b't', 1) + i(0)), 'e')",
    "answer(error([b'BaseException'], b'x', b'N'), 'e')",
    "answer(error([b'KeyboardInterrupt'], b'KeyboardInterrupt', n(b't', 0)), 'e')",
    "answer(error([b'exec'], b'exec', n(b't', 1) + s(b'1')), 'e')",
    "answer(error([b'__import__', b'open'], b'open', n(b't', 1) + s(b'/x')), 'e')",
    "answer(error([b'UnicodeDecodeError'], b'UnicodeDecodeError', n(b't', 0)), 'e')",
    "answer(error([b'ExceptionGroup'], b'ExceptionGroup', n(b't', 2) + s(b'x') + n(b'l', 0)), 'e')",
    "answer(error([], b'AssertionError', n(b't', 1) + b'h' + struct.pack('<Q', 1)), 'e')",
    /* calls back */
    "answer(b'N', 'k')",
    "answer(n(b't', 3) + i(0) + n(b't', 0) + n(b'D', 0), 'k')",
    "answer(n(b't', 3) + i(-1) + n(b't', 0) + n(b'D', 0), 'k')",
    "answer(n(b't', 3) + s(b'exec') + n(b't', 1) + s(b'1') + n(b'D', 0), 'k')",
    "[answer(n(b't', 3) + i(j) + n(b't', 0) + n(b'D', 0), 'k') for j in range(100)]",
};
/* NOLINTEND(bugprone-suspicious-missing-comma) */
enum { N_ATTEMPTS = sizeof attempts / sizeof attempts[0], MUTATIONS = 160, CODE_BYTES = 3000 };

static struct verifier_spec spec_of(void) {
    struct verifier_spec spec = rig_spec(VERIFIER_ASSERTS, "assert f(2) == 4\nassert f(3) == 6\n");
    spec.entry_point = "f";
    spec.extract = VERIFIER_EXTRACT_RAW;
    spec.timeout_s = 1;
    return spec;
}

static void judge_all(char (*codes)[CODE_BYTES], int n) {
    const char *texts[RIG_BATCH];
    struct verifier_spec spec = spec_of();
    int wrong = 0, kinds[VERDICT_BROKEN + 1] = {0};
    for (int i = 0; i < n; i++)
        texts[i] = codes[i];
    ck_assert_msg(rig_open_tests(&rig, &spec), "%s", rig.refused.message);
    rig_submit(&rig, texts, n);
    for (int i = 0; i < n; i++) {
        const struct outcome *o = &rig.outcomes[i];
        kinds[o->kind]++;
        if (o->kind == VERDICT_FAILED || o->kind == VERDICT_FORGED || o->kind == VERDICT_TIMEOUT ||
            o->kind == VERDICT_MEMORY)
            continue;
        wrong++;
        printf("%s: %s\n%s\n", verdict_name(o->kind), o->error, texts[i] + sizeof speaks - 1);
    }
    printf("%d candidates: %d failed, %d forged, %d timeout, %d memory\n", n, kinds[VERDICT_FAILED],
           kinds[VERDICT_FORGED], kinds[VERDICT_TIMEOUT], kinds[VERDICT_MEMORY]);
    ck_assert_int_eq(wrong, 0);
    ck_assert_int_ge(kinds[VERDICT_FORGED], n / 4); /* it is seen for what it is */
    struct verifier_stats stats;
    verifier_stats(rig.verifier, &stats);
    ck_assert_uint_eq(stats.workers_replaced + stats.retries, 0);
    /* The worker lives and judges as before. */
    rig_submit(&rig, (const char *const[]){"def f(x): return 2 * x"}, 1);
    ck_assert_int_eq(rig.outcomes[0].kind, VERDICT_PASSED);
    verifier_tests_close(rig.tests);
}

static void open_rig(void) { rig_open(&rig, 3); }
static void close_rig(void) { rig_close(&rig); }

START_TEST(test_malformed) {
    static char codes[N_ATTEMPTS][CODE_BYTES];
    for (int i = 0; i < N_ATTEMPTS; i++)
        snprintf(codes[i], CODE_BYTES, "%sdef f(x):\n    %s\n", speaks, attempts[i]);
    judge_all(codes, N_ATTEMPTS);
}
END_TEST

static uint32_t draw(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    return *state ^= *state << 5;
}

/* A good answer with bytes changed, cut or doubled: the seed is fixed, so that a find comes again.
 */
START_TEST(test_mutated) {
    static char codes[MUTATIONS][CODE_BYTES];
    uint32_t state = 20261130;
    for (int i = 0; i < MUTATIONS; i++) {
        unsigned at = draw(&state) % 200, value = draw(&state) % 256, how = draw(&state) % 4;
        snprintf(
            codes[i], CODE_BYTES,
            "%sgood = whole(n(b't', 6) + i(4) + s(b'text') + n(b'D', 1) + i(1) + b'T' + b'd' + "
            "bytes(8) + n(b'S', 2) + i(5) + i(6) + b'x' + s(b'range') + n(b't', 3) + i(0) + "
            "i(9) + i(1))\n"
            "at, value, how = %u %% len(good), %u, %u\n"
            "good = (good[:at] + bytes([value]) + good[at + 1:], good[:at], good[:at] + "
            "good[value %% 40:], good[:at] + bytes([value]) * 4 + good[at + 4:])[how]\n"
            "def f(x):\n    answer(good)\n",
            speaks, at, value, how);
    }
    judge_all(codes, MUTATIONS);
}
END_TEST

/* The honest twin: the same raw writing, said well, takes the whole place of the harness in A.
 * Where it fails, the protocol has changed: `whole` and `error` above and the frames of
 * verifier/attacks.txt must change with it, or they are refused for their shape alone. */
START_TEST(test_well_spoken) {
    static char code[CODE_BYTES];
    snprintf(code, sizeof code,
             "%sdef take(size):\n"
             "    data = b''\n"
             "    while len(data) < size:\n"
             "        more = os.read(3, size - len(data))\n"
             "        if not more: os._exit(0)\n"
             "        data += more\n"
             "    return data\n"
             "def f(x):\n"
             "    answer(whole(i(2 * x)))\n"
             "    for value in (6,):\n"
             "        size, number, _ = struct.unpack('<IQB', take(13))\n"
             "        take(size)\n"
             "        body = whole(i(value))\n"
             "        put(struct.pack('<IQB', len(body), number, ord('r')) + body)\n"
             "    take(1)\n",
             speaks);
    struct verifier_spec spec = spec_of();
    const struct outcome *o = rig_judge(&rig, &spec, code);
    ck_assert_msg(o->kind == VERDICT_PASSED, "%s: %s", verdict_name(o->kind), o->error);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("channel");
    TCase *tc = tcase_create("raw bytes");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_add_test(tc, test_malformed);
    tcase_add_test(tc, test_mutated);
    tcase_add_test(tc, test_well_spoken);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
