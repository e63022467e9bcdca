#include "server/api_variants.h"

#include "base/buf.h"
#include "config/limits.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

/* Chat text is guarded before it meets the template. */
static const char *guarded(const struct reader *r, const struct api_request_context *c,
                           const struct api_request *q, const char *text, size_t *len) {
    if (q->kind == API_REQUEST_COMPLETIONS || !*len) return text;
    char *safe = c->guard(c->self, text, *len, len);
    const char *copy = arena_strndup(r->arena, safe, *len);
    free(safe);
    return copy;
}

static void read_variant(struct reader *r, const struct api_request_context *c, json_t *item,
                         const struct api_request *q, struct api_request_variant *out) {
    static const char *const known[] = {"user", "assistant", NULL};
    struct reader of = {
        .object = item, .where = "firstpass.diversity.prompts.", .arena = r->arena, .e = r->e};
    *out = (struct api_request_variant){.user = "", .lead = "", .behind = ""};
    if (json_is_string(item)) {
        out->user_len = json_string_length(item);
        out->user = arena_strndup(r->arena, json_string_value(item), out->user_len);
        if (out->user_len > LIMIT_VARIANT_BYTES)
            reader_fail(r, "prompts", "has a text of %zu bytes; the limit is %d", out->user_len,
                        LIMIT_VARIANT_BYTES);
    } else if (!json_is_object(item)) {
        reader_fail(r, "prompts", "each must be a text, or an object of user and assistant, not %s",
                    reader_type(item));
    } else if (reader_only(&of, known, "a prompt of diversity")) {
        const char *user = reader_string(&of, "user", LIMIT_VARIANT_BYTES, &out->user_len);
        const char *lead = reader_string(&of, "assistant", LIMIT_VARIANT_BYTES, &out->lead_len);
        if (user) out->user = user;
        if (lead) out->lead = lead;
    }
    r->failed = r->failed || of.failed;
    if (r->failed) return;
    out->behind_len = out->lead_len;
    out->behind = guarded(r, c, q, out->lead, &out->behind_len);
    out->user = guarded(r, c, q, out->user, &out->user_len);
}

/* What leaves no one prompt to vary, or to show. */
static const char *conflict(const struct api_request *q) {
    if (q->kind == API_REQUEST_COMPLETIONS && q->n_prompts != 1) return "several prompts";
    if (q->kind == API_REQUEST_COMPLETIONS && !q->prompts[0].text) return "a prompt of token ids";
    if (q->suffix) return "suffix";
    if (q->echo) return "echo";
    if (q->job.prompt_logprobs) return "prompt_logprobs";
    if (q->continued) return "continue_final_message; let \"assistant\" begin the answers";
    return NULL;
}

void api_variants_read(struct reader *diversity, const struct api_request_context *c,
                       const char *user, struct api_request *q) {
    json_t *list = reader_get(diversity, "prompts");
    if (!list || diversity->failed) return;
    size_t n = json_array_size(list);
    if (!n || n > LIMIT_PROMPT_VARIANTS) {
        reader_fail(diversity, "prompts", "must be a list of 1 to %d prompts",
                    LIMIT_PROMPT_VARIANTS);
        return;
    }
    if (conflict(q)) {
        reader_fail(diversity, "prompts", "can't be combined with %s", conflict(q));
        return;
    }
    struct api_request_variant *all = arena_alloc(diversity->arena, n, sizeof *all);
    for (size_t i = 0; i < n && !diversity->failed; i++) {
        read_variant(diversity, c, json_array_get(list, i), q, &all[i]);
        if (all[i].user_len && q->kind != API_REQUEST_COMPLETIONS && !user)
            reader_fail(diversity, "prompts", "vary the user's message, and there is none");
    }
    q->variants = all;
    q->n_variants = (int)n;
}

/* ---- the prompts ---- */

static void vary(const char *question, size_t len, const struct api_request_variant *v,
                 const char *between, struct buf *out) {
    static const char mark[] = "{question}";
    const char *at = memmem(v->user, v->user_len, mark, sizeof mark - 1);
    if (!at) {
        buf_append(out, question, len);
        if (v->user_len) buf_puts(out, between);
        buf_append(out, v->user, v->user_len);
        return;
    }
    size_t before = (size_t)(at - v->user), after = before + sizeof mark - 1;
    buf_append(out, v->user, before);
    buf_append(out, question, len);
    buf_append(out, v->user + after, v->user_len - after);
}

char *api_variants_prompt(const struct api_request *q, int variant, size_t *len) {
    const struct api_request_prompt *prompt = &q->prompts[0];
    struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    vary(prompt->text, prompt->len, &q->variants[variant], "", &text);
    buf_append(&text, q->variants[variant].lead, q->variants[variant].lead_len);
    return buf_take(&text, len);
}

char *api_variants_variables(const struct api_request *q, int variant, size_t *len) {
    const struct api_request_variant *v = q->n_variants ? &q->variants[variant] : NULL;
    if (!v || !v->user_len) {
        *len = q->variables_len;
        return err_strndup(q->variables, q->variables_len);
    }
    json_t *variables = json_loadb(q->variables, q->variables_len, JSON_ALLOW_NUL, NULL);
    BUG_ON(!variables); /* our own writing */
    json_t *messages = json_object_get(variables, "messages"), *message = NULL;
    for (size_t i = json_array_size(messages); i > 0; i--) {
        message = json_array_get(messages, i - 1);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && !strcmp(role, "user")) break;
    }
    json_t *content = json_object_get(message, "content");
    struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    vary(json_string_value(content), json_string_length(content), v, "\n\n", &text);
    json_object_set_new(message, "content", json_stringn_nocheck(buf_text(&text), text.len));
    char *out = json_dumps(variables, JSON_COMPACT);
    BUG_ON(!out);
    *len = strlen(out);
    buf_clear(&text);
    json_decref(variables);
    return out;
}

const char *api_variants_behind(const struct api_request *q, int variant, size_t *len) {
    *len = q->n_variants ? q->variants[variant].behind_len : 0;
    return *len ? q->variants[variant].behind : "";
}
