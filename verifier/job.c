#include "verifier/job.h"

#include "base/clock.h"
#include "config/limits.h"
#include "verifier/capture.h"
#include "verifier/feedback.h"
#include "verifier/judge.h"
#include "verifier/payload.h"
#include "verifier/report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum job_state { JOB_QUEUED, JOB_COMPILING, JOB_RUNNING, JOB_ENDING, JOB_LEAVING, JOB_OVER };

static const double GRACE_S = 5.0; /* for B to report and end after A's end */
enum { MOST_LOSSES = 4 };          /* runs lost with their worker before the verdict is BROKEN */
static const double MOST_STARVED = 10; /* times the wall limit, whatever the machine does */
static const double MIN_TICK_S = 0.02; /* between two looks at the CPU clock */

struct job {
    struct task task;
    enum job_state state;
    struct pool *pool;      /* borrowed */
    struct job_input input; /* code: owned by code_fd */
    int code_fd;            /* owned: the code, as A reads it */
    enum flavour flavour;   /* what the code imports */
    int retries;
    bool cancelled;
    bool again; /* a second time, alone */

    /* one run */
    struct process *a, *b;         /* owned; NULL: none, or b given back */
    bool b_repeatable;             /* may judge others too */
    bool b_waits;                  /* B has reported and is ready for the next run */
    double b_cpu_s;                /* of this run, where it waits */
    struct watch *output, *report; /* owned */
    struct watch_timer *timer;     /* owned */
    struct capture capture;
    struct report *reported; /* owned; where report_status is REPORT_OK */
    enum report_status report_status;
    unsigned char nonce[WIRE_NONCE];
    double began;
    const char *limit; /* static; what the supervisor found first */
    bool sabotaged;    /* the run could not be set up */

    void (*done)(void *arg, const struct job_result *);
    void *arg; /* borrowed */
};

static void move(struct job *j, enum job_state to) {
    static const bool legal[6][6] = {
        [JOB_QUEUED] = {[JOB_COMPILING] = true, [JOB_OVER] = true},
        [JOB_COMPILING] = {[JOB_RUNNING] = true, [JOB_ENDING] = true},
        [JOB_RUNNING] = {[JOB_ENDING] = true},
        [JOB_ENDING] = {[JOB_LEAVING] = true, [JOB_OVER] = true, [JOB_QUEUED] = true}, /* again */
        [JOB_LEAVING] = {[JOB_OVER] = true},
    };
    BUG_ON(!legal[j->state][to]);
    j->state = to;
}

static void destroy(struct job *j) {
    close(j->code_fd);
    free(j->reported);
    free(j);
}

static void clear_run(struct job *j) {
    watch_close(j->output);
    watch_close(j->report);
    watch_timer_close(j->timer);
    j->output = j->report = NULL;
    j->timer = NULL;
    process_free(j->a);
    process_free(j->b);
    j->a = j->b = NULL;
    j->b_waits = false;
    j->b_cpu_s = 0;
    capture_clear(&j->capture);
    free(j->reported);
    j->reported = NULL;
    j->report_status = REPORT_NONE;
    j->limit = NULL;
    j->sabotaged = false;
}

static double wall_limit(const struct job *j) { return 2 * j->input.timeout_s + 2; }
static uint32_t kernel_cpu_limit(const struct job *j) {
    return (uint32_t)ceil(j->input.timeout_s) + 1;
}

/* ---- the end ---- */

/* A word on A's job socket comes from the harness before the job's own descriptors took its place:
 * the candidate never ran. */
static bool never_ran(const struct job *j) {
    char word;
    return j->a && j->a->state == PROCESS_ENDED && j->a->job_fd >= 0 &&
           recv(j->a->job_fd, &word, 1, MSG_DONTWAIT) == 1;
}

static struct judge_process facts_of(const struct process *p, bool never_begun) {
    if (!p || p->state != PROCESS_ENDED) return (struct judge_process){.lost = never_begun};
    return (struct judge_process){
        .lost = p->lost || never_begun,
        .killed = p->killed,
        .status = p->status,
        .cpu_s = p->cpu_s,
    };
}

static bool has_ended(const struct process *p) { return !p || p->state == PROCESS_ENDED; }

/* A is being killed after the tests have come to their end: nothing of its own can change the
 * verdict any more. */
static bool needs_nothing_of_a(const struct job *j) {
    const struct report *r = j->reported;
    return r && (r->kind == WIRE_PASSED || r->kind == WIRE_NOT_PASSED) && !j->limit &&
           !j->cancelled && !j->sabotaged && j->a && j->a->state == PROCESS_STARTED && j->a->killed;
}

static void deliver(struct job *j, const struct judge_verdict *verdict) {
    size_t output_len;
    char *output = capture_text(&j->capture, &output_len);
    struct feedback feedback = {0};
    if (j->reported) feedback_parse(&feedback, j->reported->feedback, j->reported->feedback_len);
    struct job_result result = {
        .kind = verdict->kind,
        .tests_passed = j->reported ? j->reported->passed : 0,
        .tests_total = j->reported ? j->reported->total : 0,
        .cpu_s = (j->a ? j->a->cpu_s : 0) + j->b_cpu_s,
        .wall_s = clock_seconds() - j->began,
        .max_rss_mb = j->a ? j->a->max_rss_mb : 0,
        .error = verdict->error,
        .limit = verdict->limit,
        .output = output,
        .output_len = output_len,
        .tests = feedback.tests,
        .n_tests = feedback.n,
        .retries = j->retries,
        .again = j->again,
    };
    if (has_ended(j->a)) {
        move(j, JOB_OVER);
        /* The worker is free before anybody hears: what they submit then finds it. */
        pool_done(j->pool, &j->task);
        j->done(j->arg, &result);
        clear_run(j);
        destroy(j);
    } else {
        move(j, JOB_LEAVING);
        pool_leave(j->pool, &j->task);
        watch_timer_close(j->timer);
        j->timer = NULL;
        j->input.suite = NULL;
        j->done(j->arg, &result);
    }
    feedback_clear(&feedback);
    free(output);
}

/* B judges the next candidate, or it has ended. */
static void let_go_of_b(struct job *j) {
    if (!j->b) return;
    if (has_ended(j->b)) {
        j->b_cpu_s = j->b->cpu_s - j->b->cpu_before_s;
        process_free(j->b);
        suite_refill(j->input.suite, j->task.worker);
    } else {
        suite_give_back(j->input.suite, j->task.worker, j->b);
    }
    j->b = NULL;
}

/* Others ran beside it, and all that the tests had seen of it by then was right: its time may have
 * been too short because of them. */
static bool deserves_another_run(const struct job *j, enum verdict_kind kind) {
    const struct report *r = j->reported;
    return kind == VERDICT_TIMEOUT && !j->again && j->task.had_company && r && r->passed > 0 &&
           r->passed == r->total;
}

static void run_again(struct job *j, bool lost) {
    move(j, JOB_QUEUED);
    if (lost)
        pool_lost(j->pool, &j->task);
    else
        pool_done(j->pool, &j->task);
    clear_run(j);
    pool_submit(j->pool, &j->task);
}

static void finish_if_over(struct job *j) {
    if (j->state == JOB_LEAVING && has_ended(j->a)) {
        move(j, JOB_OVER);
        pool_done(j->pool, &j->task);
        clear_run(j);
        destroy(j);
        return;
    }
    if (j->state != JOB_ENDING || !(has_ended(j->b) || j->b_waits)) return;
    if (!has_ended(j->a) && !needs_nothing_of_a(j)) return;
    if (j->output) capture_drain(&j->capture, watch_fd(j->output));
    if (j->cancelled) {
        move(j, JOB_OVER);
        pool_done(j->pool, &j->task);
        clear_run(j);
        destroy(j);
        return;
    }
    struct judge_verdict verdict;
    struct judge_facts facts = {
        .a = facts_of(j->a, j->sabotaged || never_ran(j)),
        .b = facts_of(j->b, j->sabotaged),
        .status = j->report_status,
        .report = j->reported,
        .limit = j->limit,
        .cpu_limit_s = kernel_cpu_limit(j),
    };
    judge(&facts, &verdict);
    let_go_of_b(j);
    bool lost = facts.a.lost || facts.b.lost;
    if (verdict.kind == VERDICT_BROKEN && j->retries < (lost ? MOST_LOSSES : 1)) {
        j->retries++;
        run_again(j, lost);
        return;
    }
    if (deserves_another_run(j, verdict.kind)) {
        j->again = j->task.alone = true;
        run_again(j, false);
        return;
    }
    deliver(j, &verdict);
}

static void kill_b(struct job *j) {
    j->b_waits = false;
    if (j->b) process_kill(j->b);
}

/* A first, so that B can still report what it has counted. */
static void end_run(struct job *j) {
    if (j->state == JOB_ENDING) return;
    move(j, JOB_ENDING);
    if (j->reported && j->a && j->a->state == PROCESS_STARTED) process_use(j->a);
    if (j->a) process_kill(j->a);
    if (j->timer) watch_timer_set(j->timer, GRACE_S);
    if (j->cancelled || j->sabotaged) kill_b(j);
    finish_if_over(j);
}

/* ---- events of a run ---- */

/* B waits for the next candidate where it says so: then nothing of this one is left in it. */
static void keep_or_end_b(struct job *j) {
    if (has_ended(j->b) || !j->b_repeatable) return;
    if (!j->reported || j->b->killed) {
        process_kill(j->b);
        return;
    }
    if (!j->reported->again) return; /* it ends by itself */
    double cpu_s, starved_s;
    process_time(j->b, &cpu_s, &starved_s);
    j->b_cpu_s = cpu_s - j->b->cpu_before_s;
    j->b->cpu_before_s = cpu_s;
    j->b->starved_before_s = starved_s;
    j->b_waits = true;
}

static void take_report(struct job *j) {
    if (!j->report) return;
    if (!j->reported) j->reported = err_alloc(1, sizeof *j->reported);
    enum report_status status = report_receive(watch_fd(j->report), j->nonce, j->reported);
    if (status == REPORT_NONE) return;
    watch_close(j->report);
    j->report = NULL;
    j->report_status = status;
    if (status != REPORT_OK) {
        free(j->reported);
        j->reported = NULL;
    }
    keep_or_end_b(j);
}

static void on_report(void *arg) {
    struct job *j = arg;
    take_report(j);
    if (j->report_status == REPORT_NONE) return;
    if (j->state == JOB_ENDING)
        finish_if_over(j);
    else
        end_run(j);
}

static void on_output(void *arg) {
    struct job *j = arg;
    bool more = capture_drain(&j->capture, watch_fd(j->output));
    if (!more) {
        watch_close(j->output);
        j->output = NULL;
    }
    if (j->capture.total > LIMIT_OUTPUT_BYTES && j->state == JOB_RUNNING &&
        j->report_status == REPORT_NONE) {
        j->limit = "output";
        end_run(j);
    }
}

static void on_a_ended(void *arg) {
    struct job *j = arg;
    if (j->state == JOB_RUNNING)
        end_run(j);
    else
        finish_if_over(j);
}

static void on_b_ended(void *arg) {
    struct job *j = arg;
    take_report(j); /* it may lie in the socket still */
    if (j->state == JOB_RUNNING)
        end_run(j);
    else
        finish_if_over(j);
}

static void on_timer(void *arg) {
    struct job *j = arg;
    if (j->state == JOB_ENDING) { /* B had its time to report */
        if (!j->b_waits) kill_b(j);
        return;
    }
    double a, b, a_starved, b_starved;
    process_time(j->a, &a, &a_starved);
    process_time(j->b, &b, &b_starved);
    b -= j->b->cpu_before_s;
    b_starved -= j->b->starved_before_s;
    double used = a + b, wall = clock_seconds() - j->began;
    /* Time in which it waited for a core is the machine's fault, up to a point. */
    if (wall < MOST_STARVED * wall_limit(j)) wall -= a_starved + b_starved;
    if (used >= j->input.timeout_s)
        j->limit = "cpu_time";
    else if (wall >= wall_limit(j))
        j->limit = "wall_time";
    if (j->limit) {
        end_run(j);
        return;
    }
    double next = j->input.timeout_s - used;
    if (next > wall_limit(j) - wall) next = wall_limit(j) - wall;
    watch_timer_set(j->timer, next < MIN_TICK_S ? MIN_TICK_S : next);
}

/* ---- the beginning ---- */

static bool give_a(struct job *j, int call, int output, struct worker *w) {
    struct wire_job job = {
        .address_space = pool_address_space(w, j->input.memory_mb),
        .seed = j->input.seed,
        .cpu_s = kernel_cpu_limit(j),
        .flags = j->flavour ? WIRE_NUMPY : 0,
    };
    return process_give(j->a, &job, (int[]){j->code_fd, call, output}, 3);
}

static bool give_b(struct job *j, int call, struct worker *w) {
    struct wire_job job = {
        .address_space = pool_address_space(w, j->input.memory_mb),
        .seed = j->input.seed,
        .cpu_s = kernel_cpu_limit(j) * (j->b_repeatable ? SUITE_RUNS : 1) +
                 (j->b_repeatable ? SUITE_COMPILE_S : 0),
    };
    report_draw_nonce(j->nonce);
    memcpy(job.nonce, j->nonce, WIRE_NONCE);
    j->b->runs++;
    return process_give(j->b, &job, &call, 1);
}

static bool set_up(struct job *j, struct worker *w) {
    int call[2] = {-1, -1}, output[2] = {-1, -1};
    j->b_repeatable = suite_is_repeatable(j->input.suite, w);
    j->a = pool_candidate(w, j->flavour, on_a_ended, j);
    j->b = suite_take(j->input.suite, w, on_b_ended, j);
    bool ok = j->a && j->b && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, call) &&
              !pipe2(output, O_CLOEXEC) && give_a(j, call[0], output[1], w) &&
              give_b(j, call[1], w);
    if (output[0] >= 0) j->output = watch_open(pool_watches(j->pool), output[0], on_output, j);
    /* Its own copy: the socket stays B's for the next run. */
    int report = j->b ? fcntl(j->b->job_fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (report >= 0) j->report = watch_open(pool_watches(j->pool), report, on_report, j);
    for (int i = 0; i < 2; i++)
        if (call[i] >= 0) close(call[i]);
    if (output[1] >= 0) close(output[1]);
    return ok && report >= 0;
}

static void on_suite(void *arg, enum holder_state state, const char *text) {
    (void)text;
    struct job *j = arg;
    j->began = clock_seconds();
    if (j->cancelled || state != HOLDER_READY) {
        /* It compiled once, when the tests were opened: not the candidate's fault. */
        j->sabotaged = true;
        end_run(j);
        return;
    }
    move(j, JOB_RUNNING);
    j->timer = watch_timer_open(pool_watches(j->pool), on_timer, j);
    if (!set_up(j, j->task.worker)) {
        j->sabotaged = true;
        end_run(j);
        return;
    }
    watch_timer_set(j->timer, j->input.timeout_s);
}

static void on_begin(struct task *task, struct worker *w) {
    struct job *j = LIST_ITEM(task, struct job, task);
    move(j, JOB_COMPILING);
    suite_want(j->input.suite, w, on_suite, j);
}

static bool is_at_home(struct task *task, const struct worker *w) {
    return suite_is_ready(LIST_ITEM(task, struct job, task)->input.suite, w);
}

struct job *job_start(struct pool *pool, const struct job_input *input,
                      void (*done)(void *arg, const struct job_result *), void *arg,
                      struct err *e) {
    int fd = payload_memfd("code", input->code, input->code_len, e);
    if (fd < 0) return NULL;
    struct job *j = err_alloc(1, sizeof *j);
    *j = (struct job){
        .task = {.priority = input->priority,
                 .share = input->share,
                 .begin = on_begin,
                 .is_at_home = is_at_home},
        .pool = pool,
        .input = *input,
        .code_fd = fd,
        .flavour = flavour_of(input->code, input->code_len),
        .done = done,
        .arg = arg,
    };
    j->input.code = NULL;
    list_init(&j->task.link);
    capture_init(&j->capture, LIMIT_OUTPUT_KEPT);
    pool_submit(pool, &j->task);
    return j;
}

void job_cancel(struct job *j) {
    j->cancelled = true;
    pool_disown(&j->task);
    switch (j->state) {
    case JOB_QUEUED:
        pool_withdraw(j->pool, &j->task);
        move(j, JOB_OVER);
        destroy(j);
        return;
    case JOB_COMPILING:
        suite_forget(j->input.suite, j->task.worker);
        j->sabotaged = true;
        end_run(j);
        return;
    case JOB_RUNNING:
        end_run(j);
        return;
    case JOB_ENDING:
        kill_b(j);
        return;
    case JOB_LEAVING:
    case JOB_OVER:
        return; /* in its own callback */
    }
}
