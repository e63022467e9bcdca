/* Tests of whole programs: what they read and what they must print.
 *
 * Known shapes (JSON): a list of {"input", "output", "name"?, "hidden"?}; an object with such a
 * list as "cases"; {"inputs": […], "outputs": […]} as APPS has it; {"public_test_cases",
 * "private_test_cases"} as LiveCodeBench has it, where the private ones are hidden.  An object may
 * also have "compare": "tokens" or "exact", "abs_tol", "rel_tol" and "checker", a Python function
 * check(input, output, expected) that judges instead of the comparison.  Cases of functions
 * ("fn_name", testtype "functional") are not read here: inside/cases.py has them.  Pure. */
#ifndef VERIFIER_CASES_H
#define VERIFIER_CASES_H

#include "base/err.h"
#include "verifier/compare.h"
#include "verifier/verifier.h"

struct cases_item {
    char *input, *expected, *name; /* owned; name: "case 3" where none is given */
    size_t input_len, expected_len;
    bool hidden; /* nothing of its values is told */
};
struct cases {
    bool functional; /* they call a function: nothing else is set */
    struct cases_item *items;
    int n;
    struct compare compare;
    char *checker; /* owned; NULL: none */
};

bool cases_read(enum verifier_format, const char *text, size_t len, struct cases *out,
                struct err *e) MUST_CHECK;
void cases_clear(struct cases *);

#endif
