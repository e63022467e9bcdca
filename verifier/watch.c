#include "verifier/watch.h"

#include "base/err.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct watch {
    uv_poll_t poll;
    struct watch_set *set; /* borrowed */
    int fd;                /* owned */
    void (*ready)(void *arg);
    void *arg; /* borrowed */
};

struct watch_timer {
    uv_timer_t timer;
    struct watch_set *set; /* borrowed */
    void (*ring)(void *arg);
    void *arg; /* borrowed */
};

static void release(struct watch_set *set) {
    if (--set->n_handles == 0 && set->on_empty) set->on_empty(set->arg);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    (void)status; /* an error too is found by reading */
    (void)events;
    struct watch *w = poll->data;
    w->ready(w->arg);
}

struct watch *watch_open(struct watch_set *set, int fd, void (*ready)(void *arg), void *arg) {
    struct watch *w = err_alloc(1, sizeof *w);
    *w = (struct watch){.set = set, .fd = fd, .ready = ready, .arg = arg};
    int flags = fcntl(fd, F_GETFL);
    BUG_ON(flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK));
    BUG_ON(uv_poll_init(set->loop, &w->poll, fd));
    w->poll.data = w;
    set->n_handles++;
    BUG_ON(uv_poll_start(&w->poll, UV_READABLE | UV_DISCONNECT, on_poll));
    return w;
}

int watch_fd(const struct watch *w) { return w->fd; }

static void on_poll_closed(uv_handle_t *handle) {
    struct watch *w = handle->data;
    struct watch_set *set = w->set;
    free(w);
    release(set);
}

void watch_close(struct watch *w) {
    if (!w) return;
    uv_poll_stop(&w->poll);
    uv_close((uv_handle_t *)&w->poll, on_poll_closed);
    close(w->fd);
}

static void on_timer(uv_timer_t *timer) {
    struct watch_timer *t = timer->data;
    t->ring(t->arg);
}

struct watch_timer *watch_timer_open(struct watch_set *set, void (*ring)(void *arg), void *arg) {
    struct watch_timer *t = err_alloc(1, sizeof *t);
    *t = (struct watch_timer){.set = set, .ring = ring, .arg = arg};
    BUG_ON(uv_timer_init(set->loop, &t->timer));
    t->timer.data = t;
    set->n_handles++;
    return t;
}

void watch_timer_set(struct watch_timer *t, double seconds) {
    /* The loop's idea of now is the start of this turn; a slow turn must not eat the time given. */
    uv_update_time(t->set->loop);
    uint64_t ms = seconds <= 0 ? 0 : (uint64_t)(seconds * 1000) + 1;
    BUG_ON(uv_timer_start(&t->timer, on_timer, ms, 0));
}

void watch_timer_stop(struct watch_timer *t) { uv_timer_stop(&t->timer); }

static void on_timer_closed(uv_handle_t *handle) {
    struct watch_timer *t = handle->data;
    struct watch_set *set = t->set;
    free(t);
    release(set);
}

void watch_timer_close(struct watch_timer *t) {
    if (!t) return;
    uv_timer_stop(&t->timer);
    uv_close((uv_handle_t *)&t->timer, on_timer_closed);
}
