/* The API's server: HTTP in front, races behind; which phase it is in, what it has admitted, whose
 * turn it is.
 *
 *   LOADING → SERVING → DRAINING         SIGTERM: live requests end, new ones get 503
 *                     → FAILED           the engine is lost: everything ends with an error
 *
 * THEORY of the queue.  A request is admitted (or gets 429) when its body has been read: there is a
 * bound on requests and one on the candidates that wait, of all together; where there are several
 * keys none may hold more than KEY_SHARE of either, so that the others always get in.  When its
 * prompt is tokenized it waits in `queue` until the engine has a place for it: as many races are
 * live as can be in its steps.  The place goes to the key with the fewest live races, in order of
 * arrival among its own.
 *
 * LOOP thread. */
#ifndef SERVER_API_H
#define SERVER_API_H

#include "base/list.h"
#include "config/config.h"
#include "server/http.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/races.h"
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

    struct keys keys;
    struct list calls;         /* struct call.link: requests in work */
    struct list verifications; /* of POST /v1/verify */
    struct list queue;         /* struct call.queued: those of them that may start */
    int n_races;               /* admitted and not ended: one for each prompt */
    int n_live;                /* of these, with the engine */
    bool held;                 /* nothing is started from the queue at the moment */
    int n_tokenizing;          /* requests of server/tokens.h in the pool */
    struct races races;        /* those that ended last */
    double ended_rate;         /* candidates that end a second, smoothed */
    uint64_t ended_before;
    int idle_ticks; /* in a row without work */

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
/* Room for `n` more races of so many candidates each? */
bool api_admits(struct api *, struct http_request *, const struct keys_holder *, int n,
                int n_candidates, struct err *e) MUST_CHECK;
/* Starts what the engine has a place for. */
void api_dispatch(struct api *);
/* Reads the key file again; on failure the old keys stay. */
void api_reload_keys(struct api *);

#endif
