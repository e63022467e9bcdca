#include "server/race_internal.h"

#include <math.h>
#include <stdlib.h>

enum { ROUTE_BITS = 10, N_ROUTES = 1 << ROUTE_BITS };

/* The loop's idle handle, on the heap of its own for the same reason as struct race_timer. */
struct race_set_idle {
    uv_idle_t handle;
    struct race_set *set; /* borrowed */
};

static void free_idle(uv_handle_t *handle) { free(handle->data); }

/* Once a turn: progress of what changed, and tests that nobody needs any more.  Tests are closed
 * here and not where a race settles, since that may be within the verdict's own callback. */
static void on_idle(uv_idle_t *handle) {
    struct race_set *set = ((struct race_set_idle *)handle->data)->set;
    uv_idle_stop(handle);
    while (!list_empty(&set->closing)) {
        struct race *r = LIST_ITEM(set->closing.next, struct race, waiting);
        list_remove(&r->waiting);
        race_close_tests(r);
    }
    while (!list_empty(&set->dirty)) {
        struct race *r = LIST_ITEM(set->dirty.next, struct race, waiting);
        list_remove(&r->waiting);
        race_progress(r);
    }
}

static void wake(struct race_set *set) { uv_idle_start(&set->idle->handle, on_idle); }

struct race_set *race_set_new(uv_loop_t *loop, struct race_engine engine,
                              struct race_verifier verifier) {
    struct race_set *set = err_alloc(1, sizeof *set);
    set->loop = loop;
    set->engine = engine;
    set->verifier = verifier;
    list_init(&set->races);
    list_init(&set->dirty);
    list_init(&set->closing);
    set->routes = err_alloc(N_ROUTES, sizeof *set->routes);
    for (int i = 0; i < N_ROUTES; i++)
        list_init(&set->routes[i]);
    set->idle = err_alloc(1, sizeof *set->idle);
    set->idle->set = set;
    set->idle->handle.data = set->idle;
    uv_idle_init(loop, &set->idle->handle);
    return set;
}

void race_set_free(struct race_set *set) {
    if (!set) return;
    BUG_ON(!list_empty(&set->races));
    uv_idle_stop(&set->idle->handle);
    uv_close((uv_handle_t *)&set->idle->handle, free_idle);
    free(set->routes);
    free(set);
}

void race_set_stats(const struct race_set *set, struct race_set_stats *out) { *out = set->stats; }

static struct race *first_live(const struct race_set *set) {
    LIST_EACH(it, &set->races) {
        struct race *r = LIST_ITEM(it, struct race, link);
        if (r->state < RACE_SETTLED) return r;
    }
    return NULL;
}

/* From the start each time: the callback of one race may abandon any other. */
void race_set_fail(struct race_set *set, const struct err *error) {
    for (struct race *r; (r = first_live(set));)
        race_fail(r, error);
}

/* ---- links ---- */

/* Ids count up: their low bits spread as they are. */
static struct list *route(const struct race_set *set, uint64_t job) {
    return &set->routes[job & (N_ROUTES - 1)];
}

struct race_job *race_set_find(const struct race_set *set, uint64_t id) {
    LIST_EACH(it, route(set, id)) {
        struct race_job *job = LIST_ITEM(it, struct race_job, routed);
        if (job->id == id) return job;
    }
    return NULL;
}

void race_set_add(struct race_set *set, struct race *r) {
    list_append(&set->races, &r->link);
    for (int i = 0; i < r->n_jobs; i++) {
        BUG_ON(race_set_find(set, r->jobs[i].id));
        list_append(route(set, r->jobs[i].id), &r->jobs[i].routed);
    }
    set->stats.live++;
    set->stats.races++;
}

void race_set_remove(struct race_set *set, struct race *r) {
    list_remove(&r->link);
    for (int i = 0; i < r->n_jobs; i++)
        list_remove(&r->jobs[i].routed);
    list_remove(&r->waiting);
    set->stats.live--;
    set->stats.tokens_winner += (uint64_t)r->counts.tokens_winner;
    set->stats.tokens_losers += (uint64_t)(race_tokens(r) - r->counts.tokens_winner);
}

void race_set_dirty(struct race_set *set, struct race *r) {
    if (!r->callbacks.on_progress || r->state >= RACE_SETTLED || !list_empty(&r->waiting)) return;
    list_append(&set->dirty, &r->waiting);
    wake(set);
}

void race_set_closing(struct race_set *set, struct race *r) {
    list_remove(&r->waiting);
    list_append(&set->closing, &r->waiting);
    wake(set);
}

/* ---- time limits ---- */

static void free_timer(uv_handle_t *handle) { free(handle->data); }

static void on_timer(uv_timer_t *handle) {
    struct race_timer *timer = handle->data;
    if (timer->race) race_deadline(timer->race);
}

void race_set_timer_start(struct race *r) {
    struct race_timer *timer = r->timer = err_alloc(1, sizeof *timer);
    timer->race = r;
    timer->handle.data = timer;
    uv_timer_init(r->set->loop, &timer->handle);
    uv_update_time(r->set->loop);
    uv_timer_start(&timer->handle, on_timer, (uint64_t)ceil(r->deadline_s * 1e3), 0);
}

void race_set_timer_stop(struct race *r) {
    if (!r->timer) return;
    r->timer->race = NULL;
    uv_close((uv_handle_t *)&r->timer->handle, free_timer);
    r->timer = NULL;
}
