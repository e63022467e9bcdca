#include "config/limits.h"
#include "server/command.h"
#include "server/runtime.h"
#include "server/verdict_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_BYTES = 512 * 1024 * 1024 };

static const char usage[] =
    "usage: firstpass verify --format F --tests FILE [OPTION]… CODE… [SETTING]…\n"
    "\n"
    "Runs the tests on each CODE file in the sandbox.\n"
    "\n"
    "  --format F         humaneval, asserts, script, unittest, pytest, doctest, evalplus,\n"
    "                     stdio, apps or livecodebench\n"
    "  --entry-point N    the function that the tests call\n"
    "  --prompt FILE      the code that CODE continues and that the tests may use\n"
    "  --extract E        auto, fenced, raw or continuation; default: raw, with --prompt auto\n"
    "  --timeout-s S  --memory-mb N\n"
    "  --score            run all tests of a CODE, also after one failed\n"
    "  --feedback F       what is told of each test: none, names (no values of the tests) or\n"
    "                     full; default: with --json full, else none\n"
    "  --json             the results as JSON\n"
    "\n"
    "Exit status: 0 all passed, 1 some did not, 2 bad input, 3 the sandbox failed.\n";

/* One CODE file and what was said of it. */
struct work {
    const char *path; /* borrowed */
    char *text;       /* owned; until it is submitted */
    size_t len;
    struct buf result; /* one JSON object, or one line */
    enum verdict_kind verdict;
};

struct verify {
    const struct config *config; /* borrowed */
    struct runtime *runtime;     /* owned */
    struct err *e;               /* borrowed */
    const char *format, *extract, *feedback, *tests_path, *prompt_path;
    struct verifier_spec spec;
    char *tests_text, *prompt_text; /* owned */
    bool json;
    struct work *work; /* owned; [n_work] */
    int n_work, n_left;
    struct verifier_tests *tests; /* owned */
    bool ready, failed;
};

/* ---- arguments ---- */

static bool bounded(const char *text, double low, double high, const char *option, double *out,
                    struct err *e) {
    char *end;
    *out = strtod(text, &end);
    if (*text && !*end && isfinite(*out) && *out >= low && *out <= high) return true;
    return err_set(e, ERR_INPUT, "--%s is \"%s\"; it must be a number from %g to %g", option, text,
                   low, high);
}

static void take_limits(struct verify *v, struct command_args *a, bool *taken) {
    const char *value;
    double number;
    if ((value = command_args_value(a, "timeout-s"))) {
        a->failed =
            a->failed || !bounded(value, 0.01, LIMIT_VERIFY_SECONDS, "timeout-s", &number, a->e);
        if (!a->failed) v->spec.timeout_s = number;
        *taken = true;
    } else if ((value = command_args_value(a, "memory-mb"))) {
        a->failed =
            a->failed || !bounded(value, 16, LIMIT_VERIFY_MEMORY_MB, "memory-mb", &number, a->e);
        if (!a->failed) v->spec.memory_mb = (int)number;
        *taken = true;
    }
}

static bool take_option(struct verify *v, struct command_args *a) {
    const char *value;
    bool taken = true;
    if ((value = command_args_value(a, "format")))
        v->format = value;
    else if ((value = command_args_value(a, "tests")))
        v->tests_path = value;
    else if ((value = command_args_value(a, "entry-point")))
        v->spec.entry_point = value;
    else if ((value = command_args_value(a, "prompt")))
        v->prompt_path = value;
    else if ((value = command_args_value(a, "extract")))
        v->extract = value;
    else if ((value = command_args_value(a, "feedback")))
        v->feedback = value;
    else if (command_args_flag(a, "json"))
        v->json = true;
    else if (command_args_flag(a, "score"))
        v->spec.score = true;
    else {
        taken = false;
        take_limits(v, a, &taken);
    }
    return taken;
}

/* False with ERR_NONE where help was asked for and given. */
static bool parse_args(struct verify *v, int argc, char **argv) {
    struct command_args a;
    command_args_init(&a, argc, argv, v->e);
    v->work = err_alloc((size_t)argc, sizeof *v->work);
    while (command_args_next(&a)) {
        if (command_args_flag(&a, "help")) {
            fputs(usage, stdout);
            return false;
        }
        if (take_option(v, &a)) continue;
        const char *name = command_args_name(&a);
        if (name)
            v->work[v->n_work++].path = name;
        else
            command_args_unknown(&a);
    }
    if (a.failed) return false;
    if (!v->format || !v->tests_path || !v->n_work) {
        fputs(usage, stderr);
        return err_set(v->e, ERR_INPUT, "%s",
                       !v->format       ? "--format is missing"
                       : !v->tests_path ? "--tests FILE is missing"
                                        : "no CODE file is given");
    }
    if (!v->extract) v->extract = v->prompt_path ? "auto" : "raw";
    if (!v->feedback) v->feedback = v->json ? "full" : "none";
    return verifier_feedback_parse(v->feedback, &v->spec.feedback, v->e) &&
           verifier_format_parse(v->format, &v->spec.format, v->e) &&
           verifier_extract_parse(v->extract, &v->spec.extract, v->e);
}

static bool read_files(struct verify *v) {
    v->tests_text =
        command_read_file(v->tests_path, LIMIT_TESTS_DATA_BYTES, &v->spec.tests_len, v->e);
    if (!v->tests_text) return false;
    v->spec.tests = v->tests_text;
    if (v->prompt_path) {
        v->prompt_text =
            command_read_file(v->prompt_path, LIMIT_CODE_BYTES, &v->spec.prompt_len, v->e);
        if (!v->prompt_text) return false;
        v->spec.prompt = v->prompt_text;
    }
    for (int i = 0; i < v->n_work; i++) {
        struct work *work = &v->work[i];
        buf_init(&work->result, ANSWER_BYTES);
        work->text = command_read_file(work->path, LIMIT_CODE_BYTES, &work->len, v->e);
        if (!work->text) return false;
    }
    return true;
}

/* ---- results ---- */

static void write_json(struct work *work, const struct verdict *verdict, bool tells) {
    struct writer w;
    writer_init(&w, &work->result);
    writer_object(&w);
    writer_key(&w, "file");
    writer_text(&w, work->path);
    verdict_json_members(&w, verdict, tells);
    writer_object_end(&w);
}

static void write_lines(struct work *work, const struct verdict *verdict) {
    buf_printf(&work->result, "%s: %s, %d of %d tests%s%s\n", work->path,
               verdict_name(verdict->kind), verdict->tests_passed, verdict->tests_total,
               *verdict->error ? ": " : "", verdict->error);
    for (int i = 0; i < verdict->n_tests; i++) {
        const struct verdict_test *t = &verdict->tests[i];
        buf_printf(&work->result, "    %-7s %s (%.1f ms)%s%s", t->status, t->name, t->ms,
                   *t->error ? "  " : "", t->error);
        if (t->got) buf_printf(&work->result, "  got %s", t->got);
        if (t->expected) buf_printf(&work->result, "  expected %s", t->expected);
        buf_puts(&work->result, "\n");
    }
}

static void on_verdict(void *arg, int index, const struct verdict *verdict) {
    struct verify *v = arg;
    struct work *work = &v->work[index];
    work->verdict = verdict->kind;
    if (v->json)
        write_json(work, verdict, v->spec.feedback != VERIFIER_FEEDBACK_NONE);
    else
        write_lines(work, verdict);
    v->n_left--;
}

static void on_ready(void *arg, struct verifier_tests *tests, const struct err *error) {
    struct verify *v = arg;
    v->ready = true;
    v->failed = error != NULL;
    v->tests = tests;
    if (error) *v->e = *error;
}

static bool judge(struct verify *v) {
    uv_loop_t *loop = runtime_loop(v->runtime);
    struct verifier *verifier = runtime_verifier(v->runtime);
    if (!verifier_tests_open(verifier, &v->spec, on_ready, v, v->e)) return false;
    while (!v->ready)
        uv_run(loop, UV_RUN_ONCE);
    if (v->failed) return false;
    v->n_left = v->n_work;
    for (int i = 0; i < v->n_work; i++) {
        verifier_submit(v->tests, i, v->work[i].text, v->work[i].len, false, on_verdict, v);
        free(v->work[i].text);
        v->work[i].text = NULL;
    }
    while (v->n_left)
        uv_run(loop, UV_RUN_ONCE);
    return true;
}

static int print_results(struct verify *v) {
    int status = COMMAND_PASSED;
    for (int i = 0; i < v->n_work; i++) {
        if (v->work[i].verdict == VERDICT_BROKEN)
            status = COMMAND_SYSTEM;
        else if (v->work[i].verdict != VERDICT_PASSED && status == COMMAND_PASSED)
            status = COMMAND_NOT_PASSED;
    }
    if (!v->json) {
        for (int i = 0; i < v->n_work; i++)
            fputs(buf_text(&v->work[i].result), stdout);
        return status;
    }
    const struct verifier_report *report = verifier_report(runtime_verifier(v->runtime));
    fputs("{\"results\":[", stdout);
    for (int i = 0; i < v->n_work; i++)
        printf("%s%s", i ? "," : "", buf_text(&v->work[i].result));
    printf("],\"sandbox_level\":%d}\n", report->level);
    return status;
}

/* No more workers than there is work: each starts a Python, and they share the cores. */
static struct config with_fewer_workers(const struct config *config, int n_work) {
    struct config own = *config;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long workers = own.verifier.workers > 0 ? own.verifier.workers : cores;
    if (n_work < workers) own.verifier.workers = n_work;
    return own;
}

int command_verify(int argc, char **argv, const struct config *config) {
    struct err e = {0};
    struct config own;
    struct verify v = {.config = config, .e = &e};
    v.spec.timeout_s = config->verifier.timeout_s;
    v.spec.memory_mb = config->verifier.memory_mb;
    int status = COMMAND_PASSED;
    bool ok = parse_args(&v, argc, argv) && read_files(&v);
    if (ok) {
        own = with_fewer_workers(config, v.n_work);
        v.runtime = runtime_open(&own, &e);
        ok = v.runtime && judge(&v);
    }
    if (ok)
        status = print_results(&v);
    else if (e.kind != ERR_NONE)
        status = command_failed("verify", &e);
    if (v.tests) verifier_tests_close(v.tests);
    runtime_close(v.runtime);
    for (int i = 0; i < v.n_work; i++) {
        free(v.work[i].text);
        buf_clear(&v.work[i].result);
    }
    free(v.work);
    free(v.tests_text);
    free(v.prompt_text);
    return status;
}
