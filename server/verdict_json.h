/* A verdict as JSON, one way for the command line, /v1/verify and the candidates of an answer. */
#ifndef SERVER_VERDICT_JSON_H
#define SERVER_VERDICT_JSON_H

#include "server/writer.h"
#include "verifier/verifier.h"

/* Members of an object that is open: "verdict", "tests_passed", … ; "tests" where `tells`. */
void verdict_json_members(struct writer *, const struct verdict *, bool tells);
/* A list: {"name", "status", "got", "expected", "error", "line", "ms"} each. */
void verdict_json_tests(struct writer *, const struct verdict_test *tests, int n);

#endif
