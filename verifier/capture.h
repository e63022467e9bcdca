/* What a candidate printed: its head and its tail, with a count of all.  Embedded; LOOP thread. */
#ifndef VERIFIER_CAPTURE_H
#define VERIFIER_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>

struct capture {
    char *head, *tail; /* owned; tail is a ring */
    size_t half;       /* most bytes of each */
    size_t head_len, tail_at, tail_len;
    size_t total;
};

void capture_init(struct capture *, size_t keep);
void capture_clear(struct capture *);
void capture_add(struct capture *, const char *data, size_t len);
/* Reads all that is in the pipe now; false when it has ended. */
bool capture_drain(struct capture *, int fd);
/* Head, a line that says how much is left out, tail; free() it. */
char *capture_text(const struct capture *, size_t *len);

#endif
