/* The object `firstpass` of a request: tests and how to race for them.  Pure. */
#ifndef SERVER_API_TESTS_H
#define SERVER_API_TESTS_H

#include "server/api_request.h"
#include "server/reader.h"

/* Reads the object into `request`.  `user` is the text in which a chat's code block is looked for
 * when the tests need the code that candidates continue, and where server.inline_tests is on the
 * tests too; NULL where there is none.  `n` is the request's own n, or 0 where it gave none. */
bool api_tests_read(struct reader *top, const struct api_request_context *, const char *user,
                    size_t user_len, int n, struct api_request *);

/* What the verifier is told, but for the prompt and score: tests (text or JSON), format,
 * entry_point, extract, feedback and limits.  Strings go to the reader's arena. */
bool api_tests_read_spec(struct reader *, const struct config *, struct verifier_spec *);

/* "NAME:best-of-64" → 64, *name_len the length of NAME; 0 where the name has no such end. */
int api_tests_model_suffix(const char *name, size_t *name_len);
/* The code of the last block of `text` that is marked "python test"; NULL: none.  *out_len set;
 * borrowed from `text`. */
const char *api_tests_find_tests(const char *text, size_t len, size_t *out_len);
/* The first fenced Python block of `text` that defines `name` as a function or class; NULL: none.
 * *out_len set; borrowed from `text`. */
const char *api_tests_find_code(const char *text, size_t len, const char *name, size_t *out_len);

#endif
