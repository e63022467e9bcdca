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
    int64_t offset; /* characters of the choice before the first token */
};

/* "id", "object", "created", "model", "system_fingerprint" of an answer or a chunk. */
void api_response_write_head(struct writer *, const struct api_response_head *, bool chunk);
/* The value of "usage". */
void api_response_write_usage(struct writer *, const struct api_response_totals *);
/* The value of "logprobs": null where none were asked for. */
void api_response_write_logprobs(struct writer *, const struct api_response_head *,
                                 const struct api_response_tokens *);
const char *api_response_finish_reason(enum engine_reason);

/* One member of "choices" of a whole answer.  `echo` goes before a completion's text. */
void api_response_write_choice(struct writer *, const struct api_response_head *, int index,
                               const struct race_candidate *, const char *echo, size_t echo_len);
/* The value of "counts" inside "firstpass", also sent as progress. */
void api_response_write_counts(struct writer *, const struct race_counts *);
/* The value of "firstpass". */
void api_response_write_firstpass(struct writer *, const struct api_response_head *,
                                  const struct race_result *);
/* Characters in UTF-8 text. */
int64_t api_response_characters(const char *s, size_t len);

#endif
