#include "verifier/suite.h"

#include "verifier/payload.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct place {
    struct suite *suite;                                           /* borrowed */
    struct holder *holder;                                         /* owned */
    struct list link;                                              /* in its worker's suites */
    void (*ready)(void *arg, enum holder_state, const char *text); /* the asker; NULL: none */
    void *arg;
};

struct suite {
    struct pool *pool; /* borrowed */
    int spec_fd;       /* owned */
    int memory_mb;
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

static void on_changed(void *arg, enum holder_state state, const char *text) {
    struct place *place = arg;
    void (*ready)(void *, enum holder_state, const char *) = place->ready;
    void *ready_arg = place->arg;
    place->ready = NULL;
    if (state != HOLDER_READY) vacate(place);
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

void suite_want(struct suite *s, struct worker *w,
                void (*ready)(void *arg, enum holder_state, const char *text), void *arg) {
    struct place *place = &s->places[pool_slot(w)];
    BUG_ON(place->ready);
    /* It has gone and is just telling its processes so. */
    if (place->holder && holder_state(place->holder) == HOLDER_READY &&
        !process_forker_is_open(holder_forker(place->holder)))
        vacate(place);
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

struct forker *suite_forker(const struct suite *s, const struct worker *w) {
    const struct place *place = &s->places[pool_slot(w)];
    if (!place->holder || holder_state(place->holder) != HOLDER_READY) return NULL;
    return holder_forker(place->holder);
}
