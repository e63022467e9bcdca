/* A stream in the shape of /v1/responses: named events, each with its number, ending with the whole
 * answer.  Called by server/stream.c, whose struct it works on.  LOOP thread. */
#ifndef SERVER_STREAM_RESPONSES_H
#define SERVER_STREAM_RESPONSES_H

#include "server/api_responses.h"
#include "server/stream.h"

void stream_responses_begin(struct stream *);
void stream_responses_text(struct stream *, int index, const struct api_responses_text *);
void stream_responses_choice_end(struct stream *, int index, const struct race_candidate *);
void stream_responses_progress(struct stream *, const struct race_counts *, struct progress *each);
void stream_responses_end(struct stream *, const struct api_response_totals *, const char *extra);
void stream_responses_error(struct stream *, const struct err *, const char *extra);

#endif
