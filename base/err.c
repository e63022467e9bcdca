#include "base/err.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The caller checks the format. */
__attribute__((format(printf, 3, 0))) static void write_message(struct err *e, enum err_kind kind,
                                                                const char *fmt, va_list args) {
    e->kind = kind;
    e->code = NULL;
    e->param[0] = 0;
    vsnprintf(e->message, sizeof e->message, fmt, args);
}

bool err_set(struct err *e, enum err_kind kind, const char *fmt, ...) {
    if (!e) return false;
    va_list args;
    va_start(args, fmt);
    write_message(e, kind, fmt, args);
    va_end(args);
    return false;
}

bool err_param(struct err *e, const char *param, const char *fmt, ...) {
    if (!e) return false;
    va_list args;
    va_start(args, fmt);
    write_message(e, ERR_INPUT, fmt, args);
    va_end(args);
    snprintf(e->param, sizeof e->param, "%s", param);
    return false;
}

bool err_errno(struct err *e, int error_number, const char *fmt, ...) {
    if (!e) return false;
    va_list args;
    va_start(args, fmt);
    write_message(e, ERR_SYSTEM, fmt, args);
    va_end(args);
    size_t used = strlen(e->message);
    char text[128];
    /* The GNU strerror_r returns its text, which may or may not lie in the buffer. */
    snprintf(e->message + used, sizeof e->message - used, ": %s",
             strerror_r(error_number, text, sizeof text));
    return false;
}

bool err_prefix(struct err *e, const char *fmt, ...) {
    if (!e) return false;
    char prefix[sizeof e->message];
    char old[sizeof e->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    memcpy(old, e->message, sizeof old);
    size_t used = (size_t)snprintf(e->message, sizeof e->message, "%s: ", prefix);
    if (used < sizeof e->message) {
        size_t room = sizeof e->message - used;
        size_t len = strnlen(old, room - 1);
        memcpy(e->message + used, old, len);
        e->message[used + len] = 0;
    }
    return false;
}

bool err_code(struct err *e, const char *code) {
    if (e) e->code = code;
    return false;
}

void err_bug(const char *file, int line, const char *what) {
    fprintf(stderr, "firstpass: bug at %s:%d: %s\n", file, line, what);
    abort();
}

static _Noreturn void out_of_memory(size_t bytes) {
    fprintf(stderr, "firstpass: out of memory asking for %zu bytes\n", bytes);
    abort();
}

void *err_alloc(size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) out_of_memory(SIZE_MAX);
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

void *err_realloc(void *p, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) out_of_memory(SIZE_MAX);
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) out_of_memory(bytes);
    return q;
}

char *err_strndup(const char *s, size_t len) {
    char *copy = err_alloc(len + 1, 1);
    memcpy(copy, s, len);
    copy[len] = 0;
    return copy;
}

char *err_strdup(const char *s) { return err_strndup(s, strlen(s)); }
