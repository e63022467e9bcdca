#include "engine/knee.h"

/* Twice the rows must give this much more throughput to be worth the wait.  With less, the time to
 * the first pass suffers more from slower steps than it gains from more tries, for any pass rate
 * above a few per cent. */
static const double WORTH_DOUBLING = 1.35;

enum { MEASURED_STEPS = 3 };

/* The fastest step with exactly `rows` rows while `rows` candidates decode; 0 where there was none
 * (their draws were equal). */
static bool measure(struct decode *d, int rows, double *seconds, struct err *e) {
    const int32_t prompt[] = {0};
    struct engine_job spec = {
        .prompt = prompt,
        .n_prompt = 1,
        .n_candidates = rows,
        .width = rows,
        .seed = 1,
        /* Hot enough that no two candidates draw the same: each is a row of its own. */
        .sampling = {.temperature = 10, .top_p = 1, .repetition_penalty = 1},
        .max_tokens = MEASURED_STEPS + 1,
        .ignore_eos = true,
    };
    struct job_handle *handle = job_handle_new(UINT64_MAX, rows, rows);
    decode_add(d, job_new(&spec, handle));
    *seconds = 0;
    bool ok = true;
    while (ok && decode_jobs(d)) {
        struct engine_stats before, after;
        decode_stats(d, &before);
        ok = decode_turn(d, e);
        decode_stats(d, &after);
        double took = after.step_seconds - before.step_seconds;
        if (after.rows - before.rows == (uint64_t)rows && (*seconds <= 0 || took < *seconds))
            *seconds = took;
    }
    job_handle_unref(handle);
    return ok;
}

bool knee_measure(struct knee *k, struct decode *d, int max_rows, struct err *e) {
    *k = (struct knee){.width = 1};
    for (int rows = 1; rows <= max_rows && k->n < KNEE_MEASURES; rows *= 2) {
        double seconds;
        if (!measure(d, rows, &seconds, e)) return false;
        if (seconds <= 0) break;
        k->rows[k->n] = rows;
        k->seconds[k->n++] = seconds;
        if (k->n == 1) continue;
        double gain = 2 * k->seconds[k->n - 2] / seconds;
        if (gain < WORTH_DOUBLING) break;
        k->width = rows;
    }
    decode_forget_stats(d);
    return true;
}
