/* One answer as server-sent events, in OpenAI's chunk shapes (those of /v1/responses:
 * server/stream_responses.h).
 *
 * Choices may speak in any order; what client libraries need is kept: each choice of a chat opens
 * with its role, and indices are first seen in ascending order.  What the engine hasn't shown when
 * a choice ends is sent with its end, so that the pieces always add up to the whole text.
 *
 * LOOP thread; embedded; init / clear. */
#ifndef SERVER_STREAM_H
#define SERVER_STREAM_H

#include "base/buf.h"
#include "base/err.h"
#include "server/api_response.h"
#include "server/http.h"
#include "server/progress.h"
#include "server/race.h"

struct stream_choice {
    size_t text_sent; /* bytes */
    int tokens_sent;
    int64_t characters; /* of all tokens sent: text_offset of the next */
};

struct stream {
    struct http_request *http;            /* borrowed; NULL until stream_open() */
    const struct api_response_head *head; /* borrowed */
    struct stream_choice *choices;        /* owned */
    int n_choices;
    int opened;          /* choices whose role was sent */
    int64_t tokens_sent; /* of all choices */
    struct buf frame;
    /* of /v1/responses: the events' numbers, the items that ended, whether one was cut by a limit
     */
    int sequence;
    struct buf items;
    bool cut;
    double spoke_at; /* clock_seconds() of the last byte */
};

void stream_init(struct stream *, const struct api_response_head *, int n_choices);
void stream_clear(struct stream *);
/* Sends the head; from here on the stream owns the answer until stream_end(). */
void stream_open(struct stream *, struct http_request *);
bool stream_is_open(const struct stream *);

/* New text of a choice with the tokens behind it. */
void stream_text(struct stream *, int index, const char *text, size_t len,
                 const struct engine_event *event);
/* The choice's end.  `extra`: JSON members for its chunk (`"firstpass":{…}`), or NULL. */
void stream_choice_end(struct stream *, int index, const struct race_candidate *,
                       const char *extra);
/* The candidate's tokens that weren't sent yet; *from: where the text that wasn't begins. */
struct api_response_tokens stream_rest(const struct stream_choice *, const struct race_candidate *,
                                       size_t *from);
/* Before the choice's own text: a completion's prompt. */
void stream_echo(struct stream *, int index, const struct api_response_prompt *);
/* How far the race has come, without choices; `each`: what its candidates have come to, or NULL. */
void stream_progress(struct stream *, const struct race_counts *, struct progress *each);
/* The members of such an event, those of `firstpass` in a chunk. */
void stream_write_progress(struct writer *, const struct race_counts *, struct progress *each);
/* Keeps proxies and clients from giving up. */
void stream_ping(struct stream *);
/* The last words: usage (and `extra`) where usage was asked for, then [DONE]. */
void stream_end(struct stream *, const struct api_response_totals *, const char *extra);
void stream_error(struct stream *, const struct err *, const char *extra);

#endif
