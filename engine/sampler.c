#include "engine/sampler.h"

#include <stdlib.h>
#include <string.h>

void sampler_clear(struct sampler *s) {
    free(s->draw);
    free(s->seen);
    free(s->bias);
    free(s->drawn);
    *s = (struct sampler){0};
}

static void reserve(struct sampler *s, int n_draws, int n_seen, int n_bias) {
    if (n_draws > s->capacity) {
        s->capacity = n_draws * 2;
        s->draw = err_realloc(s->draw, (size_t)s->capacity, sizeof *s->draw);
        s->drawn = err_realloc(s->drawn, (size_t)s->capacity, sizeof *s->drawn);
    }
    if (n_seen > s->seen_capacity) {
        s->seen_capacity = n_seen * 2;
        s->seen = err_realloc(s->seen, (size_t)s->seen_capacity, sizeof *s->seen);
    }
    if (n_bias > s->bias_capacity) {
        s->bias_capacity = n_bias * 2;
        s->bias = err_realloc(s->bias, (size_t)s->bias_capacity, sizeof *s->bias);
    }
}

/* The draw that all members of a branch have in common, but for the candidate. */
static struct kernels_draw branch_draw(struct sampler *s, const struct batch_draw *at, int n_ends) {
    const struct branch *b = at->branch;
    const struct engine_job *job = &b->job->spec;
    const struct engine_sampling *p = &job->sampling;
    int position = b->n_tokens + at->ahead;
    struct kernels_draw d = {
        .logit_row = at->logit_row,
        .seed = job->seed,
        .position = (uint32_t)position,
        .top_k = p->top_k,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .repetition = p->repetition_penalty,
        .presence = p->presence_penalty,
        .frequency = p->frequency_penalty,
        .first_seen = s->n_seen,
        .n_seen = b->n_seen,
        .first_bias = s->n_bias,
        .n_bias = p->n_bias,
        .n_forbidden = position < job->min_tokens ? n_ends : 0,
        .n_top = job->logprobs ? job->n_top_logprobs : 0,
    };
    if (b->n_seen) memcpy(s->seen + s->n_seen, b->seen, (size_t)b->n_seen * sizeof *b->seen);
    s->n_seen += b->n_seen;
    for (int i = 0; i < p->n_bias; i++)
        s->bias[s->n_bias++] = (struct kernels_bias){p->bias[i].token, p->bias[i].bias};
    return d;
}

/* What a prompt's row says of the token that follows in the prompt: drawn greedily with a bias that
 * nothing outweighs; log-probabilities are of the distribution without it. */
static struct kernels_draw prompt_draw(struct sampler *s, const struct batch_draw *at) {
    const struct engine_job *job = &at->job->spec;
    s->bias[s->n_bias] = (struct kernels_bias){job->prompt[at->position], 1e30f};
    return (struct kernels_draw){.logit_row = at->logit_row,
                                 .top_p = 1,
                                 .repetition = 1,
                                 .first_bias = s->n_bias++,
                                 .n_bias = 1,
                                 .n_top = job->n_prompt_top};
}

void sampler_prepare(struct sampler *s, struct batch *batch, const struct tokenizer *t) {
    int n_draws = 0, n_seen = 0, n_bias = 0, n_ends;
    const int32_t *ends = tokenizer_ends(t, &n_ends);
    for (int i = 0; i < batch->n_draws; i++) {
        const struct branch *b = batch->draws[i].branch;
        if (!b) {
            n_draws++;
            n_bias++;
            continue;
        }
        n_draws += batch_n_members(&batch->draws[i]);
        n_seen += b->n_seen;
        n_bias += b->job->spec.sampling.n_bias;
    }
    reserve(s, n_draws, n_seen, n_bias);
    s->n_seen = s->n_bias = 0;
    int n = 0;
    for (int i = 0; i < batch->n_draws; i++) {
        struct batch_draw *at = &batch->draws[i];
        const struct branch *b = at->branch;
        at->first = n;
        if (!b) {
            s->draw[n++] = prompt_draw(s, at);
            continue;
        }
        const struct engine_sampling *p = &b->job->spec.sampling;
        struct kernels_draw d = branch_draw(s, at, n_ends);
        const struct branch_member *members = b->members + (at->member >= 0 ? at->member : 0);
        for (int k = 0; k < batch_n_members(at); k++) {
            s->draw[n] = d;
            int number = job_draws_as(b->job, members[k].index);
            s->draw[n].candidate = (uint32_t)number;
            s->draw[n].temperature = engine_temperature(p, number, b->job->spec.index_step);
            n++;
        }
    }
    s->draws = (struct kernels_draws){
        .draws = s->draw, .n_draws = n, .seen = s->seen, .bias = s->bias, .forbidden = ends};
}
