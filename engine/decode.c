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
};

struct decode {
    struct decode_options o;
    struct kv_pool *pool; /* owned */
    struct step *step;    /* owned */
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
        send(d, event_ended(b, b->members[i], why));
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
    reserve_view(d, 0, d->n_view_branches + 1);
    d->branch_at[d->n_view_branches] = b;
    d->view_branches[d->n_view_branches++] = (struct scheduler_branch){
        .job = job,
        .parked = b->parked,
        .length = branch_length(b),
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
            send(d, event_plain(ENGINE_STARTED, j, b->members[i], NULL));
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
    if (d->o.no_guessing || job_has_penalties(b->job)) return 0;
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

/* Decides this turn's rows, takes their blocks and fills the batch. */
static void fill_batch(struct decode *d) {
    fill_view(d);
    struct scheduler_budget room = budget(d);
    scheduler_rows(d->view_jobs, d->n_view_jobs, d->view_branches, d->n_view_branches, &room);
    for (int i = 0; i < d->n_view_branches; i++)
        if (d->view_branches[i].park) branch_park(d->branch_at[i], d->pool);
    for (int i = 0; i < d->n_view_jobs; i++)
        if (d->view_jobs[i].drop_prompt) job_drop_prompt(d->job_at[i], d->pool);

    batch_reset(&d->batch);
    for (int i = 0; i < d->n_view_jobs; i++) {
        int rows = d->view_jobs[i].rows;
        struct job *j = d->job_at[i];
        if (!rows || !job_grow(j, d->pool, j->cached + rows)) {
            d->view_jobs[i].rows = 0;
            continue;
        }
        batch_prompt(&d->batch, j, rows);
    }
    int planned = planned_rows(d);
    int few = guess_room(&room, planned, 1), many = guess_room(&room, planned, WIDE);
    for (int i = 0; i < d->n_view_branches; i++) {
        int rows = d->view_branches[i].rows, n_guesses = 0;
        int32_t guesses[GUESS_MOST];
        struct branch *b = d->branch_at[i];
        if (!rows || !branch_grow(b, d->pool, b->cached + rows)) {
            d->view_branches[i].rows = 0;
            continue;
        }
        int left = d->n_view_branches - i;
        if (many && b->cached + rows == branch_length(b))
            n_guesses = guess(d, b, divide_up(few, left), divide_up(many, left), guesses);
        few = n_guesses < few ? few - n_guesses : 0;
        many -= n_guesses;
        d->stats.guessed_rows += (uint64_t)n_guesses;
        batch_branch(&d->batch, b, rows, guesses, n_guesses);
    }
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
        send(d, event_text(b, b->members[i], text, len));
    b->sent_tokens = b->n_tokens;
}

/* False where that was the branch's end. */
static bool append(struct decode *d, struct branch *b, const struct kernels_drawn *drawn) {
    branch_append(b, drawn, d->o.tokenizer, d->o.plan->context);
    d->stats.generated_tokens += (uint64_t)b->n_members;
    atomic_fetch_add_explicit(&b->job->handle->generated, b->n_members, memory_order_relaxed);
    stream_text(d, b);
    bool over = b->over;
    if (over) end_branch(d, b, b->ended);
    return !over;
}

/* What the members of a branch drew at one position: drawn[slots[i]] is member i's.  Those that
 * drew `guess` stay, or those that agree with the first where none did; each other token's members
 * fork off.  Returns whether the branch goes on from `guess`; slots are then those of who stayed.
 */
static bool settle_position(struct decode *d, struct branch *b, const struct kernels_drawn *drawn,
                            int *slots, int32_t guess) {
    int n = b->n_members, n_stay = 0;
    int *same = err_alloc((size_t)n, sizeof *same);
    int *members = err_alloc((size_t)n, sizeof *members);
    bool *settled = err_alloc((size_t)n, sizeof *settled);
    memcpy(members, b->members, (size_t)n * sizeof *members);
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
        append(d, f, own);
    }
    bool goes_on = stay->token == guess;
    goes_on = append(d, b, stay) && goes_on;
    free(same);
    free(members);
    free(settled);
    return goes_on;
}

/* The draws of one branch, of which the first is batch draw `first`: position by position, as long
 * as the guesses are right.  `drawn` has those of all members for each position.  Returns how many
 * batch draws that were. */
static int settle_branch(struct decode *d, int first, const struct kernels_drawn *drawn) {
    const struct batch_draw *at = &d->batch.draws[first];
    struct branch *b = at->branch;
    int n = b->n_members, n_positions = 1;
    while (first + n_positions < d->batch.n_draws && at[n_positions].ahead)
        n_positions++;
    int *slots = err_alloc((size_t)n, sizeof *slots);
    for (int i = 0; i < n; i++)
        slots[i] = i;
    for (int p = 0; p < n_positions; p++) {
        int32_t guess = p + 1 < n_positions ? batch_guess(&d->batch, first + p + 1) : -1;
        if (!settle_position(d, b, drawn + (size_t)p * (size_t)n, slots, guess)) break;
        b->cached++; /* the guess's row is one of its own now */
        count_rows(b, 1);
        d->stats.guessed_right++;
    }
    free(slots);
    return n_positions;
}

static bool draw(struct decode *d, struct err *e) {
    sampler_prepare(&d->sampler, &d->batch, d->o.tokenizer);
    if (!d->sampler.draws.n_draws) return true;
    if (!step_draw(d->step, &d->sampler.draws, d->sampler.drawn, e)) return false;
    const struct kernels_drawn *drawn = d->sampler.drawn;
    for (int i = 0; i < d->batch.n_draws;) {
        const struct batch_draw *at = &d->batch.draws[i];
        if (!at->branch) {
            job_keep_logprob(at->job, at->position, drawn++);
            i++;
            continue;
        }
        int n = at->branch->n_members;
        int n_positions = settle_branch(d, i, drawn);
        drawn += (size_t)n * (size_t)n_positions;
        i += n_positions;
    }
    return true;
}

/* The rows are computed: their positions count as cached from here on. */
static void advance(struct decode *d) {
    for (int i = 0; i < d->n_view_jobs; i++) {
        struct job *j = d->job_at[i];
        if (!d->view_jobs[i].rows) continue;
        j->cached += d->view_jobs[i].rows;
        job_publish(j, d->pool);
    }
    for (int i = 0; i < d->n_view_branches; i++) {
        if (!d->view_branches[i].rows) continue;
        d->branch_at[i]->cached += d->view_branches[i].rows;
        d->branch_at[i]->served = d->turn;
        count_rows(d->branch_at[i], d->view_branches[i].rows);
    }
}

/* Prompts whose last rows this turn computed, and drew for. */
static void announce(struct decode *d) {
    for (int i = 0; i < d->n_view_jobs; i++)
        if (d->view_jobs[i].rows) announce_prefilled(d, d->job_at[i]);
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

bool decode_turn(struct decode *d, struct err *e) {
    drop_cancelled(d);
    end_finished_jobs(d);
    if (!d->n_jobs) return true;
    d->turn++;
    admit(d);
    fill_batch(d);
    const struct kernels_batch *rows = batch_rows(&d->batch);
    if (!rows->n_rows) {
        note_stall(d);
        return true;
    }
    d->stalled = 0;
    double begun = clock_seconds();
    bool ok = step_forward(d->step, rows, e);
    if (ok) {
        advance(d);
        ok = draw(d, e);
    }
    if (ok) announce(d);
    if (!ok) {
        decode_fail_all(d, e);
        return false;
    }
    d->stats.steps++;
    d->stats.rows += (uint64_t)rows->n_rows;
    d->stats.step_seconds += clock_seconds() - begun;
    end_finished_jobs(d);
    return true;
}

void decode_set_auto_width(struct decode *d, int width) { d->auto_width = width; }

void decode_forget_stats(struct decode *d) { d->stats = (struct engine_stats){0}; }

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
