#include "verifier/cases.h"

#include "base/buf.h"
#include "base/json_shape.h"
#include "config/limits.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CONTAINERS = 200000 };
static const double MOST_TOLERANCE = 1e9;

static bool refuse(struct err *e, const char *what) { return err_param(e, "tests", "%s", what); }

/* A text, or a list of lines as APPS sometimes has it. */
static bool take_text(json_t *value, char **out, size_t *len, struct err *e) {
    if (json_is_string(value)) {
        *len = json_string_length(value);
        *out = err_strndup(json_string_value(value), *len);
        return true;
    }
    if (!json_is_array(value))
        return refuse(e, "the inputs and outputs of the cases must be strings");
    struct buf b;
    buf_init(&b, LIMIT_TESTS_DATA_BYTES);
    for (size_t i = 0; i < json_array_size(value); i++) {
        json_t *line = json_array_get(value, i);
        if (!json_is_string(line)) {
            buf_clear(&b);
            return refuse(e, "the lines of an input or output must be strings");
        }
        buf_append(&b, json_string_value(line), json_string_length(line));
        if (i + 1 < json_array_size(value)) buf_puts(&b, "\n");
    }
    *out = buf_take(&b, len);
    return true;
}

static bool add(struct cases *c, json_t *input, json_t *output, json_t *name, bool hidden,
                struct err *e) {
    if (c->n == LIMIT_TESTS_CASES)
        return err_param(e, "tests", "the tests have more than %d cases", LIMIT_TESTS_CASES);
    if (!input || !output) return refuse(e, "each case needs an input and an output");
    c->items = err_realloc(c->items, (size_t)c->n + 1, sizeof *c->items);
    struct cases_item *item = &c->items[c->n++];
    *item = (struct cases_item){.hidden = hidden};
    char number[32];
    snprintf(number, sizeof number, "case %d", c->n);
    item->name = err_strdup(json_is_string(name) ? json_string_value(name) : number);
    return take_text(input, &item->input, &item->input_len, e) &&
           take_text(output, &item->expected, &item->expected_len, e);
}

static bool add_list(struct cases *c, json_t *list, bool hidden, struct err *e) {
    if (!json_is_array(list)) return refuse(e, "the cases must be a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *item = json_array_get(list, i);
        json_t *own = json_object_get(item, "hidden");
        if (!json_is_object(item)) return refuse(e, "each case must be an object");
        if (!add(c, json_object_get(item, "input"), json_object_get(item, "output"),
                 json_object_get(item, "name"), own ? json_is_true(own) : hidden, e))
            return false;
    }
    return true;
}

static bool add_pairs(struct cases *c, json_t *inputs, json_t *outputs, struct err *e) {
    if (!json_is_array(inputs) || !json_is_array(outputs) ||
        json_array_size(inputs) != json_array_size(outputs))
        return refuse(e, "inputs and outputs must be lists of equal length");
    for (size_t i = 0; i < json_array_size(inputs); i++)
        if (!add(c, json_array_get(inputs, i), json_array_get(outputs, i), NULL, false, e))
            return false;
    return true;
}

static bool read_compare(struct cases *c, json_t *root, struct err *e) {
    const char *how = json_string_value(json_object_get(root, "compare"));
    if (how && strcmp(how, "tokens") != 0 && strcmp(how, "exact") != 0)
        return refuse(e, "compare must be \"tokens\" or \"exact\"");
    c->compare.exact = how && !strcmp(how, "exact");
    static const char *const names[] = {"abs_tol", "rel_tol"};
    double *const into[] = {&c->compare.abs_tol, &c->compare.rel_tol};
    for (int i = 0; i < 2; i++) {
        json_t *value = json_object_get(root, names[i]);
        if (!value) continue;
        double number = json_number_value(value);
        if (!json_is_number(value) || !(number >= 0 && number <= MOST_TOLERANCE))
            return err_param(e, "tests", "%s must be a number from 0 on", names[i]);
        *into[i] = number;
    }
    json_t *checker = json_object_get(root, "checker");
    if (!checker) return true;
    if (!json_is_string(checker)) return refuse(e, "checker must be a string of Python");
    c->checker = err_strdup(json_string_value(checker));
    return true;
}

static bool has_sane_shape(const char *text, size_t len) {
    struct json_shape shape = {0};
    json_shape_add(&shape, text, len);
    return shape.depth <= LIMIT_JSON_DEPTH && shape.containers <= MOST_CONTAINERS;
}

/* A member that may be JSON within a string. */
static json_t *member(json_t *root, const char *key, bool *wrong) {
    json_t *value = json_object_get(root, key);
    if (!json_is_string(value)) return json_incref(value);
    json_t *inner = NULL;
    if (has_sane_shape(json_string_value(value), json_string_length(value)))
        inner = json_loadb(json_string_value(value), json_string_length(value), 0, NULL);
    *wrong = *wrong || !inner;
    return inner;
}

static bool read_public_and_private(struct cases *c, json_t *root, struct err *e) {
    bool wrong = false;
    json_t *open = member(root, "public_test_cases", &wrong);
    json_t *hidden = member(root, "private_test_cases", &wrong);
    bool ok = !wrong || refuse(e, "public_test_cases and private_test_cases must be JSON; decode "
                                  "compressed ones in the client");
    ok = ok && (!open || add_list(c, open, false, e)) && (!hidden || add_list(c, hidden, true, e));
    json_decref(open);
    json_decref(hidden);
    return ok;
}

static bool is_functional(json_t *root) {
    if (json_is_object(root)) {
        bool wrong = false;
        if (json_is_string(json_object_get(root, "fn_name"))) return true;
        json_t *open = member(root, "public_test_cases", &wrong);
        json_t *hidden = member(root, "private_test_cases", &wrong);
        bool found = (json_is_array(open) && is_functional(open)) ||
                     (json_is_array(hidden) && is_functional(hidden));
        json_decref(open);
        json_decref(hidden);
        json_t *cases = json_object_get(root, "cases");
        return found || (json_is_array(cases) && is_functional(cases));
    }
    const char *type = json_string_value(json_object_get(json_array_get(root, 0), "testtype"));
    return type && !strcmp(type, "functional");
}

static bool read_root(struct cases *c, json_t *root, struct err *e) {
    if (json_is_array(root)) return add_list(c, root, false, e);
    if (!json_is_object(root)) return refuse(e, "the tests must be a JSON list or object");
    if (!read_compare(c, root, e)) return false;
    if (json_object_get(root, "inputs"))
        return add_pairs(c, json_object_get(root, "inputs"), json_object_get(root, "outputs"), e);
    if (json_object_get(root, "cases"))
        return add_list(c, json_object_get(root, "cases"), false, e);
    return read_public_and_private(c, root, e);
}

bool cases_read(enum verifier_format format, const char *text, size_t len, struct cases *out,
                struct err *e) {
    *out = (struct cases){0};
    json_error_t where;
    if (!has_sane_shape(text, len))
        return refuse(e, "the tests' JSON is nested too deep or has too many lists and objects");
    json_t *root = json_loadb(text, len, 0, &where);
    if (!root)
        return err_param(e, "tests", "the tests are no JSON: %s (line %d)", where.text, where.line);
    bool ok = true;
    out->functional = format != VERIFIER_STDIO && is_functional(root);
    if (!out->functional) {
        ok = read_root(out, root, e);
        if (ok && !out->n) ok = refuse(e, "the tests have no case");
    }
    json_decref(root);
    if (!ok) cases_clear(out);
    return ok;
}

void cases_clear(struct cases *c) {
    for (int i = 0; i < c->n; i++) {
        free(c->items[i].input);
        free(c->items[i].expected);
        free(c->items[i].name);
    }
    free(c->items);
    free(c->checker);
    *c = (struct cases){0};
}
