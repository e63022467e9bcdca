#include "server/races.h"

#include "server/api_response.h"

#include <string.h>

void races_remember(struct races *r, const struct races_view *v) {
    r->kept[r->next] = *v;
    r->next = (r->next + 1) % RACES_KEPT;
}

bool races_is(const struct races_view *v, const char *id, const struct keys_holder *holder) {
    return v->holder == holder && (!strcmp(v->id, id) || !strcmp(v->request_id, id));
}

const struct races_view *races_find(const struct races *r, const char *id,
                                    const struct keys_holder *holder) {
    for (int i = 1; i <= RACES_KEPT; i++) {
        const struct races_view *v = &r->kept[(r->next + RACES_KEPT - i) % RACES_KEPT];
        if (v->status && races_is(v, id, holder)) return v;
    }
    return NULL;
}

void races_write(struct writer *w, const struct races_view *v, bool deleted) {
    writer_object(w);
    writer_key(w, "id");
    writer_text(w, v->id);
    writer_key(w, "object");
    writer_text(w, "race");
    writer_key(w, "request_id");
    writer_text(w, v->request_id);
    writer_key(w, "created");
    writer_int(w, v->created);
    writer_key(w, "status");
    writer_text(w, v->status);
    writer_key(w, "prompts");
    writer_int(w, v->n_prompts);
    writer_key(w, "verified");
    if (v->has_tests)
        writer_bool(w, v->verified);
    else
        writer_null(w);
    writer_key(w, "counts");
    api_response_write_counts(w, &v->counts);
    writer_key(w, "seconds");
    writer_number(w, v->seconds);
    writer_key(w, "deleted");
    writer_bool(w, deleted);
    writer_object_end(w);
}
