/* POST /v1/verify: many codes against one tests object, without a model.
 *
 * The body is {"tests", "code" or "codes", …} with the fields of a request's `firstpass` object
 * that speak of tests; the answer has one result for each code, in order, as `firstpass verify
 * --json` prints them.  It counts as one race for admission.  The request belongs to itself: gone
 * when it has answered or its client has left.  LOOP thread. */
#ifndef SERVER_API_VERIFY_H
#define SERVER_API_VERIFY_H

#include "server/api.h"

void api_verify_start(struct api *, struct http_request *, struct keys_holder *);
/* Answers with this error and gives up the rest; an item of api->verifications. */
void api_verify_fail(struct list *item, const struct err *);

#endif
