#include "server/loop.h"

#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LISTEN_BACKLOG = 1024,
    KEEPALIVE_IDLE_S =
        30, /* a peer that vanished without a word is noticed within about a minute */
    KEEPALIVE_INTERVAL_S = 10,
    KEEPALIVE_PROBES = 3,
};

struct loop {
    struct MHD_Daemon *daemon; /* owned */
    uv_poll_t poll;            /* the daemon's epoll descriptor */
    uv_timer_t timer;          /* the daemon's next timeout */
    int port;
    int handles; /* of ours not closed yet */
    bool closing;
    bool kicked; /* since libmicrohttpd last began to run */
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- the listening socket ---- */

/* Accepted sockets inherit these. */
static void set_socket_options(int fd) {
    int on = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S, probes = KEEPALIVE_PROBES;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int listen_on(const char *host, int port, struct err *e) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(*host ? host : NULL, service, &hints, &found);
    if (rc) {
        err_set(e, ERR_SYSTEM, "server.host \"%s\": %s", host, gai_strerror(rc));
        return -1;
    }
    int fd = -1, why = 0;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0) {
            set_socket_options(fd);
            if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, LISTEN_BACKLOG)) break;
        }
        why = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd >= 0) return fd;
    if (why == EADDRINUSE)
        err_set(e, ERR_SYSTEM,
                "port %d on %s is in use: stop the program that listens there or choose another "
                "port with --port (0 takes any free one)",
                port, host);
    else
        err_errno(e, why, "can't listen on %s port %d", host, port);
    return -1;
}

static int bound_port(int fd) {
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &len)) return 0;
    /* The port is at the same place in both. */
    struct sockaddr_in in;
    _Static_assert(
        offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port), "");
    memcpy(&in, &a, sizeof in);
    return ntohs(in.sin_port);
}

/* ---- running ---- */

static void on_timer(uv_timer_t *timer) { loop_pump(timer->data); }

static void on_poll(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    loop_pump(poll->data);
}

void loop_pump(struct loop *l) {
    if (l->closing) return;
    l->kicked = false;
    MHD_run(l->daemon);
    MHD_UNSIGNED_LONG_LONG ms;
    /* One request's handler may have resumed another's connection, which this run is past. */
    if (l->kicked)
        uv_timer_start(&l->timer, on_timer, 0, 0);
    else if (MHD_get_timeout(l->daemon, &ms) == MHD_YES)
        uv_timer_start(&l->timer, on_timer, ms, 0);
    else
        uv_timer_stop(&l->timer);
}

void loop_kick(struct loop *l) {
    l->kicked = true;
    if (!l->closing) uv_timer_start(&l->timer, on_timer, 0, 0);
}

int loop_port(const struct loop *l) { return l->port; }

int loop_connections(const struct loop *l) {
    if (l->closing) return 0;
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info ? (int)info->num_connections : 0;
}

/* ---- life ---- */

static void log_daemon(void *arg, const char *fmt, va_list args) PRINTF_LIKE(2, 0);
static void log_daemon(void *arg, const char *fmt, va_list args) {
    (void)arg;
    char text[256];
    vsnprintf(text, sizeof text, fmt, args);
    text[strcspn(text, "\n")] = 0;
    log_line(LOG_DEBUG, "http: %s", text);
}

struct loop *loop_open(uv_loop_t *uv, const struct loop_options *o, struct err *e) {
    int fd = listen_on(o->host, o->port, e);
    if (fd < 0) return NULL;
    struct loop *l = err_alloc(1, sizeof *l);
    l->port = bound_port(fd);
    unsigned flags =
        (unsigned)MHD_USE_EPOLL | (unsigned)MHD_ALLOW_SUSPEND_RESUME | (unsigned)MHD_USE_ERROR_LOG;
    const struct MHD_OptionItem secure[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)o->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)o->tls_key},
        {MHD_OPTION_END, 0, NULL},
    };
    const struct MHD_OptionItem plain[] = {{MHD_OPTION_END, 0, NULL}};
    if (o->tls_cert) flags |= (unsigned)MHD_USE_TLS;
    /* The logger comes first so that it also hears about the other options. */
    l->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, o->access, o->arg, MHD_OPTION_EXTERNAL_LOGGER, log_daemon, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, o->completed, o->arg,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        o->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, o->memory, MHD_OPTION_NOTIFY_CONNECTION,
        o->connection, o->arg, MHD_OPTION_ARRAY, o->tls_cert ? secure : plain, MHD_OPTION_END);
    if (!l->daemon) {
        close(fd);
        free(l);
        if (o->tls_cert)
            err_set(e, ERR_INPUT,
                    "TLS can't be set up: server.tls_cert and server.tls_key must be a "
                    "certificate chain and its private key, both PEM (more in the log "
                    "at level debug)");
        else
            err_set(e, ERR_SYSTEM, "libmicrohttpd didn't start (see the log at level debug)");
        return NULL;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    BUG_ON(!info);
    int rc = uv_timer_init(uv, &l->timer);
    BUG_ON(rc);
    rc = uv_poll_init(uv, &l->poll, info->epoll_fd);
    BUG_ON(rc);
    l->timer.data = l->poll.data = l;
    l->handles = 2;
    uv_poll_start(&l->poll, UV_READABLE, on_poll);
    loop_kick(l);
    return l;
}

static void on_handle_closed(uv_handle_t *handle) {
    struct loop *l = handle->data;
    if (--l->handles) return;
    void (*closed)(void *) = l->closed;
    void *arg = l->closed_arg;
    free(l);
    closed(arg);
}

void loop_close(struct loop *l, void (*closed)(void *arg), void *arg) {
    BUG_ON(l->closing);
    /* Resumed connections are taken up by one more run; libmicrohttpd must not be stopped with
     * suspended ones. */
    MHD_run(l->daemon);
    l->closing = true;
    l->closed = closed;
    l->closed_arg = arg;
    uv_close((uv_handle_t *)&l->poll, on_handle_closed); /* before its descriptor is closed */
    MHD_stop_daemon(l->daemon);
    uv_close((uv_handle_t *)&l->timer, on_handle_closed);
}
