/* `firstpass bench decode`: the engine alone, without HTTP and verifier: tokens a second for N
 * candidates of one prompt, and where the time goes. */
#include "base/clock.h"
#include "config/limits.h"
#include "engine/engine.h"
#include "server/command.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RUNS = 32 };

struct bench {
    int n[MAX_RUNS], n_runs;
    int prompt, gen, repeat;
    bool no_share, json;
    float temperature, top_p;
};

struct measure {
    int n;
    double prefill_s, decode_s;
    uint64_t tokens, rows; /* of the decode part */
    double macs, bytes, op_s[ENGINE_OPS];
    const char *op_name[ENGINE_OPS];
};

/* ---- arguments ---- */

static bool parse_int(const char *text, const char *name, int most, int *out, struct err *e) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 1 || value > most)
        return err_set(e, ERR_INPUT, "--%s is \"%s\"; it must be a number from 1 to %d", name, text,
                       most);
    *out = (int)value;
    return true;
}

static bool parse_list(struct bench *b, const char *text, struct err *e) {
    char *copy = err_strdup(text), *rest = copy;
    bool ok = true;
    b->n_runs = 0;
    for (char *item; ok && (item = strsep(&rest, ","));) {
        if (b->n_runs == MAX_RUNS)
            ok = err_set(e, ERR_INPUT, "--n lists more than %d numbers", MAX_RUNS);
        else
            ok = parse_int(item, "n", LIMIT_CANDIDATES, &b->n[b->n_runs++], e);
    }
    free(copy);
    return ok;
}

static bool parse_float(const char *text, const char *name, float most, float *out, struct err *e) {
    char *end;
    float value = strtof(text, &end);
    if (*end || end == text || !(value >= 0 && value <= most))
        return err_set(e, ERR_INPUT, "--%s is \"%s\"; it must be a number from 0 to %g", name, text,
                       (double)most);
    *out = value;
    return true;
}

static bool parse(struct bench *b, int argc, char **argv, struct err *e) {
    struct command_args a;
    *b = (struct bench){.n = {1, 8, 32, 64},
                        .n_runs = 4,
                        .prompt = 160,
                        .gen = 48,
                        .repeat = 1,
                        .temperature = 0.8f,
                        .top_p = 0.95f};
    command_args_init(&a, argc, argv, e);
    while (command_args_next(&a)) {
        const char *v;
        bool ok = true;
        if ((v = command_args_value(&a, "n")))
            ok = parse_list(b, v, e);
        else if ((v = command_args_value(&a, "prompt")))
            ok = parse_int(v, "prompt", LIMIT_CONTEXT, &b->prompt, e);
        else if ((v = command_args_value(&a, "gen")))
            ok = parse_int(v, "gen", LIMIT_CONTEXT, &b->gen, e);
        else if ((v = command_args_value(&a, "repeat")))
            ok = parse_int(v, "repeat", 1000, &b->repeat, e);
        else if ((v = command_args_value(&a, "temperature")))
            ok = parse_float(v, "temperature", 10, &b->temperature, e);
        else if ((v = command_args_value(&a, "top-p")))
            ok = parse_float(v, "top-p", 1, &b->top_p, e);
        else if (command_args_flag(&a, "no-share"))
            b->no_share = true;
        else if (command_args_flag(&a, "json"))
            b->json = true;
        else if (command_args_name(&a) && !strcmp(command_args_name(&a), "decode"))
            continue;
        else
            command_args_unknown(&a);
        if (!ok) return false;
    }
    return !a.failed;
}

/* ---- measuring ---- */

static void no_wake(void *arg) { (void)arg; }

/* The difference of two snapshots: the decode part. */
static void subtract(struct measure *m, const struct engine_stats *from,
                     const struct engine_stats *to) {
    m->tokens = to->generated_tokens - from->generated_tokens;
    m->rows = to->rows - from->rows;
    for (int i = 0; i < ENGINE_OPS; i++) {
        m->op_name[i] = to->ops[i].name;
        m->op_s[i] = to->ops[i].seconds - from->ops[i].seconds;
        m->macs += to->ops[i].macs - from->ops[i].macs;
        m->bytes += to->ops[i].bytes - from->ops[i].bytes;
    }
}

static bool wait_event(struct engine *g, enum engine_event_type type, struct err *e) {
    for (;;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nanosleep(&(struct timespec){0, 100000}, NULL);
            continue;
        }
        bool ended = ev->type == ENGINE_JOB_ENDED, found = ev->type == type;
        bool failed = ended && ev->error.kind != ERR_NONE;
        if (failed) *e = ev->error;
        engine_event_free(ev);
        if (failed) return false;
        if (found) return true;
        BUG_ON(ended);
    }
}

/* A prompt of `n` tokens that no other measure has: nothing of it is in the cache. */
static void make_prompt(int32_t *prompt, int n, int n_vocab, int salt) {
    uint32_t state = 12345u + (uint32_t)salt * 77777u;
    int most = n_vocab < 40000 ? n_vocab : 40000;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((state >> 8) % (uint32_t)most);
    }
}

static bool measure(struct engine *g, const struct bench *b, int n, int salt, struct measure *m,
                    struct err *e) {
    int32_t *prompt = err_alloc((size_t)b->prompt, sizeof *prompt);
    make_prompt(prompt, b->prompt, engine_model(g)->n_vocab, salt);
    struct engine_job job = {
        .prompt = prompt,
        .n_prompt = b->prompt,
        .n_candidates = n,
        .width = n,
        .seed = (uint64_t)salt,
        .sampling = {.temperature = b->temperature, .top_p = b->top_p, .repetition_penalty = 1},
        .max_tokens = b->gen,
        .ignore_eos = true,
    };
    *m = (struct measure){.n = n};
    struct engine_stats before, after;
    uint64_t id;
    double begun = clock_seconds();
    bool ok = engine_submit(g, &job, &id, e) && wait_event(g, ENGINE_PREFILLED, e);
    free(prompt);
    if (!ok) return false;
    double prefilled = clock_seconds();
    engine_stats(g, &before);
    if (!wait_event(g, ENGINE_JOB_ENDED, e)) return false;
    double done = clock_seconds();
    /* The last turn's numbers are published just after its events. */
    do {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        engine_stats(g, &after);
    } while (after.candidates_running);
    subtract(m, &before, &after);
    m->tokens = (uint64_t)n * (uint64_t)b->gen;
    m->prefill_s = prefilled - begun;
    m->decode_s = done - prefilled;
    return true;
}

/* ---- telling ---- */

static void print_text(const struct bench *b, const struct measure *m) {
    printf("n %5d: %8.1f tokens/s, prefill %7.1f tokens/s, %6.1f GMAC/s, %5.1f GB/s, %.3f rows a "
           "token\n   ",
           m->n, (double)m->tokens / m->decode_s, (b->prompt - 1) / m->prefill_s,
           m->macs / m->decode_s / 1e9, m->bytes / m->decode_s / 1e9,
           (double)m->rows / (double)m->tokens);
    for (int i = 0; i < ENGINE_OPS; i++)
        printf(" %s %.0f %%", m->op_name[i], 100 * m->op_s[i] / m->decode_s);
    printf("\n");
}

static json_t *to_json(const struct bench *b, const struct measure *m) {
    json_t *ops = json_object();
    for (int i = 0; i < ENGINE_OPS; i++)
        json_object_set_new(ops, m->op_name[i], json_real(m->op_s[i]));
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:o}", "n", m->n, "tokens_per_s",
                     (double)m->tokens / m->decode_s, "prefill_tokens_per_s",
                     (b->prompt - 1) / m->prefill_s, "gmac_per_s", m->macs / m->decode_s / 1e9,
                     "gb_per_s", m->bytes / m->decode_s / 1e9, "rows_per_token",
                     (double)m->rows / (double)m->tokens, "seconds_by_operation", ops);
}

static bool run(struct engine *g, const struct bench *b, struct err *e) {
    json_t *runs = json_array();
    struct measure m;
    bool ok = measure(g, b, 1, 0, &m, e); /* warms caches up; not told */
    for (int round = 0, salt = 1; ok && round < b->repeat; round++)
        for (int i = 0; ok && i < b->n_runs; i++, salt++) {
            ok = measure(g, b, b->n[i], salt, &m, e);
            if (ok && b->json)
                json_array_append_new(runs, to_json(b, &m));
            else if (ok)
                print_text(b, &m);
        }
    if (ok && b->json) {
        json_t *all =
            json_pack("{s:s, s:i, s:i, s:b, s:O}", "model", engine_model(g)->name, "prompt",
                      b->prompt, "gen", b->gen, "shared", !b->no_share, "runs", runs);
        json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        printf("\n");
        json_decref(all);
    }
    json_decref(runs);
    return ok;
}

int command_bench(int argc, char **argv, const struct config *c) {
    struct err e = {0};
    struct bench b;
    if (!parse(&b, argc, argv, &e)) return command_failed("bench", &e);
    int most = 1;
    for (int i = 0; i < b.n_runs; i++)
        if (b.n[i] > most) most = b.n[i];
    char *path = config_model_path(c);
    struct engine_options options = {
        .model_path = path,
        .model_name = c->model.name,
        .backend = c->engine.backend,
        .isa = c->engine.isa,
        .threads = c->engine.threads,
        .context = c->engine.context,
        .max_rows = most > c->engine.max_rows ? most : c->engine.max_rows,
        .prefill_chunk = c->engine.prefill_chunk,
        .memory_bytes = (uint64_t)c->engine.memory_mb << 20,
        .kv_blocks = c->engine.kv_blocks,
        .no_sharing = b.no_share,
    };
    struct engine *g = engine_open(&options, &e);
    if (g && !b.json) engine_describe(g, stdout);
    bool ok = g && engine_start(g, no_wake, NULL, &e) && run(g, &b, &e);
    engine_close(g);
    free(path);
    return ok ? COMMAND_PASSED : command_failed("bench", &e);
}
