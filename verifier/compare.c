#include "verifier/compare.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 400 }; /* of a number that is read as a double */
static const int64_t MOST_EXPONENT = 1000000000;

struct text {
    const char *at;
    size_t len;
};

static bool is_blank(char c) { return isspace((unsigned char)c); }

static struct text trimmed(struct text t) {
    while (t.len && is_blank(t.at[t.len - 1]))
        t.len--;
    return t;
}

/* Takes the next line off `rest`, without its end; false where nothing is left. */
static bool next_line(struct text *rest, struct text *line) {
    if (!rest->len) return false;
    const char *end = memchr(rest->at, '\n', rest->len);
    size_t len = end ? (size_t)(end - rest->at) : rest->len;
    *line = trimmed((struct text){rest->at, len});
    rest->at += end ? len + 1 : len;
    rest->len -= end ? len + 1 : len;
    return true;
}

static bool next_word(struct text *rest, struct text *word) {
    while (rest->len && is_blank(*rest->at)) {
        rest->at++;
        rest->len--;
    }
    *word = (struct text){rest->at, 0};
    while (rest->len && !is_blank(*rest->at)) {
        rest->at++;
        rest->len--;
        word->len++;
    }
    return word->len > 0;
}

/* ---- numbers ---- */

/* A decimal as its significant digits, a point among them skipped, and the power of ten of the
 * first. */
struct decimal {
    bool negative;
    const char *digits;
    size_t len; /* of the text from the first significant digit to the last; 0: zero */
    int64_t exponent;
};

static bool parse_exponent(struct text t, int64_t *out) {
    bool negative = t.len && *t.at == '-';
    if (t.len && (*t.at == '-' || *t.at == '+')) t = (struct text){t.at + 1, t.len - 1};
    if (!t.len) return false;
    int64_t value = 0;
    for (size_t i = 0; i < t.len; i++) {
        if (!isdigit((unsigned char)t.at[i])) return false;
        if (value < MOST_EXPONENT) value = 10 * value + (t.at[i] - '0');
    }
    *out = negative ? -value : value;
    return true;
}

static bool parse_decimal(struct text t, struct decimal *out) {
    *out = (struct decimal){.negative = t.len && *t.at == '-'};
    if (t.len && (*t.at == '-' || *t.at == '+')) t = (struct text){t.at + 1, t.len - 1};
    size_t end = 0, n_digits = 0, first = 0, last = 0;
    bool point = false, significant = false;
    int64_t before_point = 0, first_at = 0;
    for (; end < t.len; end++) {
        char c = t.at[end];
        if (c == '.' && !point) {
            point = true;
            continue;
        }
        if (!isdigit((unsigned char)c)) break;
        if (c != '0') {
            if (!significant) {
                first = end;
                first_at = (int64_t)n_digits;
                significant = true;
            }
            last = end;
        }
        n_digits++;
        before_point += !point;
    }
    int64_t exponent = 0;
    if (!n_digits) return false;
    if (end < t.len) {
        if (t.at[end] != 'e' && t.at[end] != 'E') return false;
        if (!parse_exponent((struct text){t.at + end + 1, t.len - end - 1}, &exponent))
            return false;
    }
    if (!significant) return true;
    out->digits = t.at + first;
    out->len = last - first + 1;
    out->exponent = before_point - first_at + exponent;
    return true;
}

static bool equal_decimals(const struct decimal *a, const struct decimal *b) {
    if (!a->len || !b->len) return a->len == b->len;
    if (a->negative != b->negative || a->exponent != b->exponent) return false;
    size_t i = 0, k = 0;
    while (i < a->len && k < b->len) {
        if (a->digits[i] == '.') {
            i++;
        } else if (b->digits[k] == '.') {
            k++;
        } else if (a->digits[i++] != b->digits[k++]) {
            return false;
        }
    }
    return i == a->len && k == b->len;
}

static bool as_double(struct text t, double *out) {
    char copy[MOST_DIGITS + 1];
    if (t.len > MOST_DIGITS) return false;
    memcpy(copy, t.at, t.len);
    copy[t.len] = 0;
    *out = strtod(copy, NULL);
    return isfinite(*out);
}

static bool equal_words(const struct compare *how, struct text got, struct text expected) {
    if (got.len == expected.len && !memcmp(got.at, expected.at, got.len)) return true;
    struct decimal a, b;
    if (!parse_decimal(got, &a) || !parse_decimal(expected, &b)) return false;
    if (equal_decimals(&a, &b)) return true;
    double x, y;
    if (how->abs_tol <= 0 && how->rel_tol <= 0) return false;
    if (!as_double(got, &x) || !as_double(expected, &y)) return false;
    return fabs(x - y) <= fmax(how->abs_tol, how->rel_tol * fabs(y));
}

static bool equal_lines(const struct compare *how, struct text got, struct text expected) {
    if (got.len == expected.len && !memcmp(got.at, expected.at, got.len)) return true;
    struct text a, b;
    for (;;) {
        bool more_a = next_word(&got, &a), more_b = next_word(&expected, &b);
        if (more_a != more_b) return false;
        if (!more_a) return true;
        if (!equal_words(how, a, b)) return false;
    }
}

bool compare_output(const struct compare *how, const char *got, size_t got_len,
                    const char *expected, size_t expected_len, int *line) {
    struct text a = {got, got_len}, b = {expected, expected_len}, x, y;
    bool same_bytes = got_len == expected_len && !memcmp(got, expected, got_len);
    *line = 1;
    if (same_bytes) return true;
    if (!how->exact) {
        a = trimmed(a);
        b = trimmed(b);
    }
    for (;; ++*line) {
        bool more_a = next_line(&a, &x), more_b = next_line(&b, &y);
        if (!more_a && !more_b) return !how->exact;
        if (more_a != more_b || !equal_lines(how, x, y)) return false;
    }
}
