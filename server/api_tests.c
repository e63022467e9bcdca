#include "server/api_tests.h"

#include "config/limits.h"
#include "server/api_variants.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CANDIDATES = 32, ENTRY_POINT_BYTES = 256 };

/* ---- the code that candidates continue ---- */

static size_t line_end(const char *s, size_t len, size_t at) {
    const char *newline = memchr(s + at, '\n', len - at);
    return newline ? (size_t)(newline - s) : len;
}

/* The length of a fence at the start of the line (up to three spaces before it), or 0; *after: past
 * it. */
static size_t fence_at(const char *s, size_t from, size_t to, char *mark, size_t *after) {
    size_t i = from;
    while (i < to && i < from + 3 && s[i] == ' ')
        i++;
    if (i >= to || (s[i] != '`' && s[i] != '~')) return 0;
    size_t start = i;
    *mark = s[i];
    while (i < to && s[i] == *mark)
        i++;
    *after = i;
    return i - start >= 3 ? i - start : 0;
}

static bool python_info(const char *s, size_t len) {
    while (len && isspace((unsigned char)s[len - 1]))
        len--;
    while (len && isspace((unsigned char)*s)) {
        s++;
        len--;
    }
    static const char *const names[] = {"", "python", "py", "python3", "py3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (len == strlen(names[i]) && !strncasecmp(s, names[i], len)) return true;
    return false;
}

/* Whether some line of the code reads "def NAME(", "async def NAME(" or "class NAME". */
static bool defines(const char *s, size_t len, const char *name) {
    size_t name_len = strlen(name);
    for (size_t at = 0; at < len;) {
        size_t end = line_end(s, len, at);
        size_t i = at;
        static const char *const words[] = {"async def ", "def ", "class "};
        for (size_t w = 0; w < 3; w++) {
            size_t n = strlen(words[w]);
            if (end - i > n && !memcmp(s + i, words[w], n)) {
                i += n;
                if (end - i >= name_len && !memcmp(s + i, name, name_len)) {
                    char next = i + name_len < end ? s[i + name_len] : '\n';
                    if (!isalnum((unsigned char)next) && next != '_') return true;
                }
                break;
            }
        }
        at = end + 1;
    }
    return false;
}

/* The next fenced block from *at on; *at is moved behind it. */
struct block {
    const char *info, *code;
    size_t info_len, code_len;
};
static bool next_block(const char *text, size_t len, size_t *at, struct block *out) {
    while (*at < len) {
        size_t end = line_end(text, len, *at), after = 0;
        char mark = 0;
        size_t fence = fence_at(text, *at, end, &mark, &after);
        size_t code = end + 1;
        if (!fence) {
            *at = code;
            continue;
        }
        size_t close = code < len ? code : len, next = len;
        for (size_t line = close; line < len; line = next + 1) {
            next = line_end(text, len, line);
            char other = 0;
            size_t past = 0, n = fence_at(text, line, next, &other, &past);
            close = next < len ? next + 1 : len;
            if (n >= fence && other == mark) {
                close = line;
                break;
            }
        }
        *at = next + 1;
        *out = (struct block){text + after, text + (code < len ? code : len), end - after,
                              close > code ? close - code : 0};
        return true;
    }
    return false;
}

static bool is_word(const char *s, size_t len, const char *const *words) {
    for (; *words; words++)
        if (strlen(*words) == len && !strncasecmp(*words, s, len)) return true;
    return false;
}

/* "python test", with any space around and between. */
static bool test_info(const char *s, size_t len) {
    static const char *const languages[] = {"python", "py", "python3", NULL};
    static const char *const kinds[] = {"test", "tests", NULL};
    size_t at = 0;
    while (at < len && isspace((unsigned char)s[at]))
        at++;
    size_t first = at;
    while (at < len && !isspace((unsigned char)s[at]))
        at++;
    size_t first_end = at;
    while (at < len && isspace((unsigned char)s[at]))
        at++;
    while (len > at && isspace((unsigned char)s[len - 1]))
        len--;
    return is_word(s + first, first_end - first, languages) && is_word(s + at, len - at, kinds);
}

const char *api_tests_find_tests(const char *text, size_t len, size_t *out_len) {
    struct block block;
    const char *found = NULL;
    for (size_t at = 0; next_block(text, len, &at, &block);) {
        if (!test_info(block.info, block.info_len) || !block.code_len) continue;
        found = block.code;
        *out_len = block.code_len;
    }
    return found;
}

int api_tests_model_suffix(const char *name, size_t *name_len) {
    static const char mark[] = ":best-of-";
    const char *at = NULL;
    for (const char *next = name; (next = strstr(next, mark)); next++)
        at = next;
    *name_len = strlen(name);
    if (!at || at == name) return 0;
    int n = 0;
    const char *digit = at + sizeof mark - 1;
    if (!*digit || *digit == '0') return 0;
    for (; *digit; digit++) {
        if (*digit < '0' || *digit > '9' || n > LIMIT_CANDIDATES) return 0;
        n = n * 10 + (*digit - '0');
    }
    if (n > LIMIT_CANDIDATES) return 0;
    *name_len = (size_t)(at - name);
    return n;
}

const char *api_tests_find_code(const char *text, size_t len, const char *name, size_t *out_len) {
    struct block b;
    for (size_t at = 0; next_block(text, len, &at, &b);) {
        if (!python_info(b.info, b.info_len) || !b.code_len) continue;
        if (!defines(b.code, b.code_len, name)) continue;
        *out_len = b.code_len;
        return b.code;
    }
    return NULL;
}

/* ---- the object ---- */

static bool refuse_unknown(struct reader *f) {
    static const char *const known[] = {
        "tests",    "format",     "entry_point", "max_candidates", "width",       "return",
        "on_fail",  "timeout_s",  "memory_mb",   "deadline_s",     "extract",     "greedy_first",
        "progress", "candidates", "score",       "prompt",         "first_index", "pass_at_k",
        "feedback", "diversity",  NULL,
    };
    return reader_only(f, known, "the firstpass object");
}

static bool starts_line(const char *s, size_t len, const char *word) {
    size_t n = strlen(word);
    for (size_t at = 0; at < len; at = line_end(s, len, at) + 1)
        if (len - at >= n && !memcmp(s + at, word, n)) return true;
    return false;
}

/* What tests without a format look like. */
static enum verifier_format guess_format(json_t *tests, const struct verifier_spec *t) {
    if (json_is_object(tests)) {
        if (json_object_get(tests, "base_input") || json_object_get(tests, "plus_input"))
            return VERIFIER_EVALPLUS;
        if (json_object_get(tests, "fn_name")) return VERIFIER_APPS;
        bool cases = json_object_get(tests, "public_test_cases") != NULL;
        return cases ? VERIFIER_LIVECODEBENCH : VERIFIER_STDIO;
    }
    if (json_is_array(tests)) {
        bool typed = json_object_get(json_array_get(tests, 0), "testtype") != NULL;
        return typed ? VERIFIER_LIVECODEBENCH : VERIFIER_STDIO;
    }
    if (defines(t->tests, t->tests_len, "check")) return VERIFIER_HUMANEVAL;
    if (memmem(t->tests, t->tests_len, "unittest.TestCase", strlen("unittest.TestCase")))
        return VERIFIER_UNITTEST;
    if (starts_line(t->tests, t->tests_len, "def test_") ||
        starts_line(t->tests, t->tests_len, "class Test"))
        return VERIFIER_PYTEST;
    if (starts_line(t->tests, t->tests_len, ">>> ")) return VERIFIER_DOCTEST;
    return VERIFIER_ASSERTS;
}

/* A text; or JSON, which goes on as its text. */
static bool read_text(struct reader *f, struct verifier_spec *t) {
    json_t *v = reader_get(f, "tests");
    if (!json_is_array(v) && !json_is_object(v)) {
        t->tests = reader_string(f, "tests", LIMIT_TESTS_DATA_BYTES, &t->tests_len);
        if (!t->tests && !f->failed) reader_fail(f, "tests", "must not be missing");
        return !f->failed;
    }
    char *text = json_dumps(v, JSON_COMPACT);
    if (!text) return reader_fail(f, "tests", "can't be read");
    t->tests_len = strlen(text);
    t->tests = arena_strndup(f->arena, text, t->tests_len);
    free(text);
    return true;
}

bool api_tests_read_spec(struct reader *f, const struct config *config, struct verifier_spec *t) {
    struct err why = {0};
    if (f->failed || !read_text(f, t)) return false;
    if (!t->tests_len) return reader_fail(f, "tests", "must not be empty");
    const char *format = reader_string(f, "format", 64, NULL);
    if (!format)
        t->format = guess_format(reader_get(f, "tests"), t);
    else if (!verifier_format_parse(format, &t->format, &why))
        reader_fail(f, "format", "%s", why.message);
    const char *extract = reader_string(f, "extract", 64, NULL);
    t->extract = VERIFIER_EXTRACT_AUTO;
    if (extract && !verifier_extract_parse(extract, &t->extract, &why))
        reader_fail(f, "extract", "%s", why.message);
    t->entry_point = reader_string(f, "entry_point", ENTRY_POINT_BYTES, NULL);
    const char *feedback = reader_string(f, "feedback", 64, NULL);
    if (feedback && !verifier_feedback_parse(feedback, &t->feedback, &why))
        reader_fail(f, "feedback", "%s", why.message);
    t->timeout_s =
        reader_number(f, "timeout_s", 0.01, LIMIT_VERIFY_SECONDS, config->verifier.timeout_s);
    t->memory_mb =
        (int)reader_int(f, "memory_mb", 16, LIMIT_VERIFY_MEMORY_MB, config->verifier.memory_mb);
    return !f->failed;
}

/* See verifier_spec.prompt: what the client says; else a completion continues its own prompt; else
 * the code block of the question that defines what the tests call. */
static void choose_prompt(struct reader *f, const char *user, size_t user_len,
                          struct api_request *q) {
    struct verifier_spec *t = &q->tests;
    t->prompt = reader_string(f, "prompt", LIMIT_CODE_BYTES, &t->prompt_len);
    if (t->prompt || f->failed) return;
    if (q->kind == API_REQUEST_COMPLETIONS) {
        bool continues =
            t->extract == VERIFIER_EXTRACT_AUTO || t->extract == VERIFIER_EXTRACT_CONTINUATION;
        if (continues && q->n_prompts == 1 && q->prompts[0].text &&
            q->prompts[0].len <= LIMIT_CODE_BYTES) {
            t->prompt = q->prompts[0].text;
            t->prompt_len = q->prompts[0].len;
        }
    } else if (user && t->entry_point) {
        t->prompt = api_tests_find_code(user, user_len, t->entry_point, &t->prompt_len);
    }
}

/* Code that continues the prompt's function ends where the next thing begins at the margin: without
 * this a base model goes on with further functions until max_tokens.  Stop strings of the client's
 * own come instead. */
static void stop_after_function(struct api_request *q) {
    static const char *const strings[] = {"\ndef ",    "\nclass ", "\nif ", "\nprint(",
                                          "\nassert ", "\n@",      "\n#",   "\n```"};
    static const size_t lens[] = {5, 7, 4, 7, 8, 2, 2, 4};
    _Static_assert(sizeof strings / sizeof *strings == sizeof lens / sizeof *lens, "a length each");
    const struct verifier_spec *t = &q->tests;
    if (q->kind != API_REQUEST_COMPLETIONS || q->job.n_stops || !t->prompt) return;
    bool continues = t->extract == VERIFIER_EXTRACT_CONTINUATION ||
                     (t->extract == VERIFIER_EXTRACT_AUTO && t->entry_point &&
                      defines(t->prompt, t->prompt_len, t->entry_point));
    if (!continues) return;
    q->job.stops = strings;
    q->job.stop_lens = lens;
    q->job.n_stops = sizeof lens / sizeof *lens;
}

static void read_width(struct reader *f, struct api_request *q) {
    json_t *v = reader_get(f, "width");
    if (!v) return;
    if (json_is_string(v) && !strcmp(json_string_value(v), "auto")) return;
    if (!json_is_integer(v)) {
        reader_fail(f, "width", "must be \"auto\" or a whole number, not %s", reader_type(v));
        return;
    }
    q->job.width = (int)reader_int(f, "width", 1, LIMIT_CANDIDATES, 0);
}

static void read_candidates(struct reader *f, const struct api_request_context *c, int n,
                            struct api_request *q) {
    int most = c->config->server.max_candidates;
    int preset = n > 1 ? n : DEFAULT_CANDIDATES < most ? DEFAULT_CANDIDATES : most;
    bool given = reader_get(f, "max_candidates") != NULL;
    int count = (int)reader_int(f, "max_candidates", 1, most, preset);
    if (given && n > 1 && n != count)
        reader_fail(
            f, "max_candidates",
            "says %d and n says %d; give only max_candidates (with tests, n is another name "
            "of it; \"return\": \"all\" gives all candidates back)",
            count, n);
    q->job.n_candidates = count;
    q->n_choices = 1;
    if (q->n_passes > count)
        reader_fail(f, "return", "asks for %d passes of only %d candidates", q->n_passes, count);
}

/* One of the words, or how many passes are wanted. */
static void read_return(struct reader *f, struct api_request *q) {
    static const char *const returns[] = {"first", "lowest_index", "best", "all", NULL};
    json_t *v = reader_get(f, "return");
    q->returns = RACE_FIRST;
    q->n_passes = 1;
    if (json_is_integer(v))
        q->n_passes = (int)reader_int(f, "return", 1, LIMIT_CANDIDATES, 1);
    else
        q->returns = (enum race_return)reader_choice(f, "return", returns, RACE_FIRST);
}

/* The unbiased estimate needs every candidate's verdict: a race that stops at its first pass has
 * seen too few of those that fail. */
static void read_pass_at(struct reader *f, struct api_request *q) {
    json_t *v = reader_get(f, "pass_at_k");
    if (!v) return;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!n || n > LIMIT_PASS_AT) {
        reader_fail(f, "pass_at_k", "must be a number or a list of 1 to %d numbers", LIMIT_PASS_AT);
        return;
    }
    int *ks = arena_alloc(f->arena, n, sizeof *ks);
    for (size_t i = 0; i < n; i++) {
        json_t *k = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(k) || json_integer_value(k) < 1 ||
            json_integer_value(k) > q->job.n_candidates) {
            reader_fail(f, "pass_at_k",
                        "each k must be a whole number from 1 to max_candidates (%d)",
                        q->job.n_candidates);
            return;
        }
        ks[i] = (int)json_integer_value(k);
    }
    if (q->returns != RACE_ALL && q->returns != RACE_BEST) {
        reader_fail(f, "pass_at_k",
                    "needs \"return\": \"all\" or \"best\": the estimate is unbiased "
                    "only where every candidate is judged");
        return;
    }
    q->pass_at = ks;
    q->n_pass_at = (int)n;
}

/* Where the request's candidates begin among those of its seed: one of a larger race is had again
 * alone by its index. */
static void read_first_index(struct reader *f, struct api_request *q) {
    q->job.first_index = (int)reader_int(f, "first_index", 0, LIMIT_CANDIDATES - 1, 0);
    if (q->job.first_index > LIMIT_CANDIDATES - q->job.n_candidates)
        reader_fail(f, "first_index", "plus the number of candidates must not be above %d",
                    LIMIT_CANDIDATES);
}

static void read_ladder(struct reader *diversity, struct api_request *q) {
    json_t *list = reader_get(diversity, "temperatures");
    size_t n = json_array_size(list);
    if (!list || diversity->failed) return;
    if (!n || n > LIMIT_TEMPERATURES) {
        reader_fail(diversity, "temperatures", "must be a list of 1 to %d numbers",
                    LIMIT_TEMPERATURES);
        return;
    }
    float *ladder = arena_alloc(diversity->arena, n, sizeof *ladder);
    for (size_t i = 0; i < n && !diversity->failed; i++) {
        json_t *item = json_array_get(list, i);
        double t = json_is_number(item) ? json_number_value(item) : -1;
        if (t >= 0 && t <= 2)
            ladder[i] = (float)t;
        else
            reader_fail(diversity, "temperatures", "each must be a number from 0 to 2");
    }
    q->job.sampling.temperatures = ladder;
    q->job.sampling.n_temperatures = (int)n;
}

/* Candidates that differ by more than their draws. */
static void read_diversity(struct reader *f, const struct api_request_context *c, const char *user,
                           struct api_request *q) {
    static const char *const known[] = {"temperatures", "prompts", NULL};
    json_t *v = reader_get(f, "diversity");
    if (!v) return;
    if (!json_is_object(v)) {
        reader_fail(f, "diversity", "must be an object, not %s", reader_type(v));
        return;
    }
    struct reader inner = {
        .object = v, .where = "firstpass.diversity.", .arena = f->arena, .e = f->e};
    if (reader_only(&inner, known, "the object diversity")) {
        read_ladder(&inner, q);
        api_variants_read(&inner, c, user, q);
        if (!q->job.sampling.n_temperatures && !q->n_variants && !inner.failed)
            reader_fail(f, "diversity", "must have temperatures or prompts");
    }
    f->failed = f->failed || inner.failed;
}

/* true: the counts. */
static void read_progress(struct reader *f, struct api_request *q) {
    static const char *const words[] = {"none", "counts", "candidates", NULL};
    if (json_is_boolean(reader_get(f, "progress")))
        q->progress = reader_bool(f, "progress", false) ? API_REQUEST_PROGRESS_COUNTS
                                                        : API_REQUEST_PROGRESS_NONE;
    else
        q->progress = (enum api_request_progress)reader_choice(f, "progress", words,
                                                               API_REQUEST_PROGRESS_NONE);
}

static void read_answer(struct reader *f, struct api_request *q) {
    static const char *const on_fail[] = {"best", "error", NULL};
    static const char *const details[] = {"none", "verdicts", "full", NULL};
    read_return(f, q);
    q->on_fail = (enum race_on_fail)reader_choice(f, "on_fail", on_fail, RACE_FAIL_BEST);
    q->detail = (enum race_detail)reader_choice(f, "candidates", details, RACE_CANDIDATES_NONE);
    read_progress(f, q);
    q->deadline_s = reader_number(f, "deadline_s", 0.001, LIMIT_REQUEST_SECONDS, q->deadline_s);
}

static void read_tests(struct reader *f, const struct api_request_context *c, const char *user,
                       size_t user_len, int n, struct api_request *q) {
    struct verifier_spec *t = &q->tests;
    if (!api_tests_read_spec(f, c->config, t)) return;
    if (q->n_prompts > 1) {
        reader_fail(f, "tests", "are for one prompt; the request has %d", q->n_prompts);
        return;
    }
    if (q->echo || q->suffix) {
        reader_fail(f, "tests", "can't be combined with %s", q->echo ? "echo" : "suffix");
        return;
    }
    q->has_tests = true;
    choose_prompt(f, user, user_len, q);
    read_candidates(f, c, n, q);
    read_pass_at(f, q);
    read_width(f, q);
    q->job.sampling.greedy_first = reader_bool(f, "greedy_first", true);
    t->score = reader_bool(f, "score", q->on_fail == RACE_FAIL_BEST || q->returns == RACE_BEST);
    /* Of raw code a fence is a part, inside of a string say. */
    q->job.stop_at_code_end = t->extract != VERIFIER_EXTRACT_RAW;
    stop_after_function(q);
    /* All of one prompt would be equal. */
    int n_variants = api_request_n_variants(q);
    if (q->job.sampling.temperature == 0 && !q->job.sampling.n_temperatures &&
        q->job.n_candidates > n_variants)
        q->job.n_candidates = n_variants;
}

/* They would do nothing, and who sends them expects otherwise. */
static void refuse_without_tests(struct reader *f) {
    static const char *const names[] = {"format",   "entry_point", "max_candidates", "return",
                                        "on_fail",  "timeout_s",   "memory_mb",      "extract",
                                        "score",    "prompt",      "candidates",     "progress",
                                        "pass_at_k"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (reader_get(f, names[i]))
            reader_fail(f, names[i], "needs firstpass.tests, which are missing");
}

/* The tests in the question's own text, as if the object had them; the object's own win. */
static void take_inline_tests(struct reader *top, const char *user, size_t user_len) {
    size_t len;
    const char *tests = api_tests_find_tests(user, user_len, &len);
    json_t *v = reader_get(top, "firstpass");
    if (!tests || top->failed || (v && !json_is_object(v))) return;
    if (!v) {
        v = json_object();
        json_object_set_new(top->object, "firstpass", v);
    }
    if (!json_is_string(json_object_get(v, "tests")))
        json_object_set_new(v, "tests", json_stringn(tests, len));
}

bool api_tests_read(struct reader *top, const struct api_request_context *c, const char *user,
                    size_t user_len, int n, struct api_request *q) {
    if (c->config->server.inline_tests && user) take_inline_tests(top, user, user_len);
    json_t *v = reader_get(top, "firstpass");
    if (!v) return !top->failed;
    if (!json_is_object(v))
        return reader_fail(top, "firstpass", "must be an object, not %s", reader_type(v));
    struct reader f = {.object = v, .where = "firstpass.", .arena = top->arena, .e = top->e};
    if (refuse_unknown(&f)) {
        read_answer(&f, q);
        read_diversity(&f, c, user, q);
        if (reader_get(&f, "tests")) {
            read_tests(&f, c, user, user_len, n, q);
        } else {
            refuse_without_tests(&f);
            read_width(&f, q);
            q->job.sampling.greedy_first = reader_bool(&f, "greedy_first", false);
        }
        read_first_index(&f, q);
    }
    if (q->has_tests && !f.failed && !reader_get(top, "max_tokens") &&
        !reader_get(top, "max_completion_tokens"))
        q->job.max_tokens = 0;
    top->failed = top->failed || f.failed;
    return !top->failed;
}
