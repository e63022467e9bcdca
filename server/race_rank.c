#include "server/race_rank.h"

#include <stdlib.h>
#include <string.h>

void race_rank_init(struct race_rank *r) { *r = (struct race_rank){0}; }

void race_rank_clear(struct race_rank *r) {
    free(r->groups);
    race_rank_init(r);
}

static int compare_share(const struct race_candidate *a, const struct race_candidate *b) {
    int64_t a_total = a->tests_total > 0 ? a->tests_total : 1;
    int64_t b_total = b->tests_total > 0 ? b->tests_total : 1;
    int64_t left = a->tests_passed * b_total, right = b->tests_passed * a_total;
    return (left > right) - (left < right);
}

/* A failed assertion says that the code ran and gave a wrong value. */
static bool only_wrong(const struct race_candidate *c) {
    return c->verdict == VERDICT_PASSED ||
           (c->verdict == VERDICT_FAILED && !strncmp(c->error, "AssertionError", 14));
}

int race_rank_compare(const struct race_candidate *a, const struct race_candidate *b) {
    int order = (a->verdict == VERDICT_PASSED) - (b->verdict == VERDICT_PASSED);
    if (!order && a->verdict == VERDICT_PASSED) return 0;
    if (!order) order = compare_share(a, b);
    if (!order) order = (a->code_len > 0) - (b->code_len > 0);
    if (!order) order = (b->verdict == VERDICT_TIMEOUT) - (a->verdict == VERDICT_TIMEOUT);
    if (!order) order = only_wrong(a) - only_wrong(b);
    return order;
}

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash_more(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x100000001b3u; }

static uint64_t hash_of(const struct race_candidate *c) {
    uint64_t hash = 0xcbf29ce484222325u;
    hash = hash_more(hash, (uint64_t)c->verdict);
    hash = hash_more(hash, (uint64_t)c->tests_passed);
    hash = hash_more(hash, (uint64_t)c->tests_total);
    hash = hash_more(hash, only_wrong(c));
    for (size_t i = 0; i < c->code_len; i++)
        hash = hash_more(hash, (unsigned char)c->code[i]);
    return hash ? hash : 1;
}

/* The group's place, or the empty one where it belongs. */
static struct race_group *find(struct race_group *groups, size_t n_places, uint64_t hash) {
    size_t i = (size_t)hash & (n_places - 1);
    while (groups[i].hash && groups[i].hash != hash)
        i = (i + 1) & (n_places - 1);
    return &groups[i];
}

static void grow(struct race_rank *r) {
    size_t n_places = r->n_places ? 2 * r->n_places : 16;
    struct race_group *groups = err_alloc(n_places, sizeof *groups);
    for (size_t i = 0; i < r->n_places; i++)
        if (r->groups[i].hash) *find(groups, n_places, r->groups[i].hash) = r->groups[i];
    free(r->groups);
    r->groups = groups;
    r->n_places = n_places;
}

struct race_entry *race_rank_add(struct race_rank *r, struct race_entry *c) {
    BUG_ON(!c->view.decided || c->view.verdict == VERDICT_BROKEN);
    if (2 * (r->n_groups + 1) > r->n_places) grow(r);
    uint64_t hash = hash_of(&c->view);
    struct race_group *group = find(r->groups, r->n_places, hash);
    if (!group->hash) {
        *group = (struct race_group){hash, 1, c->view.mean_logprob, c};
        r->n_groups++;
        return NULL;
    }
    group->members++;
    if (c->view.mean_logprob > group->mean_logprob) group->mean_logprob = c->view.mean_logprob;
    if (c->view.index > group->best->view.index) return c;
    struct race_entry *before = group->best;
    group->best = c;
    return before;
}

static bool better(const struct race_group *a, const struct race_group *b) {
    int order = race_rank_compare(&a->best->view, &b->best->view);
    if (!order) order = (a->members > b->members) - (a->members < b->members);
    if (!order) order = (a->mean_logprob > b->mean_logprob) - (a->mean_logprob < b->mean_logprob);
    if (!order) order = a->best->view.index < b->best->view.index ? 1 : -1;
    return order > 0;
}

struct race_entry *race_rank_best(const struct race_rank *r) {
    const struct race_group *best = NULL;
    for (size_t i = 0; i < r->n_places; i++)
        if (r->groups[i].hash && (!best || better(&r->groups[i], best))) best = &r->groups[i];
    return best ? best->best : NULL;
}
