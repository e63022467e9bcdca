/* Two texts, the second after the first NUL, as what a program printed and what it should have. */
#include "base/err.h"
#include "verifier/compare.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct text {
    const char *at;
    size_t len;
};

/* On the heap at its very length, so that a sanitizer sees the first byte read behind it. */
static char *exact_copy(struct text t, const char *more) {
    size_t n = strlen(more);
    char *copy = err_alloc(t.len + n + !(t.len + n), 1);
    memcpy(copy, t.at, t.len);
    memcpy(copy + t.len, more, n); /* NOLINT(bugprone-not-null-terminated-result) */
    return copy;
}

static int count_lines(struct text t) {
    int n = 1;
    for (size_t i = 0; i < t.len; i++)
        n += t.at[i] == '\n';
    return n;
}

static bool compare(const struct compare *how, struct text a, struct text b) {
    int line = 0, most = count_lines(a) > count_lines(b) ? count_lines(a) : count_lines(b);
    bool same = compare_output(how, a.at, a.len, b.at, b.len, &line);
    BUG_ON(line < 1 || line > most + 1);
    return same;
}

static void check(const struct compare *how, struct text a, struct text b) {
    bool same = compare(how, a, b);
    BUG_ON(!compare(how, a, a) || !compare(how, b, b));
    if (how->rel_tol <= 0) BUG_ON(compare(how, b, a) != same);
    if (how->exact) BUG_ON(same != (a.len == b.len && !memcmp(a.at, b.at, a.len)));
    if (how->exact) return;
    char *longer = exact_copy(a, " \n\n");
    BUG_ON(compare(how, (struct text){longer, a.len + 3}, b) != same);
    free(longer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct compare ways[] = {
        {0}, {.exact = true}, {.abs_tol = 1e-6}, {.abs_tol = 0.5, .rel_tol = 1e-3}};
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    if (!cut || size > 1 << 16) return 0;
    struct text a = {(const char *)data, (size_t)(cut - data)};
    struct text b = {(const char *)cut + 1, size - a.len - 1};
    char *got = exact_copy(a, ""), *expected = exact_copy(b, "");
    a.at = got;
    b.at = expected;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        check(&ways[i], a, b);
    free(expected);
    free(got);
    return 0;
}
