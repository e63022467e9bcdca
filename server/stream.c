#include "server/stream.h"

#include "base/clock.h"
#include "server/route.h"
#include "server/stream_responses.h"

#include <stdlib.h>
#include <string.h>

enum { FRAME_BYTES = 64 * 1024 * 1024 };

void stream_init(struct stream *s, const struct api_response_head *head, int n_choices) {
    *s = (struct stream){.head = head, .n_choices = n_choices};
    s->choices = err_alloc((size_t)n_choices, sizeof *s->choices);
    buf_init(&s->frame, FRAME_BYTES);
    buf_init(&s->items, FRAME_BYTES);
}

void stream_clear(struct stream *s) {
    free(s->choices);
    buf_clear(&s->frame);
    buf_clear(&s->items);
    *s = (struct stream){0};
}

static bool is_responses(const struct stream *s) {
    return s->head->request->kind == API_REQUEST_RESPONSES;
}

void stream_open(struct stream *s, struct http_request *http) {
    s->http = http;
    http_add_header(http, "Cache-Control", "no-cache");
    http_add_header(http, "X-Accel-Buffering", "no");
    http_stream(http, 200, "text/event-stream");
    s->spoke_at = clock_seconds();
    if (is_responses(s)) stream_responses_begin(s);
}

bool stream_is_open(const struct stream *s) { return s->http != NULL; }

static bool is_chat(const struct stream *s) {
    return s->head->request->kind != API_REQUEST_COMPLETIONS;
}

/* ---- frames ---- */

static void begin(struct stream *s, struct writer *w) {
    buf_reset(&s->frame);
    buf_puts(&s->frame, "data: ");
    writer_init(w, &s->frame);
    writer_object(w);
}

static void emit(struct stream *s, struct writer *w) {
    writer_object_end(w);
    buf_puts(&s->frame, "\n\n");
    if (s->frame.overflowed) {
        struct err e = {0};
        err_set(&e, ERR_SYSTEM, "a piece of the answer is larger than %d bytes; ask for less of it",
                FRAME_BYTES);
        begin(s, w);
        writer_key(w, "error");
        route_write_error(w, &e);
        writer_object_end(w);
        buf_puts(&s->frame, "\n\n");
    }
    http_write(s->http, s->frame.data, s->frame.len);
    s->spoke_at = clock_seconds();
}

/* Usage is in every chunk (null but in the last) where it was asked for, and in none where it
 * wasn't. */
static void write_running_usage(struct stream *s, struct writer *w) {
    const struct api_request *q = s->head->request;
    if (!q->include_usage) return;
    writer_key(w, "usage");
    if (q->usage_each) {
        struct api_response_totals totals = {.completion_tokens = s->tokens_sent};
        api_response_write_usage(w, &totals);
    } else {
        writer_null(w);
    }
}

static void begin_choice(struct stream *s, struct writer *w, int index) {
    begin(s, w);
    api_response_write_head(w, s->head, true);
    writer_key(w, "choices");
    writer_array(w);
    writer_object(w);
    writer_key(w, "index");
    writer_int(w, index);
}

static void send_choice(struct stream *s, struct writer *w, const char *finish_reason,
                        const char *extra) {
    writer_key(w, "finish_reason");
    writer_text(w, finish_reason);
    writer_object_end(w);
    writer_array_end(w);
    write_running_usage(s, w);
    if (extra) writer_raw(w, extra, strlen(extra));
    emit(s, w);
}

static void write_content(struct stream *s, struct writer *w, const char *text, size_t len) {
    if (is_chat(s)) {
        writer_key(w, "delta");
        writer_object(w);
        writer_key(w, "content");
        writer_string(w, text, len);
        writer_object_end(w);
    } else {
        writer_key(w, "text");
        writer_string(w, text, len);
    }
}

/* Roles of this choice and of all before it: client libraries append to a list by index. */
static void open_choices(struct stream *s, int index) {
    for (; s->opened <= index; s->opened++) {
        if (!is_chat(s)) continue;
        struct writer w;
        begin_choice(s, &w, s->opened);
        writer_key(&w, "delta");
        writer_object(&w);
        writer_key(&w, "role");
        writer_text(&w, "assistant");
        writer_key(&w, "content");
        writer_text(&w, "");
        writer_object_end(&w);
        writer_key(&w, "logprobs");
        writer_null(&w);
        send_choice(s, &w, NULL, NULL);
    }
}

/* ---- choices ---- */

static void send_piece(struct stream *s, int index, const char *text, size_t len,
                       const struct api_response_tokens *tokens) {
    const struct api_request *q = s->head->request;
    struct stream_choice *c = &s->choices[index];
    struct writer w;
    open_choices(s, index);
    c->text_sent += len;
    c->tokens_sent += tokens->n;
    s->tokens_sent += tokens->n;
    begin_choice(s, &w, index);
    write_content(s, &w, text, len);
    writer_key(&w, "logprobs");
    if (tokens->n)
        api_response_write_logprobs(&w, s->head, tokens, 1);
    else
        writer_null(&w);
    if (q->return_token_ids) {
        writer_key(&w, "token_ids");
        writer_array(&w);
        for (int i = 0; i < tokens->n; i++)
            writer_int(&w, tokens->tokens[i]);
        writer_array_end(&w);
    }
    send_choice(s, &w, NULL, NULL);
    for (int i = 0; i < tokens->n; i++) {
        size_t bytes;
        const char *t = s->head->token_text(s->head->self, tokens->tokens[i], &bytes);
        c->characters += api_response_characters(t, bytes);
    }
}

void stream_echo(struct stream *s, int index, const struct api_response_prompt *prompt) {
    struct api_response_tokens run = {prompt->tokens, prompt->logprobs, prompt->n_tokens,
                                      prompt->n_lead, 0};
    struct writer w;
    open_choices(s, index);
    begin_choice(s, &w, index);
    write_content(s, &w, prompt->echo, prompt->echo_len);
    writer_key(&w, "logprobs");
    api_response_write_logprobs(&w, s->head, &run, 1);
    send_choice(s, &w, NULL, NULL);
    s->choices[index].characters = api_response_characters(prompt->echo, prompt->echo_len);
}

/* A choice of this candidate begins: offsets of its tokens count from behind its lead. */
static void pass_lead(struct stream *s, int index, int candidate) {
    struct stream_choice *c = &s->choices[index];
    if (!c->tokens_sent && !c->characters) c->characters = api_response_lead(s->head, candidate);
}

void stream_text(struct stream *s, int index, const char *text, size_t len,
                 const struct engine_event *event) {
    pass_lead(s, index, index);
    struct api_response_tokens tokens = {
        .tokens = event->tokens,
        .logprobs = event->logprobs,
        .n = event->n_tokens,
        .offset = s->choices[index].characters,
    };
    if (is_responses(s)) {
        stream_responses_text(s, index, &(struct api_responses_text){text, len, tokens});
        return;
    }
    send_piece(s, index, text, len, &tokens);
}

struct api_response_tokens stream_rest(const struct stream_choice *c,
                                       const struct race_candidate *candidate, size_t *from) {
    int first = c->tokens_sent < candidate->n_tokens ? c->tokens_sent : candidate->n_tokens;
    *from = c->text_sent < candidate->text_len ? c->text_sent : candidate->text_len;
    return (struct api_response_tokens){
        .tokens = candidate->tokens ? candidate->tokens + first : NULL,
        .logprobs = candidate->logprobs ? candidate->logprobs + first : NULL,
        .n = candidate->tokens ? candidate->n_tokens - first : 0,
        .offset = c->characters,
    };
}

void stream_choice_end(struct stream *s, int index, const struct race_candidate *candidate,
                       const char *extra) {
    if (is_responses(s)) {
        stream_responses_choice_end(s, index, candidate);
        return;
    }
    size_t from;
    pass_lead(s, index, candidate->index);
    struct api_response_tokens rest = stream_rest(&s->choices[index], candidate, &from);
    if (from < candidate->text_len || rest.n)
        send_piece(s, index, candidate->text + from, candidate->text_len - from, &rest);
    struct writer w;
    open_choices(s, index);
    begin_choice(s, &w, index);
    if (is_chat(s)) {
        writer_key(&w, "delta");
        writer_object(&w);
        writer_object_end(&w);
    } else {
        writer_key(&w, "text");
        writer_text(&w, "");
    }
    writer_key(&w, "logprobs");
    writer_null(&w);
    api_response_write_origin(&w, s->head, candidate);
    send_choice(s, &w, api_response_finish_reason(candidate->reason), extra);
}

/* ---- what isn't a choice ---- */

static void begin_bare(struct stream *s, struct writer *w) {
    begin(s, w);
    api_response_write_head(w, s->head, true);
    writer_key(w, "choices");
    writer_array(w);
    writer_array_end(w);
}

void stream_write_progress(struct writer *w, const struct race_counts *counts,
                           struct progress *each) {
    writer_key(w, "counts");
    api_response_write_counts(w, counts);
    writer_key(w, "tokens");
    writer_object(w);
    writer_key(w, "generated");
    writer_int(w, counts->tokens_winner + counts->tokens_losers);
    writer_key(w, "rows");
    writer_int(w, counts->rows);
    writer_object_end(w);
    writer_key(w, "seconds");
    writer_number(w, counts->total_s);
    if (each) progress_write(each, w);
}

void stream_progress(struct stream *s, const struct race_counts *counts, struct progress *each) {
    struct writer w;
    if (is_responses(s)) {
        stream_responses_progress(s, counts, each);
        return;
    }
    begin_bare(s, &w);
    write_running_usage(s, &w);
    writer_key(&w, "firstpass");
    writer_object(&w);
    stream_write_progress(&w, counts, each);
    writer_object_end(&w);
    emit(s, &w);
}

void stream_ping(struct stream *s) {
    http_write(s->http, ": ping\n\n", 8);
    s->spoke_at = clock_seconds();
}

static void finish(struct stream *s) {
    static const char done[] = "data: [DONE]\n\n";
    if (!is_responses(s)) http_write(s->http, done, sizeof done - 1);
    http_end(s->http);
    s->http = NULL;
}

void stream_end(struct stream *s, const struct api_response_totals *totals, const char *extra) {
    if (is_responses(s)) {
        stream_responses_end(s, totals, extra);
    } else if (s->head->request->include_usage) {
        struct writer w;
        begin_bare(s, &w);
        writer_key(&w, "usage");
        api_response_write_usage(&w, totals);
        if (extra) writer_raw(&w, extra, strlen(extra));
        emit(s, &w);
    }
    finish(s);
}

void stream_error(struct stream *s, const struct err *e, const char *extra) {
    struct writer w;
    if (is_responses(s)) {
        stream_responses_error(s, e, extra);
        finish(s);
        return;
    }
    begin(s, &w);
    writer_key(&w, "error");
    route_write_error(&w, e);
    if (extra) writer_raw(&w, extra, strlen(extra));
    emit(s, &w);
    finish(s);
}
