/* Method and path to a handler; and the one place where an error's kind becomes an HTTP status and
 * OpenAI's error object. */
#ifndef SERVER_ROUTE_H
#define SERVER_ROUTE_H

#include "base/buf.h"
#include "base/err.h"
#include "server/http.h"
#include "server/writer.h"

enum route {
    ROUTE_COMPLETIONS,
    ROUTE_CHAT,
    ROUTE_VERIFY,
    ROUTE_RESPONSES,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_TOKENIZER_INFO,
    ROUTE_RACE,        /* rest: its id */
    ROUTE_RACE_DELETE, /* the same */
    ROUTE_MODELS,
    ROUTE_MODEL, /* rest: the model's id */
    ROUTE_HEALTH,
    ROUTE_READY,
    ROUTE_METRICS,
    ROUTE_VERSION,
    ROUTE_PAGE,    /* rest: the file's name, "" for the page itself */
    ROUTE_OPTIONS, /* any known path */
    ROUTE_NONE,    /* an error says why */
};

/* Every path is known with and without "/v1" before it.  *rest: what follows the path of a route
 * that takes more; the page's have no "/v1".  *allow: the methods of the path, for 405 and OPTIONS;
 * NULL where the path is unknown. */
enum route route_find(enum http_method, const char *path, const char **rest, const char **allow,
                      struct err *e);

/* The error of a path that leads nowhere; false. */
bool route_not_found(const char *path, struct err *e);

int route_status(enum err_kind);
/* {"message", "type", "param", "code"} */
void route_write_error(struct writer *, const struct err *);

/* Answers with the body, which is cleared. */
void route_reply_json(struct http_request *, int status, struct buf *body);
/* Answers with the error.  `extra` is JSON members beside "error" (`"firstpass":{…}`), or NULL. */
void route_reply_error(struct http_request *, const struct err *, const char *extra);

#endif
