/* Events from ENGINE to LOOP: each one piece of memory that moves with the message. */
#ifndef ENGINE_EVENT_H
#define ENGINE_EVENT_H

#include "engine/branch.h"

/* ENGINE_STARTED, ENGINE_JOB_ENDED; `why` may be NULL. */
struct engine_event *event_plain(enum engine_event_type, const struct job *, int index,
                                 const struct err *why);
struct engine_event *event_prefilled(const struct job *);
/* ENGINE_TEXT: text that may be shown and tokens not sent yet.  NULL where there is neither. */
struct engine_event *event_text(const struct branch *, int index, const char *text, size_t len);
/* ENGINE_ENDED: everything of the branch, as candidate `index` ends. */
struct engine_event *event_ended(const struct branch *, int index, enum engine_reason);
void event_free(struct engine_event *);

#endif
