#include "server/api_messages.h"

#include "base/buf.h"
#include "config/limits.h"

#include <stdlib.h>
#include <string.h>

/* ---- guarding ---- */

static json_t *guard_string(const struct api_request_context *c, const char *s, size_t len) {
    size_t guarded_len;
    char *guarded = c->guard(c->self, s, len, &guarded_len);
    json_t *v = json_stringn_nocheck(guarded, guarded_len);
    free(guarded);
    BUG_ON(!v);
    return v;
}

/* A deep copy with every string guarded, keys too.  Depth was bounded when the body was parsed. */
static json_t *guard_value(const struct api_request_context *c, json_t *v) {
    if (json_is_string(v)) return guard_string(c, json_string_value(v), json_string_length(v));
    if (json_is_array(v)) {
        json_t *copy = json_array();
        for (size_t i = 0; i < json_array_size(v); i++)
            json_array_append_new(copy, guard_value(c, json_array_get(v, i)));
        return copy;
    }
    if (json_is_object(v)) {
        json_t *copy = json_object();
        const char *key;
        json_t *item;
        json_object_foreach(v, key, item) {
            json_t *name = guard_string(c, key, strlen(key));
            json_object_set_new_nocheck(copy, json_string_value(name), guard_value(c, item));
            json_decref(name);
        }
        return copy;
    }
    return json_incref(v);
}

/* ---- one message ---- */

/* The text of `content`: a string, a list of text parts, or none. */
static bool read_content(struct reader *r, const char *where, json_t *content, struct buf *out) {
    buf_reset(out);
    if (!content || json_is_null(content)) return true;
    if (json_is_string(content))
        return buf_append(out, json_string_value(content), json_string_length(content));
    if (!json_is_array(content))
        return reader_fail(r, where, "must be a string or a list of parts, not %s",
                           reader_type(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *text = json_object_get(part, "text");
        if (json_is_string(part)) {
            text = part;
            type = "text";
        }
        if (!type ||
            (strcmp(type, "text") && strcmp(type, "input_text") && strcmp(type, "output_text")))
            return reader_fail(r, where,
                               "part %zu is of type \"%.40s\"; only \"text\" is supported", i,
                               type ? type : "");
        if (!json_is_string(text))
            return reader_fail(r, where, "part %zu has no string \"text\"", i);
        buf_append(out, json_string_value(text), json_string_length(text));
    }
    return true;
}

/* Templates want the arguments of past calls as objects; clients send them as text. */
static json_t *copy_tool_calls(struct reader *r, const struct api_request_context *c,
                               json_t *calls) {
    json_t *copy = guard_value(c, calls);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *arguments =
            json_object_get(json_object_get(json_array_get(calls, i), "function"), "arguments");
        if (!json_is_string(arguments)) continue;
        json_t *parsed = reader_parse(json_string_value(arguments), json_string_length(arguments),
                                      &r->spent, NULL);
        if (parsed)
            json_object_set_new(json_object_get(json_array_get(copy, i), "function"), "arguments",
                                guard_value(c, parsed));
        json_decref(parsed);
    }
    return copy;
}

static const char *known_role(const char *role) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    if (role && !strcmp(role, "developer")) return roles[0];
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(role, roles[i])) return roles[i];
    return NULL;
}

static bool read_message(struct reader *r, const struct api_request_context *c, size_t index,
                         json_t *message, struct buf *text, json_t *out) {
    char where[48];
    snprintf(where, sizeof where, "messages[%zu]", index);
    if (!json_is_object(message))
        return reader_fail(r, where, "must be an object, not %s", reader_type(message));
    const char *role = known_role(json_string_value(json_object_get(message, "role")));
    if (!role)
        return reader_fail(r, where,
                           "role must be \"system\", \"developer\", \"user\", "
                           "\"assistant\" or \"tool\"");
    snprintf(where, sizeof where, "messages[%zu].content", index);
    if (!read_content(r, where, json_object_get(message, "content"), text)) return false;

    json_t *copy = json_object();
    json_object_set_new(copy, "role", json_string(role));
    json_object_set_new(copy, "content", guard_string(c, buf_text(text), text->len));
    static const char *const kept[] = {"name", "tool_call_id", "reasoning_content"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *v = json_object_get(message, kept[i]);
        if (json_is_string(v)) json_object_set_new(copy, kept[i], guard_value(c, v));
    }
    json_t *calls = json_object_get(message, "tool_calls");
    if (json_array_size(calls))
        json_object_set_new(copy, "tool_calls", copy_tool_calls(r, c, calls));
    json_array_append_new(out, copy);
    return true;
}

/* ---- all ---- */

/* continue_final_message: the answer goes on where the last message ends. */
static void read_continuation(struct reader *r, json_t *messages, bool generate,
                              struct api_request *q) {
    if (!reader_bool(r, "continue_final_message", false)) return;
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    json_t *content = json_object_get(last, "content");
    if (generate)
        reader_fail(r, "continue_final_message", "needs \"add_generation_prompt\": false");
    else if (!json_string_length(content))
        reader_fail(r, "continue_final_message", "needs a last message with some content");
    q->continued_len = json_string_length(content);
    q->continued = arena_strndup(r->arena, json_string_value(content), q->continued_len);
}

/* Moves the last message's text to the instructions. */
static void take_last(json_t *messages, struct buf *instructions) {
    size_t last = json_array_size(messages) - 1;
    json_t *content = json_object_get(json_array_get(messages, last), "content");
    if (instructions->len) buf_puts(instructions, "\n\n");
    buf_append(instructions, json_string_value(content), json_string_length(content));
    json_array_remove(messages, last);
}

/* Newer clients put instructions in `developer` messages anywhere; many templates take one system
 * message, as the first.  So all of them are joined there. */
static json_t *lead_with(json_t *messages, const struct buf *instructions) {
    if (!instructions->len) return messages;
    json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    struct buf text;
    buf_init(&text, (size_t)LIMIT_BODY_BYTES_MAX * 4);
    if (role && !strcmp(role, "system")) {
        json_t *content = json_object_get(first, "content");
        buf_append(&text, json_string_value(content), json_string_length(content));
        buf_puts(&text, "\n\n");
        json_array_remove(messages, 0);
    }
    buf_append(&text, buf_text(instructions), instructions->len);
    json_t *system = json_object();
    json_object_set_new(system, "role", json_string("system"));
    json_object_set_new(system, "content", json_stringn_nocheck(buf_text(&text), text.len));
    json_array_insert_new(messages, 0, system);
    buf_clear(&text);
    return messages;
}

static void set_variables(struct reader *r, const struct api_request_context *c, json_t *messages,
                          struct api_request *q) {
    json_t *variables = json_object();
    json_t *extra = reader_get(r, "chat_template_kwargs");
    if (extra && !json_is_object(extra))
        reader_fail(r, "chat_template_kwargs", "must be an object, not %s", reader_type(extra));
    const char *key;
    json_t *value;
    /* First, so that they can't replace what follows. */
    json_object_foreach(extra, key, value) {
        json_object_set_new(variables, key, guard_value(c, value));
    }
    json_object_set(variables, "messages", messages);
    bool generate = reader_bool(r, "add_generation_prompt", true);
    json_object_set_new(variables, "add_generation_prompt", json_boolean(generate));
    read_continuation(r, messages, generate, q);
    json_object_set_new(variables, "bos_token", json_string(c->model->bos_text));
    json_object_set_new(variables, "eos_token", json_string(c->model->eos_text));
    json_t *tools = reader_get(r, "tools");
    if (tools && !json_is_array(tools))
        reader_fail(r, "tools", "must be a list, not %s", reader_type(tools));
    const char *choice = json_string_value(reader_get(r, "tool_choice"));
    if (json_array_size(tools) && !(choice && !strcmp(choice, "none")))
        json_object_set_new(variables, "tools", guard_value(c, tools));
    else
        json_object_del(variables, "tools");

    char *text = json_dumps(variables, JSON_COMPACT);
    BUG_ON(!text);
    q->variables_len = strlen(text);
    q->variables = arena_strndup(r->arena, text, q->variables_len);
    free(text);
    json_decref(variables);
}

bool api_messages_read(struct reader *r, const struct api_request_context *c, struct api_request *q,
                       const char **user, size_t *user_len) {
    *user = NULL;
    *user_len = 0;
    json_t *list = reader_get(r, "messages");
    if (r->failed) return false;
    if (!list) return reader_fail(r, "messages", "is missing");
    if (!json_is_array(list))
        return reader_fail(r, "messages", "must be a list, not %s", reader_type(list));
    size_t n = json_array_size(list);
    if (!n) return reader_fail(r, "messages", "must not be empty");
    if (n > LIMIT_MESSAGES)
        return reader_fail(r, "messages", "has %zu entries; the limit is %d", n, LIMIT_MESSAGES);

    struct buf text, instructions;
    buf_init(&text, LIMIT_BODY_BYTES_MAX);
    buf_init(&instructions, (size_t)LIMIT_BODY_BYTES_MAX * 3); /* guarding adds some */
    json_t *messages = json_array();
    for (size_t i = 0; i < n && !r->failed; i++) {
        json_t *message = json_array_get(list, i);
        if (!read_message(r, c, i, message, &text, messages)) break;
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && !strcmp(role, "developer")) take_last(messages, &instructions);
        if (role && !strcmp(role, "user")) {
            *user = arena_strndup(r->arena, buf_text(&text), text.len);
            *user_len = text.len;
        }
    }
    if (!r->failed) set_variables(r, c, lead_with(messages, &instructions), q);
    json_decref(messages);
    buf_clear(&instructions);
    buf_clear(&text);
    return !r->failed;
}
