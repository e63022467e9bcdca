/* The API's server: HTTP in front, races behind; which phase it is in, what it has admitted.
 *
 *   LOADING → SERVING → DRAINING         SIGTERM: live requests end, new ones get 503
 *                     → FAILED           the engine is lost: everything ends with an error
 *
 * LOOP thread. */
#ifndef SERVER_API_H
#define SERVER_API_H

#include "base/list.h"
#include "config/config.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/runtime.h"

enum api_phase { API_LOADING, API_SERVING, API_DRAINING, API_FAILED };

struct api {
    const struct config *config; /* borrowed */
    struct runtime *runtime;     /* borrowed */
    struct http_server *http;    /* owned */
    enum api_phase phase;
    int64_t created; /* Unix time of the start */
    double opened_at;
    void (*failed)(void *arg, const struct err *); /* once, when the engine is lost */
    void *arg;

    struct list calls;    /* struct call.link: requests in work */
    struct list verifications; /* of POST /v1/verify */
    int n_races;          /* admitted and not ended: one for each prompt */
    int64_t n_candidates; /* of these, as asked for */
    double ended_rate;    /* candidates that end a second, smoothed */
    uint64_t ended_before;

    uv_timer_t tick; /* pings, rates */
    struct metrics metrics;
};

/* Listens.  The runtime may still have to load its model. */
bool api_open(struct api *, const struct config *, struct runtime *,
              void (*failed)(void *arg, const struct err *), void *arg, struct err *e) MUST_CHECK;
/* Closes all connections; the loop must turn before its handles are gone. */
void api_close(struct api *);
/* Ends every call with this error. */
void api_fail_calls(struct api *, const struct err *);
/* Neither a call in work nor an answer on its way. */
bool api_idle(const struct api *);

/* Whether new work is taken; else why, and the answer has its Retry-After. */
bool api_accepts(struct api *, struct http_request *, struct err *e) MUST_CHECK;
/* Candidates admitted and not started. */
int64_t api_candidates_waiting(const struct api *);
/* Asks the engine whether it is lost. */
void api_check_engine(struct api *);
/* Room for `n` more races? */
bool api_admits(struct api *, struct http_request *, int n, struct err *e) MUST_CHECK;

#endif
