/* Requests from anywhere: the parser takes any bytes, and what it accepts keeps every limit.
 *
 * The first byte says which route; the rest is the body.  With a prompt that is text, the search
 * for code blocks runs over it too. */
#include "config/limits.h"
#include "server/api_request.h"
#include "server/api_tests.h"
#include "server/api_variants.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *guard(void *self, const char *text, size_t len, size_t *len_out) {
    (void)self;
    char *copy = malloc(len + 1);
    if (!copy) abort();
    memcpy(copy, text, len);
    copy[len] = 0;
    *len_out = len;
    return copy;
}

/* Each variant's prompt is text again, and not more than its parts. */
static void check_variants(const struct api_request *q) {
    BUG_ON(q->n_variants < 0 || q->n_variants > LIMIT_PROMPT_VARIANTS);
    for (int i = 0; i < q->n_variants; i++) {
        const struct api_request_variant *v = &q->variants[i];
        bool completion = q->kind == API_REQUEST_COMPLETIONS;
        size_t len;
        char *text =
            completion ? api_variants_prompt(q, i, &len) : api_variants_variables(q, i, &len);
        if (completion) {
            BUG_ON(len > q->prompts[0].len + v->user_len + v->lead_len);
        } else {
            json_t *variables = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
            BUG_ON(!variables || !json_is_array(json_object_get(variables, "messages")));
            json_decref(variables);
        }
        free(text);
    }
}

static void check(const struct api_request *q) {
    const struct engine_sampling *s = &q->job.sampling;
    BUG_ON(q->job.n_candidates < 1 || q->job.n_candidates > LIMIT_CANDIDATES);
    BUG_ON(q->n_choices < 1 || q->n_choices > q->job.n_candidates);
    BUG_ON(q->job.max_tokens < 0 || q->job.max_tokens > LIMIT_CONTEXT);
    BUG_ON(q->job.n_stops < 0 || q->job.n_stops > LIMIT_STOPS);
    BUG_ON(q->job.n_top_logprobs < 0 || q->job.n_top_logprobs > LIMIT_TOP_LOGPROBS);
    BUG_ON(!(s->temperature >= 0 && s->temperature <= 2) || !(s->top_p >= 0 && s->top_p <= 1));
    check_variants(q);
    BUG_ON(q->deadline_s < 0 || q->deadline_s > LIMIT_REQUEST_SECONDS);
    if (q->kind != API_REQUEST_COMPLETIONS) {
        BUG_ON(!q->variables || strlen(q->variables) != q->variables_len);
        return;
    }
    BUG_ON(q->n_prompts < 1 || q->n_prompts > LIMIT_PROMPTS);
    for (int i = 0; i < q->n_prompts; i++) {
        const struct api_request_prompt *p = &q->prompts[i];
        BUG_ON(!p->text && !p->n_tokens);
        size_t len;
        const char *code = p->text ? api_tests_find_code(p->text, p->len, "f", &len) : NULL;
        BUG_ON(code && (code < p->text || code + len > p->text + p->len));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct config config = {
        .server = {.max_candidates = LIMIT_CANDIDATES, .default_deadline_s = 600},
        .verifier = {.timeout_s = 3, .memory_mb = 256},
    };
    static const struct engine_model model = {
        .name = "m", .bos_text = "<s>", .eos_text = "</s>", .n_vocab = 1000, .context = 4096};
    static const struct api_request_context context = {
        .config = &config, .model = &model, .guard = guard};
    if (!size) return 0;
    struct api_request q;
    struct err e = {0};
    enum api_request_kind kind = (enum api_request_kind)(data[0] % 3);
    /* A copy of the exact size, so that reading past the end is caught. */
    char *body = malloc(size - 1 ? size - 1 : 1);
    if (!body) abort();
    memcpy(body, data + 1, size - 1);
    if (api_request_parse(&q, kind, body, size - 1, &context, &e))
        check(&q);
    else
        BUG_ON(e.kind != ERR_INPUT || !e.message[0]);
    api_request_clear(&q);
    free(body);
    return 0;
}
