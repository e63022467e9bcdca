#include "server/progress.h"

#include <stdlib.h>

enum { JUDGED_BYTES = 32 * 1024 * 1024, LONG_BYTES = 256 * 1024 };

struct progress_candidate {
    const char *state; /* static */
    int tokens;
    bool listed; /* in `changed` */
};

void progress_init(struct progress *p, const struct api_response_head *head, int n) {
    *p = (struct progress){.head = head, .n = n};
    p->all = err_alloc((size_t)n, sizeof *p->all);
    p->changed = err_alloc((size_t)n, sizeof *p->changed);
    buf_init(&p->judged, JUDGED_BYTES);
}

void progress_clear(struct progress *p) {
    free(p->all);
    free(p->changed);
    buf_clear(&p->judged);
    *p = (struct progress){0};
}

static const char *name_of(const struct race_candidate *c, enum race_entry_state state) {
    static const char *const names[] = {
        [RACE_ENTRY_WAITING] = "waiting",     [RACE_ENTRY_DECODING] = "decoding",
        [RACE_ENTRY_VERIFYING] = "verifying", [RACE_ENTRY_DECIDED] = NULL,
        [RACE_ENTRY_CANCELLED] = "cancelled",
    };
    return state == RACE_ENTRY_DECIDED ? verdict_name(c->verdict) : names[state];
}

void progress_note(struct progress *p, const struct race_candidate *c,
                   enum race_entry_state state) {
    BUG_ON(c->index < 0 || c->index >= p->n);
    struct progress_candidate *mine = &p->all[c->index];
    mine->state = name_of(c, state);
    mine->tokens = c->n_tokens;
    if (!mine->listed) p->changed[p->n_changed++] = c->index;
    mine->listed = true;
    if (state != RACE_ENTRY_DECIDED || p->head->request->detail == RACE_CANDIDATES_NONE) return;
    struct writer w;
    writer_init(&w, &p->judged);
    w.comma = p->judged.len > 0;
    api_response_write_candidate(&w, p->head, c);
}

bool progress_waits(const struct progress *p) { return p->n_changed > 0; }

bool progress_is_long(const struct progress *p) { return p->judged.len >= LONG_BYTES; }

void progress_write(struct progress *p, struct writer *w) {
    writer_key(w, "candidates");
    writer_array(w);
    for (int i = 0; i < p->n_changed; i++) {
        struct progress_candidate *c = &p->all[p->changed[i]];
        writer_array(w);
        writer_int(w, p->head->request->job.first_index + p->changed[i]);
        writer_text(w, c->state);
        writer_int(w, c->tokens);
        writer_array_end(w);
        c->listed = false;
    }
    writer_array_end(w);
    p->n_changed = 0;
    if (p->judged.len && !p->judged.overflowed) {
        writer_key(w, "judged");
        writer_array(w);
        writer_raw(w, p->judged.data, p->judged.len);
        writer_array_end(w);
    }
    buf_reset(&p->judged);
}
