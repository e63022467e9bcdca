/* What the next step computes: a pure function of (jobs, branches, blocks, budgets).
 *
 * It allocates nothing and knows nothing of models or devices, so that it is tested and fuzzed by
 * itself.  Two decisions, asked for in this order each step, the first one carried out before the
 * second is asked for:
 *
 *   scheduler_admit   which candidates start and which parked branches come back
 *   scheduler_rows    which live branches and which prompts get rows; who is parked to make room
 *
 * Fairness: rows and starts are dealt over the jobs evenly; a job that comes while another holds
 * all places gets its share at once, since branches take turns where there are more of them than
 * rows. Progress: the oldest branch is never parked for a younger one, so that it ends; a lone job
 * always fits (engine_submit refuses others), so that a pool too small for all makes them wait,
 * never stop. */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

struct scheduler_job {
    int prompt_left; /* prompt positions whose keys and values are still to be computed; candidates
                        wait for 0 */
    int prompt_cached;  /* those computed */
    int prompt_blocks;  /* blocks that the job holds for its prompt */
    int prompt_private; /* those that dropping the prompt would free */
    int waiting;        /* candidates never started */
    int in_flight;      /* candidates in live or parked branches */
    int width; /* candidates in flight at most, its mates' included; 0: budget.auto_width */
    /* Jobs of one race are mates: they count as one, and start candidates in the order of their
     * numbers. */
    int mate;       /* the next of them, at a higher index; 0: none */
    bool follows;   /* it is the mate of one before it */
    bool held;      /* its prompt gets no rows: it waits for a mate's */
    int next, step; /* number of its next candidate; from one to the next */
    /* out */
    int start;        /* admit: candidates to start, all in one branch */
    int rows;         /* rows: prompt positions to compute */
    bool drop_prompt; /* rows: give the prompt's blocks back; compute it again later */
    /* the scheduler's own */
    int together; /* of the first of mates: their candidates in flight */
};

struct scheduler_branch {
    int job;     /* index of its job */
    bool parked; /* holds no blocks */
    int length;  /* positions of prompt and tokens so far; all are computed by the next draw */
    int cached;  /* positions computed (0 where parked) */
    int blocks;  /* blocks in its table */
    int private_blocks; /* those that parking it would free */
    uint64_t age;       /* order of start: lower is older; unique */
    uint64_t served;    /* the step that last had a row of it */
    /* out */
    bool unpark; /* admit */
    bool park;   /* rows */
    int rows;    /* rows: positions to compute; the draw follows if it reaches length */
};

struct scheduler_budget {
    int block;         /* positions of a block */
    int max_rows;      /* decode rows of one step */
    int prefill_chunk; /* rows beyond those for prompts and for branches that come back */
    int free_blocks;
    int auto_width;
};

/* Fills job.start and branch.unpark. */
void scheduler_admit(struct scheduler_job *jobs, int n_jobs, struct scheduler_branch *branches,
                     int n_branches, const struct scheduler_budget *);
/* Fills job.rows, job.drop_prompt, branch.park and branch.rows.  Parked branches are skipped.  Rows
 * of live branches are at most max_rows + prefill_chunk in all, prompts' rows included. */
void scheduler_rows(struct scheduler_job *jobs, int n_jobs, struct scheduler_branch *branches,
                    int n_branches, const struct scheduler_budget *);

#endif
