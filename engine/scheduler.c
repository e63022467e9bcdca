#include "engine/scheduler.h"

#include "base/divide.h"

enum { UNDECIDED = -1 };

static int min_int(int a, int b) { return a < b ? a : b; }
static int max_int(int a, int b) { return a > b ? a : b; }

/* ---- admission ---- */

/* Blocks that the oldest prompt still on its way will take: starting candidates of other jobs must
 * not eat them, or a long prompt would wait for ever behind a race of 10,000. */
static int blocks_promised(const struct scheduler_job *jobs, int n_jobs, int block) {
    for (int j = 0; j < n_jobs; j++) {
        if (!jobs[j].prompt_left) continue;
        int all = divide_up(jobs[j].prompt_cached + jobs[j].prompt_left, block);
        return max_int(0, all - jobs[j].prompt_blocks);
    }
    return 0;
}

/* Blocks that a parked branch takes when it comes back and has all its positions computed again. */
static int blocks_to_return(const struct scheduler_branch *b, const struct scheduler_job *job,
                            int block) {
    return divide_up(b->length, block) - job->prompt_cached / block;
}

/* The oldest parked branch not yet decided, or -1. */
static int oldest_parked(const struct scheduler_branch *branches, int n_branches) {
    int best = -1;
    for (int b = 0; b < n_branches; b++) {
        if (!branches[b].parked || branches[b].unpark) continue;
        if (best < 0 || branches[b].age < branches[best].age) best = b;
    }
    return best;
}

/* The one of mates that has the next candidate, or -1. */
static int whose_turn(const struct scheduler_job *jobs, int first) {
    int best = -1, lowest = 0;
    for (int j = first;; j = jobs[j].mate) {
        int number = jobs[j].next + jobs[j].start * jobs[j].step;
        if (jobs[j].start < jobs[j].waiting && (best < 0 || number < lowest)) {
            best = j;
            lowest = number;
        }
        if (!jobs[j].mate) return best;
    }
}

static int count_together(const struct scheduler_job *jobs, int first) {
    int n = jobs[first].in_flight;
    for (int j = jobs[first].mate; j; j = jobs[j].mate)
        n += jobs[j].in_flight;
    return n;
}

/* The first of those mates that have the fewest candidates in flight and may start one more, or -1.
 */
static int next_to_start(const struct scheduler_job *jobs, int n_jobs, int in_flight, int fair,
                         const struct scheduler_budget *budget) {
    int best = -1;
    for (int j = 0; j < n_jobs; j++) {
        int now = jobs[j].together;
        if (jobs[j].follows || (best >= 0 && now >= jobs[best].together)) continue;
        int turn = whose_turn(jobs, j);
        if (turn < 0 || jobs[turn].prompt_left) continue;
        int width = jobs[turn].width > 0 ? jobs[turn].width : budget->auto_width;
        if (now >= width || (in_flight >= budget->max_rows && now >= fair)) continue;
        best = j;
    }
    return best;
}

/* Where nothing is live: a prompt whose turn it is may find no room beside those that its mates
 * hold, and they would wait for it for ever.  The first of such mates, and in *ready one of them
 * that can go on. */
static int out_of_turn(const struct scheduler_job *jobs, int n_jobs,
                       const struct scheduler_budget *budget, int *ready) {
    for (int first = 0; first < n_jobs; first++) {
        int turn = jobs[first].follows ? -1 : whose_turn(jobs, first);
        if (turn < 0) continue;
        const struct scheduler_job *job = &jobs[turn];
        int all = divide_up(job->prompt_cached + job->prompt_left, budget->block);
        if (all - job->prompt_blocks < budget->free_blocks) continue; /* one for its candidate */
        for (int j = first;; j = jobs[j].mate) {
            *ready = j;
            if (!jobs[j].prompt_left && jobs[j].start < jobs[j].waiting) return first;
            if (!jobs[j].mate) break;
        }
    }
    return -1;
}

void scheduler_admit(struct scheduler_job *jobs, int n_jobs, struct scheduler_branch *branches,
                     int n_branches, const struct scheduler_budget *budget) {
    int in_flight = 0, active = 0, live = 0;
    for (int j = 0; j < n_jobs; j++)
        jobs[j].start = 0;
    for (int j = 0; j < n_jobs; j++) {
        if (jobs[j].follows) continue;
        jobs[j].together = count_together(jobs, j);
        in_flight += jobs[j].together;
        active += jobs[j].together > 0 || whose_turn(jobs, j) >= 0;
    }
    for (int b = 0; b < n_branches; b++) {
        branches[b].unpark = false;
        live += !branches[b].parked;
    }
    int free = budget->free_blocks;

    for (int b; (b = oldest_parked(branches, n_branches)) >= 0;) {
        const struct scheduler_job *job = &jobs[branches[b].job];
        if (job->prompt_left) return; /* its prompt is computed again first; nothing overtakes it */
        int need = blocks_to_return(&branches[b], job, budget->block);
        /* Each live branch may want one more block soon. */
        if (free - need < live && !(live == 0 && free >= need)) return;
        branches[b].unpark = true;
        free -= need;
        live++;
    }

    /* With nothing live, one candidate starts whatever is promised: something must move. */
    bool idle = live == 0 && free >= 1;
    free -= blocks_promised(jobs, n_jobs, budget->block);
    int fair = max_int(1, active ? budget->max_rows / active : budget->max_rows);
    for (;;) {
        if (free - 1 < live && !idle) return;
        int j = -1, first = next_to_start(jobs, n_jobs, in_flight, fair, budget);
        if (first >= 0)
            j = whose_turn(jobs, first);
        else if (idle)
            first = out_of_turn(jobs, n_jobs, budget, &j);
        if (first < 0) return;
        idle = false;
        jobs[j].start++;
        jobs[first].together++;
        in_flight++;
        free--;
        live++;
    }
}

/* ---- rows ---- */

/* The live branch, not decided yet, that waited longest; the older one first. */
static int next_branch(const struct scheduler_branch *branches, int n_branches) {
    int best = -1;
    for (int b = 0; b < n_branches; b++) {
        const struct scheduler_branch *x = &branches[b];
        if (x->parked || x->park || x->rows != UNDECIDED) continue;
        if (best < 0 || x->served < branches[best].served ||
            (x->served == branches[best].served && x->age < branches[best].age))
            best = b;
    }
    return best;
}

static int blocks_for(const struct scheduler_branch *b, int rows, int block) {
    return max_int(0, divide_up(b->cached + rows, block) - b->blocks);
}

/* Parks the youngest live branch that is younger than `age`; returns the blocks won, or -1 where
 * there is none. */
static int park_youngest(struct scheduler_branch *branches, int n_branches, uint64_t age,
                         int block) {
    int victim = -1;
    for (int b = 0; b < n_branches; b++) {
        const struct scheduler_branch *x = &branches[b];
        if (x->parked || x->park || x->age <= age) continue;
        if (victim < 0 || x->age > branches[victim].age) victim = b;
    }
    if (victim < 0) return -1;
    struct scheduler_branch *v = &branches[victim];
    int won = v->private_blocks;
    if (v->rows > 0) won += blocks_for(v, v->rows, block);
    v->rows = 0;
    v->park = true;
    return won;
}

static bool has_live_branch(const struct scheduler_branch *branches, int n_branches, int job) {
    for (int b = 0; b < n_branches; b++)
        if (branches[b].job == job && !branches[b].parked && !branches[b].park) return true;
    return false;
}

/* The job whose progress everything else may be given up for: that of the oldest branch, or the
 * oldest job. */
static int first_in_line(const struct scheduler_branch *branches, int n_branches) {
    int oldest = -1;
    for (int b = 0; b < n_branches; b++)
        if (oldest < 0 || branches[b].age < branches[oldest].age) oldest = b;
    return oldest < 0 ? 0 : branches[oldest].job;
}

/* Gives back the prompt of the youngest job that has one and no live branch, sparing the first in
 * line and `keep`.  Returns the blocks won, or -1 where there is none. */
static int drop_youngest_prompt(struct scheduler_job *jobs, int n_jobs,
                                const struct scheduler_branch *branches, int n_branches, int keep) {
    int first = first_in_line(branches, n_branches);
    for (int j = n_jobs - 1; j >= 0; j--) {
        if (j == keep || j == first || !jobs[j].prompt_blocks || jobs[j].drop_prompt) continue;
        if (has_live_branch(branches, n_branches, j)) continue;
        jobs[j].drop_prompt = true;
        return jobs[j].prompt_private;
    }
    return -1;
}

struct room {
    int decode, chunk, free; /* rows and blocks left */
    int planned;             /* rows given out */
};

static void plan_branches(struct scheduler_job *jobs, int n_jobs, struct scheduler_branch *branches,
                          int n_branches, const struct scheduler_budget *budget,
                          struct room *room) {
    for (int b; room->decode > 0 && (b = next_branch(branches, n_branches)) >= 0;) {
        struct scheduler_branch *branch = &branches[b];
        int rows = min_int(branch->length - branch->cached, 1 + room->chunk);
        int need = blocks_for(branch, rows, budget->block);
        while (need > room->free) {
            int won = park_youngest(branches, n_branches, branch->age, budget->block);
            if (won < 0)
                won = drop_youngest_prompt(jobs, n_jobs, branches, n_branches, branch->job);
            if (won < 0) break;
            room->free += won;
        }
        if (need > room->free) {
            branch->rows = 0;
            continue;
        }
        branch->rows = rows;
        room->free -= need;
        room->decode--;
        room->chunk -= rows - 1;
    }
    for (int b = 0; b < n_branches; b++) {
        if (branches[b].rows == UNDECIDED) branches[b].rows = 0;
        room->planned += branches[b].rows;
    }
}

/* What prompts leave free: each live branch's next block, and all that the oldest parked branch
 * waits for, or a prompt given back for its sake would take the blocks again. */
static void plan_prompts(struct scheduler_job *jobs, int n_jobs, int n_live,
                         const struct scheduler_branch *branches, int n_branches,
                         const struct scheduler_budget *budget, struct room *room) {
    int prefilling = 0;
    int parked = oldest_parked(branches, n_branches);
    for (int j = 0; j < n_jobs; j++)
        prefilling += jobs[j].prompt_left > 0 && !jobs[j].drop_prompt && !jobs[j].held;
    for (int j = 0; j < n_jobs && room->chunk > 0; j++) {
        struct scheduler_job *job = &jobs[j];
        if (!job->prompt_left || job->drop_prompt || job->held) continue;
        int share = max_int(room->chunk / max_int(prefilling--, 1), budget->block);
        int rows = min_int(min_int(job->prompt_left, share), room->chunk);
        int need =
            max_int(0, divide_up(job->prompt_cached + rows, budget->block) - job->prompt_blocks);
        int leave = room->planned ? n_live : 0;
        if (parked >= 0 && branches[parked].job != j)
            leave +=
                blocks_to_return(&branches[parked], &jobs[branches[parked].job], budget->block);
        if (need && room->free - need < leave) continue;
        job->rows = rows;
        room->free -= need;
        room->chunk -= rows;
        room->planned += rows;
    }
}

void scheduler_rows(struct scheduler_job *jobs, int n_jobs, struct scheduler_branch *branches,
                    int n_branches, const struct scheduler_budget *budget) {
    struct room room = {budget->max_rows, budget->prefill_chunk, budget->free_blocks, 0};
    int n_live = 0;
    bool wanted = false;
    for (int j = 0; j < n_jobs; j++) {
        jobs[j].rows = 0;
        jobs[j].drop_prompt = false;
        wanted |= jobs[j].prompt_left || jobs[j].waiting || jobs[j].in_flight;
    }
    for (int b = 0; b < n_branches; b++) {
        branches[b].park = false;
        branches[b].rows = branches[b].parked ? 0 : UNDECIDED;
        n_live += !branches[b].parked;
    }
    plan_branches(jobs, n_jobs, branches, n_branches, budget, &room);
    plan_prompts(jobs, n_jobs, n_live, branches, n_branches, budget, &room);
    /* Nothing can move: younger prompts that only sit on blocks make way. */
    if (wanted && !room.planned) drop_youngest_prompt(jobs, n_jobs, branches, n_branches, -1);
}
