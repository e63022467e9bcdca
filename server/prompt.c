#include "server/prompt.h"

#include "base/buf.h"
#include "server/api_variants.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char *param_of(const struct api_request *q) {
    static const char *const names[] = {"prompt", "messages", "input"};
    return names[q->kind];
}

/* Says which field an error is about, where it doesn't say so itself; returns false. */
static bool name_param(struct err *e, const char *param) {
    if (e && !e->param[0]) snprintf(e->param, sizeof e->param, "%s", param);
    return false;
}

static bool tokenize(const struct engine *engine, const struct api_request *q, const char *text,
                     size_t len, unsigned flags, int32_t **tokens, size_t *n, struct err *e) {
    const struct engine_model *model = engine_model(engine);
    if (!engine_tokenize(engine, text, len, flags, tokens, n, e)) return name_param(e, param_of(q));
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

/* The rendered template up to the end of the text that the answer continues.  Templates may trim
 * what they are given. */
static bool cut_behind(const struct api_request *q, const char *rendered, size_t *len,
                       struct err *e) {
    size_t text_len = q->continued_len;
    for (int trimmed = 0; trimmed < 2 && text_len; trimmed++) {
        for (size_t at = *len; at >= text_len; at--) {
            if (memcmp(rendered + at - text_len, q->continued, text_len)) continue;
            *len = at;
            return true;
        }
        while (text_len && isspace((unsigned char)q->continued[text_len - 1]))
            text_len--;
    }
    return err_param(e, "continue_final_message",
                     "continue_final_message: the model's chat template doesn't show the last "
                     "message as it is");
}

bool prompt_tokenize_chat(const struct engine *engine, const struct api_request *q,
                          const char *rendered, size_t len, int32_t **tokens, size_t *n,
                          struct err *e) {
    if (q->continued && !cut_behind(q, rendered, &len, e)) return false;
    const char *bos = engine_model(engine)->bos_text;
    unsigned flags = ENGINE_TOKENIZE_SPECIAL | ENGINE_TOKENIZE_GUARDED;
    /* Some templates write the beginning-of-sequence token themselves; two of them hurt. */
    size_t bos_len = strlen(bos);
    bool given = bos_len && len >= bos_len && !memcmp(rendered, bos, bos_len);
    if (q->add_bos && !given) flags |= ENGINE_TOKENIZE_BOS;
    return tokenize(engine, q, rendered, len, flags, tokens, n, e);
}

static bool tokenize_given(const struct engine *engine, const struct api_request *q,
                           const struct api_request_prompt *prompt, unsigned flags,
                           int32_t **tokens, size_t *n, struct err *e) {
    if (prompt->text)
        return engine_tokenize(engine, prompt->text, prompt->len, flags, tokens, n, e) ||
               name_param(e, param_of(q));
    *n = prompt->n_tokens;
    *tokens = err_alloc(*n + 1, sizeof **tokens);
    if (*n) memcpy(*tokens, prompt->tokens, *n * sizeof **tokens);
    return true;
}

/* Text before the gap, text after it, and then the model writes what belongs between. */
static bool tokenize_gap(const struct engine *engine, const struct api_request *q,
                         const struct api_request_prompt *prompt, int32_t **tokens, size_t *n,
                         struct err *e) {
    const struct engine_model *model = engine_model(engine);
    int32_t *before = NULL, *after = NULL;
    size_t n_before = 0, n_after = 0;
    bool ok = tokenize_given(engine, q, prompt, 0, &before, &n_before, e) &&
              (engine_tokenize(engine, q->suffix, q->suffix_len, 0, &after, &n_after, e) ||
               name_param(e, "suffix"));
    if (ok) {
        bool bos = q->add_bos && model->adds_bos && model->bos >= 0;
        int32_t *all = *tokens = err_alloc(n_before + n_after + 4, sizeof *all);
        size_t at = 0;
        if (bos) all[at++] = model->bos;
        all[at++] = model->fim_prefix;
        if (n_before) memcpy(all + at, before, n_before * sizeof *all);
        at += n_before;
        all[at++] = model->fim_suffix;
        if (n_after) memcpy(all + at, after, n_after * sizeof *all);
        at += n_after;
        all[at++] = model->fim_middle;
        *n = at;
    }
    free(before);
    free(after);
    return ok;
}

bool prompt_tokenize(const struct engine *engine, const struct api_request *q,
                     const struct api_request_prompt *prompt, int32_t **tokens, size_t *n,
                     struct err *e) {
    if (q->suffix) return tokenize_gap(engine, q, prompt, tokens, n, e);
    unsigned flags = q->add_bos ? ENGINE_TOKENIZE_BOS : 0;
    if (prompt->text) return tokenize(engine, q, prompt->text, prompt->len, flags, tokens, n, e);
    return tokenize_given(engine, q, prompt, 0, tokens, n, e);
}

/* ---- variants ---- */

static int room_of(const struct engine_model *model, size_t n) {
    return n < (size_t)model->context ? model->context - (int)n : 0;
}

static bool fits(const struct api_request *q, const struct engine_model *model, size_t n,
                 struct err *e) {
    if (room_of(model, n)) return true;
    err_param(e, param_of(q),
              "this model's maximum context length is %d tokens, prompt and answer together; the "
              "prompt has %zu",
              model->context, n);
    return err_code(e, "context_length_exceeded");
}

/* Takes the tokens; with several prompts each is looked at at once. */
static bool take(struct prompt_set *set, const struct engine *engine, const struct api_request *q,
                 int32_t *tokens, size_t n, struct err *e) {
    BUG_ON(set->n == api_request_n_variants(q));
    set->tokens[set->n] = tokens;
    set->n_tokens[set->n++] = n;
    return fits(q, engine_model(engine), n, e);
}

bool prompt_set_add_chat(struct prompt_set *set, const struct engine *engine,
                         const struct api_request *q, const char *rendered, size_t len,
                         struct err *e) {
    struct buf text;
    int32_t *tokens = NULL;
    size_t n = 0, behind_len;
    const char *behind = api_variants_behind(q, set->n, &behind_len);
    buf_init(&text, SIZE_MAX / 2);
    buf_append(&text, rendered, len);
    buf_append(&text, behind, behind_len);
    bool ok = prompt_tokenize_chat(engine, q, buf_text(&text), text.len, &tokens, &n, e) &&
              take(set, engine, q, tokens, n, e);
    buf_clear(&text);
    return ok;
}

bool prompt_set_add(struct prompt_set *set, const struct engine *engine,
                    const struct api_request *q, const struct api_request_prompt *prompt,
                    struct err *e) {
    int32_t *tokens;
    size_t n;
    if (!q->n_variants)
        return prompt_tokenize(engine, q, prompt, &tokens, &n, e) &&
               take(set, engine, q, tokens, n, e);
    while (set->n < q->n_variants) {
        struct api_request_prompt varied = {0};
        char *text = api_variants_prompt(q, set->n, &varied.len);
        varied.text = text;
        bool ok = prompt_tokenize(engine, q, &varied, &tokens, &n, e) &&
                  take(set, engine, q, tokens, n, e);
        free(text);
        if (!ok) return false;
    }
    return true;
}

void prompt_set_clear(struct prompt_set *set) {
    for (int i = 0; i < set->n; i++)
        free(set->tokens[i]);
    *set = (struct prompt_set){0};
}

/* ---- the race ---- */

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
                 int default_max_tokens, struct prompt_set *set, struct race_request *out,
                 struct err *e) {
    int room = INT32_MAX;
    for (int i = 0; i < set->n; i++) {
        if (!fits(q, model, set->n_tokens[i], e)) return false;
        int own = room_of(model, set->n_tokens[i]);
        if (own < room) room = own;
        set->views[i] =
            (struct race_prompt){.tokens = set->tokens[i], .n_tokens = (int)set->n_tokens[i]};
        if (!q->n_variants) continue;
        set->views[i].lead = q->variants[i].lead;
        set->views[i].lead_len = q->variants[i].lead_len;
    }
    *out = (struct race_request){
        .job = q->job,
        .tests = q->has_tests ? &q->tests : NULL,
        .n_choices = q->n_choices,
        .returns = q->returns,
        .n_passes = q->n_passes,
        .on_fail = q->on_fail,
        .detail = q->detail,
        .deadline_s = q->deadline_s,
        .prompts = set->views,
        .n_prompts = set->n,
    };
    if (!out->job.max_tokens) {
        out->job.max_tokens = default_max_tokens < room ? default_max_tokens : room;
        if (out->job.min_tokens > out->job.max_tokens) out->job.min_tokens = out->job.max_tokens;
    }
    return true;
}
