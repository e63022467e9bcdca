/* Results of races as OpenAI JSON: choices, usage, log-probabilities, and the object `firstpass`.
 *
 * Pieces that the whole answer and the stream share; each writes to a struct writer.  Pure; LOOP
 * thread, since results of races are. */
#ifndef SERVER_API_RESPONSE_H
#define SERVER_API_RESPONSE_H

#include "server/api_request.h"
#include "server/race.h"
#include "server/writer.h"

/* What every piece of one answer has in common; borrowed. */
struct api_response_head {
    const struct api_request *request;
    char id[64]; /* "chatcmpl-…" */
    const char *model;
    const char *fingerprint; /* system_fingerprint */
    int64_t created;         /* Unix time */
    int sandbox_level;
    /* engine_token_text() */
    const char *(*token_text)(const void *self, int32_t token, size_t *len);
    const void *self;
};

/* Sums over the races of one request (one for each prompt). */
struct api_response_totals {
    int64_t prompt_tokens, cached_tokens, completion_tokens;
};
void api_response_add(struct api_response_totals *, const struct race_counts *);

/* A run of tokens of one choice and where its text starts. */
struct api_response_tokens {
    const int32_t *tokens;
    const struct engine_logprob *logprobs; /* NULL: none were kept */
    int n;
    int n_lead; /* of these, the first ones that the text doesn't show (a token that begins it) */
    int64_t offset; /* characters of the choice before the first token */
};
/* The prompt as a part of an answer; all borrowed, all NULL where the answer doesn't show it. */
struct api_response_prompt {
    const char *echo; /* goes before a completion's text */
    size_t echo_len;
    const int32_t *tokens;
    int n_tokens;
    int n_lead;                            /* as above */
    const struct engine_logprob *logprobs; /* [n_tokens]; NULL: not asked for */
};

/* "id", "object", "created", "model", "system_fingerprint" of an answer or a chunk. */
void api_response_write_head(struct writer *, const struct api_response_head *, bool chunk);
/* The value of "usage". */
void api_response_write_usage(struct writer *, const struct api_response_totals *);
/* The value of "logprobs" for runs of tokens that follow each other: null where none were asked
 * for. */
void api_response_write_logprobs(struct writer *, const struct api_response_head *,
                                 const struct api_response_tokens *runs, int n_runs);
/* One array of tokens in the shape of chat, as /v1/responses has it too. */
void api_response_write_tokens(struct writer *, const struct api_response_head *,
                               const struct api_response_tokens *);
const char *api_response_finish_reason(enum engine_reason);

/* The value of "prompt_logprobs": null for a token that nothing comes before. */
void api_response_write_prompt_logprobs(struct writer *, const struct api_response_head *,
                                        const struct api_response_prompt *);
/* One member of "choices" of a whole answer. */
void api_response_write_choice(struct writer *, const struct api_response_head *, int index,
                               const struct race_candidate *, const struct api_response_prompt *);
/* Members of a choice beside OpenAI's: "candidate", its number among those of the seed; with tests
 * its verdict. */
void api_response_write_origin(struct writer *, const struct api_response_head *,
                               const struct race_candidate *);
/* One member of "candidates" inside "firstpass", with its texts where the request wants them. */
void api_response_write_candidate(struct writer *, const struct api_response_head *,
                                  const struct race_candidate *);
/* The value of "counts" inside "firstpass", also sent as progress. */
void api_response_write_counts(struct writer *, const struct race_counts *);
/* The value of "firstpass". */
void api_response_write_firstpass(struct writer *, const struct api_response_head *,
                                  const struct race_result *);
/* The unbiased estimate of pass@k from n judged candidates of which `passed` passed: the chance
 * that k of them, drawn without putting back, hold a pass (Chen et al., arXiv 2107.03374).  NAN
 * where k > n. */
double api_response_pass_at(int n, int passed, int k);
/* Characters that a candidate's text has before its first token. */
int64_t api_response_lead(const struct api_response_head *, int candidate);
/* Characters in UTF-8 text. */
int64_t api_response_characters(const char *s, size_t len);

#endif
