/* `firstpass bench decode`: tokens a second for N candidates of one prompt, where the time goes,
 * and how far that is from what the machine can do at most (the roofline). */
#include "base/ascending.h"
#include "base/clock.h"
#include "config/limits.h"
#include "engine/engine.h"
#include "server/command_bench.h"

#include <fcntl.h>
#include <jansson.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RUNS = 32, MAX_REPEAT = 1000 };

struct bench {
    int n[MAX_RUNS], n_runs;
    int prompt, gen, repeat;
    bool no_share, json;
    float temperature, top_p;
    sem_t *events; /* borrowed; posted when the engine has some */
};

/* One run.  Of the decode part: all but prefill_s. */
struct measure {
    int n;
    double prefill_s, decode_s;
    uint64_t tokens, rows;
    double macs, bytes, op_s[ENGINE_OPS];
    const char *op_name[ENGINE_OPS];
};

struct report {
    struct measure *runs; /* owned */
    int n_runs;
    struct engine_ceiling *ceilings; /* owned; measured before, between and after the rounds */
    int n_ceilings;
    struct engine_ceiling ceiling; /* their medians */
    uint64_t peak_bytes;           /* resident, loading included; 0: unknown */
    uint64_t file_bytes, kv_bytes, weight_bytes;
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
            ok = parse_int(v, "repeat", MAX_REPEAT, &b->repeat, e);
        else if ((v = command_args_value(&a, "temperature")))
            ok = parse_float(v, "temperature", 10, &b->temperature, e);
        else if ((v = command_args_value(&a, "top-p")))
            ok = parse_float(v, "top-p", 1, &b->top_p, e);
        else if (command_args_flag(&a, "no-share"))
            b->no_share = true;
        else if (command_args_flag(&a, "json"))
            b->json = true;
        else
            command_args_unknown(&a);
        if (!ok) return false;
    }
    return !a.failed;
}

/* ---- measuring ---- */

/* ENGINE thread. */
static void wake(void *arg) { sem_post(arg); }

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

/* Sleeps meanwhile: looking for events now and then would take time from the threads that compute.
 */
static bool wait_event(struct engine *g, sem_t *events, enum engine_event_type type,
                       struct err *e) {
    for (;;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            sem_wait(events); /* or a signal: then it looks once more */
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
    bool ok = engine_submit(g, &job, &id, e) && wait_event(g, b->events, ENGINE_PREFILLED, e);
    free(prompt);
    if (!ok) return false;
    double prefilled = clock_seconds();
    engine_stats(g, &before);
    if (!wait_event(g, b->events, ENGINE_JOB_ENDED, e)) return false;
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

/* ---- memory ---- */

/* The process's highest resident size so far; 0: unknown. */
static uint64_t peak_resident(void) {
    char line[128];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "VmHWM:", 6)) kib = strtoull(line + 6, NULL, 10);
    if (f) fclose(f);
    return kib * 1024;
}

/* Starts peak_resident() anew from the present size; false where the kernel doesn't let it. */
static bool reset_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = write(fd, "5", 1) == 1;
    close(fd);
    return ok;
}

/* Takes the peak of what ran since the last call into the report, then measures the ceiling: its
 * memory is no part of the peak. */
static bool measure_ceiling(struct report *r, const struct engine_options *o, bool *peak_known,
                            struct err *e) {
    uint64_t peak = peak_resident();
    if (peak > r->peak_bytes) r->peak_bytes = peak;
    if (!engine_ceiling(o, &r->ceilings[r->n_ceilings++], e)) return false;
    *peak_known = peak && reset_peak() && *peak_known;
    return true;
}

/* Sorts the values. */
static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, ascending_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void take_median_ceiling(struct report *r) {
    double *macs = err_alloc((size_t)r->n_ceilings, sizeof *macs);
    double *bytes = err_alloc((size_t)r->n_ceilings, sizeof *bytes);
    for (int i = 0; i < r->n_ceilings; i++) {
        macs[i] = r->ceilings[i].macs_per_s;
        bytes[i] = r->ceilings[i].bytes_per_s;
    }
    r->ceiling = r->ceilings[0];
    r->ceiling.macs_per_s = median(macs, r->n_ceilings);
    r->ceiling.bytes_per_s = median(bytes, r->n_ceilings);
    free(macs);
    free(bytes);
}

static bool measure_all(struct engine *g, const struct bench *b, const struct engine_options *o,
                        struct report *r, struct err *e) {
    r->file_bytes = engine_model(g)->file_bytes;
    struct engine_stats stats;
    engine_stats(g, &stats);
    r->kv_bytes = stats.memory.kv;
    r->weight_bytes = stats.memory.weights;
    struct measure warm; /* fills caches; not told */
    bool peak_known = true;
    if (!measure(g, b, 1, 0, &warm, e) || !measure_ceiling(r, o, &peak_known, e)) return false;
    for (int round = 0; round < b->repeat; round++) {
        for (int i = 0; i < b->n_runs; i++) {
            int salt = r->n_runs + 1;
            if (!measure(g, b, b->n[i], salt, &r->runs[r->n_runs++], e)) return false;
        }
        if (!measure_ceiling(r, o, &peak_known, e)) return false;
    }
    if (!peak_known) r->peak_bytes = 0;
    take_median_ceiling(r);
    return true;
}

/* ---- telling ---- */

static double share(double rate, double ceiling) { return ceiling > 0 ? rate / ceiling : 0; }

static void print_run(const struct bench *b, const struct report *r, const struct measure *m) {
    double macs = m->macs / m->decode_s, bytes = m->bytes / m->decode_s;
    printf("n %5d: %8.1f tokens/s, prefill %7.1f tokens/s, %6.1f GMAC/s", m->n,
           (double)m->tokens / m->decode_s, (b->prompt - 1) / m->prefill_s, macs / 1e9);
    if (r->ceiling.macs_per_s > 0) printf(" (%.0f %%)", 100 * share(macs, r->ceiling.macs_per_s));
    printf(", %5.1f GB/s", bytes / 1e9);
    if (r->ceiling.bytes_per_s > 0)
        printf(" (%.0f %%)", 100 * share(bytes, r->ceiling.bytes_per_s));
    printf(", %.3f rows a token\n   ", (double)m->rows / (double)m->tokens);
    for (int i = 0; i < ENGINE_OPS; i++)
        printf(" %s %.0f %%", m->op_name[i], 100 * m->op_s[i] / m->decode_s);
    printf("\n");
}

static void print_report(const struct bench *b, const struct report *r) {
    for (int i = 0; i < r->n_runs; i++)
        print_run(b, r, &r->runs[i]);
    if (r->ceiling.isa)
        printf("ceiling: %.1f GMAC/s of %s's int8 products, %.1f GB/s read, %d threads\n",
               r->ceiling.macs_per_s / 1e9, r->ceiling.isa, r->ceiling.bytes_per_s / 1e9,
               r->ceiling.n_threads);
    printf("memory: peak %.1f MiB; model file %.1f, weights %.1f, KV pool %.1f\n",
           (double)r->peak_bytes / 1048576, (double)r->file_bytes / 1048576,
           (double)r->weight_bytes / 1048576, (double)r->kv_bytes / 1048576);
}

/* null where it is unknown */
static json_t *known(double value) { return value > 0 ? json_real(value) : json_null(); }

static json_t *run_json(const struct bench *b, const struct report *r, const struct measure *m) {
    json_t *ops = json_object();
    for (int i = 0; i < ENGINE_OPS; i++)
        json_object_set_new(ops, m->op_name[i], json_real(m->op_s[i]));
    double macs = m->macs / m->decode_s, bytes = m->bytes / m->decode_s;
    return json_pack("{s:i, s:f, s:f, s:f, s:o, s:f, s:o, s:f, s:f, s:o}", "n", m->n,
                     "tokens_per_s", (double)m->tokens / m->decode_s, "prefill_tokens_per_s",
                     (b->prompt - 1) / m->prefill_s, "gmac_per_s", macs / 1e9, "share_of_ceiling",
                     known(share(macs, r->ceiling.macs_per_s)), "gb_per_s", bytes / 1e9,
                     "share_of_bandwidth", known(share(bytes, r->ceiling.bytes_per_s)),
                     "rows_per_token", (double)m->rows / (double)m->tokens, "decode_seconds",
                     m->decode_s, "seconds_by_operation", ops);
}

static void print_json(const struct engine *g, const struct bench *b, const struct report *r) {
    json_t *runs = json_array();
    for (int i = 0; i < r->n_runs; i++)
        json_array_append_new(runs, run_json(b, r, &r->runs[i]));
    json_t *ceiling = json_pack("{s:o, s:o}", "gmac_per_s", known(r->ceiling.macs_per_s / 1e9),
                                "gb_per_s", known(r->ceiling.bytes_per_s / 1e9));
    json_t *memory =
        json_pack("{s:o, s:I, s:I, s:I}", "peak_resident_bytes",
                  r->peak_bytes ? json_integer((json_int_t)r->peak_bytes) : json_null(),
                  "model_file_bytes", (json_int_t)r->file_bytes, "weight_bytes",
                  (json_int_t)r->weight_bytes, "kv_pool_bytes", (json_int_t)r->kv_bytes);
    json_t *all = json_pack("{s:s, s:s?, s:i, s:i, s:i, s:b, s:o, s:o, s:o}", "model",
                            engine_model(g)->name, "isa", r->ceiling.isa, "threads",
                            r->ceiling.n_threads, "prompt", b->prompt, "gen", b->gen, "shared",
                            !b->no_share, "ceiling", ceiling, "memory", memory, "runs", runs);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(all);
}

int command_bench_decode(int argc, char **argv, const struct config *c) {
    struct err e = {0};
    struct bench b;
    if (!parse(&b, argc, argv, &e)) return command_failed("bench decode", &e);
    int most = 1;
    for (int i = 0; i < b.n_runs; i++)
        if (b.n[i] > most) most = b.n[i];
    char *path = config_model_path(c);
    struct engine_options options = command_bench_options(c, path, most);
    options.no_sharing = options.no_guessing = b.no_share;
    struct report r = {.runs = err_alloc((size_t)b.n_runs * (size_t)b.repeat, sizeof *r.runs),
                       .ceilings = err_alloc((size_t)b.repeat + 1, sizeof *r.ceilings)};
    sem_t events;
    sem_init(&events, 0, 0);
    b.events = &events;
    struct engine *g = engine_open(&options, &e);
    if (g && !b.json) engine_describe(g, stdout);
    bool ok = g && engine_start(g, wake, &events, &e) && measure_all(g, &b, &options, &r, &e);
    if (ok && b.json)
        print_json(g, &b, &r);
    else if (ok)
        print_report(&b, &r);
    engine_close(g);
    sem_destroy(&events);
    free(r.runs);
    free(r.ceilings);
    free(path);
    return ok ? COMMAND_PASSED : command_failed("bench decode", &e);
}
