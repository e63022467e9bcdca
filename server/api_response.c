#include "server/api_response.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What OpenAI's API says instead of minus infinity. */
#define LOGPROB_LEAST (-9999.0)

void api_response_add(struct api_response_totals *t, const struct race_counts *c) {
    t->prompt_tokens += c->prompt_tokens;
    t->cached_tokens += c->cached_tokens;
    t->completion_tokens += c->tokens_winner + c->tokens_losers;
}

int64_t api_response_characters(const char *s, size_t len) {
    int64_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

int64_t api_response_lead(const struct api_response_head *h, int candidate) {
    const struct api_request *q = h->request;
    if (!q->n_variants) return 0;
    const struct api_request_variant *v = &q->variants[api_request_variant_of(q, candidate)];
    return api_response_characters(v->lead, v->lead_len);
}

const char *api_response_finish_reason(enum engine_reason reason) {
    switch (reason) {
    case ENGINE_STOP:
    case ENGINE_CODE_END:
        return "stop";
    case ENGINE_LENGTH:
    /* Cut by the race's own end: to the client that is a length. */
    case ENGINE_CANCELLED:
    case ENGINE_FAILED:
        return "length";
    }
    return "stop";
}

void api_response_write_head(struct writer *w, const struct api_response_head *h, bool chunk) {
    const char *object = "text_completion";
    if (h->request->kind != API_REQUEST_COMPLETIONS)
        object = chunk ? "chat.completion.chunk" : "chat.completion";
    writer_key(w, "id");
    writer_text(w, h->id);
    writer_key(w, "object");
    writer_text(w, object);
    writer_key(w, "created");
    writer_int(w, h->created);
    writer_key(w, "model");
    writer_text(w, h->model);
    writer_key(w, "system_fingerprint");
    writer_text(w, h->fingerprint);
}

void api_response_write_usage(struct writer *w, const struct api_response_totals *t) {
    writer_object(w);
    writer_key(w, "prompt_tokens");
    writer_int(w, t->prompt_tokens);
    writer_key(w, "completion_tokens");
    writer_int(w, t->completion_tokens);
    writer_key(w, "total_tokens");
    writer_int(w, t->prompt_tokens + t->completion_tokens);
    writer_key(w, "prompt_tokens_details");
    writer_object(w);
    writer_key(w, "cached_tokens");
    writer_int(w, t->cached_tokens);
    writer_object_end(w);
    writer_object_end(w);
}

/* ---- log-probabilities ---- */

/* A token as text.  Where its bytes are no UTF-8 by themselves, they are spelled out in the legacy
 * shape, so that different tokens stay different keys. */
static const char *token_name(const struct api_response_head *h, int32_t token, bool legacy,
                              char *space, size_t space_len, size_t *len) {
    if (h->request->tokens_as_ids) {
        *len = (size_t)snprintf(space, space_len, "token_id:%d", token);
        return space;
    }
    const char *text = h->token_text(h->self, token, len);
    if (!legacy || utf8_valid(text, *len)) return text;
    size_t used = (size_t)snprintf(space, space_len, "bytes:");
    for (size_t i = 0; i < *len && used + 5 < space_len; i++)
        used += (size_t)snprintf(space + used, space_len - used, "\\x%02x", (unsigned char)text[i]);
    *len = used;
    return space;
}

static double bounded(float logprob) {
    double v = (double)logprob;
    return isfinite(v) && v > LOGPROB_LEAST ? v : LOGPROB_LEAST;
}

static void write_chat_token(struct writer *w, const struct api_response_head *h, int32_t token,
                             float logprob) {
    char space[256];
    size_t len;
    const char *name = token_name(h, token, false, space, sizeof space, &len);
    writer_key(w, "token");
    writer_string(w, name, len);
    writer_key(w, "logprob");
    writer_number(w, bounded(logprob));
    writer_key(w, "bytes");
    writer_array(w);
    const char *bytes = h->token_text(h->self, token, &len);
    for (size_t i = 0; i < len; i++)
        writer_int(w, (unsigned char)bytes[i]);
    writer_array_end(w);
}

void api_response_write_tokens(struct writer *w, const struct api_response_head *h,
                               const struct api_response_tokens *t) {
    writer_array(w);
    for (int i = 0; i < t->n; i++) {
        const struct engine_logprob *p = &t->logprobs[i];
        writer_object(w);
        write_chat_token(w, h, p->token, p->logprob);
        writer_key(w, "top_logprobs");
        writer_array(w);
        for (int j = 0; j < p->n_top; j++) {
            writer_object(w);
            write_chat_token(w, h, p->top_token[j], p->top_logprob[j]);
            writer_object_end(w);
        }
        writer_array_end(w);
        writer_object_end(w);
    }
    writer_array_end(w);
}

static void write_chat_logprobs(struct writer *w, const struct api_response_head *h,
                                const struct api_response_tokens *t) {
    writer_object(w);
    writer_key(w, "content");
    api_response_write_tokens(w, h, t);
    writer_key(w, "refusal");
    writer_null(w);
    writer_object_end(w);
}

static void write_legacy_top(struct writer *w, const struct api_response_head *h,
                             const struct engine_logprob *p) {
    char space[256];
    size_t len;
    writer_object(w);
    bool sampled = false;
    for (int j = 0; j < p->n_top; j++) {
        const char *name = token_name(h, p->top_token[j], true, space, sizeof space, &len);
        writer_key_bytes(w, name, len);
        writer_number(w, bounded(p->top_logprob[j]));
        sampled = sampled || p->top_token[j] == p->token;
    }
    if (!sampled) {
        const char *name = token_name(h, p->token, true, space, sizeof space, &len);
        writer_key_bytes(w, name, len);
        writer_number(w, bounded(p->logprob));
    }
    writer_object_end(w);
}

/* Nothing comes before a prompt's first token: it has no probability. */
static void write_legacy_logprob(struct writer *w, const struct engine_logprob *p) {
    if (isnan(p->logprob))
        writer_null(w);
    else
        writer_number(w, bounded(p->logprob));
}

static void write_offsets(struct writer *w, const struct api_response_head *h,
                          const struct api_response_tokens *runs, int n_runs) {
    int64_t offset = runs->offset;
    for (int r = 0; r < n_runs; r++)
        for (int i = 0; i < runs[r].n; i++) {
            size_t len;
            const char *text = h->token_text(h->self, runs[r].tokens[i], &len);
            writer_int(w, offset);
            if (i >= runs[r].n_lead) offset += api_response_characters(text, len);
        }
}

static void write_legacy_logprobs(struct writer *w, const struct api_response_head *h,
                                  const struct api_response_tokens *runs, int n_runs) {
    char space[256];
    size_t len;
    writer_object(w);
    writer_key(w, "tokens");
    writer_array(w);
    for (int r = 0; r < n_runs; r++)
        for (int i = 0; i < runs[r].n; i++) {
            const char *name = token_name(h, runs[r].tokens[i], true, space, sizeof space, &len);
            writer_string(w, name, len);
        }
    writer_array_end(w);
    writer_key(w, "token_logprobs");
    writer_array(w);
    for (int r = 0; r < n_runs; r++)
        for (int i = 0; i < runs[r].n; i++)
            write_legacy_logprob(w, &runs[r].logprobs[i]);
    writer_array_end(w);
    writer_key(w, "top_logprobs");
    if (h->request->job.n_top_logprobs) {
        writer_array(w);
        for (int r = 0; r < n_runs; r++)
            for (int i = 0; i < runs[r].n; i++) {
                if (isnan(runs[r].logprobs[i].logprob))
                    writer_null(w);
                else
                    write_legacy_top(w, h, &runs[r].logprobs[i]);
            }
        writer_array_end(w);
    } else {
        writer_null(w);
    }
    writer_key(w, "text_offset");
    writer_array(w);
    write_offsets(w, h, runs, n_runs);
    writer_array_end(w);
    writer_object_end(w);
}

void api_response_write_logprobs(struct writer *w, const struct api_response_head *h,
                                 const struct api_response_tokens *runs, int n_runs) {
    if (!h->request->job.logprobs || !runs->logprobs)
        writer_null(w);
    else if (h->request->kind == API_REQUEST_COMPLETIONS)
        write_legacy_logprobs(w, h, runs, n_runs);
    else
        write_chat_logprobs(w, h, runs);
}

static void write_ranked(struct writer *w, const struct api_response_head *h, int32_t token,
                         float logprob, int rank) {
    char key[24];
    size_t len;
    snprintf(key, sizeof key, "%d", token);
    writer_key(w, key);
    writer_object(w);
    writer_key(w, "logprob");
    writer_number(w, bounded(logprob));
    writer_key(w, "rank");
    if (rank)
        writer_int(w, rank);
    else
        writer_null(w);
    const char *text = h->token_text(h->self, token, &len);
    writer_key(w, "decoded_token");
    writer_string(w, text, len);
    writer_object_end(w);
}

void api_response_write_prompt_logprobs(struct writer *w, const struct api_response_head *h,
                                        const struct api_response_prompt *prompt) {
    writer_array(w);
    for (int i = 0; i < prompt->n_tokens; i++) {
        const struct engine_logprob *p = &prompt->logprobs[i];
        if (isnan(p->logprob)) {
            writer_null(w);
            continue;
        }
        int n = h->request->n_prompt_logprobs < p->n_top ? h->request->n_prompt_logprobs : p->n_top;
        bool shown = false;
        writer_object(w);
        for (int k = 0; k < n; k++) {
            write_ranked(w, h, p->top_token[k], p->top_logprob[k], k + 1);
            shown = shown || p->top_token[k] == p->token;
        }
        if (!shown) write_ranked(w, h, p->token, p->logprob, 0);
        writer_object_end(w);
    }
    writer_array_end(w);
}

/* ---- choices ---- */

/* What it takes to have a candidate again, beside the request and its seed. */
static void write_number(struct writer *w, const struct api_response_head *h,
                         const struct race_candidate *c) {
    writer_key(w, "candidate");
    writer_int(w, api_request_number(h->request, c->index));
    if (!h->request->n_variants) return;
    writer_key(w, "prompt");
    writer_int(w, api_request_variant_of(h->request, c->index));
}

static void write_temperature(struct writer *w, const struct api_response_head *h,
                              const struct race_candidate *c) {
    writer_key(w, "temperature");
    writer_float(w, api_request_temperature(h->request, c->index));
}

static void write_score(struct writer *w, const struct race_candidate *c) {
    writer_key(w, "verdict");
    writer_text(w, c->decided ? verdict_name(c->verdict) : NULL);
    writer_key(w, "tests_passed");
    writer_int(w, c->tests_passed);
    writer_key(w, "tests_total");
    writer_int(w, c->tests_total);
}

void api_response_write_origin(struct writer *w, const struct api_response_head *h,
                               const struct race_candidate *c) {
    writer_key(w, "stop_reason");
    writer_text(w, c->stop);
    write_number(w, h, c);
    if (!h->request->has_tests) return;
    write_score(w, c);
}

void api_response_write_choice(struct writer *w, const struct api_response_head *h, int index,
                               const struct race_candidate *c,
                               const struct api_response_prompt *prompt) {
    const struct api_request *q = h->request;
    bool completion = q->kind == API_REQUEST_COMPLETIONS;
    writer_object(w);
    writer_key(w, "index");
    writer_int(w, index);
    if (!completion) {
        writer_key(w, "message");
        writer_object(w);
        writer_key(w, "role");
        writer_text(w, "assistant");
        writer_key(w, "content");
        writer_string(w, c->text, c->text_len);
        writer_key(w, "refusal");
        writer_null(w);
        writer_object_end(w);
    } else {
        struct buf text;
        buf_init(&text, prompt->echo_len + c->text_len);
        buf_append(&text, prompt->echo, prompt->echo_len);
        buf_append(&text, c->text, c->text_len);
        writer_key(w, "text");
        writer_string(w, buf_text(&text), text.len);
        buf_clear(&text);
    }
    bool echoed = prompt->echo && prompt->logprobs;
    struct api_response_tokens runs[] = {
        {prompt->tokens, prompt->logprobs, prompt->n_tokens, prompt->n_lead, 0},
        {c->tokens, c->logprobs, c->n_tokens, 0,
         prompt->echo ? api_response_characters(prompt->echo, prompt->echo_len)
                      : api_response_lead(h, c->index)},
    };
    writer_key(w, "logprobs");
    api_response_write_logprobs(w, h, echoed ? runs : runs + 1, echoed ? 2 : 1);
    if (completion && q->n_prompt_logprobs >= 0 && prompt->logprobs) {
        writer_key(w, "prompt_logprobs");
        api_response_write_prompt_logprobs(w, h, prompt);
    }
    writer_key(w, "finish_reason");
    writer_text(w, api_response_finish_reason(c->reason));
    if (q->return_token_ids) {
        writer_key(w, "token_ids");
        writer_array(w);
        for (int i = 0; i < c->n_tokens; i++)
            writer_int(w, c->tokens[i]);
        writer_array_end(w);
    }
    api_response_write_origin(w, h, c);
    writer_object_end(w);
}

/* ---- firstpass ---- */

static void write_verdict(struct writer *w, const struct race_candidate *c) {
    write_score(w, c);
    writer_key(w, "extraction");
    writer_text(w, c->method);
}

static const char *reason_name(enum engine_reason reason) {
    static const char *const names[] = {"stop", "code_end", "length", "cancelled", "failed"};
    return names[reason];
}

void api_response_write_candidate(struct writer *w, const struct api_response_head *h,
                                  const struct race_candidate *c) {
    writer_object(w);
    write_number(w, h, c);
    write_temperature(w, h, c);
    writer_key(w, "ended");
    writer_text(w, reason_name(c->reason));
    writer_key(w, "tokens");
    writer_int(w, c->n_tokens);
    write_verdict(w, c);
    writer_key(w, "duplicate");
    writer_bool(w, c->duplicate);
    writer_key(w, "verify_s");
    writer_number(w, c->verify_s);
    writer_key(w, "cpu_s");
    writer_number(w, c->cpu_s);
    writer_key(w, "error");
    writer_text(w, c->error);
    writer_key(w, "limit");
    writer_text(w, c->limit);
    if (c->tests_json) {
        writer_key(w, "tests");
        writer_raw(w, c->tests_json, c->tests_len);
    }
    writer_key(w, "trust");
    writer_text(w, c->trust);
    if (h->request->detail == RACE_CANDIDATES_FULL) {
        writer_key(w, "mean_logprob");
        writer_number(w, c->mean_logprob);
        writer_key(w, "text");
        writer_string(w, c->text, c->text ? c->text_len : 0);
        writer_key(w, "code");
        writer_string(w, c->code, c->code ? c->code_len : 0);
        writer_key(w, "output");
        writer_string(w, c->output, c->output ? c->output_len : 0);
        if (h->request->return_token_ids) {
            writer_key(w, "token_ids");
            writer_array(w);
            for (int i = 0; c->tokens && i < c->n_tokens; i++)
                writer_int(w, c->tokens[i]);
            writer_array_end(w);
        }
    }
    writer_object_end(w);
}

void api_response_write_counts(struct writer *w, const struct race_counts *c) {
    static const struct {
        const char *name;
        size_t offset;
    } ints[] = {
        {"max_candidates", offsetof(struct race_counts, max_candidates)},
        {"started", offsetof(struct race_counts, started)},
        {"finished", offsetof(struct race_counts, finished)},
        {"verified", offsetof(struct race_counts, verified)},
        {"passed", offsetof(struct race_counts, passed)},
        {"cancelled", offsetof(struct race_counts, cancelled)},
        {"duplicates", offsetof(struct race_counts, duplicates)},
        {"broken", offsetof(struct race_counts, broken)},
    };
    writer_object(w);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        int n;
        memcpy(&n, (const char *)c + ints[i].offset, sizeof n);
        writer_key(w, ints[i].name);
        writer_int(w, n);
    }
    writer_object_end(w);
}

static void write_times(struct writer *w, const struct race_counts *c) {
    writer_object(w);
    writer_key(w, "prompt_s");
    writer_number(w, c->prompt_s < 0 ? (double)NAN : c->prompt_s);
    writer_key(w, "first_pass_s");
    writer_number(w, c->first_pass_s < 0 ? (double)NAN : c->first_pass_s);
    writer_key(w, "verify_s");
    writer_number(w, c->verify_s);
    writer_key(w, "total_s");
    writer_number(w, c->total_s);
    writer_object_end(w);
}

double api_response_pass_at(int n, int passed, int k) {
    if (k > n) return (double)NAN;
    if (n - passed < k) return 1;
    double none = 1;
    for (int i = n - passed + 1; i <= n; i++)
        none *= 1 - (double)k / i;
    return 1 - none;
}

static void write_pass_at(struct writer *w, const struct api_request *q,
                          const struct race_counts *c) {
    writer_key(w, "pass_at_k");
    writer_object(w);
    for (int i = 0; i < q->n_pass_at; i++) {
        char key[16];
        bool given = false; /* the same k twice would be a key twice */
        for (int j = 0; j < i; j++)
            given = given || q->pass_at[j] == q->pass_at[i];
        if (given) continue;
        snprintf(key, sizeof key, "%d", q->pass_at[i]);
        writer_key(w, key);
        writer_number(w, api_response_pass_at(c->verified, c->passed, q->pass_at[i]));
    }
    writer_object_end(w);
}

void api_response_write_firstpass(struct writer *w, const struct api_response_head *h,
                                  const struct race_result *r) {
    writer_object(w);
    writer_key(w, "verified");
    writer_bool(w, r->verified);
    writer_key(w, "seed");
    writer_uint(w, r->seed);
    writer_key(w, "deadline_passed");
    writer_bool(w, r->deadline);
    if (h->request->has_tests) {
        writer_key(w, "winner");
        if (r->n_choices) {
            const struct race_candidate *c = r->choices[0];
            writer_object(w);
            write_number(w, h, c);
            writer_key(w, "seed");
            writer_uint(w, r->seed);
            write_temperature(w, h, c);
            write_verdict(w, c);
            writer_key(w, "code");
            writer_string(w, c->code, c->code ? c->code_len : 0);
            writer_object_end(w);
        } else {
            writer_null(w);
        }
        writer_key(w, "sandbox");
        writer_object(w);
        writer_key(w, "level");
        writer_int(w, h->sandbox_level);
        writer_key(w, "trust");
        writer_text(w, r->n_choices ? r->choices[0]->trust : NULL);
        writer_object_end(w);
    }
    if (h->request->n_pass_at) write_pass_at(w, h->request, &r->counts);
    writer_key(w, "counts");
    api_response_write_counts(w, &r->counts);
    writer_key(w, "tokens");
    writer_object(w);
    writer_key(w, "prompt");
    writer_int(w, r->counts.prompt_tokens);
    writer_key(w, "cached");
    writer_int(w, r->counts.cached_tokens);
    writer_key(w, "winner");
    writer_int(w, r->counts.tokens_winner);
    writer_key(w, "losers");
    writer_int(w, r->counts.tokens_losers);
    writer_key(w, "rows");
    writer_int(w, r->counts.rows);
    writer_object_end(w);
    writer_key(w, "timings");
    write_times(w, &r->counts);
    bool shown = h->request->detail != RACE_CANDIDATES_NONE || r->error.kind == ERR_NONE_PASSED;
    if (shown && h->request->has_tests && !api_request_tells_each(h->request)) {
        writer_key(w, "candidates");
        writer_array(w);
        for (int i = 0; i < r->n_candidates; i++)
            api_response_write_candidate(w, h, r->candidates[i]);
        writer_array_end(w);
    }
    writer_object_end(w);
}
