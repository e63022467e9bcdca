/* The step loop on the CUDA backend while steps follow steps whose draws the host doesn't know yet:
 * the host works while the device has work, and no draw changes, whatever ends, leaves, parts or is
 * parked meanwhile. */
#include "engine/decode.h"
#include "tests/cuda/cuda_test.h"
#include "tests/engine/tiny_model.h"

enum { CANDIDATES = 14, TOKENS = 20, MOST_JOBS = 3 };

static struct tiny_model tiny = {.architecture = "qwen2",
                                 .n_layers = 1,
                                 .n_embd = 128,
                                 .n_heads = 2,
                                 .n_kv_heads = 1,
                                 .n_ff = 64,
                                 .context = 512,
                                 .seed = 5};

/* What came of one candidate. */
struct answer {
    bool ended;
    enum engine_reason reason;
    int n_tokens;
    int32_t tokens[TOKENS];
    float logprobs[TOKENS];
    double sum;
};

struct loop {
    struct model *model;
    struct side side;
    struct tokenizer *tokenizer;
    struct memory_plan plan;
    struct decode *decode;
    struct job_handle *handles[MOST_JOBS];
    struct answer answers[MOST_JOBS][CANDIDATES];
    int n_jobs, n_events, n_while_running; /* events of candidates, and those while work waits */
    struct engine_stats stats;
};

/* The device works when somebody waits: what it has to do still, it does while the host does this.
 */
static bool device_has_work(void) {
#ifdef KERNELS_HOST_EMULATION
    return gpu_host_waiting() > 0;
#else
    return true;
#endif
}

static void take_event(void *arg, struct engine_event *ev) {
    struct loop *l = arg;
    if (ev->type == ENGINE_TEXT) {
        l->n_events++;
        l->n_while_running += device_has_work();
    }
    if (ev->type == ENGINE_ENDED) {
        struct answer *a = &l->answers[ev->job - 1][ev->index];
        ck_assert(!a->ended && ev->n_tokens <= TOKENS);
        a->ended = true;
        a->reason = ev->reason;
        a->n_tokens = ev->n_tokens;
        a->sum = ev->sum_logprob;
        memcpy(a->tokens, ev->tokens, (size_t)ev->n_tokens * sizeof *a->tokens);
        for (int i = 0; i < ev->n_tokens && ev->logprobs; i++)
            a->logprobs[i] = ev->logprobs[i].logprob;
    }
    free(ev);
}

static void loop_open(struct loop *l, struct engine_options o) {
    struct err e = {0};
    struct kernels_options ko = {.n_threads = 1, .isa = "auto", .no_graphs = o.no_graphs};
    memset(l, 0, sizeof *l);
#ifdef KERNELS_HOST_EMULATION
    gpu_host_memory((size_t)100 << 20);
#endif
    o.model_path = tiny.path;
    o.context = 256;
    ck_assert_msg((l->model = model_open(tiny.path, &e)) != NULL, "%s", e.message);
    ck_assert_msg((l->tokenizer = tokenizer_new(l->model->gguf, &e)) != NULL, "%s", e.message);
    ko.n_vocab = l->model->shape.n_vocab;
    l->side = side_open_as("cuda", &ko);
    ck_assert_msg(memory_plan_make(&l->plan, &o, l->model, l->side.k, l->side.dev, &e), "%s",
                  e.message);
    ck_assert_msg(model_load(l->model, l->side.k, l->side.dev, NULL, NULL, &e), "%s", e.message);
    struct decode_options d = {.model = l->model,
                               .tokenizer = l->tokenizer,
                               .plan = &l->plan,
                               .no_sharing = o.no_sharing,
                               .no_guessing = o.no_guessing,
                               .no_overlap = o.no_overlap,
                               .always_overlap = o.always_overlap,
                               .event = take_event,
                               .arg = l};
    ck_assert_msg((l->decode = decode_new(&d, &e)) != NULL, "%s", e.message);
    decode_set_auto_width(l->decode, CANDIDATES);
}

static void loop_add(struct loop *l, struct engine_job spec) {
    static int32_t prompt[60];
    for (int i = 0; i < 60; i++)
        prompt[i] = (i % 20 * 37 + 11 * l->n_jobs) % 250;
    spec.prompt = prompt;
    spec.max_tokens = TOKENS;
    spec.stream = spec.logprobs = true;
    struct job_handle *h =
        job_handle_new((uint64_t)l->n_jobs + 1, spec.n_candidates, spec.n_candidates);
    l->handles[l->n_jobs++] = h;
    decode_add(l->decode, job_new(&spec, h));
}

static void cancel(struct loop *l, int job, int index) {
    struct job_handle *h = l->handles[job];
    atomic_fetch_or(&h->candidates[index / 8], (unsigned char)(1u << (index % 8)));
    atomic_store(&h->some_cancelled, true);
}

static void loop_close(struct loop *l) {
    struct kernels_device *dev = l->side.dev;
    decode_stats(l->decode, &l->stats);
    ck_assert_int_eq(l->stats.blocks_free, l->stats.blocks_total);
    decode_free(l->decode);
    for (int i = 0; i < l->n_jobs; i++)
        job_handle_unref(l->handles[i]);
    tokenizer_free(l->tokenizer);
    model_free(l->model);
    l->side.k->device_close(dev);
}

static struct engine_job job_of(int n_prompt, int n, float temperature) {
    return (struct engine_job){
        .n_prompt = n_prompt,
        .n_candidates = n,
        .seed = 7,
        .width = n,
        .sampling = {.temperature = temperature, .top_p = 0.97f, .repetition_penalty = 1}};
}

/* Three races: hot, less so with stop strings, and one that comes later with fewer places than
 * candidates; of the first some candidates are cancelled, the last job as a whole in the end. */
static void races(struct loop *l, struct engine_options o, bool leaves) {
    static const char *const stops[] = {"w30", "w31", "7"};
    static const size_t lens[] = {3, 3, 1};
    static const float ladder[] = {0.5f, 1.5f};
    struct err e = {0};
    loop_open(l, o);
    loop_add(l, job_of(37, CANDIDATES, 3));
    struct engine_job second = job_of(20, CANDIDATES, 2);
    second.stops = stops;
    second.stop_lens = lens;
    second.n_stops = 3;
    loop_add(l, second);
    for (int turn = 0; decode_jobs(l->decode); turn++) {
        if (turn == 5) {
            struct engine_job third = job_of(33, CANDIDATES, 1);
            third.width = 4;
            third.sampling.temperatures = ladder;
            third.sampling.n_temperatures = 2;
            loop_add(l, third);
            atomic_store(&l->handles[2]->width, 4);
        }
        if (turn == 9 && leaves)
            for (int i = 0; i < 3; i++)
                cancel(l, 0, 2 * i);
        if (turn == 12 && leaves) atomic_store(&l->handles[2]->cancelled, true);
        ck_assert_msg(decode_turn(l->decode, &e), "%s", e.message);
        ck_assert_int_lt(turn, 3000);
    }
    loop_close(l);
}

static void check_same(const struct loop *a, const struct loop *b, const char *what) {
    for (int j = 0; j < MOST_JOBS; j++)
        for (int i = 0; i < CANDIDATES; i++) {
            const struct answer *x = &a->answers[j][i], *y = &b->answers[j][i];
            int n = x->n_tokens < y->n_tokens ? x->n_tokens : y->n_tokens;
            /* When something is cancelled is a matter of time: as far as both got. */
            bool left = x->reason == ENGINE_CANCELLED || y->reason == ENGINE_CANCELLED ||
                        !x->ended || !y->ended;
            ck_assert_msg(!memcmp(x->tokens, y->tokens, (size_t)n * sizeof *x->tokens) &&
                              !memcmp(x->logprobs, y->logprobs, (size_t)n * sizeof *x->logprobs),
                          "%s: candidate %d of job %d has other tokens", what, i, j);
            ck_assert_msg(left || (x->reason == y->reason && x->n_tokens == y->n_tokens &&
                                   !memcmp(&x->sum, &y->sum, sizeof x->sum)),
                          "%s: candidate %d of job %d ended otherwise", what, i, j);
        }
}

START_TEST(nothing_changes) {
    static struct loop plain, ahead;
    static const struct {
        const char *what;
        struct engine_options o;
        bool leaves, eager;
    } runs[] = {
        {"ahead", {.no_guessing = true}, false, false},
        {"ahead, with guesses", {0}, true, false},
        {"ahead, without graphs", {.no_guessing = true, .no_graphs = true}, true, false},
        {"ahead, on a quick device", {.no_guessing = true}, true, true},
        {"ahead, rows not shared", {.no_guessing = true, .no_sharing = true}, true, false},
        {"ahead, few blocks", {.no_guessing = true, .kv_blocks = 26}, false, false},
    };
    tiny_model_write(&tiny);
    struct engine_options o = {.max_rows = 40, .prefill_chunk = 32};
    o.no_overlap = o.no_guessing = true;
    races(&plain, o, false);
    ck_assert_uint_eq(plain.stats.steps_ahead, 0);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        o = runs[i].o;
        o.max_rows = i == 4 ? 16 : 40;
        o.prefill_chunk = 32;
        o.always_overlap = true;
#ifdef KERNELS_HOST_EMULATION
        gpu_host_eager(runs[i].eager);
#endif
        races(&ahead, o, runs[i].leaves);
        check_same(&plain, &ahead, runs[i].what);
        ck_assert_msg(ahead.stats.steps_ahead * 4 > ahead.stats.steps || i == 1 || i == 5,
                      "%s: %d of %d steps", runs[i].what, (int)ahead.stats.steps_ahead,
                      (int)ahead.stats.steps);
        ck_assert_uint_gt(ahead.stats.steps_ahead, 0);
        if (!i) ck_assert_uint_gt(ahead.stats.surplus_rows, 0);
    }
    unlink(tiny.path);
}
END_TEST

/* A race, and after some turns another one, which may have no candidates. */
static void two_races(struct loop *l, struct engine_options o, struct engine_job first,
                      struct engine_job second) {
    struct err e = {0};
    o.prefill_chunk = 64;
    loop_open(l, o);
    decode_set_auto_width(l->decode, 1);
    loop_add(l, first);
    for (int turn = 0; decode_jobs(l->decode); turn++) {
        if (turn == 8 && second.n_candidates) loop_add(l, second);
        ck_assert_msg(decode_turn(l->decode, &e), "%s", e.message);
    }
    loop_close(l);
}

/* One candidate is followed step by step, until many begin whose rows, one for each that may part,
 * aren't worth it: what the steps computed that followed counts from then on, and no row is
 * computed again.  Those of branches that had ended are on top. */
START_TEST(no_row_is_computed_twice) {
    static struct loop plain, ahead;
    struct engine_options o = {.max_rows = 40, .no_guessing = true, .no_overlap = true};
    struct engine_job first = job_of(37, 1, 3), second = job_of(33, CANDIDATES, 3);
    tiny_model_write(&tiny);
    two_races(&plain, o, first, second);
    o.no_overlap = false;
    two_races(&ahead, o, first, second);
    check_same(&plain, &ahead, "two races");
    ck_assert_uint_gt(ahead.stats.steps_ahead, 3);
    ck_assert_uint_lt(ahead.stats.steps_ahead, ahead.stats.steps);
    ck_assert_uint_gt(plain.stats.rows, 37 + 33 + 2 * CANDIDATES);
    ck_assert_uint_eq(ahead.stats.rows - ahead.stats.surplus_rows, plain.stats.rows);
    unlink(tiny.path);
}
END_TEST

/* Of two tokens that can be drawn one is far more likely, so that guesses are right; with them
 * steps are as large as they may be, which would be reason to follow them.  But how far a branch
 * gets isn't known before they are. */
START_TEST(guesses_are_waited_for) {
    static struct loop plain, ahead;
    static const struct engine_bias two[] = {{5, 500}, {6, 500}};
    struct engine_options o = {.max_rows = 4, .no_guessing = true, .no_overlap = true};
    struct engine_job spec = job_of(37, 2, 1), none = {0};
    spec.sampling.bias = two;
    spec.sampling.n_bias = 2;
    tiny_model_write(&tiny);
    two_races(&plain, o, spec, none);
    two_races(&ahead, (struct engine_options){.max_rows = 4}, spec, none);
    check_same(&plain, &ahead, "with guesses");
    ck_assert_uint_gt(ahead.stats.guessed_right, 5);
    ck_assert_uint_lt(ahead.stats.steps, plain.stats.steps);
    unlink(tiny.path);
}
END_TEST

/* Nearly all that is told of candidates is told while the device has a step to do. */
START_TEST(the_host_works_meanwhile) {
    static struct loop l;
    tiny_model_write(&tiny);
    struct engine_options o = {
        .max_rows = 40, .prefill_chunk = 32, .no_guessing = true, .always_overlap = true};
    races(&l, o, false);
    ck_assert_int_gt(l.n_events, 300);
    ck_assert_msg(l.n_while_running * 10 > l.n_events * 7, "%d of %d events", l.n_while_running,
                  l.n_events);
#ifdef KERNELS_HOST_EMULATION
    o.always_overlap = false;
    o.no_overlap = true;
    races(&l, o, false);
    /* But for copies of blocks for forks, queued while those are made. */
    ck_assert_int_lt(l.n_while_running * 10, l.n_events);
#endif
    unlink(tiny.path);
}
END_TEST

/* Without being told to, the engine overlaps where many rows run, and where guesses are wrong. */
START_TEST(the_engine_chooses) {
    static struct loop l;
    tiny_model_write(&tiny);
    struct err e = {0};
    loop_open(&l, (struct engine_options){.max_rows = 40, .prefill_chunk = 32});
    decode_set_auto_width(l.decode, 1);
    for (int i = 0; i < 2; i++) {
        loop_add(&l, job_of(37, CANDIDATES, 8)); /* hot: each draws its own, no guess is right */
        while (decode_jobs(l.decode))
            ck_assert_msg(decode_turn(l.decode, &e), "%s", e.message);
    }
    loop_close(&l);
    ck_assert_uint_gt(l.stats.steps_ahead, 0);
    ck_assert_uint_lt(l.stats.steps_ahead, l.stats.steps);
    unlink(tiny.path);
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda follow");
    tcase_add_test(t, nothing_changes);
    tcase_add_test(t, no_row_is_computed_twice);
    tcase_add_test(t, guesses_are_waited_for);
    tcase_add_test(t, the_host_works_meanwhile);
    tcase_add_test(t, the_engine_chooses);
    return run_tests(&t, 1, "cuda follow");
}
