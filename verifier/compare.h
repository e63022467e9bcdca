/* What a program printed against what it should have.  Pure.
 *
 * As judges of programming contests do: white space at the ends of lines and empty lines at the end
 * don't count, lines must be as many, and within a line the words must be equal one by one; words
 * that are numbers are equal as decimals ("1.0" is "1"), or within a tolerance where one is given.
 * Never as sets: that accepts wrong orders. */
#ifndef VERIFIER_COMPARE_H
#define VERIFIER_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

struct compare {
    bool exact;              /* byte by byte */
    double abs_tol, rel_tol; /* 0: numbers must be equal */
};

/* Where they differ *line is the first such line, from 1. */
bool compare_output(const struct compare *, const char *got, size_t got_len, const char *expected,
                    size_t expected_len, int *line);

#endif
