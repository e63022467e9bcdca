/* From a parsed request to what a race is started with: tokens of its prompts, room for the answer,
 * the seed.  Tokenizing is for any thread; the rest is pure but for drawing a seed. */
#ifndef SERVER_PROMPT_H
#define SERVER_PROMPT_H

#include "server/api_request.h"
#include "server/race.h"

/* Tokens of a chat's rendered template; *tokens: free(). */
bool prompt_tokenize_chat(const struct engine *, const struct api_request *, const char *rendered,
                          size_t len, int32_t **tokens, size_t *n, struct err *e) MUST_CHECK;
/* Tokens of one prompt of a completions request; *tokens: free(). */
bool prompt_tokenize(const struct engine *, const struct api_request *,
                     const struct api_request_prompt *, int32_t **tokens, size_t *n,
                     struct err *e) MUST_CHECK;
/* Draws a seed where the request gives none; the tests have the same one. */
void prompt_choose_seed(struct api_request *);
/* The race for these tokens, which are borrowed: fails where they leave no room in the context.
 * max_tokens 0 becomes what fits, at most `default_max_tokens`. */
bool prompt_race(const struct api_request *, const struct engine_model *, int default_max_tokens,
                 const int32_t *tokens, size_t n, struct race_request *out,
                 struct err *e) MUST_CHECK;

#endif
