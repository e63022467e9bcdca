/* A request of the API, out of the client's JSON: every field checked, all memory in one arena.
 *
 * Parsing is pure: it needs the model's facts and the operator's limits, not a server.  What each
 * field means and which are accepted, ignored and refused is OpenAI's, plus the sampling fields
 * that vLLM made common and the object `firstpass` (DESIGN section 4).
 *
 * Defaults that are ours.  With tests: max_candidates is `n` where that is above 1, else 32;
 * max_tokens is server.default_max_tokens on both routes; candidate 0 is greedy; and at temperature
 * 0 one candidate is all there is to try. `score` (all tests are run after a failure) is on where
 * the answer may be the best of those that failed. `format` is "humaneval" where the tests define
 * check(), else "asserts".
 *
 * Any thread; owned by its holder: parse / clear. */
#ifndef SERVER_API_REQUEST_H
#define SERVER_API_REQUEST_H

#include "base/arena.h"
#include "base/err.h"
#include "config/config.h"
#include "engine/engine.h"
#include "server/race.h"
#include "verifier/verifier.h"

#include <jansson.h>

/* RESPONSES is chat in other clothes: all that isn't COMPLETIONS is rendered by the template. */
/* What a stream tells while the race runs: nothing, its counts, or also what became of each
 * candidate. */
enum api_request_progress {
    API_REQUEST_PROGRESS_NONE,
    API_REQUEST_PROGRESS_COUNTS,
    API_REQUEST_PROGRESS_CANDIDATES,
};
enum api_request_kind { API_REQUEST_COMPLETIONS, API_REQUEST_CHAT, API_REQUEST_RESPONSES };

/* What parsing must know of the server; borrowed during the call. */
struct api_request_context {
    const struct config *config;
    const struct engine_model *model;
    /* engine_guard(): chat text is guarded before it meets the template. */
    char *(*guard)(void *self, const char *text, size_t len, size_t *len_out);
    void *self;
};

struct api_request_prompt {
    const char *text; /* NULL: tokens were given */
    size_t len;
    const int32_t *tokens;
    size_t n_tokens;
};

/* One of diversity.prompts, see server/api_variants.h; none of the texts is NULL. */
struct api_request_variant {
    const char *user; /* guarded in a chat */
    size_t user_len;
    const char *lead; /* what each candidate's text begins with */
    size_t lead_len;
    const char *behind; /* the same behind the rendered template: guarded in a chat */
    size_t behind_len;
};

/* Pointers: the request's arena. */
struct api_request {
    struct arena arena; /* owned */
    enum api_request_kind kind;
    const char *model; /* as the client wrote it; NULL: it didn't */

    /* completions */
    const struct api_request_prompt *prompts;
    int n_prompts;
    bool echo;
    const char *suffix; /* the answer fills the gap before it; NULL: none */
    size_t suffix_len;

    /* chat: what the template is rendered with, as JSON; text of clients guarded */
    const char *variables;
    size_t variables_len;
    const char *continued; /* the answer goes on where this text of the last message ends, guarded
                              as in `variables`; NULL: it begins anew */
    size_t continued_len;
    const char *repeated; /* responses: what the answer says again, as JSON members */

    const struct api_request_variant *variants;
    int n_variants; /* 0: the prompt as it is */

    bool add_bos; /* the beginning-of-sequence token goes before text where the model wants it */

    /* Without prompt.  max_tokens 0: as much as fits, at most server.default_max_tokens. */
    struct engine_job job;
    bool has_seed;
    int n_choices;

    bool stream, include_usage, usage_each;
    bool return_token_ids;
    bool tokens_as_ids;    /* logprobs name tokens "token_id:N" */
    int n_prompt_logprobs; /* prompt_logprobs: alternatives at each of the prompt's tokens; -1: not
                              asked for */

    bool has_tests;
    struct verifier_spec tests;
    enum race_return returns;
    int n_passes;       /* of "return": k */
    const int *pass_at; /* ks of pass_at_k */
    int n_pass_at;
    enum race_on_fail on_fail;
    enum race_detail detail;
    double deadline_s;
    enum api_request_progress progress;
};

bool api_request_parse(struct api_request *, enum api_request_kind, const char *body, size_t len,
                       const struct api_request_context *, struct err *e) MUST_CHECK;
void api_request_clear(struct api_request *);
/* Prompts that a race's candidates are dealt over, 1 at least. */
int api_request_n_variants(const struct api_request *);
/* Of the race's candidate `index`: its number among all of its seed, its prompt's among the
 * variants, its temperature. */
int api_request_number(const struct api_request *, int index);
int api_request_variant_of(const struct api_request *, int index);
float api_request_temperature(const struct api_request *, int index);
/* Each candidate is told as it is judged, and so not again at the end. */
bool api_request_tells_each(const struct api_request *);

#endif
