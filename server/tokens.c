#include "server/tokens.h"

#include "config/limits.h"
#include "server/api_messages.h"
#include "server/call.h"
#include "server/prompt.h"
#include "server/reader.h"
#include "server/route.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 256 * 1024 * 1024 };

void tokens_info(struct api *api, struct http_request *http) {
    struct err e = {0};
    if (!api_accepts(api, http, &e)) {
        route_reply_error(http, &e, NULL);
        return;
    }
    const struct engine_model *model = engine_model(runtime_engine(api->runtime));
    struct buf body;
    struct writer w;
    buf_init(&body, PAGE_BYTES);
    writer_init(&w, &body);
    writer_object(&w);
    writer_key(&w, "tokenizer_class");
    writer_text(&w, "gguf");
    writer_key(&w, "bos_token");
    writer_text(&w, model->bos >= 0 ? model->bos_text : NULL);
    writer_key(&w, "eos_token");
    writer_text(&w, model->eos >= 0 ? model->eos_text : NULL);
    writer_key(&w, "pad_token");
    writer_null(&w);
    writer_key(&w, "model_max_length");
    writer_int(&w, model->context);
    writer_key(&w, "chat_template");
    writer_text(&w, model->chat_template);
    writer_object_end(&w);
    route_reply_json(http, 200, &body);
}

/* ---- from the body ---- */

/* One request: a text, or messages as /v1/chat/completions takes them.  `chat.arena` owns what was
 * read. */
struct tokens_request {
    struct api *api;
    struct http_request *http; /* borrowed; NULL once the client left */
    uv_work_t work;
    const char *text; /* NULL: messages */
    size_t len;
    unsigned flags;
    struct api_request chat; /* owned */
    char *rendered;          /* owned; the messages in the model's template */
    size_t rendered_len;
    bool strings; /* the tokens' texts too */
    int32_t *tokens;
    size_t n;
    struct err error;
};

static json_t *parse(struct http_request *http, struct reader *r, struct arena *arena,
                     struct err *e) {
    size_t len;
    const char *body = http_body(http, &len);
    *r = (struct reader){.where = "", .arena = arena, .e = e};
    r->object = reader_parse(body, len, &r->spent, e);
    if (r->object && !json_is_object(r->object)) {
        err_set(e, ERR_INPUT, "the body must be a JSON object, not %s", reader_type(r->object));
        json_decref(r->object);
        r->object = NULL;
    }
    return r->object;
}

/* ---- text to tokens ---- */

static void free_request(struct tokens_request *t) {
    api_request_clear(&t->chat);
    free(t->rendered);
    free(t->tokens);
    free(t);
}

static void on_gone(void *arg) { ((struct tokens_request *)arg)->http = NULL; }

static void encode(uv_work_t *work) {
    struct tokens_request *t = work->data;
    const struct engine *engine = runtime_engine(t->api->runtime);
    bool ok = t->text
                  ? engine_tokenize(engine, t->text, t->len, t->flags, &t->tokens, &t->n, &t->error)
                  : prompt_tokenize_chat(engine, &t->chat, t->rendered, t->rendered_len, &t->tokens,
                                         &t->n, &t->error);
    (void)ok; /* the error says it */
}

static void write_tokens(struct writer *w, const struct tokens_request *t) {
    const struct engine *engine = runtime_engine(t->api->runtime);
    writer_object(w);
    writer_key(w, "count");
    writer_int(w, (int64_t)t->n);
    writer_key(w, "max_model_len");
    writer_int(w, engine_model(engine)->context);
    writer_key(w, "tokens");
    writer_array(w);
    for (size_t i = 0; i < t->n; i++)
        writer_int(w, t->tokens[i]);
    writer_array_end(w);
    writer_key(w, "token_strs");
    if (t->strings) {
        writer_array(w);
        for (size_t i = 0; i < t->n; i++) {
            size_t len;
            const char *text = engine_token_text(engine, t->tokens[i], &len);
            writer_string(w, text, len);
        }
        writer_array_end(w);
    } else {
        writer_null(w);
    }
    writer_object_end(w);
}

static void answer(struct tokens_request *t) {
    t->api->n_tokenizing--;
    if (t->http && t->error.kind != ERR_NONE) {
        if (!t->error.param[0] && t->text)
            snprintf(t->error.param, sizeof t->error.param, "prompt");
        route_reply_error(t->http, &t->error, NULL);
    } else if (t->http) {
        struct buf body;
        struct writer w;
        buf_init(&body, PAGE_BYTES);
        writer_init(&w, &body);
        write_tokens(&w, t);
        route_reply_json(t->http, 200, &body);
    }
    free_request(t);
}

static void on_encoded(uv_work_t *work, int status) {
    (void)status; /* the work is never cancelled */
    answer(work->data);
}

static void start_encoding(struct tokens_request *t) {
    t->work.data = t;
    int status = uv_queue_work(runtime_loop(t->api->runtime), &t->work, encode, on_encoded);
    BUG_ON(status);
}

static void on_rendered(void *arg, const char *text, size_t len, const struct err *error) {
    struct tokens_request *t = arg;
    if (error) {
        t->error = *error;
        if (error->kind == ERR_INPUT)
            err_prefix(&t->error, "the chat template refused the messages");
        answer(t);
        return;
    }
    t->rendered = err_strndup(text, len);
    t->rendered_len = len;
    start_encoding(t);
}

/* The same template, and the same tokens before it, as the chat itself gets. */
static void read_chat(struct tokens_request *t, struct reader *r) {
    const struct api_request_context context = call_context(t->api);
    const char *user;
    size_t user_len;
    t->chat.kind = API_REQUEST_CHAT;
    t->chat.add_bos = reader_bool(r, "add_special_tokens", true);
    if (!api_messages_read(r, &context, &t->chat, &user, &user_len)) return;
    if (!r->failed && !runtime_chat(t->api->runtime, r->e)) r->failed = true;
}

static void read_text(struct tokens_request *t, struct reader *r) {
    t->text = reader_string(r, "prompt", LIMIT_BODY_BYTES_MAX, &t->len);
    if (!t->text) reader_fail(r, "prompt", "is missing; it must be a string");
    /* Text of control tokens becomes these tokens: who asks here sees all that the vocabulary has.
     */
    t->flags = ENGINE_TOKENIZE_SPECIAL;
    if (reader_bool(r, "add_special_tokens", true)) t->flags |= ENGINE_TOKENIZE_BOS;
}

static bool read_body(struct tokens_request *t, struct err *e) {
    struct reader r;
    json_t *document = parse(t->http, &r, &t->chat.arena, e);
    if (!document) return false;
    bool messages = reader_get(&r, "messages") != NULL;
    if (messages && reader_get(&r, "prompt"))
        reader_fail(&r, "messages", "can't be combined with prompt");
    t->strings = reader_bool(&r, "return_token_strs", false);
    if (messages)
        read_chat(t, &r);
    else
        read_text(t, &r);
    json_decref(document);
    http_drop_body(t->http);
    return !r.failed;
}

void tokens_encode(struct api *api, struct http_request *http) {
    struct err e = {0};
    if (!api_accepts(api, http, &e)) {
        route_reply_error(http, &e, NULL);
        return;
    }
    struct tokens_request *t = err_alloc(1, sizeof *t);
    t->api = api;
    t->http = http;
    arena_init(&t->chat.arena);
    if (!read_body(t, &e)) {
        route_reply_error(http, &e, NULL);
        free_request(t);
        return;
    }
    http_on_gone(http, on_gone, t);
    api->n_tokenizing++;
    if (t->text)
        start_encoding(t);
    else
        verifier_render(runtime_verifier(api->runtime), t->chat.variables, t->chat.variables_len,
                        on_rendered, t);
}

/* ---- tokens to text ---- */

static bool read_tokens(struct reader *r, int32_t **out, size_t *n) {
    json_t *list = reader_get(r, "tokens");
    if (!json_is_array(list)) return reader_fail(r, "tokens", "must be a list of token ids");
    *n = json_array_size(list);
    if (*n > LIMIT_CONTEXT)
        return reader_fail(r, "tokens", "has %zu entries; the limit is %d", *n, LIMIT_CONTEXT);
    *out = arena_alloc(r->arena, *n, sizeof **out);
    for (size_t i = 0; i < *n; i++) {
        json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= LIMIT_VOCAB)
            return reader_fail(r, "tokens", "entry %zu is no token id of this model", i);
        (*out)[i] = (int32_t)id;
    }
    return true;
}

static bool decode(struct api *api, struct reader *r, struct buf *body) {
    int32_t *tokens = NULL;
    size_t n = 0, len = 0;
    char *text = NULL;
    if (!read_tokens(r, &tokens, &n)) return false;
    if (!engine_detokenize(runtime_engine(api->runtime), tokens, n, true, &text, &len, r->e)) {
        snprintf(r->e->param, sizeof r->e->param, "tokens");
        return false;
    }
    struct writer w;
    writer_init(&w, body);
    writer_object(&w);
    writer_key(&w, "prompt");
    writer_string(&w, text, len);
    writer_object_end(&w);
    free(text);
    return true;
}

void tokens_decode(struct api *api, struct http_request *http) {
    struct err e = {0};
    struct reader r;
    struct arena arena;
    struct buf body;
    arena_init(&arena);
    buf_init(&body, PAGE_BYTES);
    json_t *document = api_accepts(api, http, &e) ? parse(http, &r, &arena, &e) : NULL;
    if (document && decode(api, &r, &body))
        route_reply_json(http, 200, &body);
    else
        route_reply_error(http, &e, NULL);
    json_decref(document);
    arena_clear(&arena);
}
