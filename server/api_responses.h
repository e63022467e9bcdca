/* OpenAI's newer route /v1/responses in its text form: a request becomes one of chat, an answer a
 * list of output items.
 *
 * What is kept on the server there (previous_response_id, conversation, background, stored prompts)
 * is refused: nothing is stored here.  Tools are taken and not offered to the model, since calls in
 * its text aren't recognised.  Pure. */
#ifndef SERVER_API_RESPONSES_H
#define SERVER_API_RESPONSES_H

#include "server/api_request.h"
#include "server/api_response.h"
#include "server/reader.h"

/* Rewrites the body into that of a chat request; keeps in `request` what the answer repeats. */
bool api_responses_read(struct reader *, struct api_request *);

/* What a message says, or a piece of it. */
struct api_responses_text {
    const char *text;
    size_t len;
    struct api_response_tokens tokens; /* behind it; shown where log-probabilities were asked for */
};
/* The whole text of a candidate. */
struct api_responses_text api_responses_text_of(const struct race_candidate *);

/* One member of "output": choice `index` as a message; `text` NULL: it has said nothing yet. */
void api_responses_write_item(struct writer *, const struct api_response_head *, int index,
                              const struct api_responses_text *text, const char *status);
/* The item's id. */
void api_responses_write_item_id(struct writer *, const struct api_response_head *, int index);
/* {"type": "output_text", …} */
void api_responses_write_text(struct writer *, const struct api_response_head *,
                              const struct api_responses_text *);
/* The value of "logprobs": an empty list where none were asked for. */
void api_responses_write_logprobs(struct writer *, const struct api_response_head *,
                                  const struct api_response_tokens *);

/* The object "response". */
struct api_responses_state {
    const char *status; /* "in_progress", "completed", "incomplete", "failed" */
    const char *items;  /* JSON values of "output", commas included */
    size_t items_len;
    const struct api_response_totals *usage; /* NULL: not known yet */
    const struct err *error;                 /* NULL: none */
    const char *extra;                       /* JSON members, or NULL */
};
void api_responses_write(struct writer *, const struct api_response_head *,
                         const struct api_responses_state *);

#endif
