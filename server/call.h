/* One completion request from its body to its answer.
 *
 * THEORY.
 *
 *   parse → (chat) render the template, in a worker → tokenize, in libuv's pool → wait in
 * api->queue → one race for each prompt → answer or stream
 *
 * The call belongs to itself: it frees itself when it has answered, or when its client has left and
 * nothing of it is under way any more.  Races run until the last choice is known; a client that
 * leaves has them abandoned within the turn.
 *
 * A stream's head is sent late: with the first word to say, or after some seconds.  Errors until
 * then have their HTTP status; later ones come inside the stream.
 *
 * LOOP thread; tokenizing reads the call from a pool thread while the loop leaves it alone. */
#ifndef SERVER_CALL_H
#define SERVER_CALL_H

#include "server/api.h"
#include "server/api_request.h"

struct call;

/* What parsing a request needs of this server; its model must have been loaded. */
struct api_request_context call_context(struct api *);

void call_start(struct api *, struct http_request *, enum api_request_kind, struct keys_holder *);
/* Starts the races of a call from api->queue. */
void call_begin(struct call *);
/* Ends it by order of the client: it is answered with an error. */
void call_cancel(struct call *);
void call_view(const struct call *, struct races_view *v);
struct keys_holder *call_holder(const struct call *);
/* The call of an item of api->queue. */
struct call *call_queued(struct list *queued);
/* Answers with this error and cancels what runs. */
void call_fail(struct call *, const struct err *);
/* About once a second: pings, and heads of streams that have waited long enough. */
void call_tick(struct call *, double now);
/* Candidates that were asked for and haven't started. */
int64_t call_waiting(const struct call *);
/* The call of an item of api->calls. */
struct call *call_of(struct list *link);

#endif
