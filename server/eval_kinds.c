#include "server/eval_kinds.h"

#include <stdlib.h>
#include <string.h>

struct reading {
    struct eval_kinds *kinds;
    const struct eval *v;
};

static struct eval_kind *kind_of(struct eval_kinds *all, int prompt, double temperature) {
    for (int i = 0; i < all->n; i++)
        if (all->kinds[i].prompt == prompt && all->kinds[i].temperature == temperature)
            return &all->kinds[i];
    all->kinds = err_realloc(all->kinds, (size_t)all->n + 1, sizeof *all->kinds);
    all->kinds[all->n] = (struct eval_kind){.prompt = prompt, .temperature = temperature};
    return &all->kinds[all->n++];
}

static bool count_line(void *arg, json_t *line, struct err *e) {
    struct reading *r = arg;
    const char *verdict = json_string_value(json_object_get(line, "verdict"));
    const struct eval_result *task =
        eval_result_of(r->v, json_string_value(json_object_get(line, "task")));
    (void)e;
    if (!task || !verdict || !strcmp(verdict, "broken")) return true;
    struct eval_kind *k =
        kind_of(r->kinds, (int)json_integer_value(json_object_get(line, "prompt")),
                json_number_value(json_object_get(line, "temperature")));
    bool passed = json_is_true(json_object_get(line, "passed"));
    k->judged++;
    k->passed += passed;
    k->hard += passed && task->judged_to_pass > EVAL_KINDS_HARD;
    k->tokens += json_integer_value(json_object_get(line, "tokens"));
    return true;
}

static int compare(const void *a, const void *b) {
    const struct eval_kind *x = a, *y = b;
    if (x->prompt != y->prompt) return x->prompt < y->prompt ? -1 : 1;
    return (x->temperature > y->temperature) - (x->temperature < y->temperature);
}

bool eval_kinds_read(struct eval_kinds *all, const struct eval *v, struct err *e) {
    *all = (struct eval_kinds){0};
    struct reading r = {all, v};
    if (!eval_journal_again(&v->journal, count_line, &r, e)) return false;
    if (all->n) qsort(all->kinds, (size_t)all->n, sizeof *all->kinds, compare);
    return true;
}

void eval_kinds_clear(struct eval_kinds *all) {
    free(all->kinds);
    *all = (struct eval_kinds){0};
}
