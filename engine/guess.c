#include "engine/guess.h"

#include <stdbool.h>

enum { SHORTEST = 3 }; /* tokens in common: two are often so by accident */

static int32_t history_at(const struct guess_texts *t, int i) {
    return i < t->n_prompt ? t->prompt[i] : t->text[i - t->n_prompt];
}

/* A place to copy from: the token at `at` of the history or of the siblings' texts, and how many
 * tokens before it equal those before the history's end. */
struct place {
    bool of_siblings;
    int at, common;
};

static int32_t token_at(const struct guess_texts *t, const struct place *p, int at) {
    return p->of_siblings ? t->siblings[at] : history_at(t, at);
}

/* Looks at one text's places, the latest first, for more in common than `best` has. */
static void search(const struct guess_texts *t, bool of_siblings, int n, struct place *best) {
    int end = t->n_prompt + t->n_text;
    if (!end) return;
    int32_t last = history_at(t, end - 1);
    int window = of_siblings ? GUESS_SIBLINGS : GUESS_HISTORY;
    int first = n > window ? n - window : 1;
    for (int at = n - 1; at >= first && best->common < GUESS_MOST; at--) {
        struct place p = {.of_siblings = of_siblings, .at = at, .common = 1};
        if (token_at(t, &p, at - 1) != last) continue;
        while (p.common < at && p.common < end && p.common < GUESS_MOST &&
               token_at(t, &p, at - 1 - p.common) == history_at(t, end - 1 - p.common))
            p.common++;
        if (p.common > best->common) *best = p;
    }
}

int guess_next(const struct guess_texts *t, int most, int32_t *out) {
    struct place best = {0};
    search(t, false, t->n_prompt + t->n_text, &best);
    search(t, true, t->n_siblings, &best);
    if (best.common < SHORTEST) return 0;
    int n = best.of_siblings ? t->n_siblings : t->n_prompt + t->n_text;
    int count = best.common < most ? best.common : most;
    if (best.of_siblings && count > n - best.at) count = n - best.at;
    /* Past the history's end a repetition goes on as it began. */
    for (int i = 0; i < count; i++)
        out[i] = best.at + i < n ? token_at(t, &best, best.at + i) : out[best.at + i - n];
    return count;
}
