/* /tokenize, /detokenize, /tokenizer_info: the model's tokenizer for clients that count or send
 * tokens, in the shapes that vLLM made common.
 *
 * Text may be long: it is tokenized in libuv's pool, while api->n_tokenizing counts.  LOOP thread.
 */
#ifndef SERVER_TOKENS_H
#define SERVER_TOKENS_H

#include "server/api.h"

void tokens_info(struct api *, struct http_request *);
void tokens_encode(struct api *, struct http_request *);
void tokens_decode(struct api *, struct http_request *);

#endif
