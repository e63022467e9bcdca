#include "base/buf.h"
#include "config/limits.h"
#include "server/eval.h"
#include "server/writer.h"

#include <stdlib.h>
#include <string.h>

static void write_string(struct writer *w, const char *key, const char *text, size_t len) {
    writer_key(w, key);
    writer_string(w, text, len);
}

/* What a completion continues; of a task without code its question. */
static const char *code_of(const struct eval_task *t) { return t->code ? t->code : t->question; }

static void write_question(struct writer *w, const struct eval_options *o,
                           const struct eval_task *t) {
    if (o->completion) {
        write_string(w, "prompt", code_of(t), strlen(code_of(t)));
        return;
    }
    writer_key(w, "messages");
    writer_array(w);
    writer_object(w);
    write_string(w, "role", "user", strlen("user"));
    write_string(w, "content", t->question, strlen(t->question));
    writer_object_end(w);
    writer_array_end(w);
}

/* A copy of the JSON in which "{code}" in texts is that code; NULL of NULL. */
static json_t *with_code(const json_t *value, const char *code) {
    static const char mark[] = "{code}";
    json_t *copy = json_deep_copy(value), *item;
    const char *key;
    size_t i;
    if (json_is_array(copy)) {
        json_array_foreach(copy, i, item) { json_array_set_new(copy, i, with_code(item, code)); }
    }
    if (json_is_object(copy)) {
        json_object_foreach(copy, key, item) {
            json_object_set_new(copy, key, with_code(item, code));
        }
    }
    if (!json_is_string(copy) || !strstr(json_string_value(copy), mark)) return copy;
    struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    const char *from = json_string_value(copy);
    for (const char *at; (at = strstr(from, mark)); from = at + strlen(mark)) {
        buf_append(&text, from, (size_t)(at - from));
        buf_puts(&text, code);
    }
    buf_puts(&text, from);
    json_decref(copy);
    copy = json_string(buf_text(&text));
    buf_clear(&text);
    return copy;
}

static void write_diversity(struct writer *w, const struct eval_options *o,
                            const struct eval_task *t) {
    if (!o->n_temperatures && !o->prompts) return;
    writer_key(w, "diversity");
    writer_object(w);
    if (o->n_temperatures) {
        writer_key(w, "temperatures");
        writer_array(w);
        for (int i = 0; i < o->n_temperatures; i++)
            writer_number(w, o->temperatures[i]);
        writer_array_end(w);
    }
    if (o->prompts) {
        json_t *prompts = with_code(o->prompts, code_of(t));
        char *text = json_dumps(prompts, JSON_COMPACT);
        BUG_ON(!text);
        writer_key(w, "prompts");
        writer_raw(w, text, strlen(text));
        free(text);
        json_decref(prompts);
    }
    writer_object_end(w);
}

static void write_race(struct writer *w, const struct eval_options *o, const struct eval_task *t,
                       int first, int n, int width) {
    writer_object(w);
    write_string(w, "tests", t->tests, t->tests_len);
    if (t->format) write_string(w, "format", t->format, strlen(t->format));
    if (t->entry_point) write_string(w, "entry_point", t->entry_point, strlen(t->entry_point));
    if (t->code) write_string(w, "prompt", t->code, strlen(t->code));
    writer_key_int(w, "max_candidates", n);
    writer_key_int(w, "first_index", first);
    writer_key_int(w, "width", width);
    const char *returns = o->mode == EVAL_FIRST ? "first" : "all";
    write_string(w, "return", returns, strlen(returns));
    write_string(w, "candidates", "full", strlen("full"));
    writer_key(w, "greedy_first");
    writer_bool(w, o->greedy_first);
    writer_key(w, "score");
    writer_bool(w, false);
    writer_key_number(w, "timeout_s", o->timeout_s);
    writer_key_int(w, "memory_mb", o->memory_mb);
    writer_key_int(w, "deadline_s", LIMIT_REQUEST_SECONDS);
    write_diversity(w, o, t);
    writer_object_end(w);
}

char *eval_body(const struct eval_options *o, const char *model, const struct eval_task *t,
                uint64_t seed, int first, int n, int width) {
    struct buf body;
    struct writer w;
    buf_init(&body, SIZE_MAX / 2);
    writer_init(&w, &body);
    writer_object(&w);
    write_string(&w, "model", model, strlen(model));
    write_question(&w, o, t);
    writer_key_int(&w, "max_tokens", o->max_tokens);
    writer_key_number(&w, "temperature", o->temperature);
    writer_key_number(&w, "top_p", o->top_p);
    writer_key_number(&w, "min_p", o->min_p);
    writer_key_int(&w, "top_k", o->top_k);
    writer_key(&w, "seed");
    writer_uint(&w, seed);
    writer_key(&w, "firstpass");
    write_race(&w, o, t, first, n, width);
    writer_object_end(&w);
    size_t len;
    return buf_take(&body, &len);
}
