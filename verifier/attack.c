#include "verifier/attack.h"

#include "verifier/inside/embedded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usual_tests[] = "assert f(2) == 4\nassert f(3) == 6\nassert f(10) == 20\n";
static const double SECONDS = 1.0; /* of processor time; the wall clock gives twice that and 2 s */

/* ---- the text ---- */

static unsigned parse_kinds(const char *words) {
    unsigned bits = 0;
    for (int kind = 0; kind <= VERDICT_BROKEN; kind++) {
        const char *name = verdict_name((enum verdict_kind)kind);
        const char *at = strstr(words, name);
        if (at && (at[strlen(name)] == ' ' || !at[strlen(name)])) bits |= 1U << kind;
    }
    BUG_ON(!bits);
    return bits;
}

static unsigned parse_levels(const char *words) {
    unsigned bits = 0;
    for (; *words; words++)
        if (*words >= '0' && *words <= '3') bits |= 1U << (*words - '0');
    return bits;
}

static unsigned parse_layer(const char *name) {
    if (!strcmp(name, "seccomp")) return VERIFIER_WITHOUT_SECCOMP;
    BUG_ON(strcmp(name, "limits") != 0);
    return VERIFIER_WITHOUT_LIMITS;
}

static bool directive(struct attack *a, const char *line) {
    if (strncmp(line, "#: ", 3) != 0) return false;
    line += 3;
    if (!strncmp(line, "expect ", 7))
        a->expect = parse_kinds(line + 7);
    else if (!strncmp(line, "open-user ", 10))
        a->open_user = parse_levels(line + 10);
    else if (!strncmp(line, "open ", 5))
        a->open = parse_levels(line + 5);
    else if (!strncmp(line, "twin ", 5))
        a->twin_levels = parse_levels(line + 5);
    else if (!strncmp(line, "needs ", 6))
        a->needs |= parse_layer(line + 6);
    else
        BUG_ON(true);
    return true;
}

static void append(char **text, const char *line, size_t len) {
    size_t old = *text ? strlen(*text) : 0;
    *text = err_realloc(*text, old + len + 2, 1);
    memcpy(*text + old, line, len);
    memcpy(*text + old + len, "\n", 2);
}

static char **take_line(struct attack_list *list, char **into, const char *line, size_t len) {
    struct attack *a = list->n ? &list->items[list->n - 1] : NULL;
    char text[256];
    snprintf(text, sizeof text, "%.*s", (int)(len < sizeof text ? len : sizeof text - 1), line);
    if (!strncmp(text, "#### ", 5)) {
        list->items = err_realloc(list->items, (size_t)list->n + 1, sizeof *list->items);
        a = &list->items[list->n++];
        *a = (struct attack){.expect = 1U << VERDICT_FAILED, .twin_levels = 15};
        snprintf(a->name, sizeof a->name, "%.99s", text + 5);
        return &a->code;
    }
    if (!a || !into) return NULL; /* what comes before the first is prose */
    if (!strcmp(text, "---- twin")) return &a->twin;
    if (!strcmp(text, "---- tests")) return &a->tests;
    if (!directive(a, text)) append(into, line, len);
    return into;
}

void attack_load(struct attack_list *list) {
    BUG_ON(embedded_attacks_n_files != 1);
    const char *at = (const char *)embedded_attacks_files[0].data;
    const char *end = at + embedded_attacks_files[0].len;
    char **into = NULL;
    *list = (struct attack_list){0};
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        into = take_line(list, into, at, (size_t)(stop - at));
        at = stop + 1;
    }
    for (int i = 0; i < list->n; i++)
        BUG_ON(!list->items[i].code || !list->items[i].twin);
}

void attack_unload(struct attack_list *list) {
    for (int i = 0; i < list->n; i++) {
        free(list->items[i].code);
        free(list->items[i].twin);
        free(list->items[i].tests);
    }
    free(list->items);
    *list = (struct attack_list){0};
}

/* ---- one run ---- */

struct job_of {
    int attack;
    bool is_twin;
};

struct run {
    uv_loop_t *loop;                 /* borrowed */
    const struct attack_list *list;  /* borrowed */
    struct attack_outcome *outcomes; /* borrowed */
    struct verifier_tests *tests;    /* owned while a group runs */
    struct job_of *jobs;             /* owned; of the group */
    int n_jobs, pending, done, total;
    bool told;
    struct err refused;
    void (*progress)(void *arg, int done, int total);
    void *arg; /* borrowed */
};

static void on_ready(void *arg, struct verifier_tests *tests, const struct err *e) {
    struct run *r = arg;
    r->told = true;
    r->tests = tests;
    if (e) r->refused = *e;
}

static void on_verdict(void *arg, int index, const struct verdict *v) {
    struct run *r = arg;
    const struct job_of *job = &r->jobs[index];
    struct attack_outcome *o = &r->outcomes[job->attack];
    char *said = job->is_twin ? o->twin_said : o->said;
    snprintf(said, sizeof o->said, "%s%s%.180s", v->limit ? v->limit : "", v->limit ? ": " : "",
             v->error);
    if (job->is_twin) {
        o->twin_kind = v->kind;
        o->twin_ran = true;
    } else {
        o->kind = v->kind;
        o->ran = true;
    }
    r->pending--;
    r->done++;
    if (r->progress) r->progress(r->arg, r->done, r->total);
}

static const char *tests_of(const struct attack *a) { return a->tests ? a->tests : usual_tests; }

static bool is_first_of_its_group(const struct attack_list *list, int i) {
    for (int j = 0; j < i; j++)
        if (!strcmp(tests_of(&list->items[j]), tests_of(&list->items[i]))) return false;
    return true;
}

/* An attack against the supervisor's clocks alone shows nothing of the layers, and takes its time.
 */
static bool is_to_run(const struct attack *a, unsigned without) {
    const unsigned clocks = 1U << VERDICT_TIMEOUT | 1U << VERDICT_OUTPUT_LIMIT;
    return !(a->needs & without) && !(without && !(a->expect & ~clocks));
}

static void collect(struct run *r, int from, int level, unsigned without, bool with_twins) {
    const struct attack_list *list = r->list;
    r->n_jobs = 0;
    for (int i = from; i < list->n; i++) {
        const struct attack *a = &list->items[i];
        if (strcmp(tests_of(a), tests_of(&list->items[from])) != 0 || !is_to_run(a, without))
            continue;
        r->jobs[r->n_jobs++] = (struct job_of){i, false};
        if (with_twins && (a->twin_levels >> level & 1))
            r->jobs[r->n_jobs++] = (struct job_of){i, true};
    }
}

static bool run_group(struct run *r, struct verifier *v, const char *tests, struct err *e) {
    struct verifier_spec spec = {
        .format = VERIFIER_ASSERTS,
        .tests = tests,
        .tests_len = strlen(tests),
        .entry_point = "f",
        .extract = VERIFIER_EXTRACT_RAW,
        .timeout_s = SECONDS,
        .memory_mb = 128,
        .seed = 7,
    };
    r->told = false;
    if (!verifier_tests_open(v, &spec, on_ready, r, e)) return false;
    while (!r->told)
        uv_run(r->loop, UV_RUN_ONCE);
    if (!r->tests) {
        if (e) *e = r->refused;
        return false;
    }
    r->pending = r->n_jobs;
    for (int i = 0; i < r->n_jobs; i++) {
        const struct attack *a = &r->list->items[r->jobs[i].attack];
        const char *code = r->jobs[i].is_twin ? a->twin : a->code;
        verifier_submit(r->tests, i, code, strlen(code), false, on_verdict, r);
    }
    while (r->pending)
        uv_run(r->loop, UV_RUN_ONCE);
    verifier_tests_close(r->tests);
    r->tests = NULL;
    return true;
}

bool attack_run(struct verifier *v, uv_loop_t *loop, const struct attack_list *list,
                unsigned without, bool with_twins, struct attack_outcome *out,
                void (*progress)(void *arg, int done, int total), void *arg, struct err *e) {
    int level = verifier_report(v)->level;
    struct run r = {
        .loop = loop,
        .list = list,
        .outcomes = out,
        .jobs = err_alloc((size_t)list->n * 2, sizeof *r.jobs),
        .progress = progress,
        .arg = arg,
    };
    memset(out, 0, (size_t)list->n * sizeof *out);
    for (int i = 0; i < list->n; i++)
        if (is_to_run(&list->items[i], without))
            r.total += 1 + (with_twins && (list->items[i].twin_levels >> level & 1));
    bool ok = true;
    for (int i = 0; i < list->n && ok; i++) {
        if (!is_first_of_its_group(list, i)) continue;
        collect(&r, i, level, without, with_twins);
        if (r.n_jobs) ok = run_group(&r, v, tests_of(&list->items[i]), e);
    }
    free(r.jobs);
    return ok;
}

enum attack_result attack_judge(const struct attack *a, const struct attack_outcome *o, int level,
                                bool own_uid) {
    if (!o->ran) return ATTACK_SKIPPED;
    if (o->kind == VERDICT_BROKEN || (o->twin_ran && o->twin_kind != VERDICT_PASSED))
        return ATTACK_WRONG;
    bool known = (a->open >> level & 1) || (!own_uid && (a->open_user >> level & 1));
    if (o->kind == VERDICT_PASSED) return known ? ATTACK_OPEN : ATTACK_THROUGH;
    return (a->expect >> o->kind & 1) || known ? ATTACK_STOPPED : ATTACK_WRONG;
}
