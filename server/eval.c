#include "server/eval.h"

#include "base/clock.h"
#include "config/limits.h"
#include "server/writer.h"
#include "verifier/verifier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MADE = 1,
    BROKEN = 2,
    /* `first`: candidates of one task at once while others wait.  Most tasks are solved by the
     * first few, and what runs beside them is in vain; a task that isn't is likely to need many,
     * and these share rows.  So a race begins narrow and doubles as candidates fail. */
    FIRST_WIDTH = 4,
    FIRST_WIDEST = 32,
};

struct eval_race {
    struct eval *owner;
    struct eval_result *result;
    int first, n, width;
    int judged;     /* in this race */
    int64_t tokens; /* of these */
    double began, seconds_before;
};

static bool over(const struct eval *v, const struct eval_result *r) {
    if (r->error || (v->options->mode == EVAL_FIRST && r->passed)) return true;
    return r->judged + r->broken >= v->options->n;
}

/* ---- what is known of a task ---- */

static void count_candidate(struct eval *v, struct eval_result *r, int index, bool passed,
                            int tokens, double at) {
    r->made[index] |= MADE;
    r->judged++;
    r->tokens += tokens;
    v->judged++;
    v->tokens += tokens;
    if (!r->passed) r->tokens_to_pass += tokens;
    if (!passed) return;
    if (!r->passed) {
        r->judged_to_pass = r->judged;
        r->first_pass_s = at;
        v->solved++;
    }
    r->passed++;
    if (r->first_pass < 0 || index < r->first_pass) r->first_pass = index;
}

struct eval_result *eval_result_of(const struct eval *v, const char *id) {
    for (int i = 0; id && i < v->n; i++)
        if (!strcmp(v->results[i].task->id, id)) return &v->results[i];
    return NULL; /* another choice of tasks had it */
}

static void grow(double *most, json_t *line, const char *key) {
    double value = json_number_value(json_object_get(line, key));
    if (value > *most) *most = value;
}

static bool restore_candidate(struct eval *v, json_t *line, const char *id, struct err *e) {
    struct eval_result *r = eval_result_of(v, id);
    json_t *index = json_object_get(line, "index"), *tokens = json_object_get(line, "tokens");
    if (!json_is_integer(index) || !json_is_integer(tokens) || json_integer_value(index) < 0)
        return err_set(e, ERR_INPUT, "a candidate without index and tokens");
    if (!r) return true;
    int i = json_integer_value(index) < INT32_MAX ? (int)json_integer_value(index) : INT32_MAX;
    if (i >= v->options->n)
        return err_set(e, ERR_INPUT, "there is a candidate %d; --n must be at least %d", i, i + 1);
    const char *verdict = json_string_value(json_object_get(line, "verdict"));
    if (verdict && !strcmp(verdict, verdict_name(VERDICT_BROKEN))) return true; /* made again */
    if (r->made[i]) return err_set(e, ERR_INPUT, "candidate %d of %s is there twice", i, id);
    count_candidate(v, r, i, json_is_true(json_object_get(line, "passed")),
                    (int)json_integer_value(tokens),
                    json_number_value(json_object_get(line, "at")));
    grow(&r->seconds, line, "at");
    return true;
}

static bool restore_line(void *arg, json_t *line, struct err *e) {
    struct eval *v = arg;
    const char *task = json_string_value(json_object_get(line, "task"));
    const char *race = json_string_value(json_object_get(line, "race"));
    grow(&v->seconds, line, "run_s");
    if (task) return restore_candidate(v, line, task, e);
    struct eval_result *r = eval_result_of(v, race);
    if (r) {
        json_int_t cut = json_integer_value(json_object_get(line, "cut_tokens"));
        r->tokens += cut;
        v->tokens += cut;
        grow(&r->seconds, line, "at");
    }
    return true; /* errors are found again */
}

/* ---- writing ---- */

static double task_seconds(const struct eval_race *race) {
    return race->seconds_before + clock_seconds() - race->began;
}

static double run_seconds(const struct eval *v) {
    return v->seconds_before + clock_seconds() - v->began;
}

static void write_text(struct writer *w, const char *key, const char *text, size_t len) {
    writer_key(w, key);
    writer_string(w, text, len);
}

static void write_times(struct writer *w, const struct eval_race *race) {
    writer_key(w, "at");
    writer_number(w, task_seconds(race));
    writer_key(w, "run_s");
    writer_number(w, run_seconds(race->owner));
}

static void write_candidate(struct buf *line, const struct eval_race *race,
                            const struct eval_candidate *c) {
    struct writer w;
    writer_init(&w, line);
    writer_object(&w);
    write_text(&w, "task", race->result->task->id, strlen(race->result->task->id));
    writer_key(&w, "index");
    writer_int(&w, c->index);
    writer_key(&w, "seed");
    writer_uint(&w, race->result->seed);
    writer_key(&w, "temperature");
    writer_float(&w, c->temperature);
    writer_key(&w, "prompt");
    writer_int(&w, c->prompt);
    writer_key(&w, "tokens");
    writer_int(&w, c->tokens);
    write_text(&w, "verdict", c->verdict, strlen(c->verdict));
    writer_key(&w, "passed");
    writer_bool(&w, c->passed);
    writer_key(&w, "tests_passed");
    writer_int(&w, c->tests_passed);
    writer_key(&w, "tests_total");
    writer_int(&w, c->tests_total);
    writer_key(&w, "duplicate");
    writer_bool(&w, c->duplicate);
    writer_key(&w, "ms");
    writer_number(&w, c->verify_s * 1e3);
    write_times(&w, race);
    write_text(&w, "extraction", c->method, strlen(c->method));
    write_text(&w, "error", c->error, strlen(c->error));
    write_text(&w, "code", c->code, c->code_len);
    write_text(&w, "text", c->text, c->text_len);
    writer_object_end(&w);
}

static void append(struct eval *v, struct buf *line) {
    struct err e = {0};
    if (!eval_journal_append(&v->journal, line, &e) && v->error.kind == ERR_NONE) v->error = e;
    buf_clear(line);
}

static void write_race(struct eval *v, const struct eval_race *race, int64_t cut,
                       const struct eval_end *end) {
    struct buf line;
    struct writer w;
    buf_init(&line, EVAL_JOURNAL_LINE_BYTES);
    writer_init(&w, &line);
    writer_object(&w);
    write_text(&w, "race", race->result->task->id, strlen(race->result->task->id));
    writer_key(&w, "first");
    writer_int(&w, race->first);
    writer_key(&w, "n");
    writer_int(&w, race->n);
    writer_key(&w, "cut_tokens");
    writer_int(&w, cut);
    writer_key(&w, "first_pass_s");
    if (end->first_pass_s < 0)
        writer_null(&w);
    else
        writer_number(&w, end->first_pass_s);
    write_times(&w, race);
    if (end->error.kind != ERR_NONE)
        write_text(&w, "error", end->error.message, strlen(end->error.message));
    writer_object_end(&w);
    append(v, &line);
}

/* ---- events ---- */

static void on_candidate(void *arg, void *cookie, const struct eval_candidate *c) {
    struct eval *v = arg;
    struct eval_race *race = cookie;
    struct eval_result *r = race->result;
    if (c->index < race->first || c->index >= race->first + race->n || r->made[c->index]) {
        err_set(&v->error, ERR_SYSTEM, "task %s: candidate %d was not asked for", r->task->id,
                c->index);
        return;
    }
    struct buf line;
    buf_init(&line, EVAL_JOURNAL_LINE_BYTES);
    write_candidate(&line, race, c);
    append(v, &line);
    race->judged++;
    race->tokens += c->tokens;
    if (c->broken) {
        r->made[c->index] |= BROKEN;
        r->broken++;
        r->tokens += c->tokens;
        v->tokens += c->tokens;
    } else {
        count_candidate(v, r, c->index, c->passed, c->tokens, task_seconds(race));
    }
}

static void on_end(void *arg, void *cookie, const struct eval_end *end) {
    struct eval *v = arg;
    struct eval_race *race = cookie;
    struct eval_result *r = race->result;
    int64_t cut = end->tokens > race->tokens ? end->tokens - race->tokens : 0;
    r->tokens += cut;
    v->tokens += cut;
    r->seconds = task_seconds(race);
    r->live = NULL;
    v->n_live--;
    write_race(v, race, cut, end);
    if (end->error.kind == ERR_INPUT) {
        r->error = err_strdup(end->error.message);
    } else if (end->error.kind != ERR_NONE) {
        if (v->error.kind == ERR_NONE) v->error = end->error;
    } else if (!race->judged && v->error.kind == ERR_NONE) {
        err_set(&v->error, ERR_SYSTEM, "task %s: no candidate was judged", r->task->id);
    }
    free(race);
}

struct eval_events eval_events(struct eval *v) {
    return (struct eval_events){.candidate = on_candidate, .end = on_end, .arg = v};
}

/* ---- races ---- */

/* The first run of candidates that aren't made, at most `most` (0: any number). */
static bool next_run(const struct eval *v, const struct eval_result *r, int most, int *first,
                     int *n) {
    const struct eval_options *o = v->options;
    int at = 0;
    while (at < o->n && r->made[at])
        at++;
    *first = at;
    while (at < o->n && !r->made[at] && (!most || at - *first < most))
        at++;
    *n = at - *first;
    return *n > 0;
}

static int live_in_flight(const struct eval_race *race) {
    int left = race->n - race->judged;
    return left < race->width ? left : race->width;
}

static int in_flight(const struct eval *v) {
    int n = 0;
    for (int i = 0; i < v->n; i++)
        if (v->results[i].live) n += live_in_flight(v->results[i].live);
    return n;
}

static bool start(struct eval *v, struct eval_result *r, int wish, struct err *e) {
    const struct eval_options *o = v->options;
    int first, n;
    bool has = next_run(v, r, v->backend.most_in_ask, &first, &n);
    BUG_ON(!has);
    struct eval_race *race = err_alloc(1, sizeof *race);
    *race = (struct eval_race){
        .owner = v,
        .result = r,
        .first = first,
        .n = n,
        .width = wish < n ? wish : n,
        .began = clock_seconds(),
        .seconds_before = r->seconds,
    };
    char *body = eval_body(o, v->backend.model, r->task, r->seed, first, n, race->width);
    const struct eval_ask ask = {.body = body, .len = strlen(body), .completion = o->completion};
    struct err why = {0};
    r->live = race;
    v->n_live++;
    bool ok = v->backend.start(v->backend.self, &ask, race, &why);
    free(body);
    if (ok) return true;
    r->live = NULL;
    v->n_live--;
    free(race);
    if (why.kind != ERR_INPUT) {
        *e = why;
        return err_prefix(e, "task %s", r->task->id);
    }
    r->error = err_strdup(why.message);
    return true;
}

static int most_in_flight(const struct eval *v) {
    return v->options->in_flight ? v->options->in_flight : v->backend.in_flight;
}

/* Candidates of a task that may be in flight while others wait. */
static int wish_of(const struct eval *v, const struct eval_result *r) {
    int most = most_in_flight(v), wish = FIRST_WIDTH;
    if (v->options->mode == EVAL_PASS_AT_K) return most;
    while (wish < FIRST_WIDEST && r->judged >= 2 * wish)
        wish *= 2;
    return wish < most ? wish : most;
}

/* Starts races while there is room. */
static bool fill(struct eval *v, struct err *e) {
    int most = most_in_flight(v), used = in_flight(v);
    for (int i = 0; i < v->n; i++) {
        struct eval_result *r = &v->results[i];
        if (r->live || over(v, r)) continue;
        int wish = wish_of(v, r);
        int left = v->options->n - r->judged - r->broken, width = wish < left ? wish : left;
        if (v->n_live && used + width > most) break;
        if (!start(v, r, wish, e)) return false;
        if (r->live) used += live_in_flight(r->live);
    }
    return true;
}

static bool some_wait(const struct eval *v) {
    for (int i = 0; i < v->n; i++)
        if (!v->results[i].live && !over(v, &v->results[i])) return true;
    return false;
}

/* Races widen as their candidates fail; when nothing waits any more, what is left gets all the
 * room. */
static void widen(struct eval *v) {
    if (!v->n_live || !v->backend.set_width) return;
    int most = most_in_flight(v), used = in_flight(v);
    int share = some_wait(v) ? 0 : most / v->n_live;
    for (int i = 0; i < v->n; i++) {
        struct eval_race *race = v->results[i].live;
        if (!race || race->width >= race->n) continue;
        int width = wish_of(v, race->result);
        if (used - race->width + width > most) width = race->width;
        if (width < share) width = share;
        if (width <= race->width) continue;
        used += width - race->width;
        race->width = width;
        v->backend.set_width(v->backend.self, race, width);
    }
}

static void count_over(struct eval *v, bool *told,
                       void (*progress)(void *arg, const struct eval_result *), void *arg) {
    v->seconds = run_seconds(v);
    for (int i = 0; i < v->n; i++) {
        struct eval_result *r = &v->results[i];
        if (told[i] || r->live || !over(v, r)) continue;
        told[i] = true;
        v->over++;
        progress(arg, r);
    }
    progress(arg, NULL);
}

static bool write_session(struct eval *v, struct err *e) {
    struct buf line;
    buf_init(&line, EVAL_JOURNAL_LINE_BYTES);
    buf_printf(&line, "{\"session\": %lld, \"n\": %d, \"in_flight\": %d}", (long long)time(NULL),
               v->options->n, most_in_flight(v));
    bool ok = eval_journal_append(&v->journal, &line, e);
    buf_clear(&line);
    v->journal.sessions++;
    return ok;
}

bool eval_run(struct eval *v, void (*progress)(void *arg, const struct eval_result *over),
              void *arg, struct err *e) {
    bool *told = err_alloc((size_t)v->n, sizeof *told);
    for (int i = 0; i < v->n; i++)
        v->over += told[i] = over(v, &v->results[i]);
    v->over_before = v->over;
    v->judged_before = v->judged;
    v->tokens_before = v->tokens;
    v->seconds_before = v->seconds;
    v->began = clock_seconds();
    bool ok = v->over == v->n || write_session(v, e);
    while (ok && v->over < v->n) {
        widen(v);
        ok = fill(v, e);
        if (ok && v->n_live) {
            v->backend.turn(v->backend.self);
        }
        count_over(v, told, progress, arg);
        if (ok && v->error.kind != ERR_NONE) {
            *e = v->error;
            ok = false;
        }
    }
    free(told);
    return ok;
}

/* ---- open and close ---- */

/* So that tasks draw from different numbers, whichever of them are chosen; 53 bits: every JSON
 * parser reads them. */
static uint64_t task_seed(uint64_t seed, const char *id) {
    return (eval_tasks_hash(id, strlen(id)) + seed) & (((uint64_t)1 << 53) - 1);
}

static json_t *numbers(const double *values, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_real(values[i]));
    return list;
}

static json_t *record_of(const struct eval *v) {
    const struct eval_options *o = v->options;
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)v->tasks->hash);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:i, s:i, s:f, s:i, s:b, s:o, s:o}", "mode",
        o->mode == EVAL_FIRST ? "first" : "pass@k", "model", v->backend.model, "model_key",
        v->backend.model_key, "tasks_hash", hash, "form", o->completion ? "completion" : "chat",
        "seed", (json_int_t)o->seed, "temperature", o->temperature, "top_p", o->top_p, "min_p",
        o->min_p, "top_k", o->top_k, "max_tokens", o->max_tokens, "timeout_s", o->timeout_s,
        "memory_mb", o->memory_mb, "greedy_first", o->greedy_first, "temperatures",
        numbers(o->temperatures, o->n_temperatures), "prompts",
        o->prompts ? json_incref(o->prompts) : json_array());
}

static bool choose_tasks(struct eval *v, struct err *e) {
    const struct eval_options *o = v->options;
    v->results = err_alloc((size_t)v->tasks->n, sizeof *v->results);
    for (int64_t i = o->first_task; i < v->tasks->n && (!o->limit || v->n < o->limit);
         i += o->step) {
        struct eval_result *r = &v->results[v->n++];
        r->task = &v->tasks->tasks[i];
        r->seed = task_seed(o->seed, r->task->id);
        r->made = err_alloc((size_t)o->n, 1);
        r->first_pass = -1;
        r->first_pass_s = -1;
    }
    return v->n ||
           err_set(e, ERR_INPUT, "--start %d: there are only %d tasks", o->first_task, v->tasks->n);
}

bool eval_open(struct eval *v, const struct eval_options *options, const struct eval_tasks *tasks,
               const struct eval_backend *backend, const char *dir, struct err *e) {
    v->options = options;
    v->tasks = tasks;
    v->backend = *backend;
    v->dir = dir;
    v->journal.fd = -1;
    v->record = record_of(v);
    if (!v->record) return err_set(e, ERR_INPUT, "the options hold text that is no UTF-8");
    return choose_tasks(v, e) && eval_journal_open(&v->journal, dir, v->record, restore_line, v, e);
}

void eval_close(struct eval *v) {
    if (v->backend.self) v->backend.close(v->backend.self);
    for (int i = 0; i < v->n; i++) {
        free(v->results[i].live);
        free(v->results[i].made);
        free(v->results[i].error);
    }
    free(v->results);
    json_decref(v->record);
    eval_journal_close(&v->journal);
}
