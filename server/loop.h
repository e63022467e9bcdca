/* libmicrohttpd inside a libuv loop: its epoll descriptor is one of the loop's polls, its timeout
 * one of the loop's timers.  libmicrohttpd runs no thread of its own; all its callbacks come in the
 * LOOP thread, from within the loop's turn and never from within a call made here but loop_close().
 *
 * The listening socket is opened here, so that an address in use is told in words and port 0 can be
 * asked for its number. */
#ifndef SERVER_LOOP_H
#define SERVER_LOOP_H

#include "base/err.h"

#include <microhttpd.h>
#include <uv.h>

struct loop;

struct loop_options {
    const char *host;
    int port; /* 0: any free one */
    int max_connections;
    unsigned idle_s; /* a connection without traffic is closed after this; not while suspended */
    size_t memory;   /* bytes of one connection's buffers: bounds its request head */
    const char *tls_cert, *tls_key; /* PEM text; NULL: plain HTTP */
    MHD_NotifyConnectionCallback connection;
    MHD_AccessHandlerCallback access;
    MHD_RequestCompletedCallback completed;
    void *arg; /* of all three */
};

/* The options' strings are read during the call only. */
struct loop *loop_open(uv_loop_t *, const struct loop_options *, struct err *e);
int loop_port(const struct loop *);
int loop_connections(const struct loop *);
/* libmicrohttpd has something to do (a connection was resumed): it runs in the next turn. */
void loop_kick(struct loop *);
/* Runs libmicrohttpd once now.  Not from within its callbacks. */
void loop_pump(struct loop *);
/* Closes all connections.  None may be suspended.  The loop's handles go in later turns, and then
 * `closed(arg)` is called and the memory is freed. */
void loop_close(struct loop *, void (*closed)(void *arg), void *arg);

#endif
