/* `firstpass bench verify`: what a verdict costs, alone and many at once, with the sandbox on.
 *
 * --tasks FILE has one JSON object a line: {"format", "tests", "code"} and, where there are,
 * "entry_point", "prompt", "extract".  Each verdict is of code that was not seen before (a line is
 * added), so that none is a duplicate. */
#include "base/ascending.h"
#include "base/buf.h"
#include "base/clock.h"
#include "config/limits.h"
#include "server/command_bench.h"
#include "server/runtime.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TASKS = 4096,
    MAX_REPEAT = 100000,
    OPEN_TASKS = 4,
    TASKS_BYTES = 64 * 1024 * 1024,
    REST_MS = 5
};

struct sample {
    double *ms; /* owned */
    size_t n, capacity;
};

struct bench {
    const char *tasks_path;
    int repeat; /* verdicts a task in the latency part */
    int many;   /* verdicts a task in the throughput part */
    bool json;
    uv_loop_t *loop;             /* borrowed */
    struct verifier *verifier;   /* borrowed */
    const struct config *config; /* borrowed */
    struct err *e;
    struct sample open, first, next;
    int verdicts[VERDICT_BROKEN + 1];
    int n_made;     /* variants of code so far */
    double seconds; /* of the throughput part */
    int n_many;     /* its verdicts */
};

/* One task's tests and the verdicts under way. */
struct task {
    struct bench *bench;          /* borrowed */
    json_t *json;                 /* borrowed */
    struct verifier_tests *tests; /* owned while open */
    bool ready;
    int n_many; /* codes to submit as soon as the tests are ready */
    int n_left; /* verdicts to come */
};

/* ---- arguments ---- */

static bool parse_count(const char *text, const char *name, int *out, struct err *e) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 0 || value > MAX_REPEAT)
        return err_set(e, ERR_INPUT, "--%s is \"%s\"; it must be a number from 0 to %d", name, text,
                       MAX_REPEAT);
    *out = (int)value;
    return true;
}

static bool parse(struct bench *b, int argc, char **argv) {
    struct command_args a;
    command_args_init(&a, argc, argv, b->e);
    while (command_args_next(&a)) {
        const char *v;
        bool ok = true;
        if ((v = command_args_value(&a, "tasks")))
            b->tasks_path = v;
        else if ((v = command_args_value(&a, "repeat")))
            ok = parse_count(v, "repeat", &b->repeat, b->e);
        else if ((v = command_args_value(&a, "many")))
            ok = parse_count(v, "many", &b->many, b->e);
        else if (command_args_flag(&a, "json"))
            b->json = true;
        else
            command_args_unknown(&a);
        if (!ok) return false;
    }
    if (a.failed) return false;
    return b->tasks_path || err_set(b->e, ERR_INPUT, "--tasks FILE is missing");
}

/* ---- tasks ---- */

static const char *text_of(json_t *json, const char *key, const char *otherwise) {
    const char *text = json_string_value(json_object_get(json, key));
    return text ? text : otherwise;
}

static json_t *read_tasks(struct bench *b) {
    size_t len;
    char *text = command_read_file(b->tasks_path, TASKS_BYTES, &len, b->e);
    if (!text) return NULL;
    json_t *tasks = json_array();
    char *rest = text;
    bool ok = true;
    for (char *line; ok && (line = strsep(&rest, "\n"));) {
        if (!*line) continue;
        json_error_t where;
        json_t *task = json_loads(line, 0, &where);
        ok = task && json_array_size(tasks) < MAX_TASKS && text_of(task, "format", NULL) &&
             text_of(task, "tests", NULL) && text_of(task, "code", NULL);
        if (!ok)
            err_set(b->e, ERR_INPUT,
                    "%s, task %zu: an object with format, tests and code is wanted", b->tasks_path,
                    json_array_size(tasks));
        if (task) json_array_append_new(tasks, task);
    }
    free(text);
    if (ok && !json_array_size(tasks))
        ok = err_set(b->e, ERR_INPUT, "%s has no task", b->tasks_path);
    if (ok) return tasks;
    json_decref(tasks);
    return NULL;
}

static void on_verdict(void *arg, int index, const struct verdict *v) {
    struct task *t = arg;
    (void)index;
    t->bench->verdicts[v->kind]++;
    t->n_left--;
}

static void submit(struct task *t) {
    struct buf code;
    buf_init(&code, LIMIT_CODE_BYTES + 64);
    buf_printf(&code, "%s\n_ = %d\n", text_of(t->json, "code", ""), t->bench->n_made++);
    t->n_left++;
    verifier_submit(t->tests, 0, buf_text(&code), code.len, false, on_verdict, t);
    buf_clear(&code);
}

static void on_ready(void *arg, struct verifier_tests *tests, const struct err *error) {
    struct task *t = arg;
    t->ready = true;
    t->tests = tests;
    if (error) {
        *t->bench->e = *error;
        return;
    }
    for (int i = 0; i < t->n_many; i++)
        submit(t);
}

static bool start_open(struct task *t) {
    struct bench *b = t->bench;
    struct verifier_spec spec = {
        .tests = text_of(t->json, "tests", ""),
        .entry_point = text_of(t->json, "entry_point", NULL),
        .prompt = text_of(t->json, "prompt", NULL),
        .timeout_s = b->config->verifier.timeout_s,
        .memory_mb = b->config->verifier.memory_mb,
    };
    spec.tests_len = strlen(spec.tests);
    spec.prompt_len = spec.prompt ? strlen(spec.prompt) : 0;
    t->ready = false;
    return verifier_format_parse(text_of(t->json, "format", ""), &spec.format, b->e) &&
           verifier_extract_parse(text_of(t->json, "extract", "raw"), &spec.extract, b->e) &&
           verifier_tests_open(b->verifier, &spec, on_ready, t, b->e);
}

/* ---- measuring ---- */

static void add(struct sample *s, double seconds) {
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->ms = err_realloc(s->ms, s->capacity, sizeof *s->ms);
    }
    s->ms[s->n++] = seconds * 1e3;
}

static double quantile(struct sample *s, double q) {
    if (!s->n) return 0;
    qsort(s->ms, s->n, sizeof *s->ms, ascending_doubles);
    return s->ms[(size_t)(q * (double)(s->n - 1) + 0.5)];
}

static void on_rested(uv_timer_t *timer) { uv_stop(timer->loop); }

/* What is left to do after a verdict gets done: a race's candidates come at longer intervals. */
static void rest(struct bench *b) {
    uv_timer_t timer;
    BUG_ON(uv_timer_init(b->loop, &timer) || uv_timer_start(&timer, on_rested, REST_MS, 0));
    uv_run(b->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(b->loop, UV_RUN_NOWAIT);
}

/* One after the other, with a rest before each: what a caller waits who has one candidate. */
static bool latencies(struct bench *b, json_t *tasks) {
    size_t i;
    json_t *json;
    json_array_foreach(tasks, i, json) {
        struct task t = {.bench = b, .json = json};
        rest(b);
        double began = clock_seconds();
        if (!start_open(&t)) return false;
        while (!t.ready)
            uv_run(b->loop, UV_RUN_ONCE);
        if (!t.tests) return false;
        add(&b->open, clock_seconds() - began);
        for (int k = 0; k < b->repeat; k++) {
            if (k) {
                rest(b);
                began = clock_seconds();
            }
            submit(&t);
            while (t.n_left)
                uv_run(b->loop, UV_RUN_ONCE);
            add(k ? &b->next : &b->first, clock_seconds() - began);
        }
        verifier_tests_close(t.tests);
    }
    return true;
}

/* Takes the next task where this one has ended; false on an error. */
static bool turn(struct bench *b, struct task *t, json_t *tasks, size_t *at, int *n_open) {
    if (t->json && t->ready) {
        if (!t->tests) return false;
        if (t->n_left) return true;
        verifier_tests_close(t->tests);
        t->json = NULL;
        --*n_open;
    }
    if (t->json || *at == json_array_size(tasks)) return true;
    *t = (struct task){.bench = b, .json = json_array_get(tasks, (*at)++), .n_many = b->many};
    ++*n_open;
    return start_open(t);
}

/* All at once, a few tasks open at a time, compiling the tests included. */
static bool throughput(struct bench *b, json_t *tasks) {
    struct task open[OPEN_TASKS] = {0};
    size_t at = 0;
    int n_open = 0;
    bool ok = true;
    double began = clock_seconds();
    do {
        for (int i = 0; ok && i < OPEN_TASKS; i++)
            ok = turn(b, &open[i], tasks, &at, &n_open);
        if (ok && n_open) uv_run(b->loop, UV_RUN_ONCE);
    } while (ok && n_open);
    b->seconds = clock_seconds() - began;
    return ok;
}

/* ---- what is said ---- */

static json_t *quantiles(struct sample *s) {
    return json_pack("{s:f, s:f, s:f, s:i}", "min", quantile(s, 0), "p25", quantile(s, 0.25),
                     "median", quantile(s, 0.5), "n", (int)s->n);
}

static void print_json(struct bench *b, int n_tasks) {
    json_t *verdicts = json_object();
    for (int i = 0; i <= VERDICT_BROKEN; i++)
        if (b->verdicts[i])
            json_object_set_new(verdicts, verdict_name((enum verdict_kind)i),
                                json_integer(b->verdicts[i]));
    struct verifier_stats stats;
    verifier_stats(b->verifier, &stats);
    const struct verifier_report *report = verifier_report(b->verifier);
    json_t *root =
        json_pack("{s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o}", "sandbox_level", report->level,
                  "workers", stats.workers, "tasks", n_tasks, "python", report->python_version,
                  "verdicts", verdicts, "open_ms", quantiles(&b->open), "first_ms",
                  quantiles(&b->first), "next_ms", quantiles(&b->next));
    if (b->many)
        json_object_set_new(root, "verdicts_per_s",
                            json_real((double)b->many * n_tasks / b->seconds));
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static void print_line(const char *what, struct sample *s) {
    if (!s->n) return;
    printf("%-34s min %.2f  p25 %.2f  median %.2f ms  (%zu)\n", what, quantile(s, 0),
           quantile(s, 0.25), quantile(s, 0.5), s->n);
}

static void print_text(struct bench *b, int n_tasks) {
    printf("sandbox level %d, %d tasks\n", verifier_report(b->verifier)->level, n_tasks);
    print_line("tests opened", &b->open);
    print_line("tests opened and first verdict", &b->first);
    print_line("each further verdict", &b->next);
    if (b->many)
        printf("%-34s %.1f verdicts/s\n", "all at once", (double)b->many * n_tasks / b->seconds);
    for (int i = 0; i <= VERDICT_BROKEN; i++)
        if (b->verdicts[i]) printf("%s %d\n", verdict_name((enum verdict_kind)i), b->verdicts[i]);
}

int command_bench_verify(int argc, char **argv, const struct config *config) {
    struct err e = {0};
    struct bench b = {.repeat = 4, .many = 8, .config = config, .e = &e};
    if (!parse(&b, argc, argv)) return command_failed("bench verify", &e);
    json_t *tasks = read_tasks(&b);
    struct runtime *runtime = tasks ? runtime_open(config, &e) : NULL;
    bool ok = false;
    if (runtime) {
        b.loop = runtime_loop(runtime);
        b.verifier = runtime_verifier(runtime);
        ok = (!b.repeat || latencies(&b, tasks)) && (!b.many || throughput(&b, tasks));
    }
    if (ok && b.json)
        print_json(&b, (int)json_array_size(tasks));
    else if (ok)
        print_text(&b, (int)json_array_size(tasks));
    runtime_close(runtime);
    json_decref(tasks);
    free(b.open.ms);
    free(b.first.ms);
    free(b.next.ms);
    return ok ? COMMAND_PASSED : command_failed("bench verify", &e);
}
