/* The messages of a chat request: checked, guarded, and turned into the variables of a chat
 * template.
 *
 * Content may be a string or a list of text parts (joined).  `developer` is the newer name of
 * `system`.  Every string that the client wrote is guarded, however deep, so that the rendered
 * prompt has control tokens only where the template put them.  Pure. */
#ifndef SERVER_API_MESSAGES_H
#define SERVER_API_MESSAGES_H

#include "server/api_request.h"
#include "server/reader.h"

/* Fills variables in `request`; *user: the last user message's text, unguarded, in the arena, or
 * NULL. */
bool api_messages_read(struct reader *, const struct api_request_context *, struct api_request *,
                       const char **user, size_t *user_len);

#endif
