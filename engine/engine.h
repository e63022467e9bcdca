/* The engine's front door: a model, its memory, and the thread that decodes many candidates at
 * once.
 *
 * THEORY.  One ENGINE thread owns the model, the KV blocks and the device.  The LOOP thread submits
 * jobs (one prompt, up to N candidates), and polls events.  Each job's candidates start lazily, as
 * memory, rows and the job's width allow, and are known by (job, index), index 0 … n-1, never by
 * slot.  After ENGINE_JOB_ENDED of a job nothing of it is left in the engine: its blocks are free.
 *
 *   LOOP:   engine_submit → … engine_poll → ENGINE_STARTED(i), ENGINE_TEXT(i)*, ENGINE_ENDED(i), …
 * ENGINE_JOB_ENDED engine_cancel at any time; events already queued still arrive, then
 * ENGINE_JOB_ENDED comes last.
 *
 * For each started candidate exactly one ENGINE_ENDED comes, with the reason; candidates never
 * started get none.
 *
 * Same seed, index and model file give the same tokens whatever else is in the batch.
 *
 * Tokenizing functions are pure reads of the loaded model: any thread. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct engine;

struct engine_options {
    const char *model_path; /* a .gguf file, or a Hugging Face directory */
    const char *model_name; /* as clients see it */
    const char *backend;    /* "auto", "cpu", "cuda" */
    const char *isa;        /* "auto", or one of the backend's */
    int threads;            /* 0: one for each core */
    int context;  /* positions of one sequence at most; 0: what the model was trained for, capped by
                     memory */
    int max_rows; /* rows of one step */
    int prefill_chunk;     /* prompt rows in one step at most */
    uint64_t memory_bytes; /* all buckets together; 0: from what the machine has free */
    int kv_blocks;         /* 0: what the memory plan leaves */
    const char *weights;   /* NULL or "auto"; cuda: "bf16", "fp8" for the layers' matrices */
    const char *kv;        /* NULL or "auto"; cuda: "bf16", "fp8" for keys and values */
    bool no_sharing;       /* every candidate computes its own rows: for measures and tests */
    bool no_guessing;      /* no rows for tokens that are only guessed (guess.h), likewise */
    bool no_overlap;       /* each step waits for the draws of the one before: likewise */
    bool always_overlap;   /* none does where it needn't, whatever that costs: likewise */
    bool no_graphs;        /* cuda: each operation of each step is queued: likewise */
    void (*progress)(void *arg, const char *what, double share); /* NULL, or called while loading */
    void *progress_arg;
};

/* ---- life ---- */

/* Loads the model and takes all memory.  Slow.  Any thread. */
struct engine *engine_open(const struct engine_options *, struct err *e);
/* Starts the ENGINE thread.  `wake(arg)` is called from that thread when events wait
 * (uv_async_send). */
bool engine_start(struct engine *, void (*wake)(void *arg), void *arg, struct err *e);
/* Cancels all jobs, joins the thread, frees everything, events not polled included. */
void engine_close(struct engine *);

/* ---- the model, fixed after engine_open; any thread ---- */

struct engine_model {
    const char *path, *name, *architecture;
    const char *chat_template;       /* Jinja text, or NULL */
    const char *bos_text, *eos_text; /* as templates want them; "" where the model has none */
    const char *fingerprint;         /* hex of the file's header hash: system_fingerprint */
    int64_t parameters;
    uint64_t file_bytes; /* of the file, or of a directory's safetensors files */
    int context;         /* positions of one sequence at most, prompt and output together */
    int n_vocab;
    int32_t bos, eos;                           /* -1: none */
    int32_t fim_prefix, fim_suffix, fim_middle; /* of infilling; all of them or all -1 */
    bool adds_bos;
};
const struct engine_model *engine_model(const struct engine *);

enum {
    ENGINE_TOKENIZE_SPECIAL = 1, /* text of control tokens becomes control tokens */
    ENGINE_TOKENIZE_BOS =
        2, /* put the beginning-of-sequence token first where the model wants one */
    ENGINE_TOKENIZE_GUARDED =
        4, /* undo engine_guard() marks: guarded text never becomes a control token */
};
/* `text` must be UTF-8.  *out is owned by the caller (free). */
bool engine_tokenize(const struct engine *, const char *text, size_t len, unsigned flags,
                     int32_t **out, size_t *n_out, struct err *e);
/* Text of tokens, control tokens left out unless `special`; may be no UTF-8 where tokens cut a
 * character. *out: free(). */
bool engine_detokenize(const struct engine *, const int32_t *tokens, size_t n, bool special,
                       char **out, size_t *len, struct err *e);
/* A copy of user text in which nothing reads as a control token, however a chat template embeds it;
 * ENGINE_TOKENIZE_GUARDED takes the marks out again.  Free() it. */
char *engine_guard(const struct engine *, const char *text, size_t len, size_t *len_out);
/* The bytes of one token as logprobs show them; borrowed; *len set. */
const char *engine_token_text(const struct engine *, int32_t token, size_t *len);

/* ---- jobs; LOOP thread ---- */

struct engine_sampling {
    float temperature, top_p, min_p;
    int top_k; /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty;
    const struct engine_bias *bias; /* borrowed until submit returns */
    int n_bias;
    bool greedy_first;         /* candidate 0 is decoded at temperature 0 */
    const float *temperatures; /* a ladder, see engine_temperature(); borrowed likewise; */
    int n_temperatures;        /* 0: all have `temperature` */
};
/* The temperature of the candidate that draws as number `index` of a race whose candidates are
 * dealt over n_prompts prompts: each prompt's go through the ladder. */
float engine_temperature(const struct engine_sampling *, int index, int n_prompts);
struct engine_bias {
    int32_t token;
    float bias;
};

/* Everything pointed to is borrowed until engine_submit() returns. */
struct engine_job {
    const int32_t *prompt;
    int n_prompt;     /* >= 1 */
    int n_candidates; /* 1 … LIMIT_CANDIDATES */
    int first_index;  /* candidate 0 draws as candidate first_index of a larger race does: events
                         still count from 0 */
    int index_step; /* … and candidate i as first_index + i * index_step; 0 is 1: the race has as
                       many prompts, over which its candidates are dealt in turn */
    int width;      /* candidates in flight at most, those of its group included; 0: as the engine
                       sees fit */
    uint64_t seed;
    struct engine_sampling sampling;
    int max_tokens; /* of each candidate, >= 1 */
    int min_tokens; /* 0: off */
    bool ignore_eos;
    bool show_control;        /* control tokens are part of the text; never the one that ends it */
    const char *const *stops; /* stop strings, not part of the text that ends */
    const size_t *stop_lens;
    int n_stops;
    bool include_stop; /* keep the stop string in the text */
    const int32_t *stop_tokens;
    int n_stop_tokens;
    bool stop_at_code_end; /* end at the closing fence of the first Python code block that was
                              opened in the output */
    bool stream;           /* send ENGINE_TEXT events */
    bool logprobs;         /* keep log-probabilities of the sampled tokens */
    int n_top_logprobs;
    bool prompt_logprobs; /* and of the prompt's tokens, told with ENGINE_PREFILLED: all of it is
                             computed then, whatever the cache has */
    int n_prompt_top;
    const char *cache_salt; /* prompts are reused only among equal salts; NULL: "" */
    const char *lead; /* text that the prompt ends with and each candidate's text begins with; none
                         of it is in its tokens, and stop strings aren't looked for in it */
    size_t lead_len;
};

/* Takes the job: false with ERR_INPUT (can't ever run: prompt and max_tokens too long for the
 * context or the pool), ERR_BUSY (too many jobs waiting).  O(1) in n_candidates.  *id is never 0.
 */
bool engine_submit(struct engine *, const struct engine_job *, uint64_t *id, struct err *e);
/* The same of n jobs, all or none: a group, which are the prompts of one race.  They have one
 * width, and their candidates start in the order of the numbers that they draw as. */
bool engine_submit_group(struct engine *, const struct engine_job *jobs, int n, uint64_t *ids,
                         struct err *e);
/* Takes effect before the next step but one; never fails; unknown or ended ids are ignored. */
void engine_cancel(struct engine *, uint64_t id);
/* Cancels one candidate (started or not). */
void engine_cancel_candidate(struct engine *, uint64_t id, int index);
/* Changes how many candidates may be in flight (0: as the engine sees fit).  Running ones go on. */
void engine_set_width(struct engine *, uint64_t id, int width);

/* Tokens drawn so far for all candidates of a job, those still decoding included; 0 once
 * ENGINE_JOB_ENDED was polled. */
int64_t engine_job_tokens(const struct engine *, uint64_t id);
/* Rows that were computed for them, the prompt's and those of wrong guesses not among them: fewer
 * than tokens where candidates with equal histories shared one, more where some had to be computed
 * again.  Likewise 0 at the end. */
int64_t engine_job_rows(const struct engine *, uint64_t id);

enum engine_event_type {
    ENGINE_PREFILLED, /* the prompt is in the cache; candidates follow */
    ENGINE_STARTED,
    ENGINE_TEXT,
    ENGINE_ENDED,
    ENGINE_JOB_ENDED,
};
enum engine_reason {
    ENGINE_STOP,     /* end of generation, a stop string or a stop token */
    ENGINE_CODE_END, /* stop_at_code_end */
    ENGINE_LENGTH,   /* max_tokens or the context's end */
    ENGINE_CANCELLED,
    ENGINE_FAILED, /* a device or memory failure; the job's error says which */
};
struct engine_logprob {
    int32_t token;
    float logprob;
    int n_top;
    const int32_t *top_token; /* in the event's memory */
    const float *top_logprob;
};
struct engine_event {
    enum engine_event_type type;
    uint64_t job;
    int index; /* candidate */
    /* ENGINE_TEXT: the new text, whole UTF-8 characters, nothing that may yet become a stop string,
     * and the tokens drawn since the last event.  ENGINE_ENDED: all text and tokens of the
     * candidate. */
    const char *text;
    size_t text_len;
    const int32_t *tokens;
    int n_tokens;
    const struct engine_logprob *logprobs; /* [n_tokens] where asked for, else NULL */
    /* ENGINE_PREFILLED with prompt_logprobs: tokens are the prompt's; the first, which nothing
     * comes before, has a log-probability of NAN and no alternatives. */
    /* ENGINE_ENDED */
    enum engine_reason reason;
    const char *stop;   /* the stop string that ended it, or NULL */
    double sum_logprob; /* of the sampled tokens, unprocessed distribution */
    /* ENGINE_JOB_ENDED */
    struct err error;  /* kind ERR_NONE: all candidates ended or the job was cancelled */
    int cached_tokens; /* ENGINE_PREFILLED: prompt positions found in the cache */
};
/* The next event or NULL.  Free it with engine_event_free(). */
struct engine_event *engine_poll(struct engine *);
void engine_event_free(struct engine_event *);

/* ---- seen from outside; any thread, cheap ---- */

struct engine_memory {
    size_t weights, kv, activations, runtime, reserve;
};
/* Work of one kind of operation since the start: the roofline.  macs: multiply-accumulates. */
enum { ENGINE_OPS = 8 };
struct engine_op {
    const char *name; /* static */
    double seconds, bytes, macs;
    uint64_t calls;
};
struct engine_stats {
    /* gauges */
    int jobs_waiting, jobs_running, candidates_running;
    int blocks_total, blocks_free,
        blocks_cached; /* cached ones count as free: they're given up on demand */
    /* counters */
    uint64_t steps, rows, prompt_tokens, prompt_tokens_cached, generated_tokens;
    uint64_t guessed_rows, guessed_right; /* rows of guessed tokens, and those that were drawn */
    uint64_t steps_ahead;  /* of the steps: queued before the draws of the one before were known */
    uint64_t surplus_rows; /* of the rows: of texts that turned out to have ended */
    double step_seconds;
    struct engine_memory memory;
    struct engine_op ops[ENGINE_OPS];
};
void engine_stats(const struct engine *, struct engine_stats *out);
/* Whether the device has failed for good (a device error is sticky); `out` may be NULL.  The
 * process should end. */
bool engine_failed(const struct engine *, struct err *out);
/* "backend cpu: avx2, 2 threads" and where each operation runs, and the memory plan: for doctor and
 * the start. */
void engine_describe(const struct engine *, FILE *out);

/* The roofs of the roofline: what the device can do at most. */
struct engine_ceiling {
    const char *isa; /* static: whose int8 dot-product instruction was measured; NULL: unknown */
    int n_threads;
    double macs_per_s, bytes_per_s; /* 0: unknown */
};
/* Measures them for half a second on a device of its own, opened as these options say; an engine
 * that is open should be idle meanwhile.  Any thread. */
bool engine_ceiling(const struct engine_options *, struct engine_ceiling *out, struct err *e);

#endif
