#include "server/stream_responses.h"

#include "base/clock.h"
#include "server/api_responses.h"
#include "server/route.h"

#include <string.h>

/* ---- events ---- */

static void begin(struct stream *s, struct writer *w, const char *type) {
    buf_reset(&s->frame);
    buf_printf(&s->frame, "event: %s\ndata: ", type);
    writer_init(w, &s->frame);
    writer_object(w);
    writer_key(w, "type");
    writer_text(w, type);
    writer_key(w, "sequence_number");
    writer_int(w, s->sequence++);
}

static void write_error(struct writer *w, const struct err *e) {
    writer_key(w, "message");
    writer_text(w, e->message);
    writer_key(w, "code");
    writer_text(w, e->code);
    writer_key(w, "param");
    writer_text(w, e->param[0] ? e->param : NULL);
    writer_key(w, "error");
    route_write_error(w, e);
}

static void emit(struct stream *s, struct writer *w) {
    writer_object_end(w);
    buf_puts(&s->frame, "\n\n");
    if (s->frame.overflowed) {
        struct err e = {0};
        err_set(&e, ERR_SYSTEM,
                "a piece of the answer is larger than %zu bytes; ask for less of it", s->frame.max);
        begin(s, w, "error");
        write_error(w, &e);
        writer_object_end(w);
        buf_puts(&s->frame, "\n\n");
    }
    http_write(s->http, s->frame.data, s->frame.len);
    s->spoke_at = clock_seconds();
}

static void send_whole(struct stream *s, const char *type,
                       const struct api_responses_state *state) {
    struct writer w;
    begin(s, &w, type);
    writer_key(&w, "response");
    api_responses_write(&w, s->head, state);
    emit(s, &w);
}

void stream_responses_begin(struct stream *s) {
    const struct api_responses_state state = {.status = "in_progress"};
    send_whole(s, "response.created", &state);
    send_whole(s, "response.in_progress", &state);
}

/* ---- items ---- */

static void begin_part(struct stream *s, struct writer *w, const char *type, int index) {
    begin(s, w, type);
    writer_key(w, "item_id");
    api_responses_write_item_id(w, s->head, index);
    writer_key(w, "output_index");
    writer_int(w, index);
    writer_key(w, "content_index");
    writer_int(w, 0);
}

static void send_part(struct stream *s, const char *type, int index,
                      const struct api_responses_text *text) {
    struct writer w;
    begin_part(s, &w, type, index);
    writer_key(&w, "part");
    api_responses_write_text(&w, s->head, text);
    emit(s, &w);
}

static void send_item(struct stream *s, const char *type, int index,
                      const struct api_responses_text *text, const char *status) {
    struct writer w;
    begin(s, &w, type);
    writer_key(&w, "output_index");
    writer_int(&w, index);
    writer_key(&w, "item");
    api_responses_write_item(&w, s->head, index, text, status);
    emit(s, &w);
}

/* This item and all before it. */
static void open_items(struct stream *s, int index) {
    for (; s->opened <= index; s->opened++) {
        const struct api_responses_text nothing = {.text = ""};
        send_item(s, "response.output_item.added", s->opened, NULL, "in_progress");
        send_part(s, "response.content_part.added", s->opened, &nothing);
    }
}

void stream_responses_text(struct stream *s, int index, const struct api_responses_text *t) {
    struct writer w;
    open_items(s, index);
    /* Tokens whose text is held back are told all the same where somebody asked for them. */
    if (!t->len && !(s->head->request->job.logprobs && t->tokens.n)) return;
    s->choices[index].text_sent += t->len;
    s->choices[index].tokens_sent += t->tokens.n;
    begin_part(s, &w, "response.output_text.delta", index);
    writer_key(&w, "delta");
    writer_string(&w, t->text, t->len);
    writer_key(&w, "logprobs");
    api_responses_write_logprobs(&w, s->head, &t->tokens);
    emit(s, &w);
}

void stream_responses_choice_end(struct stream *s, int index, const struct race_candidate *c) {
    size_t from;
    struct api_responses_text rest = {.tokens = stream_rest(&s->choices[index], c, &from)};
    rest.text = c->text + from;
    rest.len = c->text_len - from;
    const struct api_responses_text whole = api_responses_text_of(c);
    struct writer w;
    stream_responses_text(s, index, &rest);
    begin_part(s, &w, "response.output_text.done", index);
    writer_key(&w, "text");
    writer_string(&w, c->text, c->text_len);
    writer_key(&w, "logprobs");
    api_responses_write_logprobs(&w, s->head, &whole.tokens);
    emit(s, &w);
    send_part(s, "response.content_part.done", index, &whole);
    bool cut = !strcmp(api_response_finish_reason(c->reason), "length");
    const char *status = cut ? "incomplete" : "completed";
    s->cut = s->cut || cut;
    send_item(s, "response.output_item.done", index, &whole, status);
    writer_init(&w, &s->items);
    w.comma = s->items.len > 0;
    api_responses_write_item(&w, s->head, index, &whole, status);
}

/* ---- the rest ---- */

void stream_responses_progress(struct stream *s, const struct race_counts *counts,
                               struct progress *each) {
    struct writer w;
    begin(s, &w, "firstpass.progress");
    stream_write_progress(&w, counts, each);
    emit(s, &w);
}

void stream_responses_end(struct stream *s, const struct api_response_totals *totals,
                          const char *extra) {
    const struct api_responses_state state = {
        .status = s->cut ? "incomplete" : "completed",
        .items = buf_text(&s->items),
        .items_len = s->items.len,
        .usage = totals,
        .extra = extra,
    };
    send_whole(s, s->cut ? "response.incomplete" : "response.completed", &state);
}

void stream_responses_error(struct stream *s, const struct err *e, const char *extra) {
    struct writer w;
    begin(s, &w, "error");
    write_error(&w, e);
    if (extra) writer_raw(&w, extra, strlen(extra));
    emit(s, &w);
}
