/* What a worker's Python is given at its start, as memfds: the harness, its configuration, the
 * filter, the module.
 *
 * One file of records (u32 length of the name, u32 length of the data, name, data), read by the
 * loader in box.c. */
#ifndef VERIFIER_PAYLOAD_H
#define VERIFIER_PAYLOAD_H

#include "base/err.h"
#include "verifier/box.h"

/* Sets plan->payload_fd and module_fd, which the caller closes. */
bool payload_make(struct box_plan *plan, struct err *e) MUST_CHECK;
/* A sealed memfd with these bytes; -1 with the error. */
int payload_memfd(const char *name, const void *data, size_t len, struct err *e) MUST_CHECK;

#endif
