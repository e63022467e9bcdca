/* HTTP connections and requests: body in, answer or stream out, the client watched meanwhile.
 *
 * THEORY.  A request's life, as its handler sees it:
 *
 *   READING → HANDLING → ANSWERED                     http_reply()
 *                      → STREAMING → ENDED            http_stream(), http_write()*, http_end()
 *   HANDLING or STREAMING → GONE                      the client left, or can't take what it asked
 * for
 *
 * handle() is called once, when the body is complete.  From then on the request belongs to the
 * handler until it calls http_reply() or http_end(), now or in a later turn, or until its `gone`
 * callback is called: after any of these the pointer is dead for it.  `gone` never comes from
 * within a call made by the handler.
 *
 * While a request waits, its libmicrohttpd connection is suspended, and libmicrohttpd doesn't look
 * at the socket.  So a duplicate of the descriptor is polled for the peer's hang-up by the loop
 * itself: `gone` comes within one turn of it.  A half-closed connection counts as left.
 *
 * Bodies: a body over the limit is refused with ERR_TOO_LARGE; before "100 Continue" where its
 * length is announced and the client waits for that; else after what the client sends has been read
 * and dropped (up to a bound), so that it gets to read the answer.  All bodies in memory together
 * are bounded too.
 *
 * Heads: what is longer than LIMIT_PATH_BYTES or LIMIT_HEAD_BYTES, or frames its body in two ways,
 * is refused here.  What is no HTTP at all, or longer than twice that, never gets this far:
 * libmicrohttpd answers it by itself, with the right status and a page of HTML, and closes.
 *
 * Slow clients: libmicrohttpd closes a connection without traffic after idle_s.  One that trickles
 * is cut here: a request that isn't whole read_s after its connection was opened or its predecessor
 * answered, an answer that isn't taken within TAKE_TIMES as long.
 *
 * LOOP thread. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct http_server;
struct http_request;

enum http_method { HTTP_GET, HTTP_POST, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER }; /* HEAD is GET */

struct http_options {
    const char *host;
    int port;
    int max_connections;
    double idle_s;
    double read_s; /* a request must be whole after this, its head and body together; 0: no limit */
    size_t max_body;
    const char *tls_cert, *tls_key; /* PEM text; NULL: plain HTTP */
};
struct http_handler {
    void (*handle)(void *arg, struct http_request *);
    /* The request can't be read: must http_reply() before it returns. */
    void (*refuse)(void *arg, struct http_request *, const struct err *);
    void *arg;
};

struct http_server *http_open(uv_loop_t *, const struct http_options *, const struct http_handler *,
                              struct err *e);
int http_port(const struct http_server *);
/* Requests whose answers aren't sent whole yet. */
int http_busy(const struct http_server *);
/* Cuts what is still open (without `gone` callbacks), closes; the memory goes in a later turn. */
void http_close(struct http_server *);

struct http_stats {
    int connections, waiting, streams; /* gauges */
    size_t body_bytes;                 /* gauge: bodies in memory */
    uint64_t requests, by_class[6];    /* by_class[s]: answers with status s00…s99 */
    uint64_t clients_gone;             /* left before their answer was whole */
    uint64_t clients_cut;              /* too slow with their request, or in taking the answer */
};
void http_stats(const struct http_server *, struct http_stats *out);

/* ---- the request; strings live as long as the request ---- */

enum http_method http_method(const struct http_request *);
/* Percent-decoded, without the query. */
const char *http_path(const struct http_request *);
/* NULL where the client didn't send it. */
const char *http_header(const struct http_request *, const char *name);
/* The client's own x-request-id where it is a plain one, else one made here. */
const char *http_request_id(const struct http_request *);
const char *http_body(const struct http_request *, size_t *len);
/* Frees the body early. */
void http_drop_body(struct http_request *);

/* ---- the answer ---- */

/* Before http_reply() or http_stream(): another header of the answer; copied. */
void http_add_header(struct http_request *, const char *name, const char *value);
/* Takes `body` (from malloc; NULL where len is 0). */
void http_reply(struct http_request *, int status, const char *content_type, char *body,
                size_t len);
/* Called where the client left, or where it reads so slowly that its stream outgrew the bound. */
void http_on_gone(struct http_request *, void (*gone)(void *arg), void *arg);
void http_stream(struct http_request *, int status, const char *content_type);
void http_write(struct http_request *, const void *data, size_t len);
void http_end(struct http_request *);

#endif
