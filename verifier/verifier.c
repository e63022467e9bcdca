#include "verifier/verifier.h"

#include "base/log.h"
#include "base/utf8.h"
#include "config/limits.h"
#include "verifier/cases.h"
#include "verifier/extract.h"
#include "verifier/job.h"
#include "verifier/pool.h"
#include "verifier/program.h"
#include "verifier/suite.h"
#include "verifier/template.h"
#include "verifier/verdict.h"

#include <stdlib.h>
#include <string.h>

/* THEORY.  A submission is what a caller waits for: one text, with up to three extractions of code.
 * A run is one distinct code of one tests object: it runs once, whoever waits for it.  A submission
 * goes through its extractions one after the other until one passes.  Callbacks are made from the
 * delivery timer only, so never from within a call; what they are given stays until they return,
 * even where they close the tests object. */

enum { BUCKETS = 1024, MOST_LOSSES = 4 };

struct run {
    struct run *next; /* in its bucket */
    uint64_t hash;
    char *code; /* owned */
    size_t len;
    struct job *job;         /* owned while it runs */
    struct program *program; /* likewise, where the tests are of programs */
    bool decided;
    struct verdict_kept kept;
    struct list waiters; /* of struct submission */
};

struct submission {
    struct list link;             /* in its run's waiters, or in the tests' `due` */
    struct list all;              /* in the tests' submissions */
    struct verifier_tests *tests; /* borrowed */
    uint64_t id;
    int index;
    struct extract_result extracted;
    int at;            /* the extraction under way */
    int reported;      /* the one whose verdict is told: the first that passed, else the first */
    bool shared;       /* its run was there before */
    struct run *told;  /* borrowed; NULL: no code was found */
    const char *error; /* static; where told is NULL */
    const char *limit;
    bool broken;
    void (*done)(void *arg, int index, const struct verdict *);
    void *arg; /* borrowed */
};

struct verifier_tests {
    struct verifier *verifier; /* borrowed */
    struct list link;
    struct verifier_spec spec; /* strings owned below */
    char *strings[3];
    struct cases cases;  /* of programs; none: the suite judges */
    struct suite *suite; /* owned; NULL: nothing to compile */
    struct task task;    /* compiles it the first time */
    struct pool_share share;
    bool compiling;
    int losses; /* workers that died while they compiled the tests */
    bool compiled;
    char **names; /* owned: entry points, sorted */
    int n_names;
    void (*ready)(void *arg, struct verifier_tests *, const struct err *);
    void *arg;
    bool refused; /* told so; waits to be freed by the delivery */
    struct err error;
    bool ready_due;
    struct list submissions, due;
    struct run *buckets[BUCKETS];
    int n_users; /* callbacks that still look at it */
    bool closed;
};

struct verifier {
    struct pool *pool;           /* owned */
    struct template *template;   /* owned once attached */
    struct watch_timer *deliver; /* owned once attached */
    struct list tests;
    uint64_t next_id;
    bool closing;
    void (*closed)(void *arg);
    void *closed_arg;
    struct verifier_stats stats;
};

/* ---- names ---- */

static const char *const format_names[] = {
    [VERIFIER_HUMANEVAL] = "humaneval", [VERIFIER_ASSERTS] = "asserts",
    [VERIFIER_SCRIPT] = "script",       [VERIFIER_UNITTEST] = "unittest",
    [VERIFIER_PYTEST] = "pytest",       [VERIFIER_DOCTEST] = "doctest",
    [VERIFIER_EVALPLUS] = "evalplus",   [VERIFIER_STDIO] = "stdio",
    [VERIFIER_APPS] = "apps",           [VERIFIER_LIVECODEBENCH] = "livecodebench",
};

bool verifier_format_parse(const char *name, enum verifier_format *out, struct err *e) {
    for (size_t i = 0; i < sizeof format_names / sizeof format_names[0]; i++)
        if (!strcmp(name, format_names[i])) {
            *out = (enum verifier_format)i;
            return true;
        }
    return err_param(e, "format",
                     "unknown tests format \"%.40s\"; known are humaneval, asserts, script, "
                     "unittest, pytest, doctest, evalplus, stdio, apps, livecodebench",
                     name);
}

const char *verifier_format_name(enum verifier_format format) { return format_names[format]; }

bool verifier_feedback_parse(const char *name, enum verifier_feedback *out, struct err *e) {
    static const char *const names[] = {"none", "names", "full"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum verifier_feedback)i;
            return true;
        }
    return err_param(e, "feedback", "unknown feedback \"%.40s\"; known are none, names, full",
                     name);
}

bool verifier_extract_parse(const char *name, enum verifier_extract *out, struct err *e) {
    static const char *const names[] = {"auto", "fenced", "raw", "continuation"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum verifier_extract)i;
            return true;
        }
    return err_param(e, "extract",
                     "unknown extraction \"%.40s\"; known are auto, fenced, raw, continuation",
                     name);
}

/* ---- life ---- */

static void on_deliver(void *arg);

struct verifier *verifier_open(const struct verifier_options *options, struct err *e) {
    struct verifier *v = err_alloc(1, sizeof *v);
    list_init(&v->tests);
    v->pool = pool_open(options, e);
    if (!v->pool) {
        free(v);
        return NULL;
    }
    return v;
}

bool verifier_attach(struct verifier *v, uv_loop_t *loop, struct err *e) {
    if (!pool_attach(v->pool, loop, e)) return false;
    v->deliver = watch_timer_open(pool_watches(v->pool), on_deliver, v);
    v->template = template_open(v->pool);
    return true;
}

const struct verifier_report *verifier_report(const struct verifier *v) {
    return pool_report(v->pool);
}

static void due(struct verifier *v) {
    if (v->deliver) watch_timer_set(v->deliver, 0);
}

static void on_watches_gone(void *arg) {
    struct verifier *v = arg;
    v->closed(v->closed_arg);
}

void verifier_close(struct verifier *v, void (*closed)(void *arg), void *arg) {
    v->closing = true;
    v->closed = closed;
    v->closed_arg = arg;
    while (!list_empty(&v->tests))
        verifier_tests_close(LIST_ITEM(v->tests.next, struct verifier_tests, link));
    pool_close(v->pool);
    template_close(v->template);
    v->template = NULL;
    watch_timer_close(v->deliver);
    v->deliver = NULL;
    struct watch_set *watches = pool_watches(v->pool);
    watches->on_empty = on_watches_gone;
    watches->arg = v;
}

void verifier_free(struct verifier *v) {
    if (!v) return;
    pool_free(v->pool);
    free(v);
}

void verifier_stats(const struct verifier *v, struct verifier_stats *out) {
    struct pool_counts counts;
    pool_counts(v->pool, &counts);
    *out = v->stats;
    out->queued = counts.queued;
    out->running = counts.running;
    out->workers = counts.workers;
    out->workers_replaced = counts.replaced;
}

/* ---- tests objects ---- */

static void free_tests(struct verifier_tests *t) {
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct run *run = t->buckets[i], *next; run; run = next) {
            next = run->next;
            verdict_clear(&run->kept);
            free(run->code);
            free(run);
        }
    for (int i = 0; i < 3; i++)
        free(t->strings[i]);
    for (int i = 0; i < t->n_names; i++)
        free(t->names[i]);
    free(t->names);
    cases_clear(&t->cases);
    free(t);
}

static bool is_running(const struct run *run) { return run->job || run->program; }

static void cancel_run(struct run *run) {
    if (run->job) job_cancel(run->job);
    if (run->program) program_cancel(run->program);
    run->job = NULL;
    run->program = NULL;
}

static void free_submission(struct submission *s) {
    list_remove(&s->link);
    list_remove(&s->all);
    extract_clear(&s->extracted);
    free(s);
}

void verifier_tests_close(struct verifier_tests *t) {
    if (!t || t->closed) return;
    t->closed = true;
    list_remove(&t->link);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct run *run = t->buckets[i]; run; run = run->next)
            cancel_run(run);
    while (!list_empty(&t->submissions))
        free_submission(LIST_ITEM(t->submissions.next, struct submission, all));
    if (t->compiling && t->task.worker) {
        suite_forget(t->suite, t->task.worker);
        pool_done(t->verifier->pool, &t->task);
    } else if (t->compiling) {
        pool_withdraw(t->verifier->pool, &t->task);
    }
    suite_close(t->suite);
    if (!t->n_users) free_tests(t);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void take_names(struct verifier_tests *t, const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        char **more = err_realloc(t->names, (size_t)t->n_names + 1, sizeof *more);
        t->names = more;
        t->names[t->n_names++] = err_strndup(text, n);
        text += n + (text[n] == '\n');
    }
    if (t->n_names) qsort(t->names, (size_t)t->n_names, sizeof t->names[0], compare_names);
}

static void on_compiled(void *arg, enum holder_state state, const char *text) {
    struct verifier_tests *t = arg;
    if (state == HOLDER_LOST && t->losses < MOST_LOSSES) {
        /* Its worker died, which says nothing of the tests: another one compiles them. */
        t->losses++;
        pool_lost(t->verifier->pool, &t->task);
        pool_submit(t->verifier->pool, &t->task);
        return;
    }
    t->compiling = false;
    t->ready_due = true;
    switch (state) {
    case HOLDER_READY:
        t->compiled = true;
        take_names(t, text);
        break;
    case HOLDER_REFUSED:
        err_param(&t->error, "tests", "%.480s", text);
        break;
    case HOLDER_SLOW:
        err_param(&t->error, "tests", "the tests take more than %d s to compile", SUITE_COMPILE_S);
        break;
    case HOLDER_STARTING:
    case HOLDER_MISSING:
    case HOLDER_LOST:
        err_set(&t->error, ERR_SYSTEM, "the sandbox process that compiles the tests was lost");
        break;
    }
    pool_done(t->verifier->pool, &t->task);
    due(t->verifier);
}

static void on_begin(struct task *task, struct worker *w) {
    struct verifier_tests *t = LIST_ITEM(task, struct verifier_tests, task);
    suite_want(t->suite, w, on_compiled, t);
}

static bool has_data(enum verifier_format format) {
    return format == VERIFIER_EVALPLUS || format == VERIFIER_STDIO || format == VERIFIER_APPS ||
           format == VERIFIER_LIVECODEBENCH;
}

static bool check_spec(const struct verifier_spec *spec, struct err *e) {
    size_t most = has_data(spec->format) ? LIMIT_TESTS_DATA_BYTES : LIMIT_TESTS_BYTES;
    if (spec->tests_len > most)
        return err_param(e, "tests", "the tests have %zu bytes; the limit is %zu", spec->tests_len,
                         most);
    if (spec->prompt_len > LIMIT_TESTS_BYTES)
        return err_param(e, "prompt", "the prompt has %zu bytes; the limit is %d", spec->prompt_len,
                         LIMIT_TESTS_BYTES);
    if (!(spec->timeout_s > 0) || spec->timeout_s > LIMIT_VERIFY_SECONDS)
        return err_param(e, "timeout_s", "timeout_s must be above 0 and at most %d",
                         LIMIT_VERIFY_SECONDS);
    if (spec->memory_mb < 1 || spec->memory_mb > LIMIT_VERIFY_MEMORY_MB)
        return err_param(e, "memory_mb", "memory_mb must be 1 … %d", LIMIT_VERIFY_MEMORY_MB);
    if (!utf8_valid(spec->tests, spec->tests_len) ||
        (spec->prompt && !utf8_valid(spec->prompt, spec->prompt_len)))
        return err_param(e, "tests", "tests and prompt must be valid UTF-8");
    if (memchr(spec->tests, 0, spec->tests_len))
        return err_param(e, "tests", "the tests contain a NUL character");
    return true;
}

/* Cases of programs are read here and need no suite but for a checker; all else is compiled. */
static bool take_tests(struct verifier *v, const struct verifier_spec *spec, struct cases *cases,
                       struct suite **suite, struct err *e) {
    *suite = NULL;
    bool data = has_data(spec->format) && spec->format != VERIFIER_EVALPLUS;
    if (data && !cases_read(spec->format, spec->tests, spec->tests_len, cases, e)) return false;
    if (cases->n && !cases->checker) return true;
    struct verifier_spec compiled = *spec;
    if (cases->n) {
        compiled.tests = cases->checker;
        compiled.tests_len = strlen(cases->checker);
    }
    const char *format = cases->n ? "checker" : verifier_format_name(spec->format);
    *suite = suite_open(v->pool, &compiled, format, e);
    if (!*suite) cases_clear(cases);
    return *suite != NULL;
}

bool verifier_tests_open(struct verifier *v, const struct verifier_spec *spec,
                         void (*ready)(void *arg, struct verifier_tests *, const struct err *),
                         void *arg, struct err *e) {
    struct cases cases = {0};
    struct suite *suite;
    if (v->closing || !v->deliver) return err_set(e, ERR_UNAVAILABLE, "the verifier isn't running");
    if (!check_spec(spec, e) || !take_tests(v, spec, &cases, &suite, e)) return false;
    struct verifier_tests *t = err_alloc(1, sizeof *t);
    *t = (struct verifier_tests){
        .verifier = v,
        .spec = *spec,
        .cases = cases,
        .suite = suite,
        .task = {.urgent = true, .priority = spec->priority, .begin = on_begin},
        .compiling = suite != NULL,
        .compiled = suite == NULL,
        .ready_due = suite == NULL,
        .ready = ready,
        .arg = arg,
    };
    t->strings[0] = spec->prompt ? err_strndup(spec->prompt, spec->prompt_len) : NULL;
    t->strings[1] = spec->entry_point ? err_strdup(spec->entry_point) : NULL;
    t->spec.prompt = t->strings[0];
    t->spec.entry_point = t->strings[1];
    t->spec.tests = NULL; /* the suite has them; this process needs them no more */
    list_init(&t->task.link);
    list_init(&t->submissions);
    list_init(&t->due);
    list_append(&v->tests, &t->link);
    if (suite)
        pool_submit(v->pool, &t->task);
    else
        due(v);
    return true;
}

/* ---- runs ---- */

static uint64_t hash_bytes(const char *data, size_t len) { /* FNV-1a; equality is by content */
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)data[i]) * UINT64_C(1099511628211);
    return h;
}

static struct run *find_run(struct verifier_tests *t, const char *code, size_t len, bool *is_new) {
    uint64_t hash = hash_bytes(code, len);
    struct run **bucket = &t->buckets[hash % BUCKETS];
    *is_new = false;
    for (struct run *run = *bucket; run; run = run->next)
        if (run->hash == hash && run->len == len && !memcmp(run->code, code, len)) return run;
    struct run *run = err_alloc(1, sizeof *run);
    *run = (struct run){.next = *bucket, .hash = hash, .code = err_strndup(code, len), .len = len};
    list_init(&run->waiters);
    *bucket = run;
    *is_new = true;
    return run;
}

static void settle(struct submission *s, struct run *told) {
    s->told = told;
    list_remove(&s->link);
    list_append(&s->tests->due, &s->link);
    due(s->tests->verifier);
}

static void try_next(struct submission *s);

/* A verdict came for the extraction that s waits for. */
static void hear(struct submission *s, struct run *run) {
    list_remove(&s->link);
    if (run->kept.verdict.kind == VERDICT_PASSED) {
        s->reported = s->at;
        settle(s, run);
    } else {
        if (s->at == 0) s->told = run;
        s->at++;
        try_next(s);
    }
}

static const char *trust_of(const struct verifier_tests *t) {
    return t->cases.n ? "stdio" : "split";
}

static void on_job(void *arg, const struct job_result *result) {
    struct run *run = arg;
    struct submission *first = LIST_ITEM(run->waiters.next, struct submission, link);
    struct verifier *v = first->tests->verifier;
    run->job = NULL;
    run->program = NULL;
    run->decided = true;
    struct verdict verdict = {
        .kind = result->kind,
        .tests_passed = result->tests_passed,
        .tests_total = result->tests_total,
        .cpu_s = result->cpu_s,
        .wall_s = result->wall_s,
        .max_rss_mb = result->max_rss_mb,
        .code = run->code,
        .code_len = run->len,
        .method = "",
        .error = result->error,
        .output = result->output,
        .output_len = result->output_len,
        .tests = result->tests,
        .n_tests = result->n_tests,
        .limit = result->limit,
        .trust = trust_of(first->tests),
    };
    verdict_keep(&run->kept, &verdict);
    v->stats.cpu_s += result->cpu_s;
    v->stats.wall_s += result->wall_s;
    v->stats.retries += (uint64_t)result->retries;
    v->stats.reruns += result->again;
    LIST_EACH_SAFE(it, &run->waiters)
    hear(LIST_ITEM(it, struct submission, link), run);
}

/* random.seed of candidate i: a hash of both, so that neighbours don't share a stream. */
static uint64_t seed_of(const struct verifier_tests *t, int index) {
    uint64_t x = t->spec.seed + (uint64_t)index * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void start_run(struct verifier_tests *t, struct run *run, uint64_t seed, struct err *e) {
    struct job_input input = {
        .suite = t->suite,
        .code = run->code,
        .code_len = run->len,
        .seed = seed,
        .timeout_s = t->spec.timeout_s,
        .memory_mb = t->spec.memory_mb,
        .score = t->spec.score,
        .priority = t->spec.priority,
        .share = &t->share,
    };
    if (!t->cases.n) {
        run->job = job_start(t->verifier->pool, &input, on_job, run, e);
        return;
    }
    struct program_input of_program = {
        .job = input,
        .cases = &t->cases,
        .feedback = t->spec.feedback,
    };
    run->program = program_start(t->verifier->pool, &of_program, on_job, run, e);
}

static void try_next(struct submission *s) {
    struct verifier_tests *t = s->tests;
    while (s->at < s->extracted.n) {
        const struct extract_try *code = &s->extracted.tries[s->at];
        bool is_new;
        struct run *run = find_run(t, code->code, code->len, &is_new);
        s->shared = !is_new;
        list_remove(&s->link);
        list_append(&run->waiters, &s->link);
        if (run->decided) {
            list_remove(&s->link);
            if (run->kept.verdict.kind == VERDICT_PASSED) {
                s->reported = s->at;
                settle(s, run);
                return;
            }
            if (s->at == 0) s->told = run;
            s->at++;
            continue;
        }
        if (is_running(run)) return;
        struct err e = {0};
        start_run(t, run, seed_of(t, s->index), &e);
        if (is_running(run)) return;
        log_line(LOG_ERROR, "verifier: %s", e.message);
        s->broken = true;
        s->error = "the sandbox has no memory for the code";
        s->at = s->extracted.n;
    }
    settle(s, s->told);
}

static bool prepare(struct submission *s, const char *text, size_t len, bool cut_by_length) {
    struct verifier_tests *t = s->tests;
    if (len > LIMIT_CODE_BYTES) {
        s->error = "the text is larger than a candidate may be";
        s->limit = "source_size";
        return false;
    }
    struct extract_input input = {
        .how = t->spec.extract,
        .text = text,
        .text_len = len,
        .prompt = t->spec.prompt,
        .prompt_len = t->spec.prompt_len,
        .names = (const char *const *)t->names,
        .n_names = t->n_names,
        .cut_by_length = cut_by_length,
    };
    extract_code(&input, &s->extracted);
    if (!s->extracted.n) s->error = "no code was found in the text";
    return s->extracted.n > 0;
}

uint64_t verifier_submit(struct verifier_tests *t, int index, const char *text, size_t len,
                         bool cut_by_length,
                         void (*done)(void *arg, int index, const struct verdict *), void *arg) {
    struct submission *s = err_alloc(1, sizeof *s);
    *s = (struct submission){
        .tests = t,
        .id = ++t->verifier->next_id,
        .index = index,
        .done = done,
        .arg = arg,
    };
    list_init(&s->link);
    list_init(&s->all);
    list_append(&t->submissions, &s->all);
    if (prepare(s, text, len, cut_by_length))
        try_next(s);
    else
        settle(s, NULL);
    return s->id;
}

void verifier_cancel(struct verifier_tests *t, uint64_t id) {
    LIST_EACH_SAFE(it, &t->submissions) {
        struct submission *s = LIST_ITEM(it, struct submission, all);
        if (s->id != id) continue;
        struct run *run = NULL;
        if (s->at < s->extracted.n) {
            bool is_new;
            run =
                find_run(t, s->extracted.tries[s->at].code, s->extracted.tries[s->at].len, &is_new);
        }
        free_submission(s);
        /* Nobody else waits: the run is given up, and made anew should the same code come again. */
        if (run && list_empty(&run->waiters)) cancel_run(run);
        return;
    }
}

/* ---- delivery ---- */

static void deliver_verdict(struct verifier_tests *t, struct submission *s) {
    struct verifier *v = t->verifier;
    struct verdict verdict = {
        .kind = s->broken ? VERDICT_BROKEN : VERDICT_FAILED,
        .code = "",
        .method = "none",
        .error = s->error ? s->error : "",
        .output = "",
        .limit = s->limit,
        .trust = trust_of(t),
    };
    if (s->told) {
        verdict = s->told->kept.verdict;
        verdict.method = s->extracted.tries[s->reported].method;
        verdict.duplicate = s->shared;
    }
    v->stats.verdicts[verdict.kind]++;
    v->stats.duplicates += verdict.duplicate;
    void (*done)(void *, int, const struct verdict *) = s->done;
    void *arg = s->arg;
    int index = s->index;
    free_submission(s);
    done(arg, index, &verdict);
}

static void deliver_ready(struct verifier_tests *t) {
    t->ready_due = false;
    void (*ready)(void *, struct verifier_tests *, const struct err *) = t->ready;
    if (t->compiled) {
        ready(t->arg, t, NULL);
        return;
    }
    struct err e = t->error;
    void *arg = t->arg;
    verifier_tests_close(t);
    ready(arg, NULL, &e);
}

/* The next tests object with something to tell, or NULL. */
static struct verifier_tests *next_due(struct verifier *v) {
    LIST_EACH(it, &v->tests) {
        struct verifier_tests *t = LIST_ITEM(it, struct verifier_tests, link);
        if (t->ready_due || !list_empty(&t->due)) return t;
    }
    return NULL;
}

static void on_deliver(void *arg) {
    struct verifier *v = arg;
    for (struct verifier_tests *t; !v->closing && (t = next_due(v));) {
        t->n_users++;
        struct submission *s = LIST_ITEM(t->due.next, struct submission, link);
        if (t->ready_due)
            deliver_ready(t);
        else
            /* It leaves the list before it is freed, which the analyzer can't see. */
            deliver_verdict(t, s); // NOLINT(clang-analyzer-unix.Malloc)
        if (--t->n_users == 0 && t->closed) free_tests(t);
    }
}

/* ---- chat templates ---- */

bool verifier_template_set(struct verifier *v, const char *text, size_t len,
                           void (*ready)(void *arg, const struct err *), void *arg, struct err *e) {
    if (!v->template) return err_set(e, ERR_UNAVAILABLE, "the verifier isn't running");
    return template_set(v->template, text, len, ready, arg, e);
}

uint64_t verifier_render(struct verifier *v, const char *variables, size_t len,
                         void (*done)(void *arg, const char *text, size_t len, const struct err *),
                         void *arg) {
    return template_render(v->template, variables, len, done, arg);
}

void verifier_render_cancel(struct verifier *v, uint64_t id) {
    if (v->template) template_cancel(v->template, id);
}
