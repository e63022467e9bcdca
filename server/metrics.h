/* What /metrics says, as Prometheus text.
 *
 * The page is made from snapshots of counters that each part keeps anyway: no lock is held for long
 * and nothing is computed, so that routers may read it many times a second.  Candidates are
 * counted, not requests, also under the names with `vllm:` that routers look for. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "base/buf.h"
#include "engine/engine.h"
#include "server/http.h"
#include "server/race.h"
#include "verifier/verifier.h"

enum { METRICS_BUCKETS = 14 };

/* Buckets double from `first`; the last one is without bound. */
struct metrics_histogram {
    double first;
    uint64_t buckets[METRICS_BUCKETS + 1];
    double sum;
};
void metrics_observe(struct metrics_histogram *, double value);

/* What only the API's server knows. */
struct metrics {
    struct metrics_histogram request_seconds, pass_seconds, pass_candidates;
};
void metrics_init(struct metrics *);

/* Snapshots; those that don't exist yet are NULL. */
struct metrics_view {
    const char *model;
    const struct metrics *own;
    const struct http_stats *http;
    const struct race_set_stats *races;
    const struct engine_stats *engine;
    const struct engine_ceiling *ceiling;
    const struct verifier_stats *verifier;
    const struct verifier_report *report;
    int64_t candidates_waiting; /* admitted, not started yet */
    double uptime_s;
    bool ready;
};
void metrics_write(struct buf *, const struct metrics_view *);

#endif
