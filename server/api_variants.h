/* Prompt variants of a race, `firstpass.diversity.prompts`: candidate i asks with variant
 * i mod their number.
 *
 * A variant is a text, or an object of two texts:
 *   user       goes behind the last user message (a blank line between) or behind a completion's
 *              prompt; with "{question}" in it, it stands in for that text and has it there
 *   assistant  the answer begins with it: it is part of each candidate's text, none of its tokens
 * A text alone is `user`; the empty one leaves the question as it is.
 *
 * Pure. */
#ifndef SERVER_API_VARIANTS_H
#define SERVER_API_VARIANTS_H

#include "server/api_request.h"
#include "server/reader.h"

/* Reads them out of the object `diversity`, whose reader is given.  `user`: the last user message,
 * NULL where there is none. */
void api_variants_read(struct reader *diversity, const struct api_request_context *,
                       const char *user, struct api_request *);
/* A completion's prompt in this variant, the assistant's text at its end included; free(). */
char *api_variants_prompt(const struct api_request *, int variant, size_t *len);
/* What a chat's template is rendered with, as JSON; free(). */
char *api_variants_variables(const struct api_request *, int variant, size_t *len);
/* What comes behind the rendered template, guarded; "" for nothing; borrowed from the request. */
const char *api_variants_behind(const struct api_request *, int variant, size_t *len);

#endif
