/* What an evaluation has found out so far: DIR/candidates.jsonl, one JSON object a line, only ever
 * appended to, so that a run that was killed goes on where it stood.
 *
 *   {"eval": 1, "options": {…}}                          first line: what the results depend on
 *   {"session": N, "n": …}                               a run begins or goes on
 *   {"task", "index", "seed", "temperature", "variant", "tokens", "verdict", "passed", …}
 *                                                        a candidate, when its verdict comes
 *   {"race": TASK, "first", "n", "cut_tokens", …}        a race ended: what its candidates that
 *                                                        were cut off had cost
 *   {"error": TASK, "message"}                           a task that can't be run
 *
 * Each line is one write(2) with its newline at the end.  A kill can leave the last line torn: it
 * is cut off when the file is opened again, and its candidate is made again.  The file is locked
 * while it is open.  Owned by its holder; one thread. */
#ifndef SERVER_EVAL_JOURNAL_H
#define SERVER_EVAL_JOURNAL_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

enum { EVAL_JOURNAL_LINE_BYTES = 64 * 1024 * 1024 };

struct eval_journal {
    char *path; /* owned */
    int fd;     /* owned; -1: closed */
    int sessions;
};

/* Opens or makes DIR (and what is missing above it) and its journal, and tells each line of an
 * earlier run but the first: `line` returns false with an error where it can't be.  `options` must
 * equal those of the earlier run; the error names the first that differs. */
bool eval_journal_open(struct eval_journal *, const char *dir, json_t *options,
                       bool (*line)(void *arg, json_t *, struct err *), void *arg,
                       struct err *e) MUST_CHECK;
/* Tells each line but the first of DIR's journal as it is now, from the beginning again. */
bool eval_journal_again(const struct eval_journal *,
                        bool (*line)(void *arg, json_t *, struct err *), void *arg,
                        struct err *e) MUST_CHECK;
/* Appends the object in `line`, which has no newline; clears it. */
bool eval_journal_append(struct eval_journal *, struct buf *line, struct err *e) MUST_CHECK;
void eval_journal_close(struct eval_journal *);

#endif
