/* From a parsed request to what a race is started with: tokens of its prompts, room for the answer,
 * the seed.  Tokenizing is for any thread; the rest is pure but for drawing a seed. */
#ifndef SERVER_PROMPT_H
#define SERVER_PROMPT_H

#include "config/limits.h"
#include "server/api_request.h"
#include "server/race.h"

/* Tokens of a chat's rendered template; *tokens: free(). */
bool prompt_tokenize_chat(const struct engine *, const struct api_request *, const char *rendered,
                          size_t len, int32_t **tokens, size_t *n, struct err *e) MUST_CHECK;
/* Tokens of one prompt of a completions request; *tokens: free(). */
bool prompt_tokenize(const struct engine *, const struct api_request *,
                     const struct api_request_prompt *, int32_t **tokens, size_t *n,
                     struct err *e) MUST_CHECK;

/* The tokens of one prompt in all its variants. */
struct prompt_set {
    int32_t *tokens[LIMIT_PROMPT_VARIANTS]; /* owned */
    size_t n_tokens[LIMIT_PROMPT_VARIANTS];
    int n;
    struct race_prompt views[LIMIT_PROMPT_VARIANTS]; /* prompt_race()'s; borrowed from the rest */
};
/* The next variant of a chat: what the template made of api_variants_variables().  Fails where it
 * is too long for the model, too, so that a request holds no more of them than fit. */
bool prompt_set_add_chat(struct prompt_set *, const struct engine *, const struct api_request *,
                         const char *rendered, size_t len, struct err *e) MUST_CHECK;
/* All variants of one prompt of a completions request. */
bool prompt_set_add(struct prompt_set *, const struct engine *, const struct api_request *,
                    const struct api_request_prompt *, struct err *e) MUST_CHECK;
void prompt_set_clear(struct prompt_set *);

/* Draws a seed where the request gives none; the tests have the same one. */
void prompt_choose_seed(struct api_request *);
/* The race for these tokens, which are borrowed: fails where they leave no room in the context.
 * max_tokens 0 becomes what fits with every variant, at most `default_max_tokens`. */
bool prompt_race(const struct api_request *, const struct engine_model *, int default_max_tokens,
                 struct prompt_set *, struct race_request *out, struct err *e) MUST_CHECK;

#endif
