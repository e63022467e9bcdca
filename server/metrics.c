#include "server/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

void metrics_init(struct metrics *m) {
    *m = (struct metrics){
        .request_seconds = {.first = 0.05},
        .pass_seconds = {.first = 0.05},
        .pass_candidates = {.first = 1},
    };
}

void metrics_observe(struct metrics_histogram *h, double value) {
    int i = 0;
    for (double bound = h->first; i < METRICS_BUCKETS && value > bound; i++)
        bound *= 2;
    h->buckets[i]++;
    h->sum += value;
}

/* ---- lines ---- */

static void head(struct buf *b, const char *name, const char *type, const char *help) {
    buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct buf *b, const char *name, double value, const char *help) {
    head(b, name, "gauge", help);
    buf_printf(b, "%s %.15g\n", name, value);
}

static void counter(struct buf *b, const char *name, uint64_t value, const char *help) {
    head(b, name, "counter", help);
    buf_printf(b, "%s %" PRIu64 "\n", name, value);
}

static void seconds(struct buf *b, const char *name, double value, const char *help) {
    head(b, name, "counter", help);
    buf_printf(b, "%s %.9g\n", name, value);
}

static void labelled(struct buf *b, const char *name, const char *label, const char *value,
                     uint64_t n) {
    buf_printf(b, "%s{%s=\"%s\"} %" PRIu64 "\n", name, label, value, n);
}

static void histogram(struct buf *b, const char *name, const struct metrics_histogram *h,
                      const char *help) {
    head(b, name, "histogram", help);
    uint64_t sum = 0;
    double bound = h->first;
    for (int i = 0; i < METRICS_BUCKETS; i++, bound *= 2) {
        sum += h->buckets[i];
        buf_printf(b, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bound, sum);
    }
    sum += h->buckets[METRICS_BUCKETS];
    buf_printf(b, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
    buf_printf(b, "%s_sum %.9g\n%s_count %" PRIu64 "\n", name, h->sum, name, sum);
}

/* A label's value: backslash, quote and newline are escaped. */
static void label_text(struct buf *b, const char *s) {
    for (; *s; s++) {
        if (*s == '\\' || *s == '"')
            buf_printf(b, "\\%c", *s);
        else
            buf_append(b, *s == '\n' ? " " : s, 1);
    }
}

/* ---- parts ---- */

static void write_http(struct buf *b, const struct http_stats *s) {
    gauge(b, "firstpass_http_connections", s->connections, "Open connections.");
    gauge(b, "firstpass_http_requests_waiting", s->waiting, "Requests whose answer isn't begun.");
    gauge(b, "firstpass_http_streams", s->streams, "Streams that are open.");
    gauge(b, "firstpass_http_body_bytes", (double)s->body_bytes, "Request bodies in memory.");
    counter(b, "firstpass_http_requests_total", s->requests, "Requests received.");
    head(b, "firstpass_http_responses_total", "counter", "Answers by class of status.");
    static const char *const classes[] = {"0xx", "1xx", "2xx", "3xx", "4xx", "5xx"};
    for (int i = 2; i <= 5; i++)
        labelled(b, "firstpass_http_responses_total", "class", classes[i], s->by_class[i]);
    counter(b, "firstpass_http_clients_gone_total", s->clients_gone,
            "Clients that left before their answer was whole.");
    counter(b, "firstpass_http_clients_cut_total", s->clients_cut,
            "Clients too slow with their request, or in taking the answer.");
}

static void write_races(struct buf *b, const struct race_set_stats *s) {
    gauge(b, "firstpass_races_live", s->live, "Races not ended.");
    counter(b, "firstpass_races_total", s->races, "Races started.");
    head(b, "firstpass_races_ended_total", "counter", "Races by outcome.");
    const struct {
        const char *name;
        uint64_t n;
    } outcomes[] = {{"verified", s->verified},
                    {"unverified", s->unverified},
                    {"plain", s->plain},
                    {"failed", s->failed},
                    {"abandoned", s->abandoned}};
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
        labelled(b, "firstpass_races_ended_total", "outcome", outcomes[i].name, outcomes[i].n);
    counter(b, "firstpass_candidates_started_total", s->candidates_started,
            "Candidates that began to decode.");
    counter(b, "firstpass_candidates_finished_total", s->candidates_finished,
            "Candidates that decoded to their end.");
    counter(b, "firstpass_candidates_stopped_total", s->candidates_stopped,
            "Candidates stopped before their end: at rest, started = finished + stopped.");
    counter(b, "firstpass_candidates_cancelled_total", s->candidates_cancelled,
            "Candidates stopped before a verdict.");
    counter(b, "firstpass_candidates_passed_total", s->candidates_passed,
            "Candidates that passed their tests.");
    counter(b, "firstpass_candidates_duplicate_total", s->duplicates,
            "Candidates whose code had been judged already.");
    head(b, "firstpass_cancel_seconds", "summary",
         "From an answer, or a client's leaving, until the engine let go of all candidates.");
    buf_printf(b, "firstpass_cancel_seconds_sum %.9g\nfirstpass_cancel_seconds_count %" PRIu64 "\n",
               s->cancel_s, s->cancels);
    gauge(b, "firstpass_cancel_seconds_longest", s->cancel_longest_s, "The longest of them.");
    head(b, "firstpass_tokens_total", "counter", "Generated tokens of ended races by fate.");
    labelled(b, "firstpass_tokens_total", "fate", "winner", s->tokens_winner);
    labelled(b, "firstpass_tokens_total", "fate", "loser", s->tokens_losers);
}

static void write_memory(struct buf *b, const struct engine_memory *m) {
    static const char name[] = "firstpass_memory_bytes";
    head(b, name, "gauge", "The memory plan, taken at start.");
    labelled(b, name, "bucket", "weights", m->weights);
    labelled(b, name, "bucket", "kv", m->kv);
    labelled(b, name, "bucket", "activations", m->activations);
    labelled(b, name, "bucket", "runtime", m->runtime);
    labelled(b, name, "bucket", "reserve", m->reserve);
}

static void write_engine(struct buf *b, const struct engine_stats *s) {
    gauge(b, "firstpass_jobs_waiting", s->jobs_waiting, "Prompts waiting for the engine.");
    gauge(b, "firstpass_jobs_running", s->jobs_running, "Prompts that the engine works on.");
    gauge(b, "firstpass_candidates_running", s->candidates_running, "Candidates in flight.");
    gauge(b, "firstpass_kv_blocks", s->blocks_total, "Blocks of keys and values.");
    gauge(b, "firstpass_kv_blocks_free", s->blocks_free, "Blocks free or given up on demand.");
    gauge(b, "firstpass_kv_blocks_cached", s->blocks_cached,
          "Free blocks that hold prompts for reuse.");
    counter(b, "firstpass_engine_steps_total", s->steps, "Forward passes.");
    counter(b, "firstpass_engine_rows_total", s->rows, "Rows computed in them.");
    counter(b, "firstpass_prompt_tokens_total", s->prompt_tokens, "Prompt tokens taken in.");
    counter(b, "firstpass_prompt_tokens_cached_total", s->prompt_tokens_cached,
            "Of these, found in the cache.");
    counter(b, "firstpass_generated_tokens_total", s->generated_tokens, "Tokens generated.");
    counter(b, "firstpass_engine_steps_ahead_total", s->steps_ahead,
            "Steps queued before the draws of the one before were known.");
    counter(b, "firstpass_engine_surplus_rows_total", s->surplus_rows,
            "Rows of such steps whose text turned out to have ended.");
    counter(b, "firstpass_engine_guessed_rows_total", s->guessed_rows, "Rows of guessed tokens.");
    counter(b, "firstpass_engine_guessed_right_total", s->guessed_right,
            "Of these, drawn by a candidate.");
    seconds(b, "firstpass_engine_step_seconds_total", s->step_seconds, "Time in forward passes.");
    /* The rows of prompts are taken out: all but the last token of each, which its candidates
     * share. */
    double prompts = (double)(s->prompt_tokens - s->prompt_tokens_cached);
    double rows = (double)s->rows > prompts ? (double)s->rows - prompts : 0;
    gauge(b, "firstpass_rows_per_token",
          s->generated_tokens ? rows / (double)s->generated_tokens : 0,
          "Rows computed for each generated token: below 1 where candidates shared them.");
    gauge(b, "firstpass_kv_use", s->blocks_total ? 1 - (double)s->blocks_free / s->blocks_total : 0,
          "Share of the blocks in use, 0 to 1.");
    write_memory(b, &s->memory);
}

static void write_op(struct buf *b, const char *name, const char *help,
                     const struct engine_stats *s, size_t offset) {
    head(b, name, "counter", help);
    for (int i = 0; i < ENGINE_OPS; i++) {
        double value;
        if (!s->ops[i].name) continue;
        memcpy(&value, (const char *)&s->ops[i] + offset, sizeof value);
        buf_printf(b, "%s{op=\"%s\"} %.9g\n", name, s->ops[i].name, value);
    }
}

/* What the work would take at best on this machine, against what it took. */
static void write_roofline(struct buf *b, const struct engine_stats *s,
                           const struct engine_ceiling *c) {
    double seconds = 0, bytes = 0, macs = 0;
    for (int i = 0; i < ENGINE_OPS; i++) {
        seconds += s->ops[i].seconds;
        bytes += s->ops[i].bytes;
        macs += s->ops[i].macs;
    }
    write_op(b, "firstpass_op_seconds_total", "Time by kind of operation.", s,
             offsetof(struct engine_op, seconds));
    write_op(b, "firstpass_op_bytes_total", "Bytes moved by kind of operation.", s,
             offsetof(struct engine_op, bytes));
    write_op(b, "firstpass_op_macs_total", "Multiply-accumulates by kind of operation.", s,
             offsetof(struct engine_op, macs));
    if (!c || c->macs_per_s <= 0 || c->bytes_per_s <= 0) return;
    gauge(b, "firstpass_roof_bytes_per_second", c->bytes_per_s, "What memory gives at most.");
    gauge(b, "firstpass_roof_macs_per_second", c->macs_per_s, "What arithmetic gives at most.");
    double best = fmax(bytes / c->bytes_per_s, macs / c->macs_per_s);
    gauge(b, "firstpass_roofline_share", seconds > 0 ? best / seconds : 0,
          "Time at the roof by time taken, all work since the start.");
}

static void write_verifier(struct buf *b, const struct verifier_stats *s) {
    gauge(b, "firstpass_verifier_queued", s->queued, "Candidates waiting for a box.");
    gauge(b, "firstpass_verifier_running", s->running, "Candidates in a box.");
    gauge(b, "firstpass_verifier_workers", s->workers, "Worker processes.");
    static const char name[] = "firstpass_verdicts_total";
    head(b, name, "counter", "Verdicts by kind.");
    for (int kind = 0; kind <= VERDICT_BROKEN; kind++)
        labelled(b, name, "verdict", verdict_name((enum verdict_kind)kind), s->verdicts[kind]);
    counter(b, "firstpass_verifier_duplicates_total", s->duplicates,
            "Verdicts shared by equal codes.");
    counter(b, "firstpass_verifier_workers_replaced_total", s->workers_replaced,
            "Workers that died and were replaced.");
    counter(b, "firstpass_verifier_retries_total", s->retries,
            "Candidates run again after the sandbox failed.");
    counter(b, "firstpass_verifier_reruns_total", s->reruns,
            "Candidates that timed out beside others on the way to a pass, run once more alone.");
    seconds(b, "firstpass_verifier_cpu_seconds_total", s->cpu_s, "CPU time in boxes.");
    seconds(b, "firstpass_verifier_wall_seconds_total", s->wall_s, "Wall time in boxes.");
}

static void write_sandbox(struct buf *b, const struct verifier_report *r) {
    gauge(b, "firstpass_sandbox_level", r->level, "The sandbox's level, 0 to 3.");
    static const char name[] = "firstpass_sandbox_layer";
    head(b, name, "gauge", "1 where the layer is active.");
    for (int i = 0; i < r->n_layers; i++) {
        buf_printf(b, "%s{layer=\"", name);
        label_text(b, r->layers[i].name);
        buf_printf(b, "\"} %d\n", r->layers[i].active ? 1 : 0);
    }
}

/* The names that routers of inference servers look for; their "requests" are our candidates. */
static void write_vllm(struct buf *b, const struct metrics_view *v) {
    const struct engine_stats *s = v->engine;
    struct buf labels;
    buf_init(&labels, 1024);
    buf_puts(&labels, "{model_name=\"");
    label_text(&labels, v->model);
    buf_puts(&labels, "\"}");
    const char *l = buf_text(&labels);
    double used = s->blocks_total ? 1 - (double)s->blocks_free / s->blocks_total : 0;
    head(b, "vllm:num_requests_running", "gauge", "Candidates in flight.");
    buf_printf(b, "vllm:num_requests_running%s %d\n", l, s->candidates_running);
    head(b, "vllm:num_requests_waiting", "gauge", "Candidates admitted and not started.");
    buf_printf(b, "vllm:num_requests_waiting%s %" PRId64 "\n", l, v->candidates_waiting);
    head(b, "vllm:kv_cache_usage_perc", "gauge", "Share of blocks in use, 0 to 1.");
    buf_printf(b, "vllm:kv_cache_usage_perc%s %.6g\n", l, used);
    head(b, "vllm:cache_config_info", "gauge", "The block pool.");
    buf_printf(b, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n",
               s->blocks_total);
    buf_clear(&labels);
}

void metrics_write(struct buf *b, const struct metrics_view *v) {
    gauge(b, "firstpass_ready", v->ready, "1 where requests are taken.");
    gauge(b, "firstpass_uptime_seconds", v->uptime_s, "Time since the start.");
    gauge(b, "firstpass_candidates_waiting", (double)v->candidates_waiting,
          "Candidates admitted and not started.");
    histogram(b, "firstpass_request_seconds", &v->own->request_seconds,
              "Time of completion requests that were answered.");
    histogram(b, "firstpass_time_to_pass_seconds", &v->own->pass_seconds,
              "Time from a race's start to its first pass.");
    histogram(b, "firstpass_candidates_to_pass", &v->own->pass_candidates,
              "Candidates judged when a race's first pass was known.");
    if (v->http) write_http(b, v->http);
    if (v->races) write_races(b, v->races);
    if (v->verifier) write_verifier(b, v->verifier);
    if (v->report) write_sandbox(b, v->report);
    if (v->engine) {
        write_engine(b, v->engine);
        write_roofline(b, v->engine, v->ceiling);
        write_vllm(b, v);
    }
}
