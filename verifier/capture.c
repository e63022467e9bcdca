#include "verifier/capture.h"

#include "base/buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 65536, NOTE_BYTES = 64 };

void capture_init(struct capture *c, size_t keep) { *c = (struct capture){.half = keep / 2}; }

void capture_clear(struct capture *c) {
    free(c->head);
    free(c->tail);
    *c = (struct capture){.half = c->half};
}

void capture_add(struct capture *c, const char *data, size_t len) {
    c->total += len;
    size_t n = c->half - c->head_len < len ? c->half - c->head_len : len;
    if (n) {
        c->head = err_realloc(c->head, c->head_len + n, 1);
        memcpy(c->head + c->head_len, data, n);
        c->head_len += n;
    }
    data += n;
    len -= n;
    if (!len) return;
    if (!c->tail) c->tail = err_alloc(c->half, 1);
    if (len > c->half) {
        data += len - c->half;
        len = c->half;
    }
    size_t first = c->half - c->tail_at < len ? c->half - c->tail_at : len;
    memcpy(c->tail + c->tail_at, data, first);
    memcpy(c->tail, data + first, len - first);
    c->tail_at = (c->tail_at + len) % c->half;
    c->tail_len = c->tail_len + len > c->half ? c->half : c->tail_len + len;
}

bool capture_drain(struct capture *c, int fd) {
    char piece[PIECE];
    for (;;) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        if (n == 0) return false;
        capture_add(c, piece, (size_t)n);
        if (n < (ssize_t)sizeof piece) return true; /* the loop is for others too */
    }
}

char *capture_text(const struct capture *c, size_t *len) {
    struct buf b;
    buf_init(&b, 2 * c->half + NOTE_BYTES);
    buf_append(&b, c->head, c->head_len);
    size_t left_out = c->total - c->head_len - c->tail_len;
    if (left_out) buf_printf(&b, "\n... %zu bytes left out ...\n", left_out);
    size_t start = (c->tail_at + c->half - c->tail_len) % (c->half ? c->half : 1);
    size_t first = c->half - start < c->tail_len ? c->half - start : c->tail_len;
    if (c->tail_len) {
        buf_append(&b, c->tail + start, first);
        buf_append(&b, c->tail, c->tail_len - first);
    }
    return buf_take(&b, len);
}
