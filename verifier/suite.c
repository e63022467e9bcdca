#include "verifier/suite.h"

#include "verifier/payload.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct place {
    struct suite *suite;   /* borrowed */
    struct holder *holder; /* owned */
    struct process *spare; /* owned: a B that waits for a job; NULL: none */
    struct list link;      /* in its worker's suites */
    void (*ready)(void *arg, enum holder_state, const char *text); /* the asker; NULL: none */
    void *arg;
};

struct suite {
    struct pool *pool; /* borrowed */
    int spec_fd;       /* owned */
    int memory_mb;
    bool forks; /* one B at least was used up by a single run: B's are forked now, not compiled */
    int n_places;
    struct place places[]; /* by slot */
};

static int write_spec(const struct verifier_spec *spec, const char *format, struct err *e) {
    static const char *const feedback[] = {
        [VERIFIER_FEEDBACK_NONE] = "none",
        [VERIFIER_FEEDBACK_NAMES] = "names",
        [VERIFIER_FEEDBACK_FULL] = "full",
    };
    json_t *root =
        json_pack("{s:s, s:s%, s:b, s:s}", "format", format, "tests", spec->tests, spec->tests_len,
                  "score", spec->score, "feedback", feedback[spec->feedback]);
    json_t *entry = spec->entry_point ? json_string(spec->entry_point) : json_null();
    json_t *prompt = spec->prompt ? json_stringn(spec->prompt, spec->prompt_len) : json_null();
    char *text = NULL;
    if (root && entry && prompt && !json_object_set(root, "entry_point", entry) &&
        !json_object_set(root, "prompt", prompt))
        text = json_dumps(root, JSON_COMPACT);
    json_decref(entry);
    json_decref(prompt);
    json_decref(root);
    if (!text) {
        err_param(e, "tests", "tests, prompt and entry_point must be valid UTF-8");
        return -1;
    }
    int fd = payload_memfd("tests", text, strlen(text), e);
    free(text);
    return fd;
}

struct suite *suite_open(struct pool *pool, const struct verifier_spec *spec, const char *format,
                         struct err *e) {
    int fd = write_spec(spec, format, e);
    if (fd < 0) return NULL;
    int n = pool_slots(pool);
    struct suite *s = err_alloc(1, sizeof *s + (size_t)n * sizeof s->places[0]);
    *s = (struct suite){.pool = pool, .spec_fd = fd, .memory_mb = spec->memory_mb, .n_places = n};
    for (int i = 0; i < n; i++) {
        s->places[i].suite = s;
        list_init(&s->places[i].link);
    }
    return s;
}

static void vacate(struct place *place) {
    process_abandon(place->spare);
    place->spare = NULL;
    holder_close(place->holder);
    place->holder = NULL;
    list_remove(&place->link);
}

void suite_close(struct suite *s) {
    if (!s) return;
    for (int i = 0; i < s->n_places; i++)
        vacate(&s->places[i]);
    close(s->spec_fd);
    free(s);
}

static void on_spare_ended(void *arg) {
    struct place *place = arg;
    struct process *ended = place->spare;
    place->spare = NULL;
    process_free(ended);
}

static void fork_ahead(struct place *place) {
    if (place->spare) return;
    if (holder_is_lone(place->holder))
        place->spare = holder_take(place->holder, on_spare_ended, place);
    else
        place->spare = process_new(holder_forker(place->holder), WIRE_TESTS, on_spare_ended, place);
}

static void on_changed(void *arg, enum holder_state state, const char *text) {
    struct place *place = arg;
    void (*ready)(void *, enum holder_state, const char *) = place->ready;
    void *ready_arg = place->arg;
    place->ready = NULL;
    if (state == HOLDER_READY)
        fork_ahead(place);
    else
        vacate(place);
    if (ready) ready(ready_arg, state, text);
}

static void evict_oldest(struct list *suites) {
    int n = 0;
    LIST_EACH(it, suites)
    n++;
    for (struct list *it = suites->prev; n > SUITE_KEPT && it != suites;) {
        struct place *place = LIST_ITEM(it, struct place, link);
        it = it->prev;
        if (place->ready) continue;
        vacate(place);
        n--;
    }
}

/* Its fork server has gone and is just telling its processes so, or its only process has. */
static bool is_used_up(const struct place *place) {
    if (!place->holder || holder_state(place->holder) != HOLDER_READY) return false;
    return holder_is_lone(place->holder) ? !place->spare
                                         : !process_forker_is_open(holder_forker(place->holder));
}

void suite_want(struct suite *s, struct worker *w,
                void (*ready)(void *arg, enum holder_state, const char *text), void *arg) {
    struct place *place = &s->places[pool_slot(w)];
    BUG_ON(place->ready);
    if (is_used_up(place)) vacate(place);
    if (place->holder && holder_state(place->holder) == HOLDER_READY) {
        list_remove(&place->link);
        list_prepend(pool_suites(w), &place->link);
        ready(arg, HOLDER_READY, "");
        return;
    }
    if (!place->holder) {
        struct holder_input input = {
            .kind = WIRE_SUITE,
            .fd = s->spec_fd,
            /* Compiling takes memory of its own, which a candidate's limit must not decide. */
            .address_space = pool_address_space(w, s->memory_mb + 256),
            .seconds = SUITE_COMPILE_S,
            .flags = s->forks ? WIRE_FORKS : 0,
        };
        place->holder =
            holder_open(pool_watches(s->pool), pool_forker(w), &input, on_changed, place);
        if (!place->holder) {
            ready(arg, HOLDER_LOST, "");
            return;
        }
        list_prepend(pool_suites(w), &place->link);
        evict_oldest(pool_suites(w));
    }
    place->ready = ready;
    place->arg = arg;
}

void suite_forget(struct suite *s, struct worker *w) { s->places[pool_slot(w)].ready = NULL; }

bool suite_is_ready(const struct suite *s, const struct worker *w) {
    const struct holder *holder = s->places[pool_slot(w)].holder;
    return holder && holder_state(holder) == HOLDER_READY;
}

static struct place *ready_place(struct suite *s, const struct worker *w) {
    struct place *place = &s->places[pool_slot(w)];
    return place->holder && holder_state(place->holder) == HOLDER_READY ? place : NULL;
}

/* Nothing but silence may come from a B that waits. */
static bool is_quiet(const struct process *p) {
    char byte;
    return recv(p->job_fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

struct process *suite_take(struct suite *s, struct worker *w, void (*ended)(void *arg), void *arg) {
    struct place *place = ready_place(s, w);
    if (!place) return NULL;
    struct process *p = place->spare;
    place->spare = NULL;
    if (p && !is_quiet(p)) {
        process_abandon(p);
        p = NULL;
    }
    if (p)
        process_adopt(p, ended, arg);
    else if (!holder_is_lone(place->holder))
        p = process_new(holder_forker(place->holder), WIRE_TESTS, ended, arg);
    if (!holder_is_repeatable(place->holder)) fork_ahead(place);
    return p;
}

bool suite_is_repeatable(const struct suite *s, const struct worker *w) {
    const struct holder *holder = s->places[pool_slot(w)].holder;
    return holder && holder_state(holder) == HOLDER_READY && holder_is_repeatable(holder);
}

void suite_refill(struct suite *s, struct worker *w) {
    struct place *place = ready_place(s, w);
    if (!place) return;
    if (!holder_is_lone(place->holder)) {
        fork_ahead(place);
        return;
    }
    s->forks = true;
    vacate(place);
}

void suite_give_back(struct suite *s, struct worker *w, struct process *p) {
    struct place *place = ready_place(s, w);
    if (!place || place->spare || p->runs >= SUITE_RUNS) {
        process_abandon(p);
        if (place && holder_is_lone(place->holder))
            vacate(place); /* it is compiled anew when it is wanted again */
        else
            suite_refill(s, w);
        return;
    }
    place->spare = p;
    process_adopt(p, on_spare_ended, place);
}
