#include "engine/event.h"

#include <stdlib.h>
#include <string.h>

/* An event is one allocation: the struct, then what it points to.  This walks the space behind the
 * struct. */
struct writer {
    char *at;
};

static void *put(struct writer *w, const void *from, size_t bytes) {
    void *to = w->at;
    if (bytes) memcpy(to, from, bytes);
    w->at += (bytes + 15) & ~(size_t)15;
    return to;
}

static size_t padded(size_t bytes) { return (bytes + 15) & ~(size_t)15; }

struct engine_event *event_plain(enum engine_event_type type, const struct job *j, int index,
                                 const struct err *why) {
    struct engine_event *ev = err_alloc(1, sizeof *ev);
    ev->type = type;
    ev->job = j->handle->id;
    ev->index = index;
    if (why) ev->error = *why;
    ev->cached_tokens = j->reused;
    return ev;
}

struct engine_event *event_prefilled(const struct job *j) {
    if (!j->prompt_logprobs) return event_plain(ENGINE_PREFILLED, j, -1, NULL);
    size_t n = (size_t)j->spec.n_prompt, n_top = (size_t)j->spec.n_prompt_top;
    size_t bytes = padded(n * sizeof(int32_t)) + padded(n * sizeof(struct engine_logprob)) +
                   padded(n * n_top * sizeof(int32_t)) + padded(n * n_top * sizeof(float));
    struct engine_event *ev = err_alloc(1, padded(sizeof *ev) + bytes);
    struct writer w = {(char *)ev + padded(sizeof *ev)};
    ev->type = ENGINE_PREFILLED;
    ev->job = j->handle->id;
    ev->index = -1;
    ev->cached_tokens = j->reused;
    ev->tokens = put(&w, j->spec.prompt, n * sizeof(int32_t));
    ev->n_tokens = (int)n;
    /* The places of all positions follow each other, from the first one's on. */
    const int32_t *tokens = put(&w, j->prompt_logprobs->top_token, n * n_top * sizeof(int32_t));
    const float *logprobs = put(&w, j->prompt_logprobs->top_logprob, n * n_top * sizeof(float));
    struct engine_logprob *lp = put(&w, j->prompt_logprobs, n * sizeof *lp);
    for (size_t i = 0; i < n; i++) {
        lp[i].top_token = tokens + i * n_top;
        lp[i].top_logprob = logprobs + i * n_top;
    }
    ev->logprobs = lp;
    return ev;
}

/* Text, and the tokens from `first` on, with their log-probabilities where the job wants them;
 * `stop` may be NULL. */
static struct engine_event *event_history(enum engine_event_type type, const struct branch *b,
                                          int index, const char *text, size_t len, int first,
                                          const char *stop) {
    const struct engine_job *s = &b->job->spec;
    size_t n = (size_t)(b->n_tokens - first), n_top = (size_t)s->n_top_logprobs;
    size_t stop_bytes = stop ? strlen(stop) + 1 : 0;
    size_t bytes = padded(len + 1) + padded(n * sizeof(int32_t)) + padded(stop_bytes);
    if (s->logprobs)
        bytes += padded(n * sizeof(struct engine_logprob)) + padded(n * n_top * sizeof(int32_t)) +
                 padded(n * n_top * sizeof(float));
    struct engine_event *ev = err_alloc(1, padded(sizeof *ev) + bytes);
    struct writer w = {(char *)ev + padded(sizeof *ev)};
    ev->type = type;
    ev->job = b->job->handle->id;
    ev->index = index;
    ev->text = memcpy(w.at, text, len); /* its NUL is there: the memory is zeroed */
    w.at += padded(len + 1);
    ev->text_len = len;
    ev->tokens = put(&w, b->tokens + first, n * sizeof(int32_t));
    ev->n_tokens = (int)n;
    ev->sum_logprob = b->sum_logprob;
    if (stop) ev->stop = put(&w, stop, stop_bytes);
    if (!s->logprobs) return ev;
    struct engine_logprob *lp = (struct engine_logprob *)(void *)w.at;
    w.at += padded(n * sizeof *lp);
    const int32_t *top_tokens =
        put(&w, b->top_tokens + (size_t)first * n_top, n * n_top * sizeof(int32_t));
    const float *top_logprobs =
        put(&w, b->top_logprobs + (size_t)first * n_top, n * n_top * sizeof(float));
    for (size_t i = 0; i < n; i++)
        lp[i] = (struct engine_logprob){.token = ev->tokens[i],
                                        .logprob = b->logprobs[(size_t)first + i],
                                        .n_top = s->n_top_logprobs,
                                        .top_token = top_tokens + i * n_top,
                                        .top_logprob = top_logprobs + i * n_top};
    ev->logprobs = lp;
    return ev;
}

struct engine_event *event_text(const struct branch *b, int index, const char *text, size_t len) {
    if (!len && b->sent_tokens == b->n_tokens) return NULL;
    return event_history(ENGINE_TEXT, b, index, text, len, b->sent_tokens, NULL);
}

struct engine_event *event_ended(const struct branch *b, int index, enum engine_reason reason) {
    const char *stop =
        b->over && b->stop.why == STOP_STRING ? b->job->spec.stops[b->stop.which] : NULL;
    struct engine_event *ev =
        event_history(ENGINE_ENDED, b, index, buf_text(&b->stop.text), b->stop.text.len, 0, stop);
    ev->reason = reason;
    return ev;
}

void event_free(struct engine_event *ev) { free(ev); }
