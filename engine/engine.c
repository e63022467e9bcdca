#include "engine/engine.h"

#include "base/log.h"
#include "base/queue.h"
#include "config/limits.h"
#include "engine/decode.h"
#include "engine/event.h"
#include "engine/hf.h"
#include "engine/knee.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUEUED_JOBS = 2 * LIMIT_RACES,
    QUEUED_EVENTS = 1 << 16,
    AUTO_WIDTH_CPU =
        16, /* candidates of a race in flight: where a CPU's throughput has levelled off */
};

struct engine {
    /* fixed after engine_open */
    const struct kernels *kernels;
    struct kernels_device *device; /* owned */
    struct model *model;           /* owned */
    struct tokenizer *tokenizer;   /* owned */
    struct memory_plan plan;
    struct knee knee;
    struct engine_model info;
    char *name, *chat_template, *bos_text, *eos_text; /* owned: what info points to */

    char chosen[256]; /* why backend auto took this one; empty: it was asked for */

    /* LOOP */
    uint64_t next_id;
    struct job_handle **handles; /* owned; jobs whose ENGINE_JOB_ENDED hasn't been polled */
    int n_handles, handle_capacity;

    /* both: each has its own locking */
    struct queue *jobs;   /* struct job, LOOP to ENGINE */
    struct queue *events; /* struct engine_event, ENGINE to LOOP */
    atomic_bool stop;     /* LOOP says end */
    atomic_bool finished; /* ENGINE has ended; release, so that its last events are seen */
    pthread_mutex_t lock; /* guards stats and failure */
    struct engine_stats stats;
    struct err failure; /* sticky device error, kind ERR_NONE while all is well */

    /* ENGINE */
    struct decode *decode; /* owned */
    pthread_t thread;
    bool started;
    void (*wake)(void *arg);
    void *wake_arg;
};

/* ---- life ---- */

static void progress_share(void *arg, double share) {
    const struct engine_options *o = arg;
    if (o->progress) o->progress(o->progress_arg, "weights", share);
}

static bool has_isa(const struct kernels *k, const char *isa) {
    for (const char *const *name = k->isas; *name; name++)
        if (!strcmp(*name, isa)) return true;
    return !strcmp(isa, "auto");
}

/* What was opened, and why backend auto took it; `why` is empty where the backend was asked for. */
struct opened {
    const struct kernels *kernels;
    struct kernels_device *device;
    char why[256];
};

/* A GPU where there is one and the isa asked for is one of its. */
static bool open_best(const struct kernels_options *o, struct opened *out, struct err *e) {
    const struct kernels *cuda = kernels_backend("cuda");
    struct err why = {0};
    if (!cuda)
        err_set(&why, ERR_SYSTEM, "this build has no cuda backend");
    else if (!has_isa(cuda, o->isa))
        err_set(&why, ERR_SYSTEM, "isa %s is none of the cuda backend's", o->isa);
    else if (cuda->device_open(o, &out->device, &why))
        out->kernels = cuda;
    if (out->kernels) {
        snprintf(out->why, sizeof out->why, "there is a device");
        return true;
    }
    snprintf(out->why, sizeof out->why, "%.255s", why.message);
    out->kernels = kernels_backend("cpu");
    return out->kernels->device_open(o, &out->device, e);
}

/* m: NULL: none is to be loaded. */
static bool open_device(const struct engine_options *o, const struct model *m, struct opened *out,
                        struct err *e) {
    const char *backend = o->backend ? o->backend : "auto";
    struct kernels_options options = {.n_threads = o->threads,
                                      .isa = o->isa ? o->isa : "auto",
                                      .no_graphs = o->no_graphs,
                                      .weights = o->weights,
                                      .kv = o->kv,
                                      .file_fp8 = m && m->hf && hf_is_fp8(m->hf),
                                      .n_vocab = m ? m->shape.n_vocab : 0};
    *out = (struct opened){0};
    if (!strcmp(backend, "auto")) return open_best(&options, out, e);
    out->kernels = kernels_backend(backend);
    if (!out->kernels)
        return err_param(e, "engine.backend", "this build has no backend \"%s\"; it has: cpu%s",
                         backend,
                         !strcmp(backend, "cuda")
                             ? " (cuda: build it with the CUDA toolkit 13, -DFIRSTPASS_CUDA=ON)"
                             : "");
    return out->kernels->device_open(&options, &out->device, e);
}

static char *token_text(const struct tokenizer *t, int32_t token) {
    size_t len = 0;
    const char *bytes = token >= 0 ? tokenizer_bytes(t, token, &len) : "";
    return err_strndup(bytes, len);
}

/* The three marks of infilling in the spellings of Qwen, StarCoder and DeepSeek, which all put the
 * text before the gap first, the text after it next, and the gap's own text last. */
static void find_infill(struct engine_model *info, const struct tokenizer *t) {
    static const char *const names[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
    };
    info->fim_prefix = info->fim_suffix = info->fim_middle = -1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id[3];
        for (size_t k = 0; k < 3; k++)
            id[k] = tokenizer_find(t, names[i][k], strlen(names[i][k]));
        if (id[0] < 0 || id[1] < 0 || id[2] < 0) continue;
        info->fim_prefix = id[0];
        info->fim_suffix = id[1];
        info->fim_middle = id[2];
        return;
    }
}

/* The last part of a path, without slashes behind it. */
static char *base_name(const char *path) {
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    size_t at = len;
    while (at && path[at - 1] != '/')
        at--;
    return err_strndup(path + at, len - at);
}

static bool fill_info(struct engine *g, const struct engine_options *o, struct err *e) {
    const struct model *m = g->model;
    g->name = o->model_name && *o->model_name ? err_strdup(o->model_name) : base_name(m->path);
    size_t len = strlen(g->name);
    if (len > 5 && !strcmp(g->name + len - 5, ".gguf")) g->name[len - 5] = 0;
    if (gguf_has(m->gguf, "tokenizer.chat_template")) {
        struct gguf_string s;
        if (!gguf_str(m->gguf, "tokenizer.chat_template", &s, e)) return false;
        if (s.len <= LIMIT_TEMPLATE_BYTES) g->chat_template = err_strndup(s.data, (size_t)s.len);
    }
    g->bos_text = token_text(g->tokenizer, tokenizer_bos(g->tokenizer));
    g->eos_text = token_text(g->tokenizer, tokenizer_eos(g->tokenizer));
    g->info = (struct engine_model){
        .path = m->path,
        .name = g->name,
        .architecture = m->architecture,
        .chat_template = g->chat_template,
        .bos_text = g->bos_text,
        .eos_text = g->eos_text,
        .fingerprint = m->fingerprint,
        .parameters = m->parameters,
        .file_bytes = m->file_bytes,
        .context = g->plan.context,
        .n_vocab = m->shape.n_vocab,
        .bos = tokenizer_bos(g->tokenizer),
        .eos = tokenizer_eos(g->tokenizer),
        .adds_bos = tokenizer_adds_bos(g->tokenizer),
    };
    find_infill(&g->info, g->tokenizer);
    return true;
}

static void push_event(void *arg, struct engine_event *ev) {
    struct engine *g = arg;
    if (!g->started) {
        event_free(ev); /* the knee is being measured */
        return;
    }
    if (queue_push(g->events, ev)) return;
    /* LOOP is slow: decoding waits for it.  LOOP never waits for ENGINE but in engine_close, which
     * polls. */
    g->wake(g->wake_arg);
    queue_push_wait(g->events, ev);
}

static bool load(struct engine *g, const struct engine_options *o, struct err *e) {
    if (!(g->model = model_open(o->model_path, e))) return false;
    if (!(g->tokenizer = tokenizer_new(g->model->gguf, e))) return false;
    if (tokenizer_n_vocab(g->tokenizer) > g->model->shape.n_vocab)
        return err_set(e, ERR_INPUT,
                       "%s: the vocabulary has %d tokens but the embedding table only %d rows",
                       o->model_path, tokenizer_n_vocab(g->tokenizer), g->model->shape.n_vocab);
    struct opened opened;
    if (!open_device(o, g->model, &opened, e)) return false;
    g->kernels = opened.kernels;
    g->device = opened.device;
    snprintf(g->chosen, sizeof g->chosen, "%s", opened.why);
    if (!memory_plan_make(&g->plan, o, g->model, g->kernels, g->device, e)) return false;
    struct engine_options copy = *o;
    if (!model_load(g->model, g->kernels, g->device, progress_share, &copy, e)) return false;
    struct decode_options options = {.model = g->model,
                                     .tokenizer = g->tokenizer,
                                     .plan = &g->plan,
                                     .no_sharing = o->no_sharing,
                                     .no_guessing = o->no_guessing,
                                     .no_overlap = o->no_overlap,
                                     .always_overlap = o->always_overlap,
                                     .event = push_event,
                                     .arg = g};
    if (!(g->decode = decode_new(&options, e))) return false;
    if (!knee_measure(&g->knee, g->decode, g->plan.max_rows, e)) return false;
    decode_set_auto_width(g->decode, g->knee.width);
    decode_stats(g->decode, &g->stats);
    return fill_info(g, o, e);
}

struct engine *engine_open(const struct engine_options *o, struct err *e) {
    struct engine *g = err_alloc(1, sizeof *g);
    g->next_id = 1;
    pthread_mutex_init(&g->lock, NULL);
    g->jobs = queue_new(QUEUED_JOBS);
    g->events = queue_new(QUEUED_EVENTS);
    if (load(g, o, e)) return g;
    engine_close(g);
    return NULL;
}

static void forget_handle(struct engine *g, uint64_t id) {
    for (int i = 0; i < g->n_handles; i++) {
        if (g->handles[i]->id != id) continue;
        job_handle_unref(g->handles[i]);
        g->handles[i] = g->handles[--g->n_handles];
        return;
    }
}

static void drain_events(struct engine *g) {
    for (struct engine_event *ev; (ev = queue_pop(g->events));)
        event_free(ev);
}

static void free_group(struct job *j, bool handles) {
    for (struct job *mate; j; j = mate) {
        mate = j->mate;
        if (handles) job_handle_unref(j->handle); /* LOOP's; the job drops its own */
        job_free(j, NULL);
    }
}

void engine_close(struct engine *g) {
    if (!g) return;
    if (g->started) {
        atomic_store_explicit(&g->stop, true, memory_order_relaxed);
        queue_kick(g->jobs);
        while (!atomic_load_explicit(&g->finished, memory_order_acquire)) {
            struct engine_event *ev = queue_pop_wait(g->events, 0.05);
            event_free(ev);
        }
        pthread_join(g->thread, NULL);
    }
    drain_events(g);
    for (struct job *j; (j = queue_pop(g->jobs));)
        free_group(j, false);
    while (g->n_handles)
        job_handle_unref(g->handles[--g->n_handles]);
    free(g->handles);
    queue_free(g->jobs);
    queue_free(g->events);
    decode_free(g->decode);
    tokenizer_free(g->tokenizer);
    model_free(g->model);
    if (g->device) g->kernels->device_close(g->device);
    pthread_mutex_destroy(&g->lock);
    free(g->name);
    free(g->chat_template);
    free(g->bos_text);
    free(g->eos_text);
    free(g);
}

/* ---- ENGINE ---- */

static void publish_stats(struct engine *g) {
    struct engine_stats stats;
    decode_stats(g->decode, &stats);
    pthread_mutex_lock(&g->lock);
    g->stats = stats;
    pthread_mutex_unlock(&g->lock);
}

static void fail(struct engine *g, const struct err *why) {
    log_line(LOG_ERROR, "the device failed: %s", why->message);
    pthread_mutex_lock(&g->lock);
    g->failure = *why;
    pthread_mutex_unlock(&g->lock);
}

/* Takes all that waits; waits itself where there is nothing to decode. */
static void take_jobs(struct engine *g) {
    double wait = decode_jobs(g->decode) ? 0 : -1;
    struct job *j = wait < 0 ? queue_pop_wait(g->jobs, wait) : queue_pop(g->jobs);
    for (; j; j = queue_pop(g->jobs))
        decode_add(g->decode, j);
}

static void *engine_main(void *arg) {
    struct engine *g = arg;
    struct err error = {0};
    bool failed = false;
    while (!atomic_load_explicit(&g->stop, memory_order_relaxed)) {
        take_jobs(g);
        if (failed) {
            decode_fail_all(g->decode, &error); /* the error is sticky: late comers get it too */
        } else if (!decode_turn(g->decode, &error)) {
            failed = true;
            fail(g, &error);
        }
        publish_stats(g);
        g->wake(g->wake_arg);
    }
    struct err closing;
    err_set(&closing, ERR_UNAVAILABLE, "the engine is closing");
    for (struct job *j; (j = queue_pop(g->jobs));)
        decode_add(g->decode, j);
    decode_fail_all(g->decode, &closing);
    publish_stats(g);
    atomic_store_explicit(&g->finished, true, memory_order_release);
    return NULL;
}

bool engine_start(struct engine *g, void (*wake)(void *arg), void *arg, struct err *e) {
    g->wake = wake;
    g->wake_arg = arg;
    g->started = true;
    int error = pthread_create(&g->thread, NULL, engine_main, g);
    if (error) {
        g->started = false;
        return err_errno(e, error, "can't start the engine thread");
    }
    pthread_setname_np(g->thread, "engine");
    return true;
}

/* ---- the model ---- */

const struct engine_model *engine_model(const struct engine *g) { return &g->info; }

bool engine_tokenize(const struct engine *g, const char *text, size_t len, unsigned flags,
                     int32_t **out, size_t *n_out, struct err *e) {
    return tokenizer_encode(g->tokenizer, text, len, flags, out, n_out, e);
}

bool engine_detokenize(const struct engine *g, const int32_t *tokens, size_t n, bool special,
                       char **out, size_t *len, struct err *e) {
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= tokenizer_n_vocab(g->tokenizer))
            return err_set(e, ERR_INPUT, "token %d is not in the vocabulary of %d", tokens[i],
                           tokenizer_n_vocab(g->tokenizer));
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    tokenizer_decode(g->tokenizer, tokens, n, special, &b);
    *out = buf_take(&b, len);
    return true;
}

char *engine_guard(const struct engine *g, const char *text, size_t len, size_t *len_out) {
    return tokenizer_guard(g->tokenizer, text, len, len_out);
}

const char *engine_token_text(const struct engine *g, int32_t token, size_t *len) {
    return tokenizer_bytes(g->tokenizer, token, len);
}

/* ---- jobs ---- */

float engine_temperature(const struct engine_sampling *s, int index, int n_prompts) {
    if (s->greedy_first && index == 0) return 0;
    return s->n_temperatures ? s->temperatures[index / n_prompts % s->n_temperatures]
                             : s->temperature;
}

static bool check_length(const struct engine *g, const struct engine_job *s, struct err *e) {
    int64_t sum = (int64_t)s->n_prompt + s->max_tokens;
    if (sum <= g->info.context) return true;
    err_param(e, "max_tokens",
              "this model's maximum context length is %d tokens; the prompt has %d and max_tokens "
              "asks for "
              "%d more: shorten the prompt or lower max_tokens",
              g->info.context, s->n_prompt, s->max_tokens);
    return err_code(e, "context_length_exceeded");
}

static bool check_tokens(const struct engine *g, const struct engine_job *s, struct err *e) {
    for (int i = 0; i < s->n_prompt; i++)
        if (s->prompt[i] < 0 || s->prompt[i] >= g->info.n_vocab)
            return err_param(e, "prompt", "token %d is not in the vocabulary of %d", s->prompt[i],
                             g->info.n_vocab);
    for (int i = 0; i < s->sampling.n_bias; i++)
        if (s->sampling.bias[i].token < 0 || s->sampling.bias[i].token >= g->info.n_vocab)
            return err_param(e, "logit_bias", "token %d is not in the vocabulary of %d",
                             s->sampling.bias[i].token, g->info.n_vocab);
    return true;
}

static bool check_job(const struct engine *g, const struct engine_job *s, struct err *e) {
    BUG_ON(s->n_candidates < 1 || s->n_candidates > LIMIT_CANDIDATES || s->max_tokens < 1);
    BUG_ON(s->first_index < 0 || s->first_index > LIMIT_CANDIDATES);
    BUG_ON(s->index_step < 0 || s->index_step > LIMIT_PROMPT_VARIANTS);
    BUG_ON(s->n_top_logprobs < 0 || s->n_top_logprobs > KERNELS_TOP);
    BUG_ON(s->n_prompt_top < 0 || s->n_prompt_top > KERNELS_TOP);
    if (s->n_prompt < 1) return err_param(e, "prompt", "the prompt has no tokens");
    return check_length(g, s, e) && check_tokens(g, s, e);
}

static void keep_handle(struct engine *g, struct job_handle *handle) {
    if (g->n_handles == g->handle_capacity) {
        g->handle_capacity = g->handle_capacity ? 2 * g->handle_capacity : 16;
        g->handles =
            err_realloc(g->handles, (size_t)g->handle_capacity, sizeof(struct job_handle *));
    }
    g->handles[g->n_handles++] = handle;
}

bool engine_submit_group(struct engine *g, const struct engine_job *specs, int n, uint64_t *ids,
                         struct err *e) {
    struct job *first = NULL, **end = &first;
    struct job_handle *handles[LIMIT_PROMPT_VARIANTS];
    BUG_ON(n < 1 || n > LIMIT_PROMPT_VARIANTS);
    for (int i = 0; i < n; i++)
        if (!check_job(g, &specs[i], e)) return false;
    for (int i = 0; i < n; i++) {
        uint64_t id = g->next_id + (uint64_t)i;
        *end = job_new(&specs[i], job_handle_new(id, specs[i].n_candidates, specs[i].width));
        (*end)->group = n > 1 ? g->next_id : 0;
        handles[i] = (*end)->handle;
        end = &(*end)->mate;
    }
    if (!queue_push(g->jobs, first)) {
        free_group(first, true);
        return err_set(e, ERR_BUSY, "too many requests wait for the engine (%d); try again later",
                       QUEUED_JOBS);
    }
    for (int i = 0; i < n; i++) {
        keep_handle(g, handles[i]);
        ids[i] = g->next_id++;
    }
    return true;
}

bool engine_submit(struct engine *g, const struct engine_job *spec, uint64_t *id, struct err *e) {
    return engine_submit_group(g, spec, 1, id, e);
}

static struct job_handle *find_handle(const struct engine *g, uint64_t id) {
    for (int i = 0; i < g->n_handles; i++)
        if (g->handles[i]->id == id) return g->handles[i];
    return NULL;
}

void engine_cancel(struct engine *g, uint64_t id) {
    struct job_handle *h = find_handle(g, id);
    if (h) atomic_store_explicit(&h->cancelled, true, memory_order_relaxed);
}

void engine_cancel_candidate(struct engine *g, uint64_t id, int index) {
    struct job_handle *h = find_handle(g, id);
    if (!h || index < 0 || index >= h->n_candidates) return;
    atomic_fetch_or_explicit(&h->candidates[index / 8], (unsigned char)(1u << (index % 8)),
                             memory_order_relaxed);
    /* Release: whoever sees the flag sees the bit. */
    atomic_store_explicit(&h->some_cancelled, true, memory_order_release);
}

void engine_set_width(struct engine *g, uint64_t id, int width) {
    struct job_handle *h = find_handle(g, id);
    if (h) atomic_store_explicit(&h->width, width, memory_order_relaxed);
}

int64_t engine_job_tokens(const struct engine *g, uint64_t id) {
    const struct job_handle *h = find_handle(g, id);
    return h ? atomic_load_explicit(&h->generated, memory_order_relaxed) : 0;
}

int64_t engine_job_rows(const struct engine *g, uint64_t id) {
    const struct job_handle *h = find_handle(g, id);
    return h ? atomic_load_explicit(&h->rows, memory_order_relaxed) : 0;
}

struct engine_event *engine_poll(struct engine *g) {
    struct engine_event *ev = queue_pop(g->events);
    if (ev && ev->type == ENGINE_JOB_ENDED) forget_handle(g, ev->job);
    return ev;
}

void engine_event_free(struct engine_event *ev) { event_free(ev); }

/* ---- seen from outside ---- */

void engine_stats(const struct engine *g, struct engine_stats *out) {
    struct engine *unlocked =
        (struct engine *)(uintptr_t)g; /* the lock is no part of what is const */
    pthread_mutex_lock(&unlocked->lock);
    *out = g->stats;
    pthread_mutex_unlock(&unlocked->lock);
}

bool engine_failed(const struct engine *g, struct err *out) {
    struct engine *unlocked = (struct engine *)(uintptr_t)g;
    pthread_mutex_lock(&unlocked->lock);
    bool failed = g->failure.kind != ERR_NONE;
    if (failed && out) *out = g->failure;
    pthread_mutex_unlock(&unlocked->lock);
    return failed;
}

void engine_describe(const struct engine *g, FILE *out) {
    fprintf(out, "model %s: %s, %.0f M parameters, %d tokens, %s\n", g->info.name,
            g->info.architecture, (double)g->info.parameters / 1e6, g->info.n_vocab, g->info.path);
    fprintf(out, "backend %s: %s%s%s%s\n", g->kernels->name, g->kernels->describe(g->device),
            *g->chosen ? " (auto: " : "", g->chosen, *g->chosen ? ")" : "");
    memory_plan_print(&g->plan, out);
    fprintf(out, "auto width %d (rows in a step: tokens/s", g->knee.width);
    for (int i = 0; i < g->knee.n; i++)
        fprintf(out, "%s %d: %.0f", i ? "," : "", g->knee.rows[i],
                g->knee.rows[i] / g->knee.seconds[i]);
    fprintf(out, ")\n");
}

bool engine_ceiling(const struct engine_options *o, struct engine_ceiling *out, struct err *e) {
    struct opened d;
    struct kernels_ceiling c = {0};
    if (!open_device(o, NULL, &d, e)) return false;
    bool ok = !d.kernels->ceiling || d.kernels->ceiling(d.device, &c, e);
    d.kernels->device_close(d.device);
    *out = (struct engine_ceiling){.isa = c.isa,
                                   .n_threads = c.n_threads,
                                   .macs_per_s = c.macs_per_s,
                                   .bytes_per_s = c.bytes_per_s};
    return ok;
}
