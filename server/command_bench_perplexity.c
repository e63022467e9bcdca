/* `firstpass bench perplexity`: how well the model, as this engine computes it, predicts a text.
 *
 * The way of llama.cpp's llama-perplexity, so that both figures can be compared: the text's tokens
 * are cut into chunks, each computed by itself; where the model wants a beginning-of-sequence token
 * it takes the place of the chunk's first; the second half of a chunk, its first token left out, is
 * scored; e^(mean negative log-likelihood).  Tokens after the last whole chunk are left out. */
#include "base/clock.h"
#include "config/limits.h"
#include "server/command_bench.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 512, TEXT_BYTES = 64 * 1024 * 1024 };

struct perplexity {
    const char *file; /* borrowed */
    int chunk;        /* tokens */
    bool json;

    int32_t *tokens; /* owned */
    size_t n_tokens;
    int n_chunks, n_scored;
    double sum; /* of log-probabilities */
    double seconds;
};

static bool parse_chunk(const char *text, int *out, struct err *e) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 4 || value > LIMIT_CONTEXT - 1)
        return err_set(e, ERR_INPUT, "--chunk is \"%s\"; it must be a number from 4 to %d", text,
                       LIMIT_CONTEXT - 1);
    *out = (int)value;
    return true;
}

static bool parse(struct perplexity *p, int argc, char **argv, struct err *e) {
    struct command_args a;
    *p = (struct perplexity){.chunk = CHUNK};
    command_args_init(&a, argc, argv, e);
    while (command_args_next(&a)) {
        const char *v;
        if ((v = command_args_value(&a, "file")))
            p->file = v;
        else if ((v = command_args_value(&a, "chunk"))) {
            if (!parse_chunk(v, &p->chunk, e)) return false;
        } else if (command_args_flag(&a, "json"))
            p->json = true;
        else
            command_args_unknown(&a);
    }
    if (!a.failed && !p->file) return err_set(e, ERR_INPUT, "--file TEXT is missing");
    return !a.failed;
}

static bool tokenize(struct perplexity *p, const struct engine *g, struct err *e) {
    size_t len;
    char *text = command_read_file(p->file, TEXT_BYTES, &len, e);
    if (!text) return false;
    bool ok = engine_tokenize(g, text, len, ENGINE_TOKENIZE_BOS, &p->tokens, &p->n_tokens, e);
    free(text);
    if (!ok) return false;
    p->n_chunks = (int)(p->n_tokens / (size_t)p->chunk);
    if (!p->n_chunks)
        return err_set(e, ERR_INPUT, "%s has %zu tokens; one chunk is %d", p->file, p->n_tokens,
                       p->chunk);
    return true;
}

static void no_wake(void *arg) { (void)arg; }

static void score(struct perplexity *p, const struct engine_event *ev) {
    for (int i = p->chunk / 2 + 1; i < ev->n_tokens; i++) {
        p->sum += (double)ev->logprobs[i].logprob;
        p->n_scored++;
    }
}

/* Takes the events of one chunk to the last. */
static bool wait_chunk(struct perplexity *p, struct engine *g, struct err *e) {
    for (bool ended = false; !ended;) {
        struct engine_event *ev = engine_poll(g);
        if (!ev) {
            nanosleep(&(struct timespec){0, 200000}, NULL);
            continue;
        }
        if (ev->type == ENGINE_PREFILLED) score(p, ev);
        ended = ev->type == ENGINE_JOB_ENDED;
        bool failed = ended && ev->error.kind != ERR_NONE;
        if (failed) *e = ev->error;
        engine_event_free(ev);
        if (failed) return false;
    }
    return true;
}

static bool score_all(struct perplexity *p, struct engine *g, struct err *e) {
    const struct engine_model *model = engine_model(g);
    double begun = clock_seconds();
    for (int i = 0; i < p->n_chunks; i++) {
        int32_t *chunk = p->tokens + (size_t)i * (size_t)p->chunk;
        if (model->adds_bos) chunk[0] = model->bos;
        const struct engine_job job = {.prompt = chunk,
                                       .n_prompt = p->chunk,
                                       .n_candidates = 1,
                                       .sampling = {.repetition_penalty = 1, .top_p = 1},
                                       .max_tokens = 1,
                                       .prompt_logprobs = true};
        uint64_t id;
        if (!engine_submit(g, &job, &id, e) || !wait_chunk(p, g, e)) return false;
    }
    p->seconds = clock_seconds() - begun;
    return true;
}

static void print(const struct perplexity *p, const struct engine *g) {
    double value = exp(-p->sum / p->n_scored);
    if (!p->json) {
        printf("perplexity %.4f (%d tokens scored of %zu, chunks of %d, %.1f s)\n", value,
               p->n_scored, p->n_tokens, p->chunk, p->seconds);
        return;
    }
    json_t *all =
        json_pack("{s:s, s:f, s:I, s:i, s:i, s:i, s:f}", "model", engine_model(g)->name,
                  "perplexity", value, "tokens", (json_int_t)p->n_tokens, "scored", p->n_scored,
                  "chunk", p->chunk, "chunks", p->n_chunks, "seconds", p->seconds);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(8));
    printf("\n");
    json_decref(all);
}

int command_bench_perplexity(int argc, char **argv, const struct config *c) {
    struct err e = {0};
    struct perplexity p;
    if (!parse(&p, argc, argv, &e)) return command_failed("bench perplexity", &e);
    char *path = config_model_path(c);
    struct engine_options options = command_bench_options(c, path, 1);
    struct engine *g = engine_open(&options, &e);
    bool ok =
        g && tokenize(&p, g, &e) && engine_start(g, no_wake, NULL, &e) && score_all(&p, g, &e);
    if (ok) print(&p, g);
    engine_close(g);
    free(p.tokens);
    free(path);
    return ok ? COMMAND_PASSED : command_failed("bench perplexity", &e);
}
