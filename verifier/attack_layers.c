/* verifier_attacks_run(): the attacks with all layers, then with some switched off. */
#include "verifier/attack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SECCOMP = VERIFIER_WITHOUT_SECCOMP,
    LANDLOCK = VERIFIER_WITHOUT_LANDLOCK,
    NAMESPACES = VERIFIER_WITHOUT_NAMESPACES,
    UID = VERIFIER_WITHOUT_UID,
    LIMITS = VERIFIER_WITHOUT_LIMITS,
};

/* The fewest first: an attack is put down to the first of them in which it works.  Layers overlap,
 * so that what one of them is for shows only where those that cover it are off too. */
static const unsigned arrangements[] = {
    0,
    SECCOMP,
    LANDLOCK,
    NAMESPACES,
    UID,
    LIMITS,
    SECCOMP | NAMESPACES,
    LANDLOCK | NAMESPACES,
    SECCOMP | LANDLOCK | NAMESPACES,
    LANDLOCK | NAMESPACES | UID,
};
_Static_assert(sizeof arrangements / sizeof arrangements[0] == VERIFIER_ARRANGEMENTS,
               "verifier.h says how many there are");

const char *verifier_without_name(enum verifier_without layer) {
    switch (layer) {
    case VERIFIER_WITHOUT_SECCOMP:
        return "seccomp";
    case VERIFIER_WITHOUT_LANDLOCK:
        return "landlock";
    case VERIFIER_WITHOUT_NAMESPACES:
        return "namespaces";
    case VERIFIER_WITHOUT_UID:
        return "uid";
    case VERIFIER_WITHOUT_LIMITS:
        return "limits";
    }
    return "";
}

struct run {
    const struct verifier_options *options; /* borrowed */
    struct verifier_attacks *out;           /* borrowed */
    struct attack_list list;                /* owned until it is handed out */
    struct attack_outcome *outcomes;        /* owned */
    unsigned there;                         /* the layers that this machine gives */
    unsigned without;                       /* under way */
    void (*progress)(void *arg, unsigned without, int done, int total);
    void *arg; /* borrowed */
};

static void on_progress(void *arg, int done, int total) {
    const struct run *r = arg;
    if (r->progress) r->progress(r->arg, r->without, done, total);
}

static bool is_active(const struct verifier_report *report, const char *name) {
    for (int i = 0; i < report->n_layers; i++)
        if (!strcmp(report->layers[i].name, name)) return report->layers[i].active;
    return false;
}

static unsigned layers_of(const struct verifier_report *report) {
    unsigned there = LIMITS;
    if (is_active(report, "seccomp")) there |= SECCOMP;
    if (is_active(report, "landlock")) there |= LANDLOCK;
    if (is_active(report, "mount tree")) there |= NAMESPACES;
    if (is_active(report, "uid") && geteuid() == 0) there |= UID;
    return there;
}

static void on_closed(void *arg) { *(bool *)arg = true; }

/* One sandbox in this arrangement, all attacks in it. */
static bool run_arrangement(struct run *r, unsigned without, struct err *e) {
    struct verifier_options options = *r->options;
    options.without = without;
    r->without = without;
    if (without) options.min_level = 0;
    uv_loop_t loop;
    struct verifier *v = verifier_open(&options, e);
    if (!v) return false;
    BUG_ON(uv_loop_init(&loop));
    bool ok = verifier_attach(v, &loop, e);
    if (ok) {
        const struct verifier_report *report = verifier_report(v);
        if (!without) {
            r->there = layers_of(report);
            r->out->level = report->level;
        }
        ok = attack_run(v, &loop, &r->list, without, !without, r->outcomes, on_progress, r, e);
        bool closed = false;
        verifier_close(v, on_closed, &closed);
        while (!closed)
            uv_run(&loop, UV_RUN_ONCE);
    }
    verifier_free(v);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    return ok;
}

static void keep_first(struct run *r) {
    static const char *const names[] = {"skipped", "stopped", "open", "through", "wrong"};
    struct verifier_attacks *out = r->out;
    for (int i = 0; i < r->list.n; i++) {
        const struct attack_outcome *o = &r->outcomes[i];
        enum attack_result result =
            attack_judge(&r->list.items[i], o, out->level, (r->there & UID) != 0);
        struct verifier_attack *seen = &out->items[i];
        seen->name = r->list.items[i].name;
        seen->verdict = o->kind;
        seen->result = names[result];
        snprintf(seen->said, sizeof seen->said, "%s", o->said);
        seen->twin_ran = o->twin_ran;
        seen->twin_passed = o->twin_ran && o->twin_kind == VERDICT_PASSED;
        out->n_stopped += result == ATTACK_STOPPED;
        out->n_open += result == ATTACK_OPEN;
        out->n_through += result == ATTACK_THROUGH;
        out->n_wrong += result == ATTACK_WRONG || result == ATTACK_SKIPPED;
    }
}

static void keep(struct run *r, unsigned without) {
    struct verifier_attacks *out = r->out;
    int at = out->n_arrangements++;
    out->without[at] = without;
    for (int i = 0; i < r->list.n; i++) {
        struct verifier_attack *seen = &out->items[i];
        bool worked = r->outcomes[i].ran && r->outcomes[i].kind == VERDICT_PASSED;
        if (worked && !seen->through) seen->stopped_by = without;
        seen->ran |= (unsigned)r->outcomes[i].ran << at;
        seen->through |= (unsigned)worked << at;
    }
}

bool verifier_attacks_run(const struct verifier_options *options, struct verifier_attacks *out,
                          void (*progress)(void *arg, unsigned without, int done, int total),
                          void *arg, struct err *e) {
    struct run r = {.options = options, .out = out, .progress = progress, .arg = arg};
    *out = (struct verifier_attacks){0};
    attack_load(&r.list);
    out->n = r.list.n;
    out->items = err_alloc((size_t)r.list.n, sizeof *out->items);
    out->text = err_alloc(1, sizeof r.list);
    r.outcomes = err_alloc((size_t)r.list.n, sizeof *r.outcomes);
    bool ok = true;
    for (int i = 0; i < VERIFIER_ARRANGEMENTS && ok; i++) {
        /* What isn't there can't be switched off. */
        if (arrangements[i] & ~r.there && i) continue;
        ok = run_arrangement(&r, arrangements[i], e);
        if (ok && !i) keep_first(&r);
        if (ok) keep(&r, arrangements[i]);
    }
    memcpy(out->text, &r.list, sizeof r.list);
    free(r.outcomes);
    if (!ok) verifier_attacks_clear(out);
    return ok;
}

void verifier_attacks_clear(struct verifier_attacks *a) {
    if (a->text) attack_unload(a->text);
    free(a->text);
    free(a->items);
    *a = (struct verifier_attacks){0};
}
