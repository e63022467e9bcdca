/* From what a model wrote to the code in it.  Pure; any thread.  It runs on the LOOP for texts that
 * anybody may send: every pass over lines is of order n log n, whatever they are.
 *
 * The rules, in order:
 *   1. Everything up to the last "</think>" is dropped; after an unclosed "<think>" nothing is an
 * answer.
 *   2. Fences as in CommonMark: three or more ` or ~, closed by at least as many of the same,
 * indented or not, unclosed = to the end.  Tags python, py, python3, py3 and none are code, others
 * are not.
 *   3. `fenced` tries: the last block that defines an entry point, the last block, all blocks
 * joined.
 *   4. `raw` is the whole text.  `continuation` continues the prompt up to the first line at column
 * 0 that can't belong to it, or stands alone where it repeats the signature; where that is nothing,
 * the fences are tried.
 *   5. `auto` is continuation where the text starts like the inside of a function and a prompt is
 * there, fenced where there is a fence, else continuation (with a prompt) and raw.
 *   6. Where a prompt is given, a block gets the imports and helpers before its last signature,
 * unless it has them itself; a block that holds the inside of the function only gets the whole
 * prompt.
 *   7. Cut by the token limit: a last try without the unfinished last statement. */
#ifndef VERIFIER_EXTRACT_H
#define VERIFIER_EXTRACT_H

#include "verifier/verifier.h"

enum { EXTRACT_TRIES = 3 };

struct extract_input {
    enum verifier_extract how;
    const char *text;
    size_t text_len;
    const char *prompt; /* or NULL */
    size_t prompt_len;
    const char *const *names; /* entry points, in strcmp's order; may be none */
    int n_names;
    bool cut_by_length;
};
struct extract_try {
    char *code; /* owned */
    size_t len;
    const char *method; /* static: "fenced", "raw", "continuation" */
};
struct extract_result {
    struct extract_try tries[EXTRACT_TRIES]; /* distinct, likeliest first */
    int n;
};

void extract_code(const struct extract_input *, struct extract_result *out);
void extract_clear(struct extract_result *);

#endif
