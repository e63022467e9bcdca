#include "server/http.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "config/limits.h"
#include "server/loop.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTION_BYTES = 2 * LIMIT_HEAD_BYTES, /* of one: request head and output block */
    DRAIN_BYTES = 64 * 1024 * 1024,          /* of a refused body at most are read and dropped */
    BODIES_BYTES = 512 * 1024 * 1024,        /* bodies in memory at once, all requests together */
    STREAM_BYTES = 64 * 1024 * 1024,         /* written but not yet taken by the client */
    BLOCK_BYTES = 16 * 1024,                 /* handed to libmicrohttpd at once */
    SWEEP_MS = 500,  /* how often slow and abandoned connections are looked for */
    TAKE_TIMES = 10, /* read_s that a client gets to take its answer */
    REQUEST_ID_BYTES = 128,
};

enum state { READING, HANDLING, ANSWERED, STREAMING, ENDED, GONE };

struct http_server {
    uv_loop_t *uv;     /* borrowed */
    struct loop *loop; /* owned */
    struct http_handler handler;
    size_t max_body;
    struct list requests;    /* struct http_request.link */
    struct list connections; /* struct connection.link */
    double read_s;
    uv_timer_t sweeper;
    uv_timer_t
        reaper;  /* calls `gone` of streams that outgrew their bound, outside of their writers */
    int pending; /* handles and watches not closed yet, loop included */
    bool closing;
    struct http_stats stats;
};

/* One connection, from its opening to its end: what it owes us, and since when. */
struct connection {
    struct list link;
    int fd;                       /* borrowed from libmicrohttpd */
    double since;                 /* opened, or its last request ended */
    bool over;                    /* at the last sweep its client had closed it */
    struct http_request *request; /* borrowed; NULL: none has begun */
};

/* A duplicate of a connection's descriptor, polled for the peer's hang-up.  Its own memory, since
 * libuv lets go of a handle only in a later turn. */
struct watch {
    uv_poll_t poll;
    int fd;                       /* owned */
    struct http_server *server;   /* borrowed */
    struct http_request *request; /* borrowed; NULL: the request has ended */
};

struct http_request {
    struct http_server *server;
    struct list link;
    struct MHD_Connection *connection; /* borrowed from libmicrohttpd until completed() */
    struct connection *on;             /* borrowed; its record here */
    double ended_at;                   /* when the handler had said all; 0: it hasn't */
    enum http_method method;
    char *path; /* owned */
    char id[REQUEST_ID_BYTES + 1];
    enum state state;
    bool suspended;
    bool expects_continue;

    struct buf body;
    size_t counted;     /* bytes of the body in server->stats.body_bytes */
    size_t dropped;     /* bytes read and thrown away since the refusal */
    struct err refused; /* kind ERR_NONE: not refused */

    struct MHD_Response *response; /* owned until queued */
    unsigned status;
    struct buf headers; /* "name\0value\0" pairs for the answer */

    struct buf out;  /* of a stream: written, not yet sent */
    size_t out_sent; /* of these, taken already */
    bool overflowed;

    struct watch *watch; /* owned; NULL until first suspended */
    void (*gone)(void *arg);
    void *gone_arg;
};

/* ---- the peer's hang-up ---- */

static void server_unref(struct http_server *s) {
    if (!--s->pending) free(s);
}

static void on_watch_closed(uv_handle_t *handle) {
    struct watch *w = handle->data;
    struct http_server *s = w->server;
    close(w->fd);
    free(w);
    server_unref(s);
}

static void watch_close(struct http_request *r) {
    if (!r->watch) return;
    r->watch->request = NULL;
    uv_close((uv_handle_t *)&r->watch->poll, on_watch_closed);
    r->watch = NULL;
}

static void resume(struct http_request *r) {
    if (!r->suspended) return;
    r->suspended = false;
    if (r->watch) uv_poll_stop(&r->watch->poll);
    MHD_resume_connection(r->connection);
    loop_kick(r->server->loop);
}

/* The handler's part ends here.  The connection is closed when libmicrohttpd next asks for data. */
static void lose(struct http_request *r) {
    if (r->state != HANDLING && r->state != STREAMING && r->state != ENDED) return;
    bool owned = r->state != ENDED;
    r->state = GONE;
    r->server->stats.clients_gone++;
    if (owned && r->gone) r->gone(r->gone_arg);
    resume(r);
}

static void on_hang_up(uv_poll_t *poll, int status, int events) {
    struct watch *w = poll->data;
    (void)status; /* an error on the descriptor is a hang-up too */
    (void)events;
    uv_poll_stop(poll);
    if (w->request) lose(w->request);
}

static void watch_start(struct http_request *r) {
    struct http_server *s = r->server;
    if (!r->watch) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        int fd = info ? fcntl(info->connect_fd, F_DUPFD_CLOEXEC, 0) : -1;
        if (fd < 0) {
            log_line(LOG_WARN, "can't watch a connection for its client's leaving: out of "
                               "descriptors; raise the limit on open files");
            return;
        }
        struct watch *w = err_alloc(1, sizeof *w);
        *w = (struct watch){.fd = fd, .server = s, .request = r};
        int rc = uv_poll_init(s->uv, &w->poll, fd);
        BUG_ON(rc);
        w->poll.data = w;
        s->pending++;
        r->watch = w;
    }
    uv_poll_start(&r->watch->poll, UV_DISCONNECT, on_hang_up);
}

static void suspend(struct http_request *r) {
    r->suspended = true;
    MHD_suspend_connection(r->connection);
    watch_start(r);
}

/* ---- the request's head and body ---- */

static bool plain_id(const char *s) {
    size_t n = 0;
    for (; s[n]; n++) {
        if (n >= REQUEST_ID_BYTES) return false;
        if (!isalnum((unsigned char)s[n]) && !strchr("-_.:/+=@", s[n])) return false;
    }
    return n > 0;
}

static void choose_id(struct http_request *r) {
    const char *given = http_header(r, "x-request-id");
    if (given && plain_id(given)) {
        snprintf(r->id, sizeof r->id, "%s", given);
        return;
    }
    unsigned char random[12] = {0};
    ssize_t got = getrandom(random, sizeof random, 0);
    BUG_ON(got != (ssize_t)sizeof random);
    size_t used = (size_t)snprintf(r->id, sizeof r->id, "req_");
    for (size_t i = 0; i < sizeof random; i++)
        used += (size_t)snprintf(r->id + used, sizeof r->id - used, "%02x", random[i]);
}

static enum http_method parse_method(const char *m) {
    if (!strcmp(m, "GET") || !strcmp(m, "HEAD")) return HTTP_GET;
    if (!strcmp(m, "POST")) return HTTP_POST;
    if (!strcmp(m, "DELETE")) return HTTP_DELETE;
    if (!strcmp(m, "OPTIONS")) return HTTP_OPTIONS;
    return HTTP_OTHER;
}

/* libmicrohttpd has checked the header's form; a length that doesn't fit reads as the largest. */
static uint64_t content_length(const struct http_request *r) {
    const char *text = http_header(r, "content-length");
    if (!text) return 0;
    errno = 0;
    unsigned long long n = strtoull(text, NULL, 10);
    return errno ? UINT64_MAX : n;
}

static void too_large(struct http_request *r) {
    err_set(&r->refused, ERR_TOO_LARGE,
            "the request body is larger than %zu bytes; the server's limit is "
            "server.max_body_bytes",
            r->server->max_body);
    err_code(&r->refused, "request_too_large");
}

static enum MHD_Result queue(struct http_request *r) {
    struct MHD_Response *response = r->response;
    r->response = NULL;
    enum MHD_Result result = MHD_queue_response(r->connection, r->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct http_request *r) {
    struct http_server *s = r->server;
    http_drop_body(r);
    r->state = HANDLING;
    s->handler.refuse(s->handler.arg, r, &r->refused);
    BUG_ON(r->state != ANSWERED);
    return queue(r);
}

/* libmicrohttpd's pointer for each connection is the record of it. */
static struct connection *connection_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **slot,
                          enum MHD_ConnectionNotificationCode code) {
    struct http_server *s = arg;
    struct connection *c = *slot;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *slot = c = err_alloc(1, sizeof *c);
        c->fd = info ? info->connect_fd : -1;
        c->since = clock_seconds();
        list_append(&s->connections, &c->link);
    } else if (c) {
        *slot = NULL;
        list_remove(&c->link);
        free(c);
    }
}

/* Whether the client has kept us waiting for too long. */
static bool is_slow(const struct http_server *s, const struct connection *c, double now) {
    const struct http_request *r = c->request;
    if (s->read_s <= 0) return false;
    if (!r || r->state == READING) return now - c->since > s->read_s;
    return r->ended_at > 0 && now - r->ended_at > s->read_s * TAKE_TIMES;
}

/* Whether nothing is being answered and nothing can be asked any more: at two sweeps the client's
 * end was closed and all it sent was read.  libmicrohttpd doesn't see an end that came together
 * with data: it takes a read that doesn't fill its buffer for the last, and its epoll,
 * edge-triggered, has told of both. */
static bool has_left(struct connection *c) {
    char next;
    ssize_t n = 1;
    if (!c->request || c->request->state == READING)
        n = recv(c->fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    bool before = c->over;
    c->over = !n || (n < 0 && errno != EAGAIN);
    return c->over && before;
}

/* Shutting the socket down makes libmicrohttpd close it in its own time. */
static void on_sweep(uv_timer_t *timer) {
    struct http_server *s = timer->data;
    double now = clock_seconds();
    bool any = false;
    LIST_EACH(it, &s->connections) {
        struct connection *c = LIST_ITEM(it, struct connection, link);
        if (c->fd < 0) continue;
        bool slow = is_slow(s, c, now);
        if (!slow && !has_left(c)) continue;
        shutdown(c->fd, SHUT_RDWR);
        c->fd = -1;
        s->stats.clients_cut += slow;
        any = true;
    }
    if (any) loop_kick(s->loop);
}

static struct http_request *request_new(struct http_server *s, struct MHD_Connection *connection,
                                        const char *url, const char *method) {
    struct http_request *r = err_alloc(1, sizeof *r);
    r->server = s;
    r->connection = connection;
    r->method = parse_method(method);
    r->path = err_strdup(url);
    choose_id(r);
    buf_init(&r->body, s->max_body);
    buf_init(&r->headers, 4096);
    buf_init(&r->out, STREAM_BYTES);
    list_append(&s->requests, &r->link);
    s->stats.requests++;
    if ((r->on = connection_of(connection))) r->on->request = r;
    return r;
}

static enum MHD_Result count_lengths(void *arg, enum MHD_ValueKind kind, const char *name,
                                     const char *value) {
    (void)kind;
    (void)value;
    *(int *)arg += !strcasecmp(name, "content-length");
    return MHD_YES;
}

/* A head that says twice where its body ends may mean another end to the proxy before us. */
static bool framing_is_plain(const struct http_request *r) {
    const char *transfer = http_header(r, "transfer-encoding");
    int lengths = 0;
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, count_lengths, &lengths);
    return transfer ? !lengths && !strcasecmp(transfer, "chunked") : lengths <= 1;
}

/* libmicrohttpd takes some more than is taken here, so that what is too long gets our answer. */
static bool check_head(struct http_request *r) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct err *e = &r->refused;
    if (strlen(r->path) > LIMIT_PATH_BYTES)
        return err_set(e, ERR_URI, "the request's path is longer than %d bytes", LIMIT_PATH_BYTES);
    if (info && info->header_size > LIMIT_HEAD_BYTES)
        return err_set(e, ERR_HEAD,
                       "the request's first line and headers have %zu bytes; at most "
                       "%d are taken",
                       info->header_size, LIMIT_HEAD_BYTES);
    if (framing_is_plain(r)) return true;
    http_add_header(r, "Connection", "close"); /* nobody knows where the next request begins */
    return err_set(e, ERR_INPUT,
                   "the request must have one Content-Length, or \"Transfer-Encoding: chunked\" "
                   "alone");
}

/* The head has come, no byte of the body yet: the only moment to refuse before "100 Continue". */
static enum MHD_Result begin(struct http_request *r) {
    if (!check_head(r)) return refuse(r);
    const char *coding = http_header(r, "content-encoding");
    const char *expect = http_header(r, "expect");
    uint64_t length = content_length(r);
    if (coding && strcasecmp(coding, "identity")) {
        err_set(&r->refused, ERR_MEDIA,
                "request bodies with Content-Encoding \"%.40s\" aren't supported; send it plain",
                coding);
    } else if (length > r->server->max_body) {
        too_large(r);
    }
    if (r->refused.kind != ERR_NONE && (expect || length > DRAIN_BYTES)) return refuse(r);
    return MHD_YES;
}

/* False: the connection is to be cut. */
static bool take_body(struct http_request *r, const char *data, size_t len) {
    struct http_server *s = r->server;
    if (r->refused.kind == ERR_NONE && len > s->max_body - r->body.len) too_large(r);
    if (r->refused.kind == ERR_NONE && len > BODIES_BYTES - s->stats.body_bytes)
        err_set(&r->refused, ERR_UNAVAILABLE,
                "the server holds as many request bodies as it can at the moment; try again later");
    if (r->refused.kind != ERR_NONE) {
        http_drop_body(r);
        r->dropped += len;
        return r->dropped <= DRAIN_BYTES;
    }
    buf_append(&r->body, data, len);
    r->counted += len;
    s->stats.body_bytes += len;
    return true;
}

static enum MHD_Result on_access(void *arg, struct MHD_Connection *connection, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *data_len, void **slot) {
    struct http_server *s = arg;
    struct http_request *r = *slot;
    (void)version;
    if (s->closing) return MHD_NO;
    if (!r) {
        *slot = r = request_new(s, connection, url, method);
        return begin(r);
    }
    if (*data_len) {
        bool ok = take_body(r, data, *data_len);
        *data_len = 0;
        return ok ? MHD_YES : MHD_NO;
    }
    if (r->state == READING) {
        if (r->refused.kind != ERR_NONE) return refuse(r);
        r->state = HANDLING;
        s->handler.handle(s->handler.arg, r);
    }
    /* Called again after each resume: either there is an answer now or the client is gone. */
    if (r->response) return queue(r);
    if (r->state == GONE) return MHD_NO;
    suspend(r);
    return MHD_YES;
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **slot,
                         enum MHD_RequestTerminationCode code) {
    struct http_server *s = arg;
    struct http_request *r = *slot;
    (void)connection;
    if (!r) return;
    *slot = NULL;
    r->suspended = false;
    if (r->on) {
        r->on->request = NULL;
        r->on->since = clock_seconds();
    }
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && !s->closing) lose(r);
    list_remove(&r->link);
    watch_close(r);
    http_drop_body(r);
    if (r->response) MHD_destroy_response(r->response);
    buf_clear(&r->body);
    buf_clear(&r->headers);
    buf_clear(&r->out);
    free(r->path);
    free(r);
}

/* ---- what handlers see of a request ---- */

enum http_method http_method(const struct http_request *r) { return r->method; }

const char *http_path(const struct http_request *r) { return r->path; }

const char *http_header(const struct http_request *r, const char *name) {
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

const char *http_request_id(const struct http_request *r) { return r->id; }

const char *http_body(const struct http_request *r, size_t *len) {
    *len = r->body.len;
    return buf_text(&r->body);
}

void http_drop_body(struct http_request *r) {
    r->server->stats.body_bytes -= r->counted;
    r->counted = 0;
    buf_clear(&r->body);
}

void http_on_gone(struct http_request *r, void (*gone)(void *arg), void *arg) {
    r->gone = gone;
    r->gone_arg = arg;
}

/* ---- the answer ---- */

void http_add_header(struct http_request *r, const char *name, const char *value) {
    buf_append(&r->headers, name, strlen(name) + 1);
    buf_append(&r->headers, value, strlen(value) + 1);
}

static void set_response(struct http_request *r, struct MHD_Response *response, int status,
                         const char *content_type) {
    BUG_ON(!response || r->response);
    r->response = response;
    r->status = (unsigned)status;
    if (content_type) MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "x-request-id", r->id);
    for (size_t i = 0; i < r->headers.len;) {
        const char *name = r->headers.data + i, *value = name + strlen(name) + 1;
        MHD_add_response_header(response, name, value);
        i = (size_t)(value + strlen(value) + 1 - r->headers.data);
    }
    int class = status / 100;
    if (class >= 1 && class <= 5) r->server->stats.by_class[class]++;
    http_drop_body(r);
}

void http_reply(struct http_request *r, int status, const char *content_type, char *body,
                size_t len) {
    BUG_ON(r->state != HANDLING);
    static char nothing[1];
    struct MHD_Response *response =
        body ? MHD_create_response_from_buffer(len, body, MHD_RESPMEM_MUST_FREE)
             : MHD_create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT);
    set_response(r, response, status, content_type);
    r->state = ANSWERED;
    r->ended_at = clock_seconds();
    resume(r);
}

static ssize_t read_stream(void *arg, uint64_t offset, char *block, size_t max) {
    struct http_request *r = arg;
    (void)offset;
    if (r->state == GONE) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t left = r->out.len - r->out_sent;
    if (!left) {
        if (r->state == ENDED) return MHD_CONTENT_READER_END_OF_STREAM;
        suspend(r);
        return 0;
    }
    size_t n = left < max ? left : max;
    memcpy(block, r->out.data + r->out_sent, n);
    r->out_sent += n;
    if (r->out_sent == r->out.len) {
        buf_reset(&r->out);
        r->out_sent = 0;
    } else if (r->out_sent > r->out.len / 2) {
        buf_consume(&r->out, r->out_sent);
        r->out_sent = 0;
    }
    return (ssize_t)n;
}

void http_stream(struct http_request *r, int status, const char *content_type) {
    BUG_ON(r->state != HANDLING);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, r, NULL);
    set_response(r, response, status, content_type);
    r->state = STREAMING;
    resume(r);
}

static void on_reaper(uv_timer_t *timer) {
    struct http_server *s = timer->data;
    LIST_EACH_SAFE(it, &s->requests) {
        struct http_request *r = LIST_ITEM(it, struct http_request, link);
        if (r->overflowed) lose(r);
    }
}

void http_write(struct http_request *r, const void *data, size_t len) {
    BUG_ON(r->state != STREAMING);
    if (r->overflowed || !len) return;
    if (!buf_append(&r->out, data, len)) {
        log_request(LOG_WARN, r->id, "the client doesn't read its stream; it is cut");
        r->overflowed = true;
        uv_timer_start(&r->server->reaper, on_reaper, 0, 0);
        return;
    }
    resume(r);
}

void http_end(struct http_request *r) {
    BUG_ON(r->state != STREAMING);
    r->state = ENDED;
    r->ended_at = clock_seconds();
    resume(r);
}

/* ---- the server ---- */

struct http_server *http_open(uv_loop_t *uv, const struct http_options *o,
                              const struct http_handler *handler, struct err *e) {
    struct http_server *s = err_alloc(1, sizeof *s);
    s->uv = uv;
    s->handler = *handler;
    s->max_body = o->max_body;
    list_init(&s->requests);
    list_init(&s->connections);
    s->read_s = o->read_s;
    struct loop_options options = {
        .host = o->host,
        .port = o->port,
        .max_connections = o->max_connections,
        .idle_s = o->idle_s < 1 ? 1 : (unsigned)o->idle_s,
        .memory = CONNECTION_BYTES,
        .tls_cert = o->tls_cert,
        .tls_key = o->tls_key,
        .connection = on_connection,
        .access = on_access,
        .completed = on_completed,
        .arg = s,
    };
    s->loop = loop_open(uv, &options, e);
    if (!s->loop) {
        free(s);
        return NULL;
    }
    int rc = uv_timer_init(uv, &s->reaper);
    BUG_ON(rc);
    s->reaper.data = s;
    rc = uv_timer_init(uv, &s->sweeper);
    BUG_ON(rc);
    s->sweeper.data = s;
    uv_timer_start(&s->sweeper, on_sweep, SWEEP_MS, SWEEP_MS);
    s->pending = 3; /* reaper, sweeper and loop */
    return s;
}

static void on_timer_closed(uv_handle_t *handle) { server_unref(handle->data); }

static void on_loop_closed(void *arg) { server_unref(arg); }

void http_close(struct http_server *s) {
    if (!s) return;
    s->closing = true;
    LIST_EACH_SAFE(it, &s->requests) {
        struct http_request *r = LIST_ITEM(it, struct http_request, link);
        if (r->state != ANSWERED && r->state != ENDED) r->state = GONE;
        resume(r);
    }
    loop_close(s->loop, on_loop_closed, s);
    uv_close((uv_handle_t *)&s->reaper, on_timer_closed);
    uv_close((uv_handle_t *)&s->sweeper, on_timer_closed);
}

int http_port(const struct http_server *s) { return loop_port(s->loop); }

int http_busy(const struct http_server *s) {
    int n = 0;
    LIST_EACH(it, &s->requests) { n += LIST_ITEM(it, struct http_request, link)->state != READING; }
    return n;
}

void http_stats(const struct http_server *s, struct http_stats *out) {
    *out = s->stats;
    out->connections = loop_connections(s->loop);
    out->waiting = out->streams = 0;
    LIST_EACH(it, &s->requests) {
        enum state state = LIST_ITEM(it, struct http_request, link)->state;
        out->waiting += state == HANDLING;
        out->streams += state == STREAMING || state == ENDED;
    }
}
