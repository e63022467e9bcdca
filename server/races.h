/* GET and DELETE /v1/races/{id}: what a request in work has come to, and its end by order.
 *
 * A request is known by its answer's id and by its x-request-id, to the holder of the key that it
 * came with.  The last ones that ended are remembered.  LOOP thread; embedded: init. */
#ifndef SERVER_RACES_H
#define SERVER_RACES_H

#include "server/keys.h"
#include "server/race.h"
#include "server/writer.h"

enum { RACES_KEPT = 256, RACES_ID_BYTES = 144 };

/* One request as it is shown. */
struct races_view {
    char id[RACES_ID_BYTES], request_id[RACES_ID_BYTES];
    const struct keys_holder *holder; /* borrowed */
    const char *status;               /* "queued", "running", "ended", "failed", "cancelled" */
    int64_t created;
    int n_prompts;
    struct race_counts counts; /* of all its prompts together */
    bool has_tests, verified;
    double seconds;
};

struct races {
    struct races_view kept[RACES_KEPT];
    int next; /* the place of the next one */
};

void races_remember(struct races *, const struct races_view *);
/* Whether this id means the request, and `holder` may know. */
bool races_is(const struct races_view *, const char *id, const struct keys_holder *holder);
/* The latest of this id, or NULL. */
const struct races_view *races_find(const struct races *, const char *id,
                                    const struct keys_holder *holder);
void races_write(struct writer *, const struct races_view *, bool deleted);

#endif
