/* From what is known of two ended processes to a verdict.  Pure. */
#ifndef VERIFIER_JUDGE_H
#define VERIFIER_JUDGE_H

#include "verifier/report.h"
#include "verifier/verifier.h"

/* How a process ended. */
struct judge_process {
    bool lost;   /* nobody knows */
    bool killed; /* by the supervisor */
    int status;  /* as of waitpid */
    double cpu_s;
};
struct judge_facts {
    struct judge_process a, b;
    enum report_status status;
    const struct report *report; /* where status is REPORT_OK */
    const char *limit;  /* the supervisor's own finding before any report, or NULL: "cpu_time",
                           "wall_time", "output" */
    double cpu_limit_s; /* of one process, by the kernel's count */
};
struct judge_verdict {
    enum verdict_kind kind;
    const char *limit; /* static or NULL */
    char error[700];
};

void judge(const struct judge_facts *f, struct judge_verdict *v);
/* A program with a standard input: PASSED where it ended well, its output is compared elsewhere.
 * last_words: the last line of its standard error. */
void judge_program(const struct judge_process *, const char *limit, double cpu_limit_s,
                   const char *last_words, struct judge_verdict *v);

#endif
