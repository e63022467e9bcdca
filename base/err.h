/* The one error type of firstpass.
 *
 * What can fail because of input, the system or the device returns bool (true = done) or a pointer
 * (NULL = not done) and takes `struct err *e` last.  err_set() returns false, so that a failure is
 * one line:
 *
 *     if (n > LIMIT) return err_set(e, ERR_INPUT, "n is %d; the limit is %d", n, LIMIT);
 *
 * A message names the thing and the way out.  `e` may be NULL where the caller doesn't care.
 * A bug is BUG_ON(cond): it stays on in release and aborts with file and line.
 * Any thread; an err has no owner but its holder. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* The kind picks the HTTP status, once, in server/route.c. */
enum err_kind {
    ERR_NONE,
    ERR_INPUT,       /* 400: what the client or the user gave can't be used */
    ERR_AUTH,        /* 401 */
    ERR_NOT_FOUND,   /* 404 */
    ERR_METHOD,      /* 405 */
    ERR_TOO_LARGE,   /* 413 */
    ERR_URI,         /* 414: the request's target is too long */
    ERR_MEDIA,       /* 415 */
    ERR_NONE_PASSED, /* 422 */
    ERR_BUSY,        /* 429: try again later */
    ERR_HEAD,        /* 431: the request's headers are too long */
    ERR_SYSTEM,      /* 500: the system, a device or a helper process failed */
    ERR_UNAVAILABLE, /* 503: loading or draining */
    ERR_DEADLINE,    /* 504: the request's own time limit passed */
    ERR_CANCELLED,   /* nobody waits for the answer any more */
};

struct err {
    enum err_kind kind;
    const char *code;  /* static string for clients, as "context_length_exceeded"; may be NULL */
    char param[64];    /* the request field or option at fault; may be "" */
    char message[512]; /* one sentence or two, no newline at the end */
};

/* All return false. */
bool err_set(struct err *e, enum err_kind kind, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As err_set, for a named request field. */
bool err_param(struct err *e, const char *param, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* As err_set with ERR_SYSTEM; appends the text of `error_number` (an errno value). */
bool err_errno(struct err *e, int error_number, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Puts "context: " before the message already there. */
bool err_prefix(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Sets the code that clients see; keeps kind and message. */
bool err_code(struct err *e, const char *code);

_Noreturn void err_bug(const char *file, int line, const char *what);
#define BUG_ON(cond)                                                                               \
    do {                                                                                           \
        if (__builtin_expect(!!(cond), 0)) err_bug(__FILE__, __LINE__, #cond);                     \
    } while (0)

/* malloc and friends that abort with a message where memory runs out.  Sizes that come from a
 * client or a file must be checked against config/limits.h before they get here. */
void *err_alloc(size_t n, size_t size) __attribute__((returns_nonnull, malloc)); /* zeroed */
void *err_realloc(void *p, size_t n, size_t size) __attribute__((returns_nonnull));
char *err_strdup(const char *s) __attribute__((returns_nonnull, malloc));
char *err_strndup(const char *s, size_t len) __attribute__((returns_nonnull, malloc));

#endif
