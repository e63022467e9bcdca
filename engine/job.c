#include "engine/job.h"

#include "engine/guess.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct job_handle *job_handle_new(uint64_t id, int n_candidates, int width) {
    struct job_handle *h = err_alloc(1, sizeof *h);
    h->id = id;
    h->n_candidates = n_candidates;
    h->candidates = err_alloc((size_t)(n_candidates + 7) / 8, sizeof *h->candidates);
    atomic_init(&h->width, width);
    atomic_init(&h->holders, 2);
    return h;
}

void job_handle_unref(struct job_handle *h) {
    /* Acquire and release: what the other holder wrote is seen before the memory goes. */
    if (atomic_fetch_sub_explicit(&h->holders, 1, memory_order_acq_rel) != 1) return;
    free(h->candidates);
    free(h);
}

bool job_handle_candidate_cancelled(const struct job_handle *h, int index) {
    unsigned char byte = atomic_load_explicit(&h->candidates[index / 8], memory_order_relaxed);
    return byte >> (index % 8) & 1;
}

static const void *copy(struct arena *a, const void *from, size_t n, size_t size) {
    if (!n || !from) return NULL;
    void *to = arena_alloc(a, n, size);
    memcpy(to, from, n * size);
    return to;
}

/* Places for what the prompt's rows will say; NAN where nothing has been said. */
static void reserve_logprobs(struct job *j) {
    const struct engine_job *s = &j->spec;
    size_t n = (size_t)s->n_prompt, n_top = (size_t)s->n_prompt_top;
    int32_t *tokens = arena_alloc(&j->arena, n * n_top, sizeof *tokens);
    float *logprobs = arena_alloc(&j->arena, n * n_top, sizeof *logprobs);
    j->prompt_logprobs = arena_alloc(&j->arena, n, sizeof *j->prompt_logprobs);
    for (size_t i = 0; i < n; i++)
        j->prompt_logprobs[i] = (struct engine_logprob){.token = s->prompt[i],
                                                        .logprob = NAN,
                                                        .top_token = tokens + i * n_top,
                                                        .top_logprob = logprobs + i * n_top};
}

void job_keep_logprob(struct job *j, int at, const struct kernels_drawn *d) {
    struct engine_logprob *p = &j->prompt_logprobs[at];
    size_t n_top = (size_t)j->spec.n_prompt_top, n = (size_t)d->n_top;
    p->logprob = d->logprob;
    p->n_top = d->n_top;
    if (!n) return;
    BUG_ON(n > n_top);
    /* The places are this job's own, in its arena. */
    memcpy((int32_t *)(uintptr_t)p->top_token, d->top_token, n * sizeof *d->top_token);
    memcpy((float *)(uintptr_t)p->top_logprob, d->top_logprob, n * sizeof *d->top_logprob);
}

struct job *job_new(const struct engine_job *spec, struct job_handle *handle) {
    struct job *j = err_alloc(1, sizeof *j);
    arena_init(&j->arena);
    list_init(&j->in_engine);
    list_init(&j->branches);
    j->handle = handle;
    j->spec = *spec;
    struct engine_job *s = &j->spec;
    struct arena *a = &j->arena;
    if (!s->index_step) s->index_step = 1;
    if (s->lead_len) s->lead = arena_strndup(a, s->lead, s->lead_len);
    s->prompt = copy(a, s->prompt, (size_t)s->n_prompt, sizeof *s->prompt);
    s->sampling.bias =
        copy(a, s->sampling.bias, (size_t)s->sampling.n_bias, sizeof *s->sampling.bias);
    s->sampling.temperatures = copy(a, s->sampling.temperatures, (size_t)s->sampling.n_temperatures,
                                    sizeof *s->sampling.temperatures);
    s->stop_tokens = copy(a, s->stop_tokens, (size_t)s->n_stop_tokens, sizeof *s->stop_tokens);
    s->stop_lens = copy(a, s->stop_lens, (size_t)s->n_stops, sizeof *s->stop_lens);
    if (s->n_stops) {
        char **stops = arena_alloc(a, (size_t)s->n_stops, sizeof *stops);
        for (int i = 0; i < s->n_stops; i++)
            stops[i] = arena_strndup(a, s->stops[i], s->stop_lens[i]);
        s->stops = (const char *const *)stops;
    }
    s->cache_salt = arena_strdup(a, s->cache_salt ? s->cache_salt : "");
    j->rules = (struct stop_rules){.strings = s->stops,
                                   .lens = s->stop_lens,
                                   .n = s->n_stops,
                                   .include = s->include_stop,
                                   .code_end = s->stop_at_code_end};
    j->table = arena_alloc(a, (size_t)s->n_prompt / KERNELS_BLOCK + 1, sizeof *j->table);
    j->published = kv_root(s->cache_salt);
    j->looked_up = s->prompt_logprobs; /* what the cache has is computed again, for its logits */
    if (s->prompt_logprobs) reserve_logprobs(j);
    return j;
}

void job_free(struct job *j, struct kv_pool *pool) {
    BUG_ON(!list_empty(&j->branches));
    job_drop_prompt(j, pool);
    list_remove(&j->in_engine);
    job_handle_unref(j->handle);
    arena_clear(&j->arena);
    free(j->texts);
    free(j);
}

int job_prompt_goal(const struct job *j) { return j->spec.n_prompt - 1; }

void job_look_up(struct job *j, struct kv_pool *pool) {
    if (j->looked_up) return;
    j->looked_up = true;
    int n_full = job_prompt_goal(j) / KERNELS_BLOCK;
    for (int i = 0; i < n_full; i++) {
        int block = kv_lookup(pool, j->published, j->spec.prompt + (size_t)i * KERNELS_BLOCK);
        if (block < 0) break;
        j->table[j->n_blocks++] = block;
        j->published = kv_identity(pool, block);
        j->n_published++;
    }
    j->cached = j->reused = j->n_blocks * KERNELS_BLOCK;
}

bool job_grow(struct job *j, struct kv_pool *pool, int n_positions) {
    while (j->n_blocks * KERNELS_BLOCK < n_positions) {
        int block = kv_alloc(pool);
        if (block < 0) return false;
        j->table[j->n_blocks++] = block;
    }
    return true;
}

void job_publish(struct job *j, struct kv_pool *pool) {
    for (int n_full = j->cached / KERNELS_BLOCK; j->n_published < n_full; j->n_published++)
        j->published = kv_publish(pool, j->table[j->n_published], j->published,
                                  j->spec.prompt + (size_t)j->n_published * KERNELS_BLOCK);
}

int job_private_blocks(const struct job *j, const struct kv_pool *pool) {
    int n = 0;
    for (int i = 0; i < j->n_blocks; i++)
        n += kv_refs(pool, j->table[i]) == 1;
    return n;
}

void job_drop_prompt(struct job *j, struct kv_pool *pool) {
    /* Last block first: the chain's start stays in the cache longest. */
    while (j->n_blocks)
        kv_unref(pool, j->table[--j->n_blocks]);
    j->cached = 0;
    /* Not looked up again: it would take the very blocks back that others are to have. */
    j->looked_up = true;
    if (!j->announced) j->reused = 0;
    j->published = kv_root(j->spec.cache_salt);
    j->n_published = 0;
}

int job_draws_as(const struct job *j, int index) {
    return j->spec.first_index + index * j->spec.index_step;
}

int job_waiting(struct job *j) {
    int n = j->spec.n_candidates;
    while (j->next_index < n && job_handle_candidate_cancelled(j->handle, j->next_index))
        j->next_index++;
    return n - j->next_index;
}

bool job_has_penalties(const struct job *j) {
    const struct engine_sampling *s = &j->spec.sampling;
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}

void job_keep_text(struct job *j, const int32_t *tokens, int n) {
    if (n > GUESS_SIBLINGS) {
        tokens += n - GUESS_SIBLINGS;
        n = GUESS_SIBLINGS;
    }
    if (!j->texts) j->texts = err_alloc((size_t)2 * GUESS_SIBLINGS, sizeof *j->texts);
    if (j->n_texts + n > 2 * GUESS_SIBLINGS) {
        memmove(j->texts, j->texts + j->n_texts - GUESS_SIBLINGS,
                (size_t)GUESS_SIBLINGS * sizeof *j->texts);
        j->n_texts = GUESS_SIBLINGS;
    }
    memcpy(j->texts + j->n_texts, tokens, (size_t)n * sizeof *tokens);
    j->n_texts += n;
}
