#include "server/verdict_json.h"

static void text(struct writer *w, const char *key, const char *value) {
    writer_key(w, key);
    writer_text(w, value);
}

static void number(struct writer *w, const char *key, int value) {
    writer_key(w, key);
    writer_int(w, value);
}

void verdict_json_tests(struct writer *w, const struct verdict_test *tests, int n) {
    writer_array(w);
    for (int i = 0; i < n; i++) {
        const struct verdict_test *t = &tests[i];
        writer_object(w);
        text(w, "name", t->name);
        text(w, "status", t->status);
        text(w, "got", t->got);
        text(w, "expected", t->expected);
        text(w, "error", t->error[0] ? t->error : NULL);
        writer_key(w, "line");
        if (t->line)
            writer_int(w, t->line);
        else
            writer_null(w);
        writer_key(w, "ms");
        writer_number(w, t->ms);
        writer_object_end(w);
    }
    writer_array_end(w);
}

void verdict_json_members(struct writer *w, const struct verdict *v, bool tells) {
    text(w, "verdict", verdict_name(v->kind));
    number(w, "tests_passed", v->tests_passed);
    number(w, "tests_total", v->tests_total);
    text(w, "error", v->error);
    writer_key(w, "duplicate");
    writer_bool(w, v->duplicate);
    text(w, "method", v->method);
    text(w, "trust", v->trust);
    text(w, "limit", v->limit);
    writer_key(w, "cpu_s");
    writer_number(w, v->cpu_s);
    writer_key(w, "wall_s");
    writer_number(w, v->wall_s);
    number(w, "max_rss_mb", v->max_rss_mb);
    writer_key(w, "output");
    writer_string(w, v->output, v->output_len);
    if (!tells) return;
    writer_key(w, "tests");
    verdict_json_tests(w, v->tests, v->n_tests);
}
