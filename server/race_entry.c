#include "server/race_entry.h"

#include "server/verdict_json.h"

#include <stdlib.h>
#include <string.h>

/* Of an error line; a traceback of megabytes helps nobody and there may be 10,000 of them. */
enum { REASON_BYTES = 1024, TESTS_BYTES = 512 * 1024 };

struct race_entry *race_entry_new(int index) {
    struct race_entry *c = err_alloc(1, sizeof *c);
    c->view.index = index;
    c->view.reason = ENGINE_CANCELLED;
    list_init(&c->kept);
    return c;
}

void race_entry_free(struct race_entry *c) {
    if (!c) return;
    race_entry_drop(c);
    free(c->reason);
    free(c->tests_json);
    free(c);
}

void race_entry_move(struct race_entry *c, enum race_entry_state to) {
    static const unsigned legal[] = {
        [RACE_ENTRY_WAITING] = 1u << RACE_ENTRY_DECODING | 1u << RACE_ENTRY_CANCELLED,
        [RACE_ENTRY_DECODING] =
            1u << RACE_ENTRY_VERIFYING | 1u << RACE_ENTRY_DECIDED | 1u << RACE_ENTRY_CANCELLED,
        [RACE_ENTRY_VERIFYING] = 1u << RACE_ENTRY_DECIDED | 1u << RACE_ENTRY_CANCELLED,
        [RACE_ENTRY_DECIDED] = 0,
        [RACE_ENTRY_CANCELLED] = 0,
    };
    BUG_ON(!(legal[c->state] & 1u << to));
    c->state = to;
}

static char *put(char **at, const char *s, size_t len) {
    char *start = *at;
    if (len) memcpy(start, s, len);
    start[len] = 0;
    *at += len + 1;
    return start;
}

/* One block: the log-probabilities, then all top tokens, then all top values. */
struct engine_logprob *race_entry_copy_logprobs(const struct engine_event *event) {
    size_t n = (size_t)event->n_tokens, n_top = 0;
    for (size_t i = 0; i < n; i++)
        n_top += (size_t)event->logprobs[i].n_top;
    struct engine_logprob *copy =
        err_alloc(1, n * sizeof *copy + n_top * (sizeof(int32_t) + sizeof(float)));
    int32_t *tokens = (int32_t *)(void *)(copy + n);
    float *values = (float *)(void *)(tokens + n_top);
    for (size_t i = 0; i < n; i++) {
        const struct engine_logprob *from = &event->logprobs[i];
        size_t k = (size_t)from->n_top;
        copy[i] = *from;
        copy[i].top_token = tokens;
        copy[i].top_logprob = values;
        if (k) {
            memcpy(tokens, from->top_token, k * sizeof *tokens);
            memcpy(values, from->top_logprob, k * sizeof *values);
        }
        tokens += k;
        values += k;
    }
    return copy;
}

void race_entry_set_output(struct race_entry *c, const struct engine_event *event) {
    size_t stop_len = event->stop ? strlen(event->stop) : 0;
    char *at = c->text = err_alloc(event->text_len + stop_len + 2, 1);
    c->view.text = put(&at, event->text, event->text_len);
    c->view.text_len = event->text_len;
    if (event->stop) c->view.stop = put(&at, event->stop, stop_len);
    c->view.reason = event->reason;
    c->view.n_tokens = event->n_tokens;
    c->view.mean_logprob = event->n_tokens ? event->sum_logprob / event->n_tokens : 0;
    c->tokens = err_alloc((size_t)event->n_tokens, sizeof *c->tokens);
    if (event->n_tokens)
        memcpy(c->tokens, event->tokens, (size_t)event->n_tokens * sizeof *c->tokens);
    c->view.tokens = c->tokens;
    if (event->logprobs) c->view.logprobs = c->logprobs = race_entry_copy_logprobs(event);
}

void race_entry_set_verdict(struct race_entry *c, const struct verdict *v) {
    const char *error = v->error ? v->error : "", *method = v->method ? v->method : "";
    const char *trust = v->trust ? v->trust : "";
    size_t error_len = strnlen(error, REASON_BYTES);
    size_t limit_len = v->limit ? strlen(v->limit) : 0;

    char *at = c->reason = err_alloc(error_len + strlen(method) + strlen(trust) + limit_len + 4, 1);
    c->view.error = put(&at, error, error_len);
    c->view.method = put(&at, method, strlen(method));
    c->view.trust = put(&at, trust, strlen(trust));
    if (v->limit) c->view.limit = put(&at, v->limit, limit_len);

    if (v->n_tests) {
        struct buf json;
        struct writer w;
        buf_init(&json, TESTS_BYTES);
        writer_init(&w, &json);
        verdict_json_tests(&w, v->tests, v->n_tests);
        if (!json.overflowed)
            c->view.tests_json = c->tests_json = buf_take(&json, &c->view.tests_len);
        buf_clear(&json);
    }

    at = c->code = err_alloc(v->code_len + v->output_len + 2, 1);
    c->view.code = put(&at, v->code, v->code_len);
    c->view.code_len = v->code_len;
    c->view.output = put(&at, v->output, v->output_len);
    c->view.output_len = v->output_len;

    c->view.decided = true;
    c->view.verdict = v->kind;
    c->view.duplicate = v->duplicate;
    c->view.tests_passed = v->tests_passed;
    c->view.tests_total = v->tests_total;
    c->view.verify_s = v->wall_s;
    c->view.cpu_s = v->cpu_s;
    c->view.max_rss_mb = v->max_rss_mb;
}

void race_entry_drop(struct race_entry *c) {
    free(c->text);
    free(c->tokens);
    free(c->logprobs);
    free(c->code);
    c->text = c->code = NULL;
    c->tokens = NULL;
    c->logprobs = NULL;
    c->view.text = c->view.stop = NULL;
    c->view.tokens = NULL;
    c->view.logprobs = NULL;
    c->view.text_len = c->view.code_len = c->view.output_len = 0;
    c->view.code = c->view.output = "";
    list_remove(&c->kept);
}
