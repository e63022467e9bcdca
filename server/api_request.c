#include "server/api_request.h"

#include "config/limits.h"
#include "server/api_messages.h"
#include "server/api_responses.h"
#include "server/api_tests.h"
#include "server/reader.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COMPLETIONS_MAX_TOKENS = 16, MODEL_NAME_BYTES = 512, SALT_BYTES = 256 };

/* ---- prompts of /v1/completions ---- */

static bool read_token_list(struct reader *r, const struct api_request_context *c, json_t *list,
                            struct api_request_prompt *out) {
    size_t n = json_array_size(list);
    if (!n) return reader_fail(r, "prompt", "a list of token ids must not be empty");
    if (n > LIMIT_CONTEXT)
        return reader_fail(r, "prompt", "has %zu tokens; the limit is %d", n, LIMIT_CONTEXT);
    int32_t *tokens = arena_alloc(r->arena, n, sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_array_get(list, i);
        if (!json_is_integer(v))
            return reader_fail(r, "prompt", "token %zu must be a whole number, not %s", i,
                               reader_type(v));
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= c->model->n_vocab)
            return reader_fail(r, "prompt", "token id %lld at %zu is outside the vocabulary of %d",
                               (long long)id, i, c->model->n_vocab);
        tokens[i] = (int32_t)id;
    }
    *out = (struct api_request_prompt){.tokens = tokens, .n_tokens = n};
    return true;
}

static struct api_request_prompt text_prompt(struct reader *r, json_t *v) {
    size_t len = json_string_length(v);
    return (struct api_request_prompt){.text = arena_strndup(r->arena, json_string_value(v), len),
                                       .len = len};
}

/* A string, a list of strings, a list of token ids, or a list of such lists. */
static bool read_prompts(struct reader *r, const struct api_request_context *c,
                         struct api_request *q) {
    json_t *v = reader_get(r, "prompt");
    if (r->failed) return false;
    if (!v) return reader_fail(r, "prompt", "is missing");
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    bool tokens = json_is_array(v) && json_is_number(json_array_get(v, 0));
    if (tokens) n = 1;
    if (!n) return reader_fail(r, "prompt", "must not be an empty list");
    if (n > LIMIT_PROMPTS)
        return reader_fail(r, "prompt", "has %zu prompts; the limit is %d", n, LIMIT_PROMPTS);
    struct api_request_prompt *prompts = arena_alloc(r->arena, n, sizeof *prompts);
    q->prompts = prompts;
    q->n_prompts = (int)n;
    if (tokens) return read_token_list(r, c, v, prompts);
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (json_is_string(item))
            prompts[i] = text_prompt(r, item);
        else if (!json_is_array(item) || !json_is_array(v))
            return reader_fail(r, "prompt",
                               "must be a string, a list of strings, a list of token ids or a list "
                               "of such lists, not %s",
                               reader_type(item));
        else if (!read_token_list(r, c, item, &prompts[i]))
            return false;
    }
    return true;
}

/* ---- sampling ---- */

static void read_logit_bias(struct reader *r, const struct api_request_context *c,
                            struct engine_sampling *s) {
    json_t *v = reader_get(r, "logit_bias");
    if (!v) return;
    if (!json_is_object(v)) {
        reader_fail(r, "logit_bias", "must be an object, not %s", reader_type(v));
        return;
    }
    size_t n = json_object_size(v);
    if (n > 1024) {
        reader_fail(r, "logit_bias", "has %zu entries; the limit is 1024", n);
        return;
    }
    struct engine_bias *bias = arena_alloc(r->arena, n, sizeof *bias);
    int used = 0;
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value) {
        errno = 0;
        char *end;
        long long id = strtoll(key, &end, 10);
        if (errno || end == key || *end || id < 0 || id >= c->model->n_vocab) {
            reader_fail(r, "logit_bias", "\"%.40s\" is no token id of this model", key);
            return;
        }
        double b = json_is_number(value) ? json_number_value(value) : NAN;
        if (!(b >= -100 && b <= 100)) {
            reader_fail(r, "logit_bias", "the bias of token %lld must be a number from -100 to 100",
                        id);
            return;
        }
        bias[used++] = (struct engine_bias){.token = (int32_t)id, .bias = (float)b};
    }
    s->bias = bias;
    s->n_bias = used;
}

static void read_sampling(struct reader *r, const struct api_request_context *c,
                          struct api_request *q) {
    struct engine_sampling *s = &q->job.sampling;
    s->temperature = (float)reader_number(r, "temperature", 0, 2, 1);
    s->top_p = (float)reader_number(r, "top_p", 0, 1, 1);
    s->min_p = (float)reader_number(r, "min_p", 0, 1, 0);
    s->top_k = (int)reader_int(r, "top_k", -1, LIMIT_VOCAB, 0);
    if (s->top_k < 0) s->top_k = 0;
    s->repetition_penalty = (float)reader_number(r, "repetition_penalty", 0.01, 10, 1);
    s->presence_penalty = (float)reader_number(r, "presence_penalty", -2, 2, 0);
    s->frequency_penalty = (float)reader_number(r, "frequency_penalty", -2, 2, 0);
    read_logit_bias(r, c, s);
    q->has_seed = reader_get(r, "seed") != NULL;
    q->job.seed = (uint64_t)reader_int(r, "seed", INT64_MIN, INT64_MAX, 0);
    q->job.cache_salt = reader_string(r, "cache_salt", SALT_BYTES, NULL);
}

/* ---- where a candidate ends ---- */

static void read_stop_strings(struct reader *r, struct api_request *q) {
    json_t *v = reader_get(r, "stop");
    if (!v) return;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > LIMIT_STOPS) {
        reader_fail(r, "stop", "has %zu strings; the limit is %d", n, LIMIT_STOPS);
        return;
    }
    const char **stops = arena_alloc(r->arena, n, sizeof *stops);
    size_t *lens = arena_alloc(r->arena, n, sizeof *lens);
    int used = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(item)) {
            reader_fail(r, "stop", "must be a string or a list of strings, not %s",
                        reader_type(item));
            return;
        }
        size_t len = json_string_length(item);
        if (len > LIMIT_STOP_BYTES) {
            reader_fail(r, "stop", "string %zu has %zu bytes; the limit is %d", i, len,
                        LIMIT_STOP_BYTES);
            return;
        }
        if (!len) continue; /* some clients send "" for none */
        lens[used] = len;
        stops[used++] = arena_strndup(r->arena, json_string_value(item), len);
    }
    q->job.stops = stops;
    q->job.stop_lens = lens;
    q->job.n_stops = used;
}

static void read_stop_tokens(struct reader *r, const struct api_request_context *c,
                             struct api_request *q) {
    json_t *v = reader_get(r, "stop_token_ids");
    if (!v) return;
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > 128) {
        reader_fail(r, "stop_token_ids", "must be a list of at most 128 token ids");
        return;
    }
    int32_t *tokens = arena_alloc(r->arena, n, sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_array_get(v, i);
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= c->model->n_vocab) {
            reader_fail(r, "stop_token_ids", "entry %zu is no token id of this model", i);
            return;
        }
        tokens[i] = (int32_t)id;
    }
    q->job.stop_tokens = tokens;
    q->job.n_stop_tokens = (int)n;
}

static void read_ends(struct reader *r, const struct api_request_context *c,
                      struct api_request *q) {
    bool newer = reader_get(r, "max_completion_tokens") != NULL;
    int preset = q->kind == API_REQUEST_COMPLETIONS ? COMPLETIONS_MAX_TOKENS : 0;
    q->job.max_tokens = (int)reader_int(r, newer ? "max_completion_tokens" : "max_tokens", 1,
                                        LIMIT_CONTEXT, preset);
    q->job.min_tokens = (int)reader_int(r, "min_tokens", 0, LIMIT_CONTEXT, 0);
    if (q->job.max_tokens && q->job.min_tokens > q->job.max_tokens)
        reader_fail(r, "min_tokens", "must not be above max_tokens (%d)", q->job.max_tokens);
    q->job.ignore_eos = reader_bool(r, "ignore_eos", false);
    q->job.show_control = !reader_bool(r, "skip_special_tokens", true);
    q->job.include_stop = reader_bool(r, "include_stop_str_in_output", false);
    read_stop_strings(r, q);
    read_stop_tokens(r, c, q);
}

/* ---- what the answer shows ---- */

static void read_logprobs(struct reader *r, struct api_request *q) {
    json_t *v = reader_get(r, "logprobs");
    if (q->kind != API_REQUEST_COMPLETIONS) {
        q->job.logprobs = reader_bool(r, "logprobs", false);
        q->job.n_top_logprobs = (int)reader_int(r, "top_logprobs", 0, LIMIT_TOP_LOGPROBS, 0);
        if (q->job.n_top_logprobs && !q->job.logprobs)
            reader_fail(r, "top_logprobs", "needs \"logprobs\": true");
    } else if (v && !json_is_false(v)) {
        q->job.logprobs = true;
        q->job.n_top_logprobs = (int)reader_int(r, "logprobs", 0, LIMIT_TOP_LOGPROBS, 0);
    }
    q->tokens_as_ids = reader_bool(r, "return_tokens_as_token_ids", false);
    q->return_token_ids = reader_bool(r, "return_token_ids", false);
    q->echo = q->kind == API_REQUEST_COMPLETIONS && reader_bool(r, "echo", false);
    if (q->echo && q->job.logprobs) {
        q->job.prompt_logprobs = true;
        q->job.n_prompt_top = q->job.n_top_logprobs;
    }
}

/* vLLM's field: alternatives at each token of the prompt.  `false` is how some clients say none. */
static void read_prompt_logprobs(struct reader *r, struct api_request *q) {
    json_t *v = reader_get(r, "prompt_logprobs");
    q->n_prompt_logprobs = -1;
    if (!v || json_is_false(v)) return;
    int n = (int)reader_int(r, "prompt_logprobs", 0, LIMIT_TOP_LOGPROBS, 0);
    if (q->stream) {
        reader_fail(r, "prompt_logprobs", "can't be streamed; leave out \"stream\"");
        return;
    }
    q->n_prompt_logprobs = n;
    q->job.prompt_logprobs = true;
    if (n > q->job.n_prompt_top) q->job.n_prompt_top = n;
}

/* Text after the gap that the answer fills, for models that were trained for it. */
static void read_suffix(struct reader *r, const struct api_request_context *c,
                        struct api_request *q) {
    q->suffix = reader_string(r, "suffix", LIMIT_BODY_BYTES_MAX, &q->suffix_len);
    if (!q->suffix_len) q->suffix = NULL;
    if (!q->suffix) return;
    if (q->kind != API_REQUEST_COMPLETIONS)
        reader_fail(r, "suffix", "is a field of /v1/completions");
    else if (c->model->fim_middle < 0)
        reader_fail(r, "suffix", "model %.100s has no tokens for filling gaps; leave it out",
                    c->model->name);
    else if (q->echo)
        reader_fail(r, "suffix", "can't be combined with echo");
}

static void read_streaming(struct reader *r, struct api_request *q) {
    q->stream = reader_bool(r, "stream", false);
    json_t *v = reader_get(r, "stream_options");
    if (!v) return;
    if (!q->stream) {
        reader_fail(r, "stream_options", "is only for \"stream\": true");
        return;
    }
    if (!json_is_object(v)) {
        reader_fail(r, "stream_options", "must be an object, not %s", reader_type(v));
        return;
    }
    struct reader inner = {.object = v, .where = "stream_options.", .arena = r->arena, .e = r->e};
    q->include_usage = reader_bool(&inner, "include_usage", false);
    q->usage_each = reader_bool(&inner, "continuous_usage_stats", false);
    r->failed = r->failed || inner.failed;
}

/* ---- what isn't there ---- */

/* Fields that change the answer and that this server can't honour: refused where they ask for
 * anything. */
static void refuse_unsupported(struct reader *r) {
    static const char *const names[] = {
        "audio",           "web_search_options", "functions",       "function_call",
        "guided_json",     "guided_regex",       "guided_choice",   "guided_grammar",
        "guided_decoding", "structured_outputs", "use_beam_search",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = reader_get(r, names[i]);
        if (!v || json_is_false(v)) continue;
        if (json_is_string(v) && !json_string_length(v)) continue;
        if (json_is_array(v) && !json_array_size(v)) continue;
        reader_fail(r, names[i], "isn't supported by this server; leave it out");
    }

    json_t *format = reader_get(r, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text")))
        reader_fail(r, "response_format", "only {\"type\": \"text\"} is supported");

    json_t *modalities = reader_get(r, "modalities");
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *name = json_string_value(json_array_get(modalities, i));
        if (!name || strcmp(name, "text"))
            reader_fail(r, "modalities", "only [\"text\"] is supported");
    }
    json_t *choice = reader_get(r, "tool_choice");
    const char *name = json_string_value(choice);
    if (choice && (!name || (strcmp(name, "none") && strcmp(name, "auto"))))
        reader_fail(r, "tool_choice", "only \"none\" and \"auto\" are supported");
}

/* ---- the whole ---- */

static void read_counts(struct reader *r, const struct api_request_context *c,
                        struct api_request *q, int *asked) {
    int most = c->config->server.max_candidates;
    int n = (int)reader_int(r, "n", 1, most, 1);
    int best_of = (int)reader_int(r, "best_of", 1, most, n);
    if (q->n_prompts > 1 && best_of > most / q->n_prompts)
        reader_fail(r, best_of > n ? "best_of" : "n",
                    "%d prompts with %d candidates each are more than the %d of one request",
                    q->n_prompts, best_of, most);
    int named = 0;
    size_t name_len;
    if (c->config->server.inline_tests && q->model &&
        (named = api_tests_model_suffix(q->model, &name_len))) {
        q->model = arena_strndup(r->arena, q->model, name_len);
        if (named > most)
            reader_fail(r, "model", "asks for %d candidates; this server takes %d", named, most);
        /* Another name for n with tests, for best_of without. */
        if (best_of == n && named > n) best_of = named;
    }
    if (best_of < n) reader_fail(r, "best_of", "must not be below n (%d)", n);
    if (best_of > n && q->stream)
        reader_fail(r, "best_of", "above n can't be streamed: the best are known only at the end");
    q->n_choices = n;
    q->job.n_candidates = best_of;
    *asked = best_of;
}

static bool read_fields(struct reader *r, const struct api_request_context *c,
                        struct api_request *q) {
    const char *user = NULL;
    size_t user_len = 0;
    int asked = 0;
    if (q->kind == API_REQUEST_RESPONSES && !api_responses_read(r, q)) return false;
    q->model = reader_string(r, "model", MODEL_NAME_BYTES, NULL);
    q->add_bos = reader_bool(r, "add_special_tokens", true);
    if (q->kind == API_REQUEST_COMPLETIONS)
        read_prompts(r, c, q);
    else
        api_messages_read(r, c, q, &user, &user_len);
    read_sampling(r, c, q);
    read_ends(r, c, q);
    read_logprobs(r, q);
    read_streaming(r, q);
    read_prompt_logprobs(r, q);
    read_suffix(r, c, q);
    read_counts(r, c, q, &asked);
    refuse_unsupported(r);
    q->deadline_s = c->config->server.default_deadline_s;
    api_tests_read(r, c, user, user_len, asked, q);
    q->job.stream = q->stream && (!q->has_tests || api_request_tells_each(q));
    return !r->failed;
}

bool api_request_parse(struct api_request *q, enum api_request_kind kind, const char *body,
                       size_t len, const struct api_request_context *c, struct err *e) {
    *q = (struct api_request){.kind = kind};
    arena_init(&q->arena);
    struct json_shape spent = {0};
    json_t *document = reader_parse(body, len, &spent, e);
    if (!document) return false;
    bool ok;
    if (json_is_object(document)) {
        struct reader r = {
            .object = document, .where = "", .arena = &q->arena, .e = e, .spent = spent};
        ok = read_fields(&r, c, q);
    } else {
        ok = err_set(e, ERR_INPUT, "the body must be a JSON object, not %s", reader_type(document));
    }
    json_decref(document);
    return ok;
}

void api_request_clear(struct api_request *q) { arena_clear(&q->arena); }

int api_request_n_variants(const struct api_request *q) {
    return q->n_variants ? q->n_variants : 1;
}

int api_request_number(const struct api_request *q, int index) {
    return q->job.first_index + index;
}

int api_request_variant_of(const struct api_request *q, int index) {
    return api_request_number(q, index) % api_request_n_variants(q);
}

float api_request_temperature(const struct api_request *q, int index) {
    return engine_temperature(&q->job.sampling, api_request_number(q, index),
                              api_request_n_variants(q));
}

bool api_request_tells_each(const struct api_request *q) {
    return q->has_tests && q->stream && q->progress == API_REQUEST_PROGRESS_CANDIDATES;
}
