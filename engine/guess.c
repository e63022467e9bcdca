#include "engine/guess.h"

enum {
    SHORTEST = 3, /* tokens in common: two are often so by accident */
    WINDOW = 8192 /* positions looked at, from the end: a bound on the time that a search takes */
};

struct history {
    const int32_t *prompt, *text;
    int n_prompt;
};

static int32_t token_at(const struct history *h, int i) {
    return i < h->n_prompt ? h->prompt[i] : h->text[i - h->n_prompt];
}

/* How many tokens before position `at` equal those before the end `n`. */
static int common(const struct history *h, int at, int n) {
    int length = 0;
    while (length < at && length < GUESS_MOST &&
           token_at(h, at - 1 - length) == token_at(h, n - 1 - length))
        length++;
    return length;
}

int guess_next(const int32_t *prompt, int n_prompt, const int32_t *text, int n_text, int most,
               int32_t *out) {
    struct history h = {.prompt = prompt, .text = text, .n_prompt = n_prompt};
    int n = n_prompt + n_text, best = 0, from = 0;
    int first = n > WINDOW ? n - WINDOW : SHORTEST;
    for (int at = n - 1; at >= first && best < GUESS_MOST; at--) {
        int length = common(&h, at, n);
        if (length <= best) continue;
        best = length;
        from = at;
    }
    if (best < SHORTEST) return 0;
    int count = best < most ? best : most;
    /* Past the end a repetition goes on as it began. */
    for (int i = 0; i < count; i++)
        out[i] = from + i < n ? token_at(&h, from + i) : out[from + i - n];
    return count;
}
