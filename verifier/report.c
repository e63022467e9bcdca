#include "verifier/report.h"

#include "base/err.h"
#include "verifier/message.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

void report_draw_nonce(unsigned char nonce[WIRE_NONCE]) {
    BUG_ON(getrandom(nonce, WIRE_NONCE, 0) != WIRE_NONCE);
}

static bool is_kind(uint32_t kind) {
    static const char kinds[] = {WIRE_PASSED,   WIRE_NOT_PASSED, WIRE_GONE,   WIRE_TAMPERED,
                                 WIRE_PREPARED, WIRE_REFUSED,    WIRE_MISSING};
    return kind < 128 && memchr(kinds, (int)kind, sizeof kinds);
}

enum report_status report_receive(int fd, const unsigned char nonce[WIRE_NONCE],
                                  struct report *out) {
    union {
        struct wire_report report;
        char bytes[sizeof(struct wire_report) + WIRE_REPORT_TEXT + WIRE_REPORT_FEEDBACK];
    } message;
    int fds[MESSAGE_FDS], n_fds;
    ssize_t n = message_receive(fd, &message, sizeof message, fds, &n_fds);
    if (n < 0 && errno == EAGAIN) return REPORT_NONE;
    for (int i = 0; i < n_fds; i++)
        close(fds[i]);
    if (n <= 1) return REPORT_END; /* one byte: it could not enter its box */
    const struct wire_report *r = &message.report;
    if (n < (ssize_t)sizeof *r || r->text_len > WIRE_REPORT_TEXT ||
        r->feedback_len > WIRE_REPORT_FEEDBACK ||
        (size_t)n != sizeof *r + r->text_len + r->feedback_len || !is_kind(r->kind) ||
        memcmp(r->nonce, nonce, WIRE_NONCE) != 0 || r->passed > r->total || r->total > INT32_MAX)
        return REPORT_WRONG;
    out->kind = (enum wire_report_kind)r->kind;
    out->passed = (int)r->passed;
    out->total = (int)r->total;
    out->again = r->again != 0;
    memcpy(out->limit, r->limit, sizeof out->limit);
    out->limit[sizeof out->limit - 1] = 0;
    memcpy(out->text, r->text, r->text_len);
    out->text[r->text_len] = 0;
    memcpy(out->feedback, r->text + r->text_len, r->feedback_len);
    out->feedback[r->feedback_len] = 0;
    out->feedback_len = r->feedback_len;
    return REPORT_OK;
}
