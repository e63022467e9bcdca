#include "verifier/feedback.h"

#include "base/err.h"
#include "base/utf8.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static char *copy(const char *text) { return text ? err_strdup(text) : NULL; }

void feedback_add(struct feedback *f, const struct verdict_test *test) {
    if (f->n == FEEDBACK_TESTS) return;
    if (f->n == f->capacity) {
        f->capacity = f->capacity ? 2 * f->capacity : 4;
        f->tests = err_realloc(f->tests, (size_t)f->capacity, sizeof *f->tests);
    }
    f->tests[f->n++] = (struct verdict_test){
        .name = copy(test->name),
        .status = test->status,
        .got = copy(test->got),
        .expected = copy(test->expected),
        .error = copy(test->error),
        .line = test->line,
        .ms = test->ms,
    };
}

static const char *known_status(const char *status) {
    static const char *const names[] = {"passed", "failed", "error", "skipped"};
    for (size_t i = 0; status && i < sizeof names / sizeof *names; i++)
        if (!strcmp(status, names[i])) return names[i];
    return NULL;
}

static const char *text_of(json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

void feedback_parse(struct feedback *f, const char *json, size_t len) {
    json_t *root = len ? json_loadb(json, len, 0, NULL) : NULL;
    for (size_t i = 0; i < json_array_size(root); i++) {
        json_t *object = json_array_get(root, i);
        json_int_t line = json_integer_value(json_object_get(object, "line"));
        struct verdict_test test = {
            .name = text_of(object, "name"),
            .status = known_status(text_of(object, "status")),
            .got = text_of(object, "got"),
            .expected = text_of(object, "expected"),
            .error = text_of(object, "error"),
            .line = line > 0 && line < INT32_MAX ? (int)line : 0,
            .ms = json_number_value(json_object_get(object, "ms")),
        };
        if (!test.name || !test.status) continue;
        if (!test.error) test.error = "";
        feedback_add(f, &test);
    }
    json_decref(root);
}

static void free_text(const char *text) { free((void *)(uintptr_t)text); }

void feedback_clear(struct feedback *f) {
    for (int i = 0; i < f->n; i++) {
        free_text(f->tests[i].name);
        free_text(f->tests[i].got);
        free_text(f->tests[i].expected);
        free_text(f->tests[i].error);
    }
    free(f->tests);
    *f = (struct feedback){0};
}

char *feedback_value(const char *data, size_t len) {
    static const char dots[] = "...";
    bool cut = len > FEEDBACK_VALUE;
    size_t n = cut ? FEEDBACK_VALUE - strlen(dots) : len;
    if (cut) n -= utf8_incomplete_tail(data, n);
    char *text = err_alloc(n + sizeof dots, 1);
    memcpy(text, data, n);
    if (cut) memcpy(text + n, dots, sizeof dots);
    return text;
}
