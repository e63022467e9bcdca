#include "verifier/judge.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static void say(struct judge_verdict *v, enum verdict_kind kind, const char *limit,
                const char *error) {
    v->kind = kind;
    v->limit = limit;
    snprintf(v->error, sizeof v->error, "%.*s", (int)sizeof v->error - 1, error);
    for (char *c = v->error; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
}

static void say_limit(struct judge_verdict *v, const char *limit) {
    if (!strcmp(limit, "cpu_time"))
        say(v, VERDICT_TIMEOUT, "cpu_time", "the CPU time limit was reached");
    else if (!strcmp(limit, "wall_time"))
        say(v, VERDICT_TIMEOUT, "wall_time", "the wall clock limit was reached");
    else
        say(v, VERDICT_OUTPUT_LIMIT, "output", "it printed more than the limit");
}

/* The names that the box's own code may report. */
static const char *known_limit(const char *name) {
    static const char *const names[] = {"memory", "files", "file_size", "processes"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i])) return names[i];
    return NULL;
}

/* A process that ended on its own without the work being done. */
static void judge_end(const struct judge_process *p, double cpu_limit_s, struct judge_verdict *v) {
    char text[128];
    bool used_up = p->cpu_s >= cpu_limit_s - 0.5;
    /* A kill that came after its own end changed nothing: the status tells. */
    if (p->killed && !used_up && WIFSIGNALED(p->status) && WTERMSIG(p->status) == SIGKILL) {
        say(v, VERDICT_FAILED, NULL, "the program closed its connection to the tests");
    } else if (WIFSIGNALED(p->status)) {
        int number = WTERMSIG(p->status);
        if (number == SIGXCPU || (number == SIGKILL && used_up)) {
            say_limit(v, "cpu_time");
        } else if (number == SIGKILL) {
            say(v, VERDICT_MEMORY, "memory", "the kernel killed the program: out of memory");
        } else if (number == SIGXFSZ) {
            say(v, VERDICT_FAILED, "file_size", "the file size limit was reached");
        } else {
            snprintf(text, sizeof text, "the program was ended by signal %d (%s)", number,
                     strsignal(number));
            say(v, VERDICT_CRASHED, NULL, text);
        }
    } else {
        snprintf(text, sizeof text, "the program exited (status %d) before the tests had ended",
                 WEXITSTATUS(p->status));
        say(v, VERDICT_FAILED, NULL, text);
    }
}

static void judge_report(const struct judge_facts *f, struct judge_verdict *v) {
    const struct report *r = f->report;
    bool b_clean = WIFEXITED(f->b.status) && WEXITSTATUS(f->b.status) == 0;
    bool a_signalled =
        WIFSIGNALED(f->a.status) && !(f->a.killed && WTERMSIG(f->a.status) == SIGKILL);
    switch (r->kind) {
    case WIRE_PASSED:
        if (!b_clean || r->total < 1 || r->passed != r->total)
            say(v, VERDICT_BROKEN, NULL, "the tests' process did not end cleanly");
        else
            say(v, VERDICT_PASSED, NULL, "");
        return;
    case WIRE_NOT_PASSED:
        v->limit = known_limit(r->limit);
        say(v, v->limit && !strcmp(v->limit, "memory") ? VERDICT_MEMORY : VERDICT_FAILED, v->limit,
            r->text);
        return;
    case WIRE_GONE:
        judge_end(&f->a, f->cpu_limit_s, v);
        return;
    case WIRE_TAMPERED:
        /* Killed in the middle of an answer it leaves half a frame. */
        if (a_signalled)
            judge_end(&f->a, f->cpu_limit_s, v);
        else
            say(v, VERDICT_FORGED, NULL, "the program tried to speak for the tests");
        return;
    case WIRE_PREPARED:
    case WIRE_REFUSED:
    case WIRE_MISSING:
        break;
    }
    say(v, VERDICT_BROKEN, NULL, "the tests' process sent a report out of place");
}

void judge(const struct judge_facts *f, struct judge_verdict *v) {
    *v = (struct judge_verdict){0};
    if (f->limit) {
        say_limit(v, f->limit);
    } else if (f->a.lost || f->b.lost) {
        say(v, VERDICT_BROKEN, NULL, "a process of the sandbox was lost");
    } else if (f->status == REPORT_OK) {
        judge_report(f, v);
    } else if (f->status == REPORT_WRONG) {
        say(v, VERDICT_FORGED, NULL, "a report without the secret of this run");
    } else if (f->b.killed) { /* it had its time to report after A's end */
        judge_end(&f->a, f->cpu_limit_s, v);
    } else if (WIFSIGNALED(f->b.status)) {
        int number = WTERMSIG(f->b.status);
        if (number == SIGXCPU || number == SIGKILL)
            say_limit(v, "cpu_time");
        else
            say(v, VERDICT_BROKEN, NULL, "the tests' process crashed");
    } else if (WIFEXITED(f->b.status) && WEXITSTATUS(f->b.status) == 0) {
        say(v, VERDICT_FAILED, NULL, "the tests ended their own process before they were done");
    } else {
        say(v, VERDICT_BROKEN, NULL, "the tests' process ended without a report");
    }
}

void judge_program(const struct judge_process *p, const char *limit, double cpu_limit_s,
                   const char *last_words, struct judge_verdict *v) {
    char text[400];
    *v = (struct judge_verdict){0};
    if (limit) {
        say_limit(v, limit);
    } else if (p->lost) {
        say(v, VERDICT_BROKEN, NULL, "a process of the sandbox was lost");
    } else if (WIFSIGNALED(p->status)) {
        judge_end(p, cpu_limit_s, v);
    } else if (WEXITSTATUS(p->status) == 0) {
        say(v, VERDICT_PASSED, NULL, "");
    } else if (!strncmp(last_words, "MemoryError", 11)) {
        say(v, VERDICT_MEMORY, "memory", "MemoryError");
    } else {
        snprintf(text, sizeof text, "%.300s%s(the program's exit status is %d)", last_words,
                 *last_words ? " " : "", WEXITSTATUS(p->status));
        say(v, VERDICT_FAILED, NULL, text);
    }
}
