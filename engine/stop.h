/* When a candidate's text ends: stop strings, and the end of code at the closing fence; and how
 * much of the text may be shown already.  One `struct stop` for each candidate, fed with the bytes
 * of each token in order.
 *
 * Held back from showing: an incomplete UTF-8 sequence, and a tail that may yet become a stop
 * string. Bytes that can never be UTF-8 are replaced by U+FFFD in what is shown and in the final
 * text.
 *
 * End of code: the output opened a fenced block (CommonMark: up to three spaces, at least three `
 * or ~; an info string that is empty or names python/py/python3/py3/pycon is none of "text",
 * "bash", …: see stop.c) and a line closes it with the same character, at least as many.  The
 * candidate ends right after the closing fence; the fence stays in the text.  A block in another
 * language is passed over. The fence is only known to be closed at the newline after it or at any
 * byte that can't continue it, so that "```" followed by
 * "`" isn't taken for one; the end of generation also closes.
 *
 * ENGINE thread; embedded; init / clear. */
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
    size_t scanned;
    struct {
        char fence; /* '`', '~' or 0: not inside a block */
        int fence_len;
        bool python;
        bool seen_python;
        size_t line; /* where the current line starts */
    } code;
};

void stop_init(struct stop *, const struct stop_rules *);
void stop_clear(struct stop *);
/* Adds one token's bytes.  True where the text has ended: `text` is then cut at the end. */
bool stop_feed(struct stop *, const char *bytes, size_t len);
/* No more tokens: turns an incomplete tail into U+FFFD. */
void stop_finish(struct stop *);
/* The text that may be shown and hasn't been (all of it after the end); borrowed until the next
 * call. */
const char *stop_show(struct stop *, size_t *len);

#endif
