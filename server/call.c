#include "server/call.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/api_response.h"
#include "server/api_responses.h"
#include "server/api_variants.h"
#include "server/prompt.h"
#include "server/route.h"
#include "server/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    RESPONSE_BYTES = 512 * 1024 * 1024,
    HEAD_AFTER_S = 5, /* a stream's head is sent after this at the latest */
    PING_AFTER_S = 10,
};

#define PROGRESS_EVERY_S 0.1

/* One prompt of the request and its race. */
struct part {
    struct call *call; /* borrowed */
    int index;
    struct prompt_set prompts; /* owned */
    int shown;                 /* of these, the one that the first choice continues */
    char *echo;                /* owned; the prompt as text, where the answer repeats it */
    size_t echo_len;
    const struct engine_logprob *prompt_logprobs; /* of the race; NULL: none */
    struct race_counts counts;                    /* once it has ended */
    bool echoed;                                  /* in the stream */
    struct race *race;                            /* borrowed; NULL before and after */
    struct buf choices;                           /* JSON values */
    struct buf prompt;                            /* "prompt_logprobs" of a chat, or nothing */
    struct buf firstpass;                         /* one JSON value */
};

struct call {
    struct api *api;
    struct list link, queued;
    struct keys_holder *holder; /* borrowed */
    struct http_request *http;  /* borrowed; NULL once answered or gone */
    char request_id[RACES_ID_BYTES];
    const char *status; /* as races_view has it */
    struct api_request request;
    struct api_response_head head;

    uint64_t render; /* verifier_render()'s id while it runs, else 0 */
    char *rendered;  /* owned; chat: the prompt's text */
    size_t rendered_len;
    uv_work_t work;
    bool working;
    struct err error; /* of the tokenizer */

    struct part *parts; /* owned */
    int n_parts, n_left;
    bool admitted, racing, verified, cut;
    struct api_response_totals totals;
    struct stream stream;
    bool has_stream;
    struct progress each; /* of candidates, where the request wants to see each */
    bool has_each;
    double started_at, progress_at;
};

struct call *call_of(struct list *link) {
    return LIST_ITEM(link, struct call, link);
}

int64_t call_waiting(const struct call *c) {
    if (!c->racing) return (int64_t)c->n_parts * c->request.job.n_candidates;
    int64_t n = 0;
    for (int i = 0; i < c->n_parts; i++) {
        if (!c->parts[i].race) continue;
        struct race_counts counts;
        race_counts(c->parts[i].race, &counts);
        n += counts.max_candidates - counts.started;
    }
    return n;
}

struct call *call_queued(struct list *queued) {
    return LIST_ITEM(queued, struct call, queued);
}

struct keys_holder *call_holder(const struct call *c) {
    return c->holder;
}

/* ---- as /v1/races shows it ---- */

static void add_counts(struct race_counts *sum, const struct race_counts *c) {
    sum->max_candidates += c->max_candidates;
    sum->started += c->started;
    sum->finished += c->finished;
    sum->verified += c->verified;
    sum->passed += c->passed;
    sum->cancelled += c->cancelled;
    sum->duplicates += c->duplicates;
    sum->broken += c->broken;
}

void call_view(const struct call *c, struct races_view *v) {
    *v = (struct races_view){
        .holder = c->holder,
        .status = c->status,
        .created = c->head.created,
        .n_prompts = c->n_parts,
        .has_tests = c->request.has_tests,
        .verified = c->verified,
        .seconds = clock_seconds() - c->started_at,
    };
    snprintf(v->id, sizeof v->id, "%s", c->head.id);
    snprintf(v->request_id, sizeof v->request_id, "%s", c->request_id);
    for (int i = 0; i < c->n_parts; i++) {
        struct race_counts counts = c->parts[i].counts;
        if (c->parts[i].race) race_counts(c->parts[i].race, &counts);
        if (!counts.max_candidates) counts.max_candidates = c->request.job.n_candidates;
        add_counts(&v->counts, &counts);
    }
}

/* ---- life ---- */

static struct call *call_new(struct api *api, struct http_request *http,
                             struct keys_holder *holder) {
    struct call *c = err_alloc(1, sizeof *c);
    c->api = api;
    c->http = http;
    c->holder = holder;
    c->status = "queued";
    c->started_at = clock_seconds();
    snprintf(c->request_id, sizeof c->request_id, "%s", http_request_id(http));
    list_init(&c->queued);
    list_append(&api->calls, &c->link);
    return c;
}

static void count_admitted(struct call *c, int sign) {
    c->api->n_races += sign * c->n_parts;
    c->holder->n_races += sign * c->n_parts;
    c->holder->n_candidates += (int64_t)sign * c->n_parts * c->request.job.n_candidates;
}

static void count_live(struct call *c, int sign) {
    c->api->n_live += sign;
    c->holder->n_live += sign;
}

static void call_free(struct call *c) {
    list_remove(&c->link);
    list_remove(&c->queued);
    if (c->admitted) {
        struct races_view view;
        call_view(c, &view);
        races_remember(&c->api->races, &view);
        count_admitted(c, -1);
    }
    for (int i = 0; i < c->n_parts; i++) {
        prompt_set_clear(&c->parts[i].prompts);
        free(c->parts[i].echo);
        buf_clear(&c->parts[i].choices);
        buf_clear(&c->parts[i].prompt);
        buf_clear(&c->parts[i].firstpass);
    }
    free(c->parts);
    free(c->rendered);
    if (c->has_stream) stream_clear(&c->stream);
    if (c->has_each) progress_clear(&c->each);
    api_request_clear(&c->request);
    free(c);
}

/* Stops what is under way.  What the pool's thread reads stays until it is done. */
static void drop(struct call *c) {
    struct api *api = c->api;
    c->http = NULL;
    list_remove(&c->queued);
    if (c->render) verifier_render_cancel(runtime_verifier(c->api->runtime), c->render);
    c->render = 0;
    for (int i = 0; i < c->n_parts; i++) {
        struct race *race = c->parts[i].race;
        c->parts[i].race = NULL;
        if (!race) continue;
        race_counts(race, &c->parts[i].counts);
        count_live(c, -1);
        race_abandon(race);
    }
    if (!c->working) call_free(c);
    api_dispatch(api);
}

static void on_gone(void *arg) {
    struct call *c = arg;
    log_request(LOG_INFO, c->request_id, "client left after %.3f s",
                clock_seconds() - c->started_at);
    c->status = "cancelled";
    drop(c);
}

/* ---- errors ---- */

/* `firstpass`: what the race knew, or NULL. */
static void fail(struct call *c, const struct err *e, const char *firstpass) {
    log_request(e->kind == ERR_SYSTEM ? LOG_ERROR : LOG_INFO, c->request_id, "%d %s",
                route_status(e->kind), e->message);
    c->status = e->kind == ERR_CANCELLED     ? "cancelled"
                : e->kind == ERR_NONE_PASSED ? "ended"
                                             : "failed";
    if (c->http) {
        if (c->has_stream && stream_is_open(&c->stream))
            stream_error(&c->stream, e, firstpass);
        else
            route_reply_error(c->http, e, firstpass);
    }
    drop(c);
}

void call_fail(struct call *c, const struct err *e) { fail(c, e, NULL); }

void call_cancel(struct call *c) {
    struct err e = {0};
    err_set(&e, ERR_CANCELLED, "the request was cancelled: DELETE /v1/races/%s", c->head.id);
    fail(c, &e, NULL);
}

/* ---- streaming ---- */

static int choices_each(const struct call *c) {
    const struct api_request *q = &c->request;
    if (q->has_tests && q->returns == RACE_ALL) return q->job.n_candidates;
    return q->has_tests && q->n_passes > q->n_choices ? q->n_passes : q->n_choices;
}

static void open_stream(struct call *c) {
    if (stream_is_open(&c->stream)) return;
    stream_open(&c->stream, c->http);
}

static struct api_response_prompt prompt_of(const struct part *part) {
    const struct call *c = part->call;
    const struct engine_model *model = engine_model(runtime_engine(c->api->runtime));
    bool text = c->request.n_prompts && c->request.prompts[part->index].text;
    const int32_t *tokens = part->prompts.tokens[part->shown];
    return (struct api_response_prompt){
        .echo = part->echo,
        .echo_len = part->echo_len,
        .tokens = tokens,
        .n_tokens = (int)part->prompts.n_tokens[part->shown],
        .n_lead = text && model->bos >= 0 && tokens[0] == model->bos,
        .logprobs = part->prompt_logprobs,
    };
}

static void on_prompt(void *arg, const struct engine_logprob *logprobs) {
    ((struct part *)arg)->prompt_logprobs = logprobs;
}

/* Where the first of a part's choices speaks, all of them repeat the prompt. */
static void speak(struct part *part) {
    struct call *c = part->call;
    open_stream(c);
    if (!c->request.echo || part->echoed) return;
    part->echoed = true;
    struct api_response_prompt prompt = prompt_of(part);
    for (int i = 0; i < c->request.n_choices; i++)
        stream_echo(&c->stream, part->index * c->request.n_choices + i, &prompt);
}

static void on_text(void *arg, int index, const char *text, size_t len,
                    const struct engine_event *event) {
    struct part *part = arg;
    struct call *c = part->call;
    speak(part);
    stream_text(&c->stream, part->index * c->request.n_choices + index, text, len, event);
}

static void on_end(void *arg, const struct race_candidate *candidate) {
    struct part *part = arg;
    struct call *c = part->call;
    speak(part);
    stream_choice_end(&c->stream, part->index * c->request.n_choices + candidate->index, candidate,
                      NULL);
}

static void tell_progress(struct call *c, const struct race_counts *counts) {
    c->progress_at = clock_seconds();
    open_stream(c);
    stream_progress(&c->stream, counts, c->has_each ? &c->each : NULL);
}

static void on_progress(void *arg, const struct race_counts *counts) {
    struct call *c = ((struct part *)arg)->call;
    bool full = c->has_each && progress_is_long(&c->each);
    /* The answer has the last counts. */
    if (!full && clock_seconds() - c->progress_at < PROGRESS_EVERY_S) return;
    tell_progress(c, counts);
}

static void on_candidate(void *arg, const struct race_candidate *candidate,
                         enum race_entry_state state) {
    progress_note(&((struct part *)arg)->call->each, candidate, state);
}

void call_tick(struct call *c, double now) {
    double limit = c->request.deadline_s;
    if (c->http && !list_empty(&c->queued) && limit > 0 && now - c->started_at >= limit) {
        struct err e = {0};
        err_set(&e, ERR_DEADLINE,
                "the time limit of %.10g s passed while the request waited for its turn", limit);
        fail(c, &e, NULL);
        return;
    }
    if (!c->http || !c->has_stream || (!c->n_left && list_empty(&c->queued))) return;
    if (!stream_is_open(&c->stream)) {
        if (now - c->started_at >= HEAD_AFTER_S) open_stream(c);
    } else if (now - c->stream.spoke_at >= PING_AFTER_S) {
        stream_ping(&c->stream);
    }
}

/* ---- the answer ---- */

/* JSON that was written before; an answer that lacks a part of it must not go out as if it were
 * whole. */
static void write_part(struct writer *w, const struct buf *json) {
    writer_raw(w, buf_text(json), json->len);
    if (json->overflowed) w->out->overflowed = true;
}

/* `"firstpass":{…}`; with several prompts one object for each. */
static void write_firstpass(const struct call *c, struct buf *out) {
    struct writer w;
    writer_init(&w, out);
    writer_key(&w, "firstpass");
    if (c->n_parts == 1) {
        write_part(&w, &c->parts[0].firstpass);
        return;
    }
    writer_object(&w);
    writer_key(&w, "verified");
    writer_bool(&w, false);
    writer_key(&w, "prompts");
    writer_array(&w);
    for (int i = 0; i < c->n_parts; i++)
        write_part(&w, &c->parts[i].firstpass);
    writer_array_end(&w);
    writer_object_end(&w);
}

/* The answer of /v1/responses; its choices are output items. */
static void write_response(const struct call *c, struct buf *out, const char *firstpass) {
    struct writer w;
    const struct buf *items = &c->parts[0].choices;
    const struct api_responses_state state = {
        .status = c->cut ? "incomplete" : "completed",
        .items = buf_text(items),
        .items_len = items->len,
        .usage = &c->totals,
        .extra = firstpass,
    };
    writer_init(&w, out);
    api_responses_write(&w, &c->head, &state);
    if (items->overflowed) out->overflowed = true;
}

static void write_answer(const struct call *c, struct buf *out) {
    struct writer w;
    if (c->request.kind == API_REQUEST_RESPONSES) {
        struct buf extra;
        buf_init(&extra, RESPONSE_BYTES);
        write_firstpass(c, &extra);
        write_response(c, out, buf_text(&extra));
        if (extra.overflowed) out->overflowed = true;
        buf_clear(&extra);
        return;
    }
    writer_init(&w, out);
    writer_object(&w);
    api_response_write_head(&w, &c->head, false);
    writer_key(&w, "choices");
    writer_array(&w);
    for (int i = 0; i < c->n_parts; i++)
        write_part(&w, &c->parts[i].choices);
    writer_array_end(&w);
    writer_key(&w, "usage");
    api_response_write_usage(&w, &c->totals);
    if (c->request.return_token_ids && c->n_parts == 1) {
        writer_key(&w, "prompt_token_ids");
        writer_array(&w);
        const struct api_response_prompt prompt = prompt_of(&c->parts[0]);
        for (int i = 0; i < prompt.n_tokens; i++)
            writer_int(&w, prompt.tokens[i]);
        writer_array_end(&w);
    }
    if (c->parts[0].prompt.len) write_part(&w, &c->parts[0].prompt);
    struct buf firstpass;
    buf_init(&firstpass, RESPONSE_BYTES);
    write_firstpass(c, &firstpass);
    write_part(&w, &firstpass);
    buf_clear(&firstpass);
    writer_object_end(&w);
}

static void finish(struct call *c) {
    struct api *api = c->api;
    double seconds = clock_seconds() - c->started_at;
    log_request(LOG_INFO, c->request_id,
                "200 %s in %.3f s, %lld prompt and %lld completion tokens%s%s",
                !c->request.has_tests ? "answered"
                : c->verified         ? "verified"
                                      : "not verified",
                seconds, (long long)c->totals.prompt_tokens, (long long)c->totals.completion_tokens,
                *c->holder->name ? ", key of " : "", c->holder->name);
    c->status = "ended";
    metrics_observe(&api->metrics.request_seconds, seconds);
    if (c->has_stream) {
        struct buf firstpass;
        buf_init(&firstpass, RESPONSE_BYTES);
        write_firstpass(c, &firstpass);
        open_stream(c);
        bool told = c->request.has_tests && c->request.kind != API_REQUEST_RESPONSES;
        bool tell = !told && !firstpass.overflowed;
        stream_end(&c->stream, &c->totals, tell ? buf_text(&firstpass) : NULL);
        buf_clear(&firstpass);
    } else {
        if (c->request.has_tests)
            http_add_header(c->http, "x-firstpass-verified", c->verified ? "true" : "false");
        struct buf body;
        buf_init(&body, RESPONSE_BYTES);
        write_answer(c, &body);
        route_reply_json(c->http, 200, &body);
    }
    call_free(c);
}

static void stream_winner(struct part *part, const struct race_result *result) {
    struct call *c = part->call;
    struct buf firstpass;
    buf_init(&firstpass, RESPONSE_BYTES);
    write_firstpass(c, &firstpass);
    open_stream(c);
    for (int i = 0; i < result->n_choices; i++)
        stream_choice_end(&c->stream, i, result->choices[i],
                          i + 1 == result->n_choices && !firstpass.overflowed ? buf_text(&firstpass)
                                                                              : NULL);
    buf_clear(&firstpass);
}

static void observe(struct call *c, const struct race_result *result) {
    struct metrics *m = &c->api->metrics;
    if (!c->request.has_tests || result->counts.first_pass_s < 0) return;
    metrics_observe(&m->pass_seconds, result->counts.first_pass_s);
    metrics_observe(&m->pass_candidates, (double)result->counts.verified);
}

/* The verifier names its own fields; the client knows them as members of `firstpass`. */
static void name_param(struct err *e) {
    static const char *const ours[] = {"tests", "entry_point", "format"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(e->param, ours[i]))
            snprintf(e->param, sizeof e->param, "firstpass.%s", ours[i]);
}

static void fail_race(struct part *part, const struct race_result *result) {
    struct call *c = part->call;
    struct api *api = c->api;
    struct err e = result->error;
    struct buf firstpass;
    buf_init(&firstpass, RESPONSE_BYTES);
    /* How far it came is of interest where it was under way. */
    bool tell = e.kind == ERR_NONE_PASSED || e.kind == ERR_DEADLINE;
    tell = tell && c->request.has_tests && c->n_parts == 1;
    if (tell) write_firstpass(c, &firstpass);
    tell = tell && !firstpass.overflowed;
    name_param(&e);
    fail(c, &e, tell ? buf_text(&firstpass) : NULL);
    buf_clear(&firstpass);
    api_check_engine(api);
}

static void write_choices(struct part *part, const struct race_result *result) {
    struct call *c = part->call;
    struct writer w;
    struct api_response_prompt prompt = prompt_of(part);
    writer_init(&w, &part->choices);
    for (int i = 0; i < result->n_choices; i++) {
        const struct race_candidate *choice = result->choices[i];
        if (c->request.kind == API_REQUEST_RESPONSES) {
            bool cut = !strcmp(api_response_finish_reason(choice->reason), "length");
            c->cut = c->cut || cut;
            const struct api_responses_text text = api_responses_text_of(choice);
            api_responses_write_item(&w, &c->head, i, &text, cut ? "incomplete" : "completed");
        } else {
            api_response_write_choice(&w, &c->head, part->index * result->n_choices + i, choice,
                                      &prompt);
        }
    }
    if (c->request.kind != API_REQUEST_CHAT || !prompt.logprobs) return;
    writer_init(&w, &part->prompt);
    writer_key(&w, "prompt_logprobs");
    api_response_write_prompt_logprobs(&w, &c->head, &prompt);
}

static void on_done(void *arg, const struct race_result *result) {
    struct part *part = arg;
    struct call *c = part->call;
    struct writer w;
    part->race = NULL;
    part->counts = result->counts;
    count_live(c, -1);
    c->n_left--;
    writer_init(&w, &part->firstpass);
    api_response_write_firstpass(&w, &c->head, result);
    observe(c, result);
    if (c->has_each && progress_waits(&c->each)) tell_progress(c, &result->counts);
    if (result->error.kind != ERR_NONE) {
        fail_race(part, result);
        return;
    }
    api_response_add(&c->totals, &result->counts);
    part->shown = api_request_variant_of(&c->request, result->choices[0]->index);
    c->verified = result->verified;
    if (c->has_stream && c->request.has_tests) {
        stream_winner(part, result);
    } else if (!c->has_stream) {
        write_choices(part, result);
    }
    struct api *api = c->api;
    if (!c->n_left) finish(c);
    api_dispatch(api);
}

/* ---- races ---- */

static bool start_race(struct call *c, struct part *part, struct err *e) {
    const struct engine_model *model = engine_model(runtime_engine(c->api->runtime));
    struct api_request *q = &c->request;
    struct race_request request;
    if (!prompt_race(q, model, c->api->config->server.default_max_tokens, &part->prompts, &request,
                     e))
        return false;
    /* What was spent waiting is gone. */
    if (request.deadline_s > 0) {
        request.deadline_s -= clock_seconds() - c->started_at;
        if (request.deadline_s < 0.001) request.deadline_s = 0.001;
    }
    bool streams = c->has_stream && !q->has_tests;
    const struct race_callbacks callbacks = {
        .on_done = on_done,
        .on_prompt = on_prompt,
        .on_text = streams ? on_text : NULL,
        .on_end = streams ? on_end : NULL,
        .on_progress = c->has_stream && q->progress ? on_progress : NULL,
        .on_candidate = c->has_each ? on_candidate : NULL,
    };
    /* What is told on the way needn't be kept for the end. */
    if (c->has_each) request.detail = RACE_CANDIDATES_NONE;
    if (!race_start(runtime_races(c->api->runtime), &request, &callbacks, part, &part->race, e))
        return false;
    count_live(c, 1);
    return true;
}

static void enqueue(struct call *c) {
    struct api_request *q = &c->request;
    prompt_choose_seed(q);
    if (q->stream) {
        stream_init(&c->stream, &c->head, choices_each(c) * c->n_parts);
        c->has_stream = true;
    }
    if (api_request_tells_each(q)) {
        progress_init(&c->each, &c->head, q->job.n_candidates);
        c->has_each = true;
    }
    list_append(&c->api->queue, &c->queued);
    api_dispatch(c->api);
}

void call_begin(struct call *c) {
    struct err e = {0};
    list_remove(&c->queued);
    c->n_left = c->n_parts;
    c->racing = true;
    c->status = "running";
    for (int i = 0; i < c->n_parts; i++) {
        if (!start_race(c, &c->parts[i], &e)) {
            fail(c, &e, NULL);
            return;
        }
    }
}

/* ---- tokens; a thread of libuv's pool ---- */

/* The prompt again as text, where the answer repeats it. */
static bool make_echo(struct call *c, struct part *part) {
    const struct api_request_prompt *prompt = &c->request.prompts[part->index];
    if (prompt->text) {
        part->echo = err_strndup(prompt->text, prompt->len);
        part->echo_len = prompt->len;
        return true;
    }
    return engine_detokenize(runtime_engine(c->api->runtime), part->prompts.tokens[0],
                             part->prompts.n_tokens[0], true, &part->echo, &part->echo_len,
                             &c->error);
}

static bool tokenize_part(struct call *c, struct part *part) {
    const struct engine *engine = runtime_engine(c->api->runtime);
    if (c->request.kind != API_REQUEST_COMPLETIONS)
        return prompt_set_add_chat(&part->prompts, engine, &c->request, c->rendered,
                                   c->rendered_len, &c->error);
    return prompt_set_add(&part->prompts, engine, &c->request, &c->request.prompts[part->index],
                          &c->error) &&
           (!c->request.echo || make_echo(c, part));
}

static void tokenize(uv_work_t *work) {
    struct call *c = work->data;
    for (int i = 0; i < c->n_parts; i++)
        if (!tokenize_part(c, &c->parts[i])) return;
}

static void render_next(struct call *c);

static void on_tokenized(uv_work_t *work, int status) {
    struct call *c = work->data;
    (void)status; /* the work is never cancelled */
    c->working = false;
    if (!c->http)
        call_free(c);
    else if (c->error.kind != ERR_NONE)
        fail(c, &c->error, NULL);
    else if (c->parts[0].prompts.n < api_request_n_variants(&c->request))
        render_next(c);
    else
        enqueue(c);
}

static void log_prompts(const struct call *c) {
    if (!c->api->config->log.prompts) return;
    if (c->rendered) log_request(LOG_INFO, c->request_id, "prompt: %s", c->rendered);
    for (int i = 0; i < c->request.n_prompts; i++)
        if (c->request.prompts[i].text)
            log_request(LOG_INFO, c->request_id, "prompt: %s", c->request.prompts[i].text);
}

static void start_tokenizing(struct call *c) {
    log_prompts(c);
    c->work.data = c;
    c->working = true;
    int status = uv_queue_work(runtime_loop(c->api->runtime), &c->work, tokenize, on_tokenized);
    BUG_ON(status);
}

/* ---- from the body to the prompt ---- */

static void on_rendered(void *arg, const char *text, size_t len, const struct err *error) {
    struct call *c = arg;
    c->render = 0;
    if (error) {
        struct err e = *error;
        err_prefix(&e, "the chat template refused the messages");
        fail(c, error->kind == ERR_INPUT ? &e : error, NULL);
        return;
    }
    free(c->rendered);
    c->rendered = err_strndup(text, len);
    c->rendered_len = len;
    start_tokenizing(c);
}

/* The next variant of a chat's prompt. */
static void render_next(struct call *c) {
    size_t len;
    char *variables = api_variants_variables(&c->request, c->parts[0].prompts.n, &len);
    c->render = verifier_render(runtime_verifier(c->api->runtime), variables, len, on_rendered, c);
    free(variables);
}

static char *guard(void *self, const char *text, size_t len, size_t *len_out) {
    return engine_guard(self, text, len, len_out);
}

struct api_request_context call_context(struct api *api) {
    struct engine *engine = runtime_engine(api->runtime);
    return (struct api_request_context){
        .config = api->config, .model = engine_model(engine), .guard = guard, .self = engine};
}

static const char *token_text(const void *self, int32_t token, size_t *len) {
    return engine_token_text(self, token, len);
}

static void fill_head(struct call *c, const struct engine_model *model) {
    struct api_response_head *h = &c->head;
    h->request = &c->request;
    static const char *const prefixes[] = {"cmpl-", "chatcmpl-", "resp_"};
    snprintf(h->id, sizeof h->id, "%s%.48s", prefixes[c->request.kind], c->request_id);
    h->model = model->name;
    h->fingerprint = model->fingerprint;
    h->created = (int64_t)time(NULL);
    h->sandbox_level = verifier_report(runtime_verifier(c->api->runtime))->level;
    h->token_text = token_text;
    h->self = runtime_engine(c->api->runtime);
}

static bool parse(struct call *c, enum api_request_kind kind, struct err *e) {
    const struct api_request_context context = call_context(c->api);
    const struct engine_model *model = context.model;
    size_t len;
    const char *body = http_body(c->http, &len);
    bool ok = api_request_parse(&c->request, kind, body, len, &context, e);
    http_drop_body(c->http);
    fill_head(c, model);
    if (!ok) return false;
    if (c->request.model && strcmp(c->request.model, model->name)) {
        err_set(e, ERR_NOT_FOUND, "there is no model \"%.200s\" here; this server has \"%s\"",
                c->request.model, model->name);
        snprintf(e->param, sizeof e->param, "model");
        return err_code(e, "model_not_found");
    }
    bool rendered = kind != API_REQUEST_COMPLETIONS;
    if (rendered && !runtime_chat(c->api->runtime, e)) return false;
    int n = rendered ? 1 : c->request.n_prompts;
    if (!api_admits(c->api, c->http, c->holder, n, c->request.job.n_candidates, e)) return false;
    c->n_parts = n;
    c->parts = err_alloc((size_t)n, sizeof *c->parts);
    for (int i = 0; i < n; i++) {
        c->parts[i] = (struct part){.call = c, .index = i};
        buf_init(&c->parts[i].choices, RESPONSE_BYTES);
        buf_init(&c->parts[i].prompt, RESPONSE_BYTES);
        buf_init(&c->parts[i].firstpass, RESPONSE_BYTES);
    }
    c->admitted = true;
    count_admitted(c, 1);
    return true;
}

void call_start(struct api *api, struct http_request *http, enum api_request_kind kind,
                struct keys_holder *holder) {
    struct err e = {0};
    if (!api_accepts(api, http, &e)) {
        route_reply_error(http, &e, NULL);
        return;
    }
    struct call *c = call_new(api, http, holder);
    if (!parse(c, kind, &e)) {
        fail(c, &e, NULL);
        return;
    }
    http_on_gone(http, on_gone, c);
    if (kind != API_REQUEST_COMPLETIONS)
        render_next(c);
    else
        start_tokenizing(c);
}
