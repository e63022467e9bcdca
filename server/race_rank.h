/* Which of the candidates judged is the best, whatever the order in which their verdicts came.
 *
 * Candidates with the same code and the same outcome are one group.  The best group has, in this
 * order: a pass; the larger share of tests passed; code at all; no timeout; no other error than a
 * failed assertion; more members (the model's majority); the higher mean log-probability; the lower
 * index.  A group stands by its member of lowest index.  Broken verdicts say nothing and are never
 * added.
 *
 * Pure but for the memory it owns; LOOP thread. */
#ifndef SERVER_RACE_RANK_H
#define SERVER_RACE_RANK_H

#include "server/race_entry.h"

struct race_group {
    uint64_t hash; /* of code and outcome; 0: an empty place */
    int members;
    double mean_logprob;     /* highest of the members */
    struct race_entry *best; /* borrowed: the member of lowest index */
};
struct race_rank {
    struct race_group *groups; /* owned; open addressing, a power of two of places */
    size_t n_places, n_groups;
};

void race_rank_init(struct race_rank *);
void race_rank_clear(struct race_rank *);
/* Orders two candidates by outcome alone (up to "no other error"): > 0 where a is better. */
int race_rank_compare(const struct race_candidate *a, const struct race_candidate *b);
/* Adds a candidate that has been judged.  Returns the one whose texts its group doesn't need: the
 * new one, the one that stood for the group before, or NULL for a new group. */
struct race_entry *race_rank_add(struct race_rank *, struct race_entry *);
/* The best of all added, or NULL. */
struct race_entry *race_rank_best(const struct race_rank *);

#endif
