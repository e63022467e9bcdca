#include "server/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char *param_of(const struct api_request *q) {
    return q->kind == API_REQUEST_CHAT ? "messages" : "prompt";
}

static bool tokenize(const struct engine *engine, const struct api_request *q, const char *text,
                     size_t len, unsigned flags, int32_t **tokens, size_t *n, struct err *e) {
    const struct engine_model *model = engine_model(engine);
    if (!engine_tokenize(engine, text, len, flags, tokens, n, e)) {
        if (e && !e->param[0]) snprintf(e->param, sizeof e->param, "%s", param_of(q));
        return false;
    }
    if (*n) return true;
    /* A model needs something to start from. */
    free(*tokens);
    *tokens = NULL;
    int32_t start = model->bos >= 0 ? model->bos : model->eos;
    if (start < 0) return err_param(e, param_of(q), "%s: must not be empty", param_of(q));
    *tokens = err_alloc(1, sizeof **tokens);
    (*tokens)[0] = start;
    *n = 1;
    return true;
}

bool prompt_tokenize_chat(const struct engine *engine, const struct api_request *q,
                          const char *rendered, size_t len, int32_t **tokens, size_t *n,
                          struct err *e) {
    const char *bos = engine_model(engine)->bos_text;
    unsigned flags = ENGINE_TOKENIZE_SPECIAL | ENGINE_TOKENIZE_GUARDED;
    /* Some templates write the beginning-of-sequence token themselves; two of them hurt. */
    size_t bos_len = strlen(bos);
    bool given = bos_len && len >= bos_len && !memcmp(rendered, bos, bos_len);
    if (q->add_bos && !given) flags |= ENGINE_TOKENIZE_BOS;
    return tokenize(engine, q, rendered, len, flags, tokens, n, e);
}

bool prompt_tokenize(const struct engine *engine, const struct api_request *q,
                     const struct api_request_prompt *prompt, int32_t **tokens, size_t *n,
                     struct err *e) {
    unsigned flags = q->add_bos ? ENGINE_TOKENIZE_BOS : 0;
    if (prompt->text) return tokenize(engine, q, prompt->text, prompt->len, flags, tokens, n, e);
    *n = prompt->n_tokens;
    *tokens = err_alloc(*n, sizeof **tokens);
    if (*n) memcpy(*tokens, prompt->tokens, *n * sizeof **tokens);
    return true;
}

void prompt_choose_seed(struct api_request *q) {
    if (!q->has_seed) {
        uint64_t seed = 0;
        ssize_t got = getrandom(&seed, sizeof seed, 0);
        BUG_ON(got != (ssize_t)sizeof seed);
        q->job.seed = seed >> 11; /* so that every JSON parser can read it back */
    }
    q->tests.seed = q->job.seed;
}

bool prompt_race(const struct api_request *q, const struct engine_model *model,
                 int default_max_tokens, const int32_t *tokens, size_t n, struct race_request *out,
                 struct err *e) {
    int room = n < (size_t)model->context ? model->context - (int)n : 0;
    if (!room) {
        err_param(e, param_of(q),
                  "the prompt has %zu tokens; the model's context holds %d, prompt and answer "
                  "together",
                  n, model->context);
        return err_code(e, "context_length_exceeded");
    }
    *out = (struct race_request){
        .job = q->job,
        .tests = q->has_tests ? &q->tests : NULL,
        .n_choices = q->n_choices,
        .returns = q->returns,
        .on_fail = q->on_fail,
        .detail = q->detail,
        .deadline_s = q->deadline_s,
    };
    out->job.prompt = tokens;
    out->job.n_prompt = (int)n;
    if (!out->job.max_tokens) {
        out->job.max_tokens = default_max_tokens < room ? default_max_tokens : room;
        if (out->job.min_tokens > out->job.max_tokens) out->job.min_tokens = out->job.max_tokens;
    }
    return true;
}
