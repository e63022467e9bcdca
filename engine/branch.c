#include "engine/branch.h"

#include <stdlib.h>
#include <string.h>

/* ---- penalties ---- */

static void count_seen(struct branch *b, int32_t token, int times) {
    for (int i = 0; i < b->n_seen; i++)
        if (b->seen[i].token == token) {
            b->seen[i].count += times;
            return;
        }
    if (b->n_seen == b->seen_capacity) {
        b->seen_capacity = b->seen_capacity ? 2 * b->seen_capacity : 64;
        b->seen = err_realloc(b->seen, (size_t)b->seen_capacity, sizeof *b->seen);
    }
    b->seen[b->n_seen++] = (struct kernels_seen){token, times};
}

static int compare_tokens(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The distinct tokens of the prompt, with count 0; sorted first, so that long prompts cost n log n.
 */
static void count_prompt(struct branch *b) {
    const struct engine_job *s = &b->job->spec;
    int32_t *sorted = err_alloc((size_t)s->n_prompt, sizeof *sorted);
    memcpy(sorted, s->prompt, (size_t)s->n_prompt * sizeof *sorted);
    qsort(sorted, (size_t)s->n_prompt, sizeof *sorted, compare_tokens);
    b->seen_capacity = s->n_prompt + 64;
    b->seen = err_alloc((size_t)b->seen_capacity, sizeof *b->seen);
    for (int i = 0; i < s->n_prompt; i++)
        if (i == 0 || sorted[i] != sorted[i - 1])
            b->seen[b->n_seen++] = (struct kernels_seen){sorted[i], 0};
    free(sorted);
}

/* ---- life ---- */

static void set_capacity(struct branch *b, int capacity) {
    const struct engine_job *s = &b->job->spec;
    b->capacity = capacity;
    b->tokens = err_realloc(b->tokens, (size_t)capacity, sizeof *b->tokens);
    if (!s->logprobs) return;
    b->logprobs = err_realloc(b->logprobs, (size_t)capacity, sizeof *b->logprobs);
    size_t n_top = (size_t)s->n_top_logprobs;
    b->top_tokens = err_realloc(b->top_tokens, (size_t)capacity * n_top, sizeof *b->top_tokens);
    b->top_logprobs =
        err_realloc(b->top_logprobs, (size_t)capacity * n_top, sizeof *b->top_logprobs);
}

static int first_capacity(const struct engine_job *s) {
    return s->max_tokens < 128 ? s->max_tokens : 128;
}

struct branch *branch_new(struct job *j, int first, int n, uint64_t age) {
    struct branch *b = err_alloc(1, sizeof *b);
    b->job = j;
    b->age = age;
    b->parked = true;
    b->members = err_alloc((size_t)n, sizeof *b->members);
    for (int i = first; i < first + n; i++)
        if (!job_handle_candidate_cancelled(j->handle, i))
            b->members[b->n_members++] = (struct branch_member){i, {-1, -1}, -1};
    set_capacity(b, first_capacity(&j->spec));
    stop_init(&b->stop, &j->rules);
    if (j->spec.lead_len) stop_lead(&b->stop, j->spec.lead, j->spec.lead_len);
    if (job_has_penalties(j)) count_prompt(b);
    list_append(&j->branches, &b->in_job);
    return b;
}

void branch_give_back(struct branch *b, struct kv_pool *pool) {
    for (int i = 0; i < b->n_members; i++) {
        if (b->members[i].block >= 0) kv_unref(pool, b->members[i].block);
        b->members[i].block = -1;
    }
}

void branch_free(struct branch *b, struct kv_pool *pool) {
    branch_give_back(b, pool);
    branch_park(b, pool);
    list_remove(&b->in_job);
    stop_clear(&b->stop);
    free(b->members);
    free(b->tokens);
    free(b->logprobs);
    free(b->top_tokens);
    free(b->top_logprobs);
    free(b->seen);
    free(b->table);
    free(b);
}

int branch_length(const struct branch *b) { return b->job->spec.n_prompt + b->n_tokens; }

int32_t branch_token(const struct branch *b, int position) {
    int n_prompt = b->job->spec.n_prompt;
    return position < n_prompt ? b->job->spec.prompt[position] : b->tokens[position - n_prompt];
}

/* ---- blocks ---- */

static void push_block(struct branch *b, int block) {
    if (b->n_blocks == b->table_capacity) {
        b->table_capacity = b->table_capacity ? 2 * b->table_capacity : 32;
        b->table = err_realloc(b->table, (size_t)b->table_capacity, sizeof *b->table);
    }
    b->table[b->n_blocks++] = block;
}

/* References to the first n blocks of a table. */
static void share_blocks(struct branch *b, struct kv_pool *pool, const int *table, int n) {
    for (int i = 0; i < n; i++) {
        kv_ref(pool, table[i]);
        push_block(b, table[i]);
    }
}

int branch_private_blocks(const struct branch *b, const struct kv_pool *pool) {
    int n = 0;
    for (int i = 0; i < b->n_blocks; i++)
        n += kv_refs(pool, b->table[i]) == 1;
    return n;
}

void branch_park(struct branch *b, struct kv_pool *pool) {
    while (b->n_blocks)
        kv_unref(pool, b->table[--b->n_blocks]);
    b->cached = 0;
    b->parked = true;
}

/* Takes `cached` positions from a table: full blocks by reference, the partial one copied. */
static bool adopt(struct branch *b, struct kv_pool *pool, const int *table, int cached,
                  void (*copy)(void *arg, int to, int from, int n), void *arg) {
    int n_full = cached / KERNELS_BLOCK, rest = cached % KERNELS_BLOCK;
    int block = -1;
    if (rest && (block = kv_alloc(pool)) < 0) return false;
    share_blocks(b, pool, table, n_full);
    if (rest) {
        push_block(b, block);
        copy(arg, block, table[n_full], rest);
    }
    b->cached = cached;
    b->parked = false;
    return true;
}

bool branch_unpark(struct branch *b, struct kv_pool *pool,
                   void (*copy)(void *arg, int to, int from, int n), void *arg) {
    BUG_ON(!b->parked || b->job->cached < job_prompt_goal(b->job));
    return adopt(b, pool, b->job->table, b->job->cached, copy, arg);
}

bool branch_grow(struct branch *b, struct kv_pool *pool, int n_positions) {
    while (b->n_blocks * KERNELS_BLOCK < n_positions) {
        int block = kv_alloc(pool);
        if (block < 0) return false;
        push_block(b, block);
    }
    return true;
}

/* ---- members ---- */

void branch_drop_cancelled(struct branch *b, void (*gone)(void *arg, struct branch *, int index),
                           void *arg) {
    int kept = 0;
    for (int i = 0; i < b->n_members; i++) {
        struct branch_member m = b->members[i];
        if (job_handle_candidate_cancelled(b->job->handle, m.index))
            gone(arg, b, m.index);
        else
            b->members[kept++] = m;
    }
    b->n_members = kept;
}

/* Members move to another branch, which has none. */
static void leave(struct branch *b, const int *indices, int n, struct branch *to) {
    int kept = 0;
    for (int i = 0; i < b->n_members; i++) {
        if (to->n_members < n && b->members[i].index == indices[to->n_members])
            to->members[to->n_members++] = b->members[i];
        else
            b->members[kept++] = b->members[i];
    }
    BUG_ON(to->n_members != n);
    b->n_members = kept;
}

static void copy_history(struct branch *to, const struct branch *from) {
    set_capacity(to, from->capacity);
    size_t n = (size_t)from->n_tokens, n_top = (size_t)from->job->spec.n_top_logprobs;
    to->n_tokens = from->n_tokens;
    memcpy(to->tokens, from->tokens, n * sizeof *to->tokens);
    if (from->job->spec.logprobs) {
        memcpy(to->logprobs, from->logprobs, n * sizeof *to->logprobs);
        memcpy(to->top_tokens, from->top_tokens, n * n_top * sizeof *to->top_tokens);
        memcpy(to->top_logprobs, from->top_logprobs, n * n_top * sizeof *to->top_logprobs);
    }
    to->sum_logprob = from->sum_logprob;
    to->sent_tokens = from->sent_tokens;
    to->stop = from->stop;
    buf_init(&to->stop.text, from->stop.text.max);
    buf_append(&to->stop.text, buf_text(&from->stop.text), from->stop.text.len);
    if (from->n_seen) {
        to->n_seen = to->seen_capacity = from->n_seen;
        to->seen = err_alloc((size_t)to->n_seen, sizeof *to->seen);
        memcpy(to->seen, from->seen, (size_t)to->n_seen * sizeof *to->seen);
    }
}

struct branch *branch_fork(struct branch *b, const int *indices, int n, uint64_t age,
                           struct kv_pool *pool, void (*copy)(void *arg, int to, int from, int n),
                           void *arg) {
    struct branch *f = err_alloc(1, sizeof *f);
    f->job = b->job;
    f->age = age;
    f->served = b->served;
    f->parked = true;
    f->members = err_alloc((size_t)n, sizeof *f->members);
    leave(b, indices, n, f);
    copy_history(f, b);
    if (f->members[0].block >= 0) {
        share_blocks(f, pool, b->table, b->cached / KERNELS_BLOCK);
        push_block(f, f->members[0].block);
        f->members[0].block = -1;
        f->cached = b->cached;
        f->parked = false;
    } else if (!adopt(f, pool, b->table, b->cached, copy, arg)) {
        /* No block for the partial one: keep the full ones and compute the rest again. */
        bool done = adopt(f, pool, b->table, b->cached / KERNELS_BLOCK * KERNELS_BLOCK, copy, arg);
        BUG_ON(!done);
    }
    list_append(&b->job->branches, &f->in_job);
    return f;
}

/* ---- tokens ---- */

static bool is_stop_token(const struct engine_job *s, int32_t token) {
    for (int i = 0; i < s->n_stop_tokens; i++)
        if (s->stop_tokens[i] == token) return true;
    return false;
}

static void record(struct branch *b, const struct kernels_drawn *d) {
    const struct engine_job *s = &b->job->spec;
    if (b->n_tokens == b->capacity) {
        int64_t twice = 2 * (int64_t)b->capacity;
        set_capacity(b, twice < s->max_tokens ? (int)twice : s->max_tokens);
    }
    int at = b->n_tokens++;
    b->tokens[at] = d->token;
    b->sum_logprob += (double)d->logprob;
    if (s->logprobs) {
        b->logprobs[at] = d->logprob;
        for (int i = 0; i < s->n_top_logprobs; i++) {
            size_t slot = (size_t)at * (size_t)s->n_top_logprobs + (size_t)i;
            b->top_tokens[slot] = i < d->n_top ? d->top_token[i] : -1;
            b->top_logprobs[slot] = i < d->n_top ? d->top_logprob[i] : 0;
        }
    }
    if (job_has_penalties(b->job)) count_seen(b, d->token, 1);
}

static void end(struct branch *b, enum engine_reason why) {
    b->over = true;
    b->ended = why;
    stop_finish(&b->stop);
}

void branch_append(struct branch *b, const struct kernels_drawn *d, const struct tokenizer *t,
                   int context) {
    const struct engine_job *s = &b->job->spec;
    record(b, d);
    bool ends = tokenizer_ends_generation(t, d->token);
    if (is_stop_token(s, d->token) || (ends && !s->ignore_eos)) {
        end(b, ENGINE_STOP);
        return;
    }
    if (s->show_control || !tokenizer_is_control(t, d->token)) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, d->token, &len);
        if (stop_feed(&b->stop, bytes, len)) {
            end(b, b->stop.why == STOP_CODE_END ? ENGINE_CODE_END : ENGINE_STOP);
            return;
        }
    }
    if (b->n_tokens >= s->max_tokens || branch_length(b) >= context) end(b, ENGINE_LENGTH);
}
