#include "engine/decode.h"

#include "base/clock.h"
#include "base/divide.h"
#include "base/log.h"
#include "engine/event.h"
#include "engine/guess.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

enum {
    STALLED_TURNS = 100,
    FEW_ROWS = 4, /* cost hardly more than one on any machine */
    /* A guess with so many tokens in common is right nineteen times out of twenty, and may take a
       step to so many times the knee's rows. */
    LONG_GUESS = 8,
    WIDE = 4,
    LOOK_AGAIN = 32, /* steps that follow before guesses are looked for again */
};
/* Right guesses for each branch of a step, from which on knowing the draws is worth more than what
 * the device gains by not waiting for the host. */
static const double GUESSES_WORTH = 0.125;

/* A step whose draws haven't been collected. */
struct flight {
    bool there;
    bool followable; /* the next step can be planned before its draws are known */
    int parity;      /* of struct branch_member.draw */
    int n_rows;      /* computed; those of families as far as they are known */
    int n_draws, n_prompt_draws;
    int n_looked; /* branches that guesses were looked for */
    double begun;
};

struct decode {
    struct decode_options o;
    struct kv_pool *pool; /* owned */
    struct step *step;    /* owned */
    bool overlap;         /* steps follow steps whose draws aren't known */
    struct flight flight; /* the step that runs, or is the last to have been queued */
    struct flight next;   /* the one that follows it, until it is collected */
    double collected;     /* when a step was, last */
    double guess_rate;    /* right guesses for each branch of a step, lately */
    int n_followed;       /* steps since guesses were looked for */
    struct batch batch;
    struct sampler sampler;
    struct list jobs; /* struct job.in_engine, oldest first */
    int n_jobs, auto_width;
    uint64_t next_age, turn;
    int stalled; /* turns in a row without a row */
    /* The scheduler's view, filled anew for each question; [i] belongs to job_at[i] and
     * branch_at[i]. */
    struct scheduler_job *view_jobs;
    struct scheduler_branch *view_branches;
    struct job **job_at;
    struct branch **branch_at;
    int n_view_jobs, n_view_branches, job_capacity, branch_capacity;
    struct engine_stats stats;
};

struct decode *decode_new(const struct decode_options *o, struct err *e) {
    const struct memory_plan *plan = o->plan;
    const struct model *m = o->model;
    const struct model_shape *s = &m->shape;
    struct decode *d = err_alloc(1, sizeof *d);
    d->o = *o;
    d->auto_width = 1;
    d->overlap = !o->no_overlap && (m->kernels->overlaps || o->always_overlap);
    d->guess_rate = 1;
    list_init(&d->jobs);
    d->pool = kv_pool_new(plan->n_blocks);
    struct kernels_kv_shape kv = {s->n_layers, s->n_kv_heads, s->head_dim, plan->n_blocks};
    struct kernels_step_shape shape = memory_plan_step(plan, s);
    if (m->kernels->kv_open(m->device, &kv, e) && m->kernels->reserve_rows(m->device, &shape, e) &&
        (d->step = step_new(m, shape.n_rows, shape.n_rows, e)))
        return d;
    decode_free(d);
    return NULL;
}

void decode_free(struct decode *d) {
    if (!d) return;
    BUG_ON(d->n_jobs);
    d->o.model->kernels->kv_close(d->o.model->device);
    step_free(d->step);
    batch_clear(&d->batch);
    sampler_clear(&d->sampler);
    kv_pool_free(d->pool);
    free(d->view_jobs);
    free(d->view_branches);
    free(d->job_at);
    free(d->branch_at);
    free(d);
}

static void send(struct decode *d, struct engine_event *ev) {
    if (ev) d->o.event(d->o.arg, ev);
}

static void copy_block(void *arg, int to, int from, int n_positions) {
    struct decode *d = arg;
    d->o.model->kernels->kv_copy_block(d->o.model->device, to, from, n_positions);
}

void decode_add(struct decode *d, struct job *j) {
    for (struct job *mate; j; j = mate) {
        mate = j->mate;
        j->mate = NULL;
        list_append(&d->jobs, &j->in_engine);
        d->n_jobs++;
    }
}

int decode_jobs(const struct decode *d) { return d->n_jobs; }

/* ---- leaving ---- */

static void end_branch(struct decode *d, struct branch *b, enum engine_reason why) {
    struct job *j = b->job;
    for (int i = 0; i < b->n_members; i++)
        send(d, event_ended(b, b->members[i].index, why));
    j->in_flight -= b->n_members;
    bool of_use = j->in_flight || job_waiting(j); /* to siblings */
    if (b->over && of_use && !d->o.no_guessing) job_keep_text(j, b->tokens, b->n_tokens);
    branch_free(b, d->pool);
}

static void end_job(struct decode *d, struct job *j, enum engine_reason why,
                    const struct err *error) {
    LIST_EACH_SAFE(it, &j->branches) end_branch(d, LIST_ITEM(it, struct branch, in_job), why);
    BUG_ON(j->in_flight);
    struct engine_event *last = event_plain(ENGINE_JOB_ENDED, j, -1, error);
    job_free(j, d->pool);
    d->n_jobs--;
    send(d, last);
}

void decode_fail_all(struct decode *d, const struct err *error) {
    LIST_EACH_SAFE(it, &d->jobs)
    end_job(d, LIST_ITEM(it, struct job, in_engine), ENGINE_FAILED, error);
    d->flight = d->next = (struct flight){0};
}

static void member_gone(void *arg, struct branch *b, int index) {
    struct decode *d = arg;
    send(d, event_ended(b, index, ENGINE_CANCELLED));
    b->job->in_flight--;
}

static void drop_cancelled(struct decode *d) {
    LIST_EACH_SAFE(it, &d->jobs) {
        struct job *j = LIST_ITEM(it, struct job, in_engine);
        if (atomic_load_explicit(&j->handle->cancelled, memory_order_relaxed)) {
            end_job(d, j, ENGINE_CANCELLED, NULL);
            continue;
        }
        if (!atomic_exchange_explicit(&j->handle->some_cancelled, false, memory_order_acquire))
            continue;
        LIST_EACH_SAFE(bt, &j->branches) {
            struct branch *b = LIST_ITEM(bt, struct branch, in_job);
            branch_drop_cancelled(b, member_gone, d);
            if (!b->n_members) branch_free(b, d->pool);
        }
    }
}

static void end_finished_jobs(struct decode *d) {
    LIST_EACH_SAFE(it, &d->jobs) {
        struct job *j = LIST_ITEM(it, struct job, in_engine);
        if (list_empty(&j->branches) && !job_waiting(j)) end_job(d, j, ENGINE_STOP, NULL);
    }
}

/* ---- the running step ---- */

/* Whether the branch's next token is being drawn. */
static bool is_drawn(const struct decode *d, const struct branch *b) {
    return d->flight.there && b->members[0].draw[d->flight.parity] >= 0;
}

/* Whether the next token is the branch's last, whatever it is. */
static bool ends_next(const struct decode *d, const struct branch *b) {
    return b->n_tokens + 1 >= b->job->spec.max_tokens || branch_length(b) + 1 >= d->o.plan->context;
}

/* ---- the scheduler's view ---- */

static void reserve_view(struct decode *d, int n_jobs, int n_branches) {
    if (n_jobs > d->job_capacity) {
        d->job_capacity = n_jobs * 2;
        d->view_jobs = err_realloc(d->view_jobs, (size_t)d->job_capacity, sizeof *d->view_jobs);
        d->job_at = err_realloc(d->job_at, (size_t)d->job_capacity, sizeof(struct job *));
    }
    if (n_branches > d->branch_capacity) {
        d->branch_capacity = n_branches * 2;
        d->view_branches =
            err_realloc(d->view_branches, (size_t)d->branch_capacity, sizeof *d->view_branches);
        d->branch_at =
            err_realloc(d->branch_at, (size_t)d->branch_capacity, sizeof(struct branch *));
    }
}

static void view_branch(struct decode *d, struct branch *b, int job) {
    bool drawn = is_drawn(d, b);
    if (drawn && ends_next(d, b)) return;
    reserve_view(d, 0, d->n_view_branches + 1);
    d->branch_at[d->n_view_branches] = b;
    d->view_branches[d->n_view_branches++] = (struct scheduler_branch){
        .job = job,
        .parked = b->parked,
        .length = branch_length(b) + drawn,
        .cached = b->cached,
        .blocks = b->n_blocks,
        .private_blocks = branch_private_blocks(b, d->pool),
        .age = b->age,
        .served = b->served,
    };
}

/* A prompt that hasn't been begun waits while another of its race is read: then what they have in
 * common is in the cache. */
static bool waits_for_mate(const struct decode *d, const struct job *j) {
    if (!j->group || j->looked_up) return false;
    LIST_EACH(it, &d->jobs) {
        const struct job *other = LIST_ITEM(it, struct job, in_engine);
        if (other == j) return false;
        if (other->group == j->group && other->cached < job_prompt_goal(other)) return true;
    }
    return false;
}

/* Links the job to the one before it of its group. */
static void view_mates(struct decode *d, int index) {
    uint64_t group = d->job_at[index]->group;
    for (int i = index - 1; group && i >= 0; i--) {
        if (d->job_at[i]->group != group) continue;
        d->view_jobs[i].mate = index;
        d->view_jobs[index].follows = true;
        return;
    }
}

static void fill_view(struct decode *d) {
    reserve_view(d, d->n_jobs, 0);
    d->n_view_jobs = d->n_view_branches = 0;
    LIST_EACH(it, &d->jobs) {
        struct job *j = LIST_ITEM(it, struct job, in_engine);
        int index = d->n_view_jobs++;
        bool held = waits_for_mate(d, j);
        if (!held) job_look_up(j, d->pool);
        int waiting = job_waiting(j);
        d->job_at[index] = j;
        d->view_jobs[index] = (struct scheduler_job){
            .prompt_left = job_prompt_goal(j) - j->cached,
            .prompt_cached = j->cached,
            .prompt_blocks = j->n_blocks,
            .prompt_private = job_private_blocks(j, d->pool),
            .waiting = waiting,
            .in_flight = j->in_flight,
            .width = atomic_load_explicit(&j->handle->width, memory_order_relaxed),
            .held = held,
            .next = job_draws_as(j, j->next_index),
            .step = j->spec.index_step,
        };
        view_mates(d, index);
        LIST_EACH(bt, &j->branches) view_branch(d, LIST_ITEM(bt, struct branch, in_job), index);
    }
}

static struct scheduler_budget budget(const struct decode *d) {
    return (struct scheduler_budget){
        .block = KERNELS_BLOCK,
        .max_rows = d->o.plan->max_rows,
        .prefill_chunk = d->o.plan->prefill_chunk,
        .free_blocks = kv_free(d->pool),
        .auto_width = d->auto_width,
    };
}

/* ---- a turn ---- */

static void announce_prefilled(struct decode *d, struct job *j) {
    if (j->announced || j->cached < job_prompt_goal(j)) return;
    j->announced = true;
    d->stats.prompt_tokens += (uint64_t)j->spec.n_prompt;
    d->stats.prompt_tokens_cached += (uint64_t)j->reused;
    send(d, event_prefilled(j));
}

/* Starts n candidates of a job: in one branch, or each in its own where rows aren't shared. */
static void start_candidates(struct decode *d, struct job *j, int n) {
    announce_prefilled(d, j);
    while (n > 0 && job_waiting(j)) {
        int some = d->o.no_sharing ? 1 : n;
        int left = j->spec.n_candidates - j->next_index;
        if (some > left) some = left;
        struct branch *b = branch_new(j, j->next_index, some, d->next_age++);
        j->next_index += some;
        n -= some;
        if (!b->n_members) {
            branch_free(b, d->pool);
            continue;
        }
        j->in_flight += b->n_members;
        for (int i = 0; i < b->n_members; i++)
            send(d, event_plain(ENGINE_STARTED, j, b->members[i].index, NULL));
        /* Where no block is free it stays parked, and comes back as any parked branch does. */
        branch_unpark(b, d->pool, copy_block, d);
    }
}

static void admit(struct decode *d) {
    fill_view(d);
    struct scheduler_budget room = budget(d);
    scheduler_admit(d->view_jobs, d->n_view_jobs, d->view_branches, d->n_view_branches, &room);
    for (int i = 0; i < d->n_view_branches; i++)
        if (d->view_branches[i].unpark) branch_unpark(d->branch_at[i], d->pool, copy_block, d);
    for (int i = 0; i < d->n_view_jobs; i++)
        if (d->view_jobs[i].start) start_candidates(d, d->job_at[i], d->view_jobs[i].start);
}

/* Blocks that guesses leave free: another one for each live branch. */
static bool has_room(const struct decode *d, const struct branch *b, int n_positions) {
    return n_positions <= b->n_blocks * KERNELS_BLOCK || kv_free(d->pool) > d->n_view_branches;
}

/* Guesses of what the branch draws after this turn's rows: up to `few`, or up to `many` where there
 * is much reason for them. */
static int guess(struct decode *d, struct branch *b, int few, int many, int32_t *out) {
    const struct engine_job *s = &b->job->spec;
    int length = branch_length(b), most = many;
    /* Penalties change with each token drawn; nothing is drawn beyond the end. */
    if (job_has_penalties(b->job)) return 0;
    if (most > GUESS_MOST) most = GUESS_MOST;
    if (most > s->max_tokens - b->n_tokens - 1) most = s->max_tokens - b->n_tokens - 1;
    if (most > d->o.plan->context - length - 1) most = d->o.plan->context - length - 1;
    if (most <= 0) return 0;
    struct guess_texts texts = {.prompt = s->prompt,
                                .n_prompt = s->n_prompt,
                                .text = b->tokens,
                                .n_text = b->n_tokens,
                                .siblings = b->job->texts,
                                .n_siblings = b->job->n_texts};
    int n = guess_next(&texts, most, out);
    if (n < LONG_GUESS && n > few) n = few;
    return n && has_room(d, b, length + n) && branch_grow(b, d->pool, length + n) ? n : 0;
}

static int planned_rows(const struct decode *d) {
    int planned = 0;
    for (int i = 0; i < d->n_view_jobs; i++)
        planned += d->view_jobs[i].rows;
    for (int i = 0; i < d->n_view_branches; i++)
        planned += d->view_branches[i].rows;
    return planned;
}

/* Guesses that the planned rows leave room for: up to the knee they cost little, up to some times
 * as many rows still less than a step each. */
static int guess_room(const struct scheduler_budget *budget, int planned, int times) {
    int most = times * (budget->auto_width > FEW_ROWS ? budget->auto_width : FEW_ROWS);
    if (most > budget->max_rows) most = budget->max_rows;
    return most > planned ? most - planned : 0;
}

/* Whether the planned step may follow the running one: nothing has to make way for it, which is
 * decided with all draws known, and rows for all candidates that may part cost little more than for
 * those that are sure to. */
static bool is_cheap(const struct decode *d, const struct scheduler_budget *budget, int planned) {
    int most = planned;
    for (int i = 0; i < d->n_view_jobs; i++)
        if (d->view_jobs[i].drop_prompt) return false;
    for (int i = 0; i < d->n_view_branches; i++) {
        if (d->view_branches[i].park) return false;
        if (d->view_branches[i].rows && is_drawn(d, d->branch_at[i]))
            most += d->branch_at[i]->n_members - 1;
    }
    if (most > budget->max_rows + budget->prefill_chunk) return false;
    if (kv_free(d->pool) < most - planned + d->n_view_branches) return false;
    return d->o.always_overlap || most <= guess_room(budget, 0, 1) || 4 * most <= 5 * planned;
}

/* Blocks for the position after the next token, for each member that may have one of its own. */
static bool take_blocks(struct decode *d, struct branch *b) {
    bool ok = branch_grow(b, d->pool, branch_length(b) + 1);
    for (int i = 1; ok && i < b->n_members; i++)
        ok = (b->members[i].block = kv_alloc(d->pool)) >= 0;
    if (!ok) branch_give_back(b, d->pool);
    return ok;
}

static void make_way(struct decode *d) {
    for (int i = 0; i < d->n_view_branches; i++)
        if (d->view_branches[i].park) branch_park(d->branch_at[i], d->pool);
    for (int i = 0; i < d->n_view_jobs; i++)
        if (d->view_jobs[i].drop_prompt) job_drop_prompt(d->job_at[i], d->pool);
}

static void fill_prompts(struct decode *d) {
    for (int i = 0; i < d->n_view_jobs; i++) {
        int rows = d->view_jobs[i].rows;
        struct job *j = d->job_at[i];
        if (!rows || !job_grow(j, d->pool, j->cached + rows)) {
            d->view_jobs[i].rows = 0;
            continue;
        }
        batch_prompt(&d->batch, j, rows);
    }
}

static void fill_branches(struct decode *d, int few, int many) {
    for (int i = 0; i < d->n_view_branches; i++) {
        int rows = d->view_branches[i].rows;
        struct branch *b = d->branch_at[i];
        if (rows && is_drawn(d, b) && take_blocks(d, b)) {
            batch_family(&d->batch, b, d->flight.parity);
            continue;
        }
        if (!rows || is_drawn(d, b) || !branch_grow(b, d->pool, b->cached + rows)) {
            d->view_branches[i].rows = 0;
            continue;
        }
        int left = d->n_view_branches - i;
        b->n_guesses = 0;
        if (many && b->cached + rows == branch_length(b)) {
            b->n_guesses = guess(d, b, divide_up(few, left), divide_up(many, left), b->guesses);
            d->next.n_looked++;
        }
        few = b->n_guesses < few ? few - b->n_guesses : 0;
        many -= b->n_guesses;
        d->stats.guessed_rows += (uint64_t)b->n_guesses;
        batch_branch(&d->batch, b, rows, b->guesses, b->n_guesses);
    }
}

/* Decides the next step's rows, takes their blocks and fills the batch; false where there are none,
 * or where it should wait for the draws of the running step. */
static bool fill_batch(struct decode *d) {
    fill_view(d);
    struct scheduler_budget room = budget(d);
    scheduler_rows(d->view_jobs, d->n_view_jobs, d->view_branches, d->n_view_branches, &room);
    int planned = planned_rows(d), few = 0, many = 0;
    d->next = (struct flight){.parity = 1 - d->flight.parity};
    if (d->flight.there) {
        if (!is_cheap(d, &room, planned)) return false;
    } else {
        make_way(d);
        few = guess_room(&room, planned, 1);
        many = d->o.no_guessing ? 0 : guess_room(&room, planned, WIDE);
    }
    batch_reset(&d->batch);
    fill_prompts(d);
    fill_branches(d, few, many);
    return batch_rows(&d->batch)->n_rows > 0;
}

/* Told to LOOP; before the events of what was drawn from them. */
static void count_rows(const struct branch *b, int n) {
    atomic_fetch_add_explicit(&b->job->handle->rows, n, memory_order_relaxed);
}

/* Text of a live branch to each of its members, for jobs that stream. */
static void stream_text(struct decode *d, struct branch *b) {
    if (!b->job->spec.stream) return;
    size_t len;
    const char *text = stop_show(&b->stop, &len);
    for (int i = 0; i < b->n_members; i++)
        send(d, event_text(b, b->members[i].index, text, len));
    b->sent_tokens = b->n_tokens;
}

/* The branch draws what its members in the step of this parity drew.  False where that was its
 * end. */
static bool append(struct decode *d, struct branch *b, const struct kernels_drawn *drawn,
                   int parity) {
    bool follows = b->members[0].draw[1 - parity] >= 0; /* the step that runs has a row of it */
    branch_append(b, drawn, d->o.tokenizer, d->o.plan->context);
    branch_give_back(b, d->pool);
    d->next.n_rows += follows;
    d->stats.generated_tokens += (uint64_t)b->n_members;
    atomic_fetch_add_explicit(&b->job->handle->generated, b->n_members, memory_order_relaxed);
    stream_text(d, b);
    bool over = b->over;
    if (over) {
        d->stats.surplus_rows += follows;
        end_branch(d, b, b->ended);
    } else if (follows) {
        b->cached++;
        count_rows(b, 1);
    }
    return !over;
}

/* What the members of a branch drew at one position: drawn[slots[i]] is member i's.  Those that
 * drew `guess` stay, or those that agree with the first where none did; each other token's members
 * fork off.  Returns whether the branch goes on from `guess`; slots are then those of who stayed.
 */
static bool settle_position(struct decode *d, struct branch *b, int parity,
                            const struct kernels_drawn *drawn, int *slots, int32_t guess) {
    int n = b->n_members, n_stay = 0;
    int *same = err_alloc((size_t)n, sizeof *same);
    int *members = err_alloc((size_t)n, sizeof *members);
    bool *settled = err_alloc((size_t)n, sizeof *settled);
    for (int i = 0; i < n; i++)
        members[i] = b->members[i].index;
    const struct kernels_drawn *stay = &drawn[slots[0]];
    for (int i = 1; i < n && stay->token != guess; i++)
        if (drawn[slots[i]].token == guess) stay = &drawn[slots[i]];
    for (int i = 0; i < n; i++) {
        const struct kernels_drawn *own = &drawn[slots[i]];
        if (own->token == stay->token) {
            slots[n_stay++] = slots[i]; /* never past i */
            continue;
        }
        if (settled[i]) continue;
        int n_same = 0;
        for (int k = i; k < n; k++) {
            if (drawn[slots[k]].token != own->token) continue;
            settled[k] = true;
            same[n_same++] = members[k];
        }
        struct branch *f = branch_fork(b, same, n_same, d->next_age++, d->pool, copy_block, d);
        append(d, f, own, parity);
    }
    bool goes_on = stay->token == guess;
    goes_on = append(d, b, stay, parity) && goes_on;
    free(same);
    free(members);
    free(settled);
    return goes_on;
}

/* The draws of one branch in the step of this parity: position by position, as long as the guesses
 * are right.  Those after a guess lie behind those of all members before it. */
static void settle_branch(struct decode *d, struct branch *b, int parity,
                          const struct kernels_drawn *drawn) {
    int n = b->n_members, n_guesses = b->n_guesses;
    int32_t guesses[GUESS_MOST];
    memcpy(guesses, b->guesses, sizeof guesses);
    b->n_guesses = 0;
    int *slots = err_alloc((size_t)n, sizeof *slots);
    for (int i = 0; i < n; i++) {
        slots[i] = b->members[i].draw[parity];
        b->members[i].draw[parity] = -1;
    }
    for (int p = 0; p <= n_guesses; p++) {
        int32_t expected = p < n_guesses ? guesses[p] : -1;
        if (!settle_position(d, b, parity, drawn + (size_t)p * (size_t)n, slots, expected)) break;
        b->cached++; /* the guess's row is one of its own now */
        count_rows(b, 1);
        d->stats.guessed_right++;
    }
    free(slots);
}

/* The rows are queued: their positions count as cached from here on; those of families, once it is
 * known whose they are. */
static void advance(struct decode *d) {
    for (int i = 0; i < d->n_view_jobs; i++) {
        struct job *j = d->job_at[i];
        if (!d->view_jobs[i].rows) continue;
        j->cached += d->view_jobs[i].rows;
        job_publish(j, d->pool);
    }
    for (int i = 0; i < d->n_view_branches; i++) {
        struct branch *b = d->branch_at[i];
        if (!d->view_branches[i].rows) continue;
        b->served = d->turn;
        if (is_drawn(d, b)) continue;
        b->cached += d->view_branches[i].rows;
        count_rows(b, d->view_branches[i].rows);
        d->next.n_rows += d->view_branches[i].rows + b->n_guesses;
    }
    for (int i = 0; i < d->n_view_jobs; i++)
        d->next.n_rows += d->view_jobs[i].rows;
}

/* Whose draws are which, and whether what follows can be planned without them: not after guesses,
 * which decide how far a branch gets, nor where penalties change with each token. */
static void note_draws(struct decode *d, struct flight *f) {
    f->followable = true;
    f->n_draws = d->sampler.draws.n_draws;
    for (int i = 0; i < d->batch.n_draws; i++) {
        const struct batch_draw *at = &d->batch.draws[i];
        struct branch *b = at->branch;
        f->n_prompt_draws += !b;
        if (!b || job_has_penalties(b->job) || b->n_guesses) f->followable = false;
        if (!b || (at->ahead && at->member < 0)) continue;
        for (int k = 0; k < batch_n_members(at); k++)
            b->members[at->member < 0 ? k : at->member].draw[f->parity] = at->first + k;
    }
}

/* Queues the step that the batch holds. */
static bool launch(struct decode *d, struct err *e) {
    struct flight *f = &d->next;
    sampler_prepare(&d->sampler, &d->batch, d->o.tokenizer);
    f->there = true;
    f->begun = clock_seconds();
    if (!step_forward(d->step, batch_rows(&d->batch), e)) return false;
    advance(d);
    if (d->sampler.draws.n_draws) step_draw(d->step, &d->sampler.draws);
    note_draws(d, f);
    d->stats.steps_ahead += d->flight.there;
    d->n_followed = d->flight.there ? d->n_followed + 1 : 0;
    return true;
}

/* Prompts that are computed; of those whose log-probabilities are told, no step may still run. */
static void announce(struct decode *d) {
    LIST_EACH(it, &d->jobs) {
        struct job *j = LIST_ITEM(it, struct job, in_engine);
        if (!j->prompt_logprobs || !d->next.there) announce_prefilled(d, j);
    }
}

static void note_guesses(struct decode *d, const struct flight *f, uint64_t right) {
    if (!f->n_looked) return;
    d->guess_rate += 0.1 * ((double)right / f->n_looked - d->guess_rate);
}

/* Waits for the draws of the oldest step that runs, and settles them. */
static bool collect(struct decode *d, struct err *e) {
    struct flight f = d->flight;
    const struct kernels_drawn *drawn = d->sampler.drawn;
    uint64_t right = d->stats.guessed_right;
    if (f.n_draws && !step_collect(d->step, d->sampler.drawn, f.n_draws, e)) return false;
    d->flight = (struct flight){.parity = f.parity};
    for (int i = 0; f.n_prompt_draws && i < d->batch.n_draws; i++) {
        const struct batch_draw *at = &d->batch.draws[i];
        if (!at->branch) job_keep_logprob(at->job, at->position, &drawn[at->first]);
    }
    LIST_EACH(it, &d->jobs) {
        struct job *j = LIST_ITEM(it, struct job, in_engine);
        LIST_EACH_SAFE(bt, &j->branches) {
            struct branch *b = LIST_ITEM(bt, struct branch, in_job);
            if (b->members[0].draw[f.parity] >= 0) settle_branch(d, b, f.parity, drawn);
        }
    }
    announce(d);
    note_guesses(d, &f, d->stats.guessed_right - right);
    double now = clock_seconds(), since = f.begun > d->collected ? f.begun : d->collected;
    d->stats.steps++;
    d->stats.rows += (uint64_t)f.n_rows;
    d->stats.step_seconds += now - since;
    d->collected = now;
    return true;
}

/* Whether the step after the running one is best planned before the draws of that are known.  Where
 * there is room for guesses and they are often right, it isn't: a right one saves a whole step, and
 * to look for it takes the tokens before it. */
static bool may_follow(const struct decode *d) {
    const struct flight *f = &d->flight;
    const struct kernels *k = d->o.model->kernels;
    if (!d->overlap || !f->followable || (f->n_draws && !k->can_follow(d->o.model->device)))
        return false;
    struct scheduler_budget room = budget(d);
    if (d->o.always_overlap || d->o.no_guessing || !guess_room(&room, f->n_rows, WIDE)) return true;
    return d->guess_rate < GUESSES_WORTH && d->n_followed < LOOK_AGAIN;
}

/* A turn without rows is fine once (blocks were given back for the next); many in a row mean that
 * the scheduler can't get on. */
static void note_stall(struct decode *d) {
    if (++d->stalled < STALLED_TURNS) return;
    struct err error;
    err_set(&error, ERR_SYSTEM,
            "the engine can't go on with this request: %d of %d KV blocks are free",
            kv_free(d->pool), kv_total(d->pool));
    log_line(LOG_ERROR, "%s", error.message);
    end_job(d, LIST_ITEM(d->jobs.next, struct job, in_engine), ENGINE_FAILED, &error);
    d->stalled = 0;
}

static bool turn(struct decode *d, struct err *e) {
    if (d->flight.there && !may_follow(d) && !collect(d, e)) return false;
    drop_cancelled(d);
    end_finished_jobs(d);
    if (!d->n_jobs) return !d->flight.there || collect(d, e);
    d->turn++;
    admit(d);
    bool some = fill_batch(d), ran = d->flight.there;
    if (some && !launch(d, e)) return false;
    if (ran && !collect(d, e)) return false;
    if (!some && !ran)
        note_stall(d);
    else
        d->stalled = 0;
    d->flight = d->next;
    d->next = (struct flight){0};
    end_finished_jobs(d);
    /* Where nothing runs meanwhile, or nothing is left to do, there is no reason to wait. */
    if (d->flight.there && (!d->overlap || !d->n_jobs)) {
        if (!collect(d, e)) return false;
        end_finished_jobs(d);
    }
    return true;
}

bool decode_turn(struct decode *d, struct err *e) {
    if (turn(d, e)) return true;
    decode_fail_all(d, e);
    return false;
}

void decode_set_auto_width(struct decode *d, int width) { d->auto_width = width; }

void decode_forget_stats(struct decode *d) {
    d->stats = (struct engine_stats){0};
    d->guess_rate = 1;
}

static void copy_profile(const struct decode *d, struct engine_stats *out) {
    static const char *const names[] = {
        [KERNELS_OP_EMBED] = "embed",   [KERNELS_OP_NORM] = "norm",
        [KERNELS_OP_MATMUL] = "matmul", [KERNELS_OP_OUTPUT] = "output",
        [KERNELS_OP_ROPE] = "rope",     [KERNELS_OP_ATTENTION] = "attention",
        [KERNELS_OP_SWIGLU] = "swiglu", [KERNELS_OP_SAMPLE] = "sample",
    };
    _Static_assert(sizeof names / sizeof *names == ENGINE_OPS &&
                       (int)KERNELS_N_OPS == (int)ENGINE_OPS,
                   "a name for each operation");
    struct kernels_profile profile;
    d->o.model->kernels->profile(d->o.model->device, &profile);
    for (int i = 0; i < ENGINE_OPS; i++)
        out->ops[i] = (struct engine_op){.name = names[i],
                                         .seconds = profile.op[i].seconds,
                                         .bytes = profile.op[i].bytes,
                                         .macs = profile.op[i].macs,
                                         .calls = profile.op[i].calls};
}

void decode_stats(const struct decode *d, struct engine_stats *out) {
    *out = d->stats;
    out->jobs_waiting = out->jobs_running = out->candidates_running = 0;
    LIST_EACH(it, &d->jobs) {
        const struct job *j = LIST_ITEM(it, struct job, in_engine);
        out->candidates_running += j->in_flight;
        if (j->in_flight)
            out->jobs_running++;
        else
            out->jobs_waiting++;
    }
    out->blocks_total = kv_total(d->pool);
    out->blocks_free = kv_free(d->pool);
    out->blocks_cached = kv_cached(d->pool);
    out->memory = d->o.plan->bytes;
    copy_profile(d, out);
}
