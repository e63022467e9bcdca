#include "server/api_responses.h"

#include "config/limits.h"
#include "server/route.h"

#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

static bool refuse_stored(struct reader *r) {
    static const char *const names[] = {
        "previous_response_id", "conversation", "background", "prompt", "messages", "max_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = reader_get(r, names[i]);
        if (v && !json_is_false(v))
            return reader_fail(r, names[i],
                               i < 4 ? "isn't supported: this server stores nothing"
                                     : "is no field of /v1/responses");
    }
    return !r->failed;
}

static void add_message(json_t *messages, const char *role, json_t *content) {
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string(role));
    json_object_set(message, "content", content);
    json_array_append_new(messages, message);
}

/* A call that the model made earlier, and what came of it, as chat has them. */
static void add_call(json_t *messages, json_t *item) {
    json_t *function = json_object(), *call = json_object(), *calls = json_array();
    json_t *message = json_object();
    json_object_set(function, "name", json_object_get(item, "name"));
    json_object_set(function, "arguments", json_object_get(item, "arguments"));
    json_object_set(call, "id", json_object_get(item, "call_id"));
    json_object_set_new(call, "type", json_string("function"));
    json_object_set_new(call, "function", function);
    json_array_append_new(calls, call);
    json_object_set_new(message, "role", json_string("assistant"));
    json_object_set_new(message, "content", json_null());
    json_object_set_new(message, "tool_calls", calls);
    json_array_append_new(messages, message);
}

static void add_call_output(json_t *messages, json_t *item) {
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string("tool"));
    json_object_set(message, "tool_call_id", json_object_get(item, "call_id"));
    json_object_set(message, "content", json_object_get(item, "output"));
    json_array_append_new(messages, message);
}

static bool add_item(struct reader *r, json_t *messages, json_t *item, size_t index) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content = json_object_get(item, "content");
    if (json_is_object(item) && (type ? !strcmp(type, "message") : role != NULL)) {
        add_message(messages, role ? role : "", content);
        return true;
    }
    if (type && !strcmp(type, "function_call")) {
        add_call(messages, item);
        return true;
    }
    if (type && !strcmp(type, "function_call_output")) {
        add_call_output(messages, item);
        return true;
    }
    if (type && !strcmp(type, "reasoning")) return true; /* not for the model to read again */
    return reader_fail(r, "input",
                       "item %zu is of type \"%.40s\"; only messages and function calls "
                       "are supported",
                       index, type ? type : reader_type(item));
}

static json_t *read_input(struct reader *r) {
    json_t *input = reader_get(r, "input"), *instructions = reader_get(r, "instructions");
    json_t *messages = json_array();
    if (instructions && !json_is_string(instructions))
        reader_fail(r, "instructions", "must be a string, not %s", reader_type(instructions));
    else if (instructions)
        add_message(messages, "system", instructions);
    if (json_is_string(input)) {
        add_message(messages, "user", input);
    } else if (json_is_array(input) && json_array_size(input)) {
        for (size_t i = 0; i < json_array_size(input) && !r->failed; i++)
            add_item(r, messages, json_array_get(input, i), i);
    } else {
        reader_fail(r, "input", "must be a string or a list of items that isn't empty");
    }
    return messages;
}

/* Renames a field; `to` is not there before. */
static void move_field(struct reader *r, const char *from, const char *to) {
    json_t *v = json_object_get(r->object, from);
    if (v) json_object_set(r->object, to, v);
    json_object_del(r->object, from);
}

/* What an answer repeats of its request, as JSON members. */
static void keep_fields(struct reader *r, struct api_request *q) {
    static const struct {
        const char *name, *preset;
    } fields[] = {
        {"instructions", "null"}, {"max_output_tokens", "null"},
        {"metadata", "{}"},       {"temperature", "1.0"},
        {"top_p", "1.0"},         {"truncation", "\"disabled\""},
        {"user", "null"},         {"parallel_tool_calls", "true"},
        {"top_logprobs", "0"},
    };
    struct buf out;
    struct writer w;
    buf_init(&out, LIMIT_RESPONSES_ECHO);
    writer_init(&w, &out);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_t *v = reader_get(r, fields[i].name);
        char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        writer_key(&w, fields[i].name);
        writer_raw(&w, text ? text : fields[i].preset, strlen(text ? text : fields[i].preset));
        free(text);
    }
    q->repeated = arena_strndup(r->arena, buf_text(&out), out.len);
    buf_clear(&out);
}

/* Log-probabilities are asked for by name, or by how many of them. */
static void read_logprobs(struct reader *r) {
    json_t *include = reader_get(r, "include"), *top = reader_get(r, "top_logprobs");
    bool wanted = top && !(json_is_integer(top) && !json_integer_value(top));
    if (include && !json_is_array(include))
        reader_fail(r, "include", "must be a list, not %s", reader_type(include));
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *name = json_string_value(json_array_get(include, i));
        wanted = wanted || (name && !strcmp(name, "message.output_text.logprobs"));
    }
    if (wanted)
        json_object_set_new(r->object, "logprobs", json_true());
    else
        json_object_del(r->object, "logprobs");
}

bool api_responses_read(struct reader *r, struct api_request *q) {
    if (!refuse_stored(r)) return false;
    if (reader_int(r, "n", 1, 1, 1) != 1) return false;
    json_t *text = reader_get(r, "text");
    if (text && !json_is_object(text))
        return reader_fail(r, "text", "must be an object, not %s", reader_type(text));
    keep_fields(r, q);
    json_t *messages = read_input(r);
    json_object_set_new(r->object, "messages", messages);
    json_t *format = json_object_get(text, "format");
    if (format) json_object_set(r->object, "response_format", format);
    move_field(r, "max_output_tokens", "max_tokens");
    /* These have another meaning in chat, or none here. */
    read_logprobs(r);
    static const char *const unread[] = {"tools", "stream_options"};
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++)
        json_object_del(r->object, unread[i]);
    return !r->failed;
}

/* ---- answers ---- */

void api_responses_write_item_id(struct writer *w, const struct api_response_head *h, int index) {
    char id[96];
    snprintf(id, sizeof id, "msg_%s_%d", h->id + strlen("resp_"), index);
    writer_text(w, id);
}

struct api_responses_text api_responses_text_of(const struct race_candidate *c) {
    return (struct api_responses_text){
        c->text, c->text_len, {c->tokens, c->logprobs, c->n_tokens, 0, 0}};
}

void api_responses_write_logprobs(struct writer *w, const struct api_response_head *h,
                                  const struct api_response_tokens *tokens) {
    static const struct api_response_tokens none;
    bool shown = h->request->job.logprobs && tokens->tokens && tokens->logprobs;
    api_response_write_tokens(w, h, shown ? tokens : &none);
}

void api_responses_write_text(struct writer *w, const struct api_response_head *h,
                              const struct api_responses_text *t) {
    writer_object(w);
    writer_key(w, "type");
    writer_text(w, "output_text");
    writer_key(w, "text");
    writer_string(w, t->text, t->len);
    writer_key(w, "annotations");
    writer_array(w);
    writer_array_end(w);
    writer_key(w, "logprobs");
    api_responses_write_logprobs(w, h, &t->tokens);
    writer_object_end(w);
}

void api_responses_write_item(struct writer *w, const struct api_response_head *h, int index,
                              const struct api_responses_text *text, const char *status) {
    writer_object(w);
    writer_key(w, "id");
    api_responses_write_item_id(w, h, index);
    writer_key(w, "type");
    writer_text(w, "message");
    writer_key(w, "status");
    writer_text(w, status);
    writer_key(w, "role");
    writer_text(w, "assistant");
    writer_key(w, "content");
    writer_array(w);
    if (text) api_responses_write_text(w, h, text);
    writer_array_end(w);
    writer_object_end(w);
}

static void write_usage(struct writer *w, const struct api_response_totals *t) {
    if (!t) {
        writer_null(w);
        return;
    }
    writer_object(w);
    writer_key(w, "input_tokens");
    writer_int(w, t->prompt_tokens);
    writer_key(w, "input_tokens_details");
    writer_object(w);
    writer_key(w, "cached_tokens");
    writer_int(w, t->cached_tokens);
    writer_object_end(w);
    writer_key(w, "output_tokens");
    writer_int(w, t->completion_tokens);
    writer_key(w, "output_tokens_details");
    writer_object(w);
    writer_key(w, "reasoning_tokens");
    writer_int(w, 0);
    writer_object_end(w);
    writer_key(w, "total_tokens");
    writer_int(w, t->prompt_tokens + t->completion_tokens);
    writer_object_end(w);
}

static void write_constants(struct writer *w) {
    static const char members[] =
        "\"previous_response_id\":null,\"store\":false,\"background\":false,\"tools\":[],"
        "\"tool_choice\":\"auto\",\"reasoning\":{\"effort\":null,\"summary\":null},"
        "\"text\":{\"format\":{\"type\":\"text\"}}";
    writer_raw(w, members, sizeof members - 1);
}

void api_responses_write(struct writer *w, const struct api_response_head *h,
                         const struct api_responses_state *s) {
    writer_object(w);
    writer_key(w, "id");
    writer_text(w, h->id);
    writer_key(w, "object");
    writer_text(w, "response");
    writer_key(w, "created_at");
    writer_int(w, h->created);
    writer_key(w, "status");
    writer_text(w, s->status);
    writer_key(w, "error");
    if (s->error)
        route_write_error(w, s->error);
    else
        writer_null(w);
    writer_key(w, "incomplete_details");
    if (!strcmp(s->status, "incomplete")) {
        writer_object(w);
        writer_key(w, "reason");
        writer_text(w, "max_output_tokens");
        writer_object_end(w);
    } else {
        writer_null(w);
    }
    writer_key(w, "model");
    writer_text(w, h->model);
    writer_key(w, "output");
    writer_array(w);
    writer_raw(w, s->items, s->items_len);
    writer_array_end(w);
    writer_raw(w, h->request->repeated, strlen(h->request->repeated));
    write_constants(w);
    writer_key(w, "usage");
    write_usage(w, s->usage);
    if (s->extra) writer_raw(w, s->extra, strlen(s->extra));
    writer_object_end(w);
}
