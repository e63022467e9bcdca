/* Chat templates: the same text as jinja2 run directly (tests/vectors/make_templates.py), and
 * templates that mean harm. */
#include "tests/verifier/rig.h"
#include "verifier/interpreter.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>

static struct rig rig;
static struct err answer_error;
static char *answer; /* owned; NULL: an error came */
static size_t answer_len;
static int waiting;

static bool has_jinja2(void) {
    /* The interpreter that "auto" chooses is the first with jinja2; none has it: nothing to test.
     */
    struct interpreter in;
    bool found = interpreter_find(&in, "auto", 0, NULL), has = found && in.has_jinja2;
    if (found) interpreter_clear(&in);
    return has;
}

static void on_ready(void *arg, const struct err *e) {
    (void)arg;
    answer_error = e ? *e : (struct err){0};
    waiting--;
    uv_stop(&rig.loop);
}

static bool set_template(const char *text, size_t len) {
    struct err e = {0};
    waiting = 1;
    ck_assert_msg(verifier_template_set(rig.verifier, text, len, on_ready, NULL, &e), "%s",
                  e.message);
    while (waiting)
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    return answer_error.kind == ERR_NONE;
}

static void on_text(void *arg, const char *text, size_t len, const struct err *e) {
    (void)arg;
    ck_assert((text == NULL) == (e != NULL));
    free(answer);
    answer = text ? err_strndup(text, len) : NULL;
    answer_len = len;
    answer_error = e ? *e : (struct err){0};
    if (--waiting == 0) uv_stop(&rig.loop);
}

static bool render(const char *variables) {
    waiting = 1;
    ck_assert_uint_ne(verifier_render(rig.verifier, variables, strlen(variables), on_text, NULL),
                      0);
    ck_assert_int_eq(waiting, 1);
    while (waiting)
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    return answer != NULL;
}

static void open_rig(void) { rig_open(&rig, 3); }
static void close_rig(void) {
    rig_close(&rig);
    free(answer);
    answer = NULL;
}

START_TEST(test_vectors) {
    json_error_t where;
    json_t *vectors = json_load_file("tests/vectors/chat_templates.json", 0, &where), *entry, *one;
    ck_assert_msg(vectors != NULL, "%s", where.text);
    size_t i, k;
    int n = 0;
    json_array_foreach(vectors, i, entry) {
        json_t *text = json_object_get(entry, "template");
        ck_assert_msg(set_template(json_string_value(text), json_string_length(text)), "%s",
                      answer_error.message);
        json_array_foreach(json_object_get(entry, "cases"), k, one) {
            char *variables = json_dumps(json_object_get(one, "variables"), 0);
            const char *wanted = json_string_value(json_object_get(one, "text"));
            bool ok = render(variables);
            free(variables);
            n++;
            if (!wanted) {
                const char *message = json_string_value(json_object_get(one, "error"));
                ck_assert(!ok);
                ck_assert_int_eq(answer_error.kind, ERR_INPUT);
                ck_assert_msg(strstr(answer_error.message, message) != NULL, "%s, wanted %s",
                              answer_error.message, message);
                continue;
            }
            ck_assert_msg(ok, "%s: %s", json_string_value(json_object_get(entry, "name")),
                          answer_error.message);
            ck_assert_str_eq(answer, wanted);
            ck_assert_uint_eq(answer_len, strlen(wanted));
        }
    }
    json_decref(vectors);
    ck_assert_int_ge(n, 100);
}
END_TEST

static const struct {
    const char *template, *message; /* NULL: it may render, but to nothing harmful */
} hostile[] = {
    {"{{ ''.__class__.__mro__ }}", NULL},
    {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"},
    {"{{ messages.__class__.__init__.__globals__ }}", NULL},
    {"{{ raise_exception.__globals__['os'].system('id') }}", NULL},
    {"{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"},
    {"{{ messages.append(1) }}", "unsafe"},
    {"{% for i in range(999999999) %}x{% endfor %}", "Range too big"},
    {"{{ 'x' * 10 ** 10 }}", "MemoryError"},
    {"{% set ns = namespace(a='x' * 1000000) %}{% for i in range(100) %}{% set ns.a = ns.a ~ ns.a "
     "%}{% endfor %}",
     "MemoryError"},
    {"{% for i in range(90000) %}{% for k in range(90000) %}{% endfor %}{% endfor %}", "limit"},
    {"{% for i in range(99) %}{{ 'x' * 1000000 }}{% endfor %}", "wrote more"},
    {"{{ raise_exception('that is why') }}", "that is why"},
    {"{{ undefined_thing.attribute }}", "undefined"},
    {"{{ 1 / 0 }}", "ZeroDivisionError"},
    {"{% include 'x' %}", "no loader"},
    {"{{ messages | tojson(indent='\xc3\xa9' * 10) }}", NULL},
};

START_TEST(test_hostile) {
    const char *template = hostile[_i].template;
    bool compiled = set_template(template, strlen(template));
    bool ok = compiled && render("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
    if (hostile[_i].message) {
        ck_assert_msg(!ok, "%s", answer ? answer : "");
        ck_assert_msg(strstr(answer_error.message, hostile[_i].message) != NULL, "%s",
                      answer_error.message);
        ck_assert_int_eq(answer_error.kind, ERR_INPUT);
    } else if (ok) {
        ck_assert_msg(!strstr(answer, "uid=") && !strstr(answer, "class"), "%s", answer);
    }
    /* The next template finds a whole worker. */
    ck_assert(set_template("{{ messages[0].content }}", 25));
    ck_assert(render("{\"messages\": [{\"role\": \"user\", \"content\": \"fine\"}]}"));
    ck_assert_str_eq(answer, "fine");
}
END_TEST

START_TEST(test_malformed) {
    ck_assert(!set_template("{% if %}", 8));
    ck_assert_int_eq(answer_error.kind, ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(answer_error.message, "line 1"));
    ck_assert(!render("{}")); /* there is none to render now */
    ck_assert(!set_template("\xff\xfe", 2));
    ck_assert(set_template("{{ x }}", 7));
    ck_assert(!render("not json"));
    ck_assert_int_eq(answer_error.kind, ERR_INPUT);
    ck_assert(!render("[1]"));
    ck_assert(render("{\"x\": 1}"));
    ck_assert_str_eq(answer, "1");
    struct err e = {0};
    char *big = err_alloc(1024 * 1024 + 1, 1);
    memset(big, 'x', 1024 * 1024 + 1);
    ck_assert(!verifier_template_set(rig.verifier, big, 1024 * 1024 + 1, on_ready, NULL, &e));
    free(big);
}
END_TEST

START_TEST(test_many_and_cancel) {
    static const char variables[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    ck_assert(set_template("{{ messages[0].content }}", 25));
    uint64_t ids[50];
    waiting = 40;
    for (int i = 0; i < 50; i++)
        ids[i] = verifier_render(rig.verifier, variables, strlen(variables), on_text, NULL);
    for (int i = 0; i < 50; i += 5)
        verifier_render_cancel(rig.verifier, ids[i]);
    while (waiting)
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    ck_assert_str_eq(answer, "hi");
    /* Closed with some under way: no callback comes, nothing leaks. */
    for (int i = 0; i < 5; i++)
        verifier_render(rig.verifier, variables, strlen(variables), on_text, NULL);
}
END_TEST

/* ---- deaths ---- */

/* The template's process at this depth below its worker (0) in our own /proc: R 1, V 2; 0: not
 * there. */
static pid_t find_process(int depth) {
    pid_t pids[64], parents[64];
    int n = 0;
    DIR *proc = opendir("/proc");
    ck_assert_ptr_nonnull(proc);
    for (struct dirent *entry; (entry = readdir(proc)) && n < 64;) {
        char path[300], text[4096];
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *f = fopen(path, "re");
        if (!f) continue;
        size_t len = fread(text, 1, sizeof text, f);
        fclose(f);
        static const char last[] = "\0template"; /* its flavour is the last argument */
        if (len <= sizeof last || memcmp(text + len - sizeof last, last, sizeof last) != 0)
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        f = fopen(path, "re");
        if (!f) continue;
        char *got = fgets(text, sizeof text, f);
        fclose(f);
        char *after = got ? strrchr(text, ')') : NULL;
        if (!after || strlen(after) < 5) continue; /* ") S 123 …" */
        pids[n] = (pid_t)strtol(entry->d_name, NULL, 10);
        parents[n++] = (pid_t)strtol(after + 4, NULL, 10);
    }
    closedir(proc);
    for (int i = 0; i < n; i++) {
        int above = 0;
        pid_t at = parents[i];
        for (int k = 0; k < n; k++)
            if (pids[k] == at) {
                above++;
                at = parents[k];
                k = -1;
            }
        if (above == depth) return pids[i];
    }
    return 0;
}

static void on_tick(uv_timer_t *timer) {
    (void)timer;
    uv_stop(&rig.loop);
}

/* Runs the loop until the render has its process. */
static void wait_for_render(void) {
    uv_timer_t timer;
    uv_timer_init(&rig.loop, &timer);
    uv_timer_start(&timer, on_tick, 5, 5);
    while (!find_process(2)) {
        ck_assert_msg(waiting == 1, "the render was over before it could be seen");
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    }
    uv_close((uv_handle_t *)&timer, NULL);
}

/* The worker (0) or the process with the compiled template (1) is killed under a render, which is
 * run again. */
START_TEST(test_render_outlives_its_process) {
    static const char text[] = "{% for i in range(10000) %}{% for k in range(2000) %}{% endfor %}"
                               "{% endfor %}{{ word }}";
    static const char variables[] = "{\"word\": \"done\"}";
    ck_assert_msg(set_template(text, strlen(text)), "%s", answer_error.message);
    waiting = 1;
    verifier_render(rig.verifier, variables, strlen(variables), on_text, NULL);
    wait_for_render();
    pid_t victim = find_process(_i);
    ck_assert_int_gt(victim, 0);
    ck_assert_int_eq(kill(victim, SIGKILL), 0);
    while (waiting)
        uv_run(&rig.loop, UV_RUN_DEFAULT);
    ck_assert_msg(answer != NULL, "killed %d: %s", _i, answer_error.message);
    ck_assert_str_eq(answer, "done");
    ck_assert_msg(render(variables), "%s", answer_error.message);
}
END_TEST

int main(void) {
    if (!has_jinja2()) {
        printf("skipped: no Python here has jinja2 (Debian: python3-jinja2)\n");
        const char *must = getenv("FIRSTPASS_MUST");
        return must && strstr(must, "box") ? 1 : 77;
    }
    Suite *suite = suite_create("template");
    TCase *tc = tcase_create("template");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_add_test(tc, test_vectors);
    tcase_add_loop_test(tc, test_hostile, 0, sizeof hostile / sizeof hostile[0]);
    tcase_add_test(tc, test_malformed);
    tcase_add_test(tc, test_many_and_cancel);
    suite_add_tcase(suite, tc);
    tc = tcase_create("deaths");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, open_rig, close_rig);
    tcase_add_loop_test(tc, test_render_outlives_its_process, 0, 2);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
