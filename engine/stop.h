/* When a candidate's text ends: stop strings, and the end of code at the closing fence; and how
 * much of the text may be shown already.  One `struct stop` for each candidate, fed with the bytes
 * of each token in order; how the bytes are cut into tokens makes no difference.
 *
 * Bytes that can never be UTF-8 become U+FFFD, one for each maximal part of a sequence as Unicode
 * advises (so the text is what Python's errors="replace" gives).  Stop strings are looked for in
 * that text; the one that is complete first counts, and of those complete at once the longest.
 *
 * End of code: the output opened a fenced block as CommonMark has it (up to three spaces, at least
 * three ` or ~, an info string) whose language is none or python, py, python3 or py3, whatever the
 * case; lines that aren't blank followed; and a line closes it: up to three spaces, the same
 * character at least as often, nothing but white space behind.  This is known at the newline, or at
 * the end of generation.  The text then ends right after the closing fence.  Blocks in another
 * language and empty ones are passed over.
 *
 * Held back from showing: an incomplete UTF-8 sequence, a tail that may yet become a stop string,
 * and white space behind what may be the closing fence.
 *
 * ENGINE thread; embedded; init / clear.  All memory is in `text`, so that a copy of the struct
 * with a copy of the text is a copy. */
#ifndef ENGINE_STOP_H
#define ENGINE_STOP_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* What ends a job's candidates; shared by them, borrowed by each struct stop. */
struct stop_rules {
    const char *const *strings;
    const size_t *lens; /* each >= 1 */
    int n;
    bool include; /* keep the stop string in the text */
    bool code_end;
};
enum stop_why { STOP_NOT, STOP_STRING, STOP_CODE_END };

struct stop {
    const struct stop_rules *rules; /* borrowed */
    struct buf text; /* owned: all text so far, valid UTF-8 but for an incomplete tail */
    size_t shown;    /* bytes of text that stop_show() has given */
    enum stop_why why;
    int which; /* index of the stop string */
    /* the rest is stop.c's own */
    size_t lead;    /* bytes of text in which no stop string is looked for */
    size_t scanned; /* bytes of text that have been looked at, whole characters */
    bool finished;
    struct {
        char fence; /* '`', '~' or 0: not inside a block */
        size_t fence_len;
        bool python;
        bool has_code; /* a line that isn't blank */
        size_t line;   /* where the current line starts */
    } code;
};

void stop_init(struct stop *, const struct stop_rules *);
void stop_clear(struct stop *);
/* Before the first token: what the text begins with, in UTF-8. A block of code may be open behind
 * it; nothing in it ends the text. */
void stop_lead(struct stop *, const char *text, size_t len);
/* Adds one token's bytes.  True where the text has ended: `text` is then cut at the end. */
bool stop_feed(struct stop *, const char *bytes, size_t len);
/* No more tokens: turns an incomplete tail into U+FFFD, holds nothing back any more. */
void stop_finish(struct stop *);
/* The text that may be shown and hasn't been (all of it after the end); borrowed until the next
 * call. */
const char *stop_show(struct stop *, size_t *len);

#endif
