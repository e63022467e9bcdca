/* What a race's candidates have come to since the last event of its stream, for who watches each.
 *
 * Ten thousand candidates must not be told ten thousand times: a candidate is listed once an event,
 * as it is by then, and only where it has changed.  A waiting one is never listed.
 *
 *   "candidates": [[number, state, tokens], …]   state: "decoding", "verifying", "cancelled", or
 *                                                the name of its verdict
 *   "judged": [{…}, …]                           those decided meanwhile, as the request's
 *                                                `candidates` has them; absent where that is "none"
 *
 * LOOP thread; embedded; init / clear. */
#ifndef SERVER_PROGRESS_H
#define SERVER_PROGRESS_H

#include "base/buf.h"
#include "server/api_response.h"
#include "server/race.h"
#include "server/writer.h"

struct progress {
    const struct api_response_head *head; /* borrowed */
    struct progress_candidate *all;       /* owned [n] */
    int *changed;                         /* owned [n]: indices listed in the next event */
    int n, n_changed;
    struct buf judged; /* JSON values */
};

void progress_init(struct progress *, const struct api_response_head *, int n);
void progress_clear(struct progress *);
/* For race_callbacks.on_candidate. */
void progress_note(struct progress *, const struct race_candidate *, enum race_entry_state);
/* Whether there is something to tell; and whether so much that it shouldn't wait. */
bool progress_waits(const struct progress *);
bool progress_is_long(const struct progress *);
/* The members "candidates" and "judged"; forgets what it told. */
void progress_write(struct progress *, struct writer *);

#endif
