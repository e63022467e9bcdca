/* The one message that a child may send back, checked.  LOOP thread. */
#ifndef VERIFIER_REPORT_H
#define VERIFIER_REPORT_H

#include "verifier/wire.h"

#include <stdbool.h>
#include <stddef.h>

enum report_status {
    REPORT_NONE,  /* nothing there yet */
    REPORT_END,   /* the socket ended, or a word said that there will be no run: see wire.h */
    REPORT_WRONG, /* malformed, or without the nonce */
    REPORT_OK,
};
struct report {
    enum wire_report_kind kind;
    int passed, total;
    bool again;
    char limit[16];
    char text[WIRE_REPORT_TEXT + 1];         /* NUL-terminated */
    char feedback[WIRE_REPORT_FEEDBACK + 1]; /* NUL-terminated; "": none */
    size_t feedback_len;
};

/* Draws a nonce that nobody can guess. */
void report_draw_nonce(unsigned char nonce[WIRE_NONCE]);
enum report_status report_receive(int fd, const unsigned char nonce[WIRE_NONCE],
                                  struct report *out);

#endif
