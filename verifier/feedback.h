/* What came of each test: read from B's report, or made here; kept with a verdict.
 *
 * B runs the client's tests and writes the JSON, so nothing is believed of it but its shape: a list
 * of at most FEEDBACK_TESTS objects {"name", "status", "error"?, "got"?, "expected"?, "line"?,
 * "ms"}. LOOP thread. */
#ifndef VERIFIER_FEEDBACK_H
#define VERIFIER_FEEDBACK_H

#include "verifier/verifier.h"

enum { FEEDBACK_TESTS = 100, FEEDBACK_VALUE = 200 };

/* Zero it before use. */
struct feedback {
    struct verdict_test *tests; /* owned, and all strings in them but status */
    int n, capacity;
};

/* Adds a copy; beyond FEEDBACK_TESTS nothing. */
void feedback_add(struct feedback *, const struct verdict_test *);
/* Adds what the JSON holds; what isn't as it must be is left out. */
void feedback_parse(struct feedback *, const char *json, size_t len);
void feedback_clear(struct feedback *);
/* The value as one line of at most FEEDBACK_VALUE bytes of UTF-8; free() it. */
char *feedback_value(const char *data, size_t len);

#endif
