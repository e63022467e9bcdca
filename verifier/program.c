#include "verifier/program.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "config/limits.h"
#include "verifier/capture.h"
#include "verifier/feedback.h"
#include "verifier/judge.h"
#include "verifier/payload.h"
#include "verifier/report.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum program_state {
    PROGRAM_QUEUED,
    PROGRAM_COMPILING,
    PROGRAM_RUNNING,
    PROGRAM_CHECKING,
    PROGRAM_ENDING,
    PROGRAM_OVER,
};
enum { MOST_LOSSES = 4, ERRORS_KEPT = 8192, LINE_SHOWN = 120 };
static const double SLICE_S = 0.25; /* with a worker, before others have their turn */
static const double GRACE_S = 5.0;  /* for a killed process to be gone, for a checker to report */
static const double MOST_STARVED = 10; /* times the wall limit, whatever the machine does */
static const double MIN_TICK_S = 0.02; /* between two looks at the CPU clock */

struct program {
    struct task task;
    enum program_state state;
    struct pool *pool;          /* borrowed */
    struct program_input input; /* code: owned by code_fd */
    int code_fd;                /* owned */
    int at;                     /* the case under way */
    int losses, retries;        /* of this case; of all */
    bool cancelled;
    double slice_began;

    /* one case */
    struct process *process;       /* owned: the program, then the checker; NULL: none */
    struct watch *output, *errors; /* owned */
    struct watch *report;          /* owned; the checker's */
    struct watch_timer *timer;     /* owned; for the whole job */
    struct capture printed, complaints;
    struct report *reported; /* owned */
    enum report_status report_status;
    unsigned char nonce[WIRE_NONCE];
    double began;
    const char *limit; /* static */
    bool sabotaged;    /* the case could not be set up */
    bool checking;     /* the program has ended well, `process` is the checker's */
    struct judge_verdict verdict;

    /* all cases */
    int passed, total;
    struct judge_verdict first; /* the first that did not pass */
    bool failed;
    struct feedback feedback;
    char *shown; /* owned; what the first failed case printed, else the last */
    size_t shown_len;
    double cpu_s, wall_s;
    int max_rss_mb;

    void (*done)(void *arg, const struct job_result *);
    void *arg; /* borrowed */
};

static void move(struct program *p, enum program_state to) {
    static const bool legal[6][6] = {
        [PROGRAM_QUEUED] = {[PROGRAM_COMPILING] = true, [PROGRAM_OVER] = true},
        [PROGRAM_COMPILING] = {[PROGRAM_RUNNING] = true, [PROGRAM_ENDING] = true},
        [PROGRAM_RUNNING] = {[PROGRAM_ENDING] = true},
        [PROGRAM_CHECKING] = {[PROGRAM_ENDING] = true},
        /* its checker, the next case, or either again with another worker */
        [PROGRAM_ENDING] = {[PROGRAM_CHECKING] = true,
                            [PROGRAM_QUEUED] = true,
                            [PROGRAM_COMPILING] = true,
                            [PROGRAM_OVER] = true},
    };
    BUG_ON(!legal[p->state][to]);
    p->state = to;
}

static const struct cases_item *item_of(const struct program *p) {
    return &p->input.cases->items[p->at];
}

static const char *printed(const struct program *p) {
    return p->printed.head ? p->printed.head : "";
}

static double wall_limit(const struct program *p) { return 2 * p->input.job.timeout_s + 2; }
static uint32_t kernel_cpu_limit(const struct program *p) {
    return (uint32_t)ceil(p->input.job.timeout_s) + 1;
}

static void clear_case(struct program *p) {
    watch_close(p->output);
    watch_close(p->errors);
    watch_close(p->report);
    p->output = p->errors = p->report = NULL;
    watch_timer_stop(p->timer);
    process_free(p->process);
    p->process = NULL;
    capture_clear(&p->printed);
    capture_clear(&p->complaints);
    free(p->reported);
    p->reported = NULL;
    p->report_status = REPORT_NONE;
    p->limit = NULL;
    p->sabotaged = p->checking = false;
}

static void destroy(struct program *p) {
    clear_case(p);
    watch_timer_close(p->timer);
    feedback_clear(&p->feedback);
    free(p->shown);
    close(p->code_fd);
    free(p);
}

/* ---- what a client is told ---- */

static bool withheld(const struct program *p) {
    return item_of(p)->hidden || p->input.feedback == VERIFIER_FEEDBACK_NAMES;
}

/* Line `number` of a text, from 1, cut. */
static void line_of(const char *text, size_t len, int number, char out[LINE_SHOWN]) {
    while (--number > 0) {
        const char *end = memchr(text, '\n', len);
        size_t used = end ? (size_t)(end - text) + 1 : len;
        text += used;
        len -= used;
    }
    const char *end = memchr(text, '\n', len);
    if (end) len = (size_t)(end - text);
    if (len > LINE_SHOWN - 1) {
        len = LINE_SHOWN - 1;
        len -= utf8_incomplete_tail(text, len);
    }
    memcpy(out, text, len);
    out[len] = 0;
}

static void say_difference(struct program *p, int line) {
    const struct cases_item *item = item_of(p);
    char got[LINE_SHOWN], wanted[LINE_SHOWN];
    p->verdict.kind = VERDICT_FAILED;
    if (withheld(p)) {
        snprintf(p->verdict.error, sizeof p->verdict.error, "%.100s: the output is wrong",
                 item->name);
        return;
    }
    line_of(printed(p), p->printed.head_len, line, got);
    line_of(item->expected, item->expected_len, line, wanted);
    snprintf(p->verdict.error, sizeof p->verdict.error,
             "%.100s: line %d of the output is \"%s\", expected \"%s\"", item->name, line, got,
             wanted);
    for (char *c = p->verdict.error; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
}

static void keep_shown(struct program *p) {
    if (p->failed) return;
    struct capture kept;
    capture_init(&kept, LIMIT_OUTPUT_KEPT);
    struct capture *const both[] = {&p->printed, &p->complaints};
    for (int i = 0; i < 2; i++) {
        size_t len;
        char *text = capture_text(both[i], &len);
        capture_add(&kept, text, len);
        free(text);
    }
    free(p->shown);
    p->shown = capture_text(&kept, &p->shown_len);
    capture_clear(&kept);
}

static void tell_case(struct program *p) {
    if (p->input.feedback == VERIFIER_FEEDBACK_NONE) return;
    const struct cases_item *item = item_of(p);
    bool passed = p->verdict.kind == VERDICT_PASSED;
    char *got = feedback_value(printed(p), p->printed.head_len);
    char *expected = feedback_value(item->expected, item->expected_len);
    bool values = !withheld(p) && !passed;
    struct verdict_test test = {
        .name = item->name,
        .status = passed                              ? "passed"
                  : p->verdict.kind == VERDICT_FAILED ? "failed"
                                                      : "error",
        .got = values ? got : NULL,
        .expected = values ? expected : NULL,
        .error = passed ? "" : p->verdict.error,
        .ms = (clock_seconds() - p->began) * 1000,
    };
    feedback_add(&p->feedback, &test);
    free(got);
    free(expected);
}

/* ---- the end ---- */

static void leave(struct program *p) {
    move(p, PROGRAM_OVER);
    pool_done(p->pool, &p->task);
}

static void deliver(struct program *p, const struct judge_verdict *verdict) {
    struct job_result result = {
        .kind = verdict->kind,
        .tests_passed = p->passed,
        .tests_total = p->total,
        .cpu_s = p->cpu_s,
        .wall_s = p->wall_s,
        .max_rss_mb = p->max_rss_mb,
        .error = verdict->error,
        .limit = verdict->limit,
        .output = p->shown ? p->shown : "",
        .output_len = p->shown_len,
        .tests = p->feedback.tests,
        .n_tests = p->feedback.n,
        .retries = p->retries,
    };
    leave(p);
    p->done(p->arg, &result);
    destroy(p);
}

static void start_case(struct program *p);

static void again(struct program *p, bool lost) {
    p->retries++;
    p->losses++;
    clear_case(p);
    move(p, PROGRAM_QUEUED);
    if (lost)
        pool_lost(p->pool, &p->task);
    else
        pool_done(p->pool, &p->task);
    pool_submit(p->pool, &p->task);
}

/* The case is judged: the next, or the end. */
static void settle(struct program *p, bool lost) {
    if (p->verdict.kind == VERDICT_BROKEN) {
        if (p->losses < (lost ? MOST_LOSSES : 1))
            again(p, lost);
        else
            deliver(p, &p->verdict);
        return;
    }
    bool passed = p->verdict.kind == VERDICT_PASSED;
    p->total++;
    p->passed += passed;
    p->losses = 0;
    tell_case(p);
    keep_shown(p);
    if (!passed && !p->failed) {
        p->failed = true;
        p->first = p->verdict;
    }
    clear_case(p);
    p->at++;
    if (p->at == p->input.cases->n || (p->failed && !p->input.job.score)) {
        deliver(p, p->failed ? &p->first : &p->verdict);
    } else if (clock_seconds() - p->slice_began > SLICE_S) {
        move(p, PROGRAM_QUEUED);
        pool_done(p->pool, &p->task);
        pool_submit(p->pool, &p->task);
    } else {
        move(p, PROGRAM_COMPILING);
        start_case(p);
    }
}

/* A word on its job socket comes from the harness before the job's own descriptors took its place.
 */
static bool never_ran(const struct program *p) {
    char word;
    return p->process->job_fd >= 0 && recv(p->process->job_fd, &word, 1, MSG_DONTWAIT) == 1;
}

static struct judge_process facts_of(const struct program *p) {
    if (!p->process) return (struct judge_process){.lost = true};
    return (struct judge_process){
        .lost = p->process->lost || p->sabotaged || never_ran(p),
        .killed = p->process->killed,
        .status = p->process->status,
        .cpu_s = p->process->cpu_s,
    };
}

static void start_checker(struct program *p);

static void judge_run(struct program *p) {
    struct judge_process facts = facts_of(p);
    const struct cases_item *item = item_of(p);
    int line;
    p->cpu_s += facts.cpu_s;
    p->wall_s += clock_seconds() - p->began;
    if (p->process && p->process->max_rss_mb > p->max_rss_mb)
        p->max_rss_mb = p->process->max_rss_mb;
    char last[LINE_SHOWN] = "";
    size_t len;
    char *complaints = capture_text(&p->complaints, &len);
    while (len && complaints[len - 1] == '\n')
        complaints[--len] = 0;
    const char *newline = memrchr(complaints, '\n', len);
    line_of(newline ? newline + 1 : complaints, strlen(newline ? newline + 1 : complaints), 1,
            last);
    free(complaints);
    judge_program(&facts, p->limit, kernel_cpu_limit(p), last, &p->verdict);
    if (p->verdict.kind == VERDICT_PASSED && !p->input.job.suite &&
        !compare_output(&p->input.cases->compare, printed(p), p->printed.head_len, item->expected,
                        item->expected_len, &line))
        say_difference(p, line);
    if (p->verdict.kind == VERDICT_PASSED && p->input.job.suite)
        start_checker(p);
    else
        settle(p, facts.lost);
}

static void judge_checker(struct program *p) {
    struct judge_process facts = facts_of(p);
    bool clean = WIFEXITED(facts.status) && WEXITSTATUS(facts.status) == 0;
    p->verdict = (struct judge_verdict){.kind = VERDICT_BROKEN};
    if (facts.lost || !clean || p->report_status != REPORT_OK)
        snprintf(p->verdict.error, sizeof p->verdict.error,
                 "the checker of the tests ended without a word on %.100s", item_of(p)->name);
    else if (p->reported->kind == WIRE_PASSED && p->reported->total > 0)
        p->verdict.kind = VERDICT_PASSED;
    else if (p->reported->kind == WIRE_NOT_PASSED) {
        p->verdict.kind = VERDICT_FAILED;
        snprintf(p->verdict.error, sizeof p->verdict.error, "%.100s: %.500s", item_of(p)->name,
                 withheld(p) ? "the checker refused the output" : p->reported->text);
    }
    settle(p, facts.lost);
}

static void take_report(struct program *p) {
    if (!p->reported) p->reported = err_alloc(1, sizeof *p->reported);
    p->report_status = report_receive(watch_fd(p->report), p->nonce, p->reported);
    if (p->report_status == REPORT_NONE) return;
    watch_close(p->report);
    p->report = NULL;
}

static bool has_ended(const struct program *p) {
    return !p->process || p->process->state == PROCESS_ENDED;
}

static void finish_if_over(struct program *p) {
    if (p->state != PROGRAM_ENDING || !has_ended(p)) return;
    if (p->cancelled) {
        leave(p);
        destroy(p);
        return;
    }
    if (p->output) capture_drain(&p->printed, watch_fd(p->output));
    if (p->errors) capture_drain(&p->complaints, watch_fd(p->errors));
    if (p->report) take_report(p); /* it may lie in the socket still */
    if (p->checking)
        judge_checker(p);
    else
        judge_run(p);
}

static void end_case(struct program *p) {
    if (p->state == PROGRAM_ENDING) return;
    move(p, PROGRAM_ENDING);
    if (p->process) process_kill(p->process);
    finish_if_over(p);
}

/* ---- events ---- */

static size_t most_printed(const struct program *p) {
    size_t expected = 2 * item_of(p)->expected_len;
    return expected > LIMIT_OUTPUT_BYTES ? expected : LIMIT_OUTPUT_BYTES;
}

static void drain(struct program *p, struct watch **watch, struct capture *into) {
    if (!capture_drain(into, watch_fd(*watch))) {
        watch_close(*watch);
        *watch = NULL;
    }
    if (p->state == PROGRAM_RUNNING && p->printed.total + p->complaints.total > most_printed(p)) {
        p->limit = "output";
        end_case(p);
    }
}

static void on_output(void *arg) {
    struct program *p = arg;
    drain(p, &p->output, &p->printed);
}

static void on_errors(void *arg) {
    struct program *p = arg;
    drain(p, &p->errors, &p->complaints);
}

static void on_ended(void *arg) {
    struct program *p = arg;
    if (p->state == PROGRAM_ENDING)
        finish_if_over(p);
    else if (p->state == PROGRAM_RUNNING || p->state == PROGRAM_CHECKING)
        end_case(p);
}

static void on_report(void *arg) { take_report(arg); }

static void on_timer(void *arg) {
    struct program *p = arg;
    if (p->state != PROGRAM_RUNNING) { /* the checker had its time */
        if (p->state == PROGRAM_CHECKING) end_case(p);
        return;
    }
    double used, starved, wall = clock_seconds() - p->began;
    process_time(p->process, &used, &starved);
    /* Time in which it waited for a core is the machine's fault, up to a point. */
    if (wall < MOST_STARVED * wall_limit(p)) wall -= starved;
    if (used >= p->input.job.timeout_s)
        p->limit = "cpu_time";
    else if (wall >= wall_limit(p))
        p->limit = "wall_time";
    if (p->limit) {
        end_case(p);
        return;
    }
    double next = p->input.job.timeout_s - used;
    if (next > wall_limit(p) - wall) next = wall_limit(p) - wall;
    watch_timer_set(p->timer, next < MIN_TICK_S ? MIN_TICK_S : next);
}

/* ---- the beginning of a case ---- */

static int memory_of(const char *name, const void *data, size_t len) {
    struct err ignored = {0}; /* without memory the case is broken, whatever the words */
    int fd = payload_memfd(name, data, len, &ignored);
    if (fd >= 0) lseek(fd, 0, SEEK_SET);
    return fd;
}

static struct wire_job job_of(const struct program *p, uint32_t flags) {
    return (struct wire_job){
        .address_space = pool_address_space(p->task.worker, p->input.job.memory_mb),
        .seed = p->input.job.seed,
        .cpu_s = kernel_cpu_limit(p),
        .flags = flags,
    };
}

static bool set_up(struct program *p) {
    const struct cases_item *item = item_of(p);
    int output[2] = {-1, -1}, errors[2] = {-1, -1};
    int input = memory_of("input", item->input, item->input_len);
    struct wire_job job = job_of(p, WIRE_PROGRAM);
    p->process = pool_candidate(p->task.worker, FLAVOUR_STANDARD, on_ended, p);
    bool ok = p->process && input >= 0 && !pipe2(output, O_CLOEXEC) && !pipe2(errors, O_CLOEXEC) &&
              process_give(p->process, &job, (int[]){p->code_fd, input, output[1], errors[1]}, 4);
    struct watch_set *set = pool_watches(p->pool);
    if (output[0] >= 0) p->output = watch_open(set, output[0], on_output, p);
    if (errors[0] >= 0) p->errors = watch_open(set, errors[0], on_errors, p);
    const int mine[] = {input, output[1], errors[1]};
    for (int i = 0; i < 3; i++)
        if (mine[i] >= 0) close(mine[i]);
    return ok;
}

static void start_case(struct program *p) {
    move(p, PROGRAM_RUNNING);
    p->began = clock_seconds();
    capture_init(&p->printed, 2 * (most_printed(p) + 65536));
    capture_init(&p->complaints, ERRORS_KEPT);
    if (!set_up(p)) {
        p->sabotaged = true;
        end_case(p);
        return;
    }
    watch_timer_set(p->timer, p->input.job.timeout_s);
}

/* Text that may hold anything as a JSON string: what isn't UTF-8 becomes '?'. */
static json_t *lossy_string(const char *data, size_t len) {
    if (utf8_valid(data, len)) return json_stringn(data, len);
    char *copy = err_strndup(data, len);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)copy[i] >= 0x80) copy[i] = '?';
    json_t *text = json_stringn(copy, len);
    free(copy);
    return text;
}

static int runs_of(const struct program *p) {
    const struct cases_item *item = item_of(p);
    json_t *runs = json_pack("[[o,o,o]]", lossy_string(item->input, item->input_len),
                             lossy_string(printed(p), p->printed.head_len),
                             lossy_string(item->expected, item->expected_len));
    char *text = runs ? json_dumps(runs, JSON_COMPACT) : NULL;
    int fd = text ? memory_of("runs", text, strlen(text)) : -1;
    free(text);
    json_decref(runs);
    return fd;
}

static void start_checker(struct program *p) {
    int fd = runs_of(p);
    process_free(p->process);
    p->process = suite_take(p->input.job.suite, p->task.worker, on_ended, p);
    struct wire_job job = job_of(p, 0);
    report_draw_nonce(p->nonce);
    memcpy(job.nonce, p->nonce, WIRE_NONCE);
    bool ok = fd >= 0 && p->process && process_give(p->process, &job, &fd, 1);
    if (p->process) {
        p->report = watch_open(pool_watches(p->pool), p->process->job_fd, on_report, p);
        p->process->job_fd = -1;
    }
    if (fd >= 0) close(fd);
    move(p, PROGRAM_CHECKING);
    p->checking = true;
    if (ok) {
        watch_timer_set(p->timer, wall_limit(p) + GRACE_S);
        return;
    }
    p->sabotaged = true;
    end_case(p);
}

static void on_suite(void *arg, enum holder_state state, const char *text) {
    (void)text;
    struct program *p = arg;
    if (p->cancelled || state != HOLDER_READY) {
        p->sabotaged = true;
        end_case(p);
        return;
    }
    start_case(p);
}

static void on_begin(struct task *task, struct worker *w) {
    struct program *p = LIST_ITEM(task, struct program, task);
    move(p, PROGRAM_COMPILING);
    p->slice_began = clock_seconds();
    if (p->input.job.suite)
        suite_want(p->input.job.suite, w, on_suite, p);
    else
        start_case(p);
}

struct program *program_start(struct pool *pool, const struct program_input *input,
                              void (*done)(void *arg, const struct job_result *), void *arg,
                              struct err *e) {
    int fd = payload_memfd("code", input->job.code, input->job.code_len, e);
    if (fd < 0) return NULL;
    struct program *p = err_alloc(1, sizeof *p);
    *p = (struct program){
        .task = {.priority = input->job.priority, .share = input->job.share, .begin = on_begin},
        .pool = pool,
        .input = *input,
        .code_fd = fd,
        .done = done,
        .arg = arg,
    };
    p->input.job.code = NULL;
    list_init(&p->task.link);
    p->timer = watch_timer_open(pool_watches(pool), on_timer, p);
    pool_submit(pool, &p->task);
    return p;
}

void program_cancel(struct program *p) {
    p->cancelled = true;
    pool_disown(&p->task);
    switch (p->state) {
    case PROGRAM_QUEUED:
        pool_withdraw(p->pool, &p->task);
        move(p, PROGRAM_OVER);
        destroy(p);
        return;
    case PROGRAM_COMPILING:
        if (p->input.job.suite) suite_forget(p->input.job.suite, p->task.worker);
        end_case(p);
        return;
    case PROGRAM_RUNNING:
    case PROGRAM_CHECKING:
        end_case(p);
        return;
    case PROGRAM_ENDING:
        if (p->process) process_kill(p->process);
        return;
    case PROGRAM_OVER:
        return; /* in its own callback */
    }
}
