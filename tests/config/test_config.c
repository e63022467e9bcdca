#include "config/config.h"

#include "config/limits.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct config c;
static struct err e;
static char file_path[64];

static void setup(void) {
    e = (struct err){0};
    unsetenv("FIRSTPASS_MODELS");
    snprintf(file_path, sizeof file_path, "/tmp/firstpass-test-config-%d.json", (int)getpid());
}

static void teardown(void) {
    config_clear(&c);
    unlink(file_path);
}

static void write_file(const char *text) {
    FILE *f = fopen(file_path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* Splits a line of words into argv; loads. */
static bool load(const char *line, int *argc, char **argv) {
    static char words[1024];
    snprintf(words, sizeof words, "%s", line);
    *argc = 0;
    for (char *save = NULL, *word = strtok_r(words, " ", &save); word;
         word = strtok_r(NULL, " ", &save))
        argv[(*argc)++] = word;
    argv[*argc] = NULL;
    return config_load(&c, argc, argv, &e);
}

static bool loads(const char *line) {
    char *argv[64];
    int argc;
    return load(line, &argc, argv);
}

/* The load fails and the message has all the words. */
static void refused(const char *line, const char *const *words) {
    ck_assert_msg(!loads(line), "accepted: %s", line);
    ck_assert_int_eq(e.kind, ERR_INPUT);
    for (; *words; words++)
        ck_assert_msg(strstr(e.message, *words) != NULL, "no \"%s\" in: %s", *words, e.message);
    ck_assert_int_eq(c.server.port, 8000); /* defaults all the same */
    config_clear(&c);
}
#define REFUSED(line, ...) refused(line, (const char *const[]){__VA_ARGS__, NULL})

static char *printed(void) {
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    config_print(&c, out);
    fclose(out);
    return text;
}

START_TEST(defaults) {
    ck_assert(loads("firstpass serve"));
    ck_assert_str_eq(c.server.host, "127.0.0.1");
    ck_assert_int_eq(c.server.port, 8000);
    ck_assert_str_eq(c.model.path, "qwen2.5-coder-0.5b-instruct-q4_k_m");
    ck_assert_str_eq(c.model.dir, "models");
    ck_assert_int_eq(c.server.max_body_bytes, LIMIT_BODY_BYTES);
    ck_assert_int_eq(c.verifier.min_level, 2);
    ck_assert(!c.log.json);
}
END_TEST

START_TEST(flags_in_every_form) {
    char *argv[64];
    int argc;
    ck_assert(load("firstpass run --server.port 81 --prompt P --host=::1 --log-json --tests T "
                   "--engine.prefill-chunk=7 --verifier.timeout_s 0.5 -- --port 5",
                   &argc, argv));
    ck_assert_int_eq(c.server.port, 81);
    ck_assert_str_eq(c.server.host, "::1");
    ck_assert(c.log.json);
    ck_assert_int_eq(c.engine.prefill_chunk, 7);
    ck_assert_double_eq(c.verifier.timeout_s, 0.5);
    const char *rest[] = {"firstpass", "run", "--prompt", "P", "--tests", "T", "--", "--port", "5"};
    ck_assert_int_eq(argc, 9);
    for (int i = 0; i < 9; i++)
        ck_assert_str_eq(argv[i], rest[i]);
    ck_assert_ptr_null(argv[9]);
}
END_TEST

START_TEST(every_alias_and_key_is_a_flag) {
    size_t n;
    const struct config_setting *s = config_settings(&n);
    for (size_t i = 0; i < n; i++) {
        const char *value = *s[i].preset ? s[i].preset : "x";
        char line[256];
        snprintf(line, sizeof line, "firstpass --%s=%s", s[i].key, value);
        ck_assert_msg(loads(line), "%s", e.message);
        config_clear(&c);
        if (!s[i].alias) continue;
        snprintf(line, sizeof line, "firstpass --%s=%s", s[i].alias, value);
        ck_assert_msg(loads(line), "%s", e.message);
        config_clear(&c);
        for (size_t j = 0; j < i; j++)
            ck_assert(!s[j].alias || strcmp(s[i].alias, s[j].alias));
    }
}
END_TEST

START_TEST(numbers_at_their_limits) {
    size_t n;
    const struct config_setting *s = config_settings(&n);
    for (size_t i = 0; i < n; i++) {
        if (s[i].type != CONFIG_INT) continue;
        char line[256], value[32], range[64];
        snprintf(range, sizeof range, "%.10g to %.10g", s[i].min, s[i].max);
        for (int over = 0; over < 2; over++) {
            int limit = (int)(over ? s[i].max : s[i].min);
            snprintf(line, sizeof line, "firstpass --%s=%d --verifier.max_level=3", s[i].key,
                     limit);
            if (!strcmp(s[i].key, "verifier.max_level"))
                snprintf(line, sizeof line, "firstpass --min-level=0 --%s=%d", s[i].key, limit);
            ck_assert_msg(loads(line), "%s", e.message);
            config_clear(&c);
            snprintf(value, sizeof value, "\"%d\"", over ? limit + 1 : limit - 1);
            snprintf(line, sizeof line, "firstpass --%s=%d", s[i].key,
                     over ? limit + 1 : limit - 1);
            REFUSED(line, s[i].key, value, range);
        }
    }
}
END_TEST

START_TEST(bad_flags) {
    REFUSED("firstpass --server.prot 80", "--server.prot", "no setting");
    REFUSED("firstpass --port", "--port", "needs a value");
    REFUSED("firstpass --port 80x", "server.port", "\"80x\"", "--port", "0 to 65535");
    REFUSED("firstpass --port 80.5", "server.port", "\"80.5\"");
    REFUSED("firstpass --port 0x50", "server.port");
    REFUSED("firstpass --port=", "server.port", "\"\"");
    REFUSED("firstpass --port 99999999999999999999", "server.port");
    REFUSED("firstpass --drain_s=1 --server.drain_s nan", "server.drain_s", "nan");
    REFUSED("firstpass --server.drain_s inf", "server.drain_s", "inf");
    REFUSED("firstpass --backend tpu", "engine.backend", "\"tpu\"", "auto|cpu|cuda");
    REFUSED("firstpass --backend cp", "engine.backend");
    REFUSED("firstpass --log.json=yes", "log.json", "\"yes\"", "true or false");
    REFUSED("firstpass --min-level 3 --verifier.max_level 2", "min_level", "max_level");
    REFUSED("firstpass --model=", "model.path", "empty");
    REFUSED("firstpass --config", "--config", "needs a value");
    REFUSED("firstpass --config /nonexistent/x.json", "/nonexistent/x.json");
}
END_TEST

START_TEST(origins_in_order) {
    write_file("{\"$schema\": \"schema.json\", \"server\": {\"port\": 1, \"drain_s\": 2, "
               "\"idle_s\": 3}, \"log\": {\"json\": true}}");
    setenv("FIRSTPASS_SERVER_DRAIN_S", "20", 1);
    setenv("FIRSTPASS_SERVER_IDLE_S", "30", 1);
    setenv("FIRSTPASS_MODELS", "/m", 1);
    setenv("FIRSTPASS_MUST", "box", 1);
    setenv("FIRSTPASS_PORT", "tcp://10.0.0.1:80", 1); /* an orchestrator's, of a service */
    char line[256];
    snprintf(line, sizeof line, "firstpass --config %s --server.idle_s 300", file_path);
    bool ok = loads(line);
    unsetenv("FIRSTPASS_SERVER_DRAIN_S");
    unsetenv("FIRSTPASS_SERVER_IDLE_S");
    unsetenv("FIRSTPASS_MUST");
    unsetenv("FIRSTPASS_PORT");
    ck_assert_msg(ok, "%s", e.message);
    ck_assert_int_eq(c.server.port, 1);
    ck_assert_double_eq(c.server.drain_s, 20);
    ck_assert_double_eq(c.server.idle_s, 300);
    char *text = printed();
    ck_assert_ptr_nonnull(strstr(text, "server.host = \"127.0.0.1\"   (default)\n"));
    ck_assert_ptr_nonnull(strstr(text, "server.port = 1   (file)\n"));
    ck_assert_ptr_nonnull(strstr(text, "server.drain_s = 20   (environment)\n"));
    ck_assert_ptr_nonnull(strstr(text, "server.idle_s = 300   (flag)\n"));
    ck_assert_ptr_nonnull(strstr(text, "model.dir = \"/m\"   (environment FIRSTPASS_MODELS)\n"));
    ck_assert_ptr_nonnull(strstr(text, "log.json = true   (file)\n"));
    free(text);
}
END_TEST

START_TEST(bad_environment) {
    setenv("FIRSTPASS_SERVER_PORT", "many", 1);
    REFUSED("firstpass", "server.port", "FIRSTPASS_SERVER_PORT", "\"many\"");
    unsetenv("FIRSTPASS_SERVER_PORT");
    setenv("FIRSTPASS_SERVER_PROT", "80", 1);
    REFUSED("firstpass", "FIRSTPASS_SERVER_PROT", "no setting");
    unsetenv("FIRSTPASS_SERVER_PROT");
}
END_TEST

START_TEST(bad_files) {
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"", "line"},
        {"{", "line 1"},
        {"{\"server\": {\"port\": 1, \"port\": 2}}", "duplicate"},
        {"[1]", "JSON object"},
        {"{\"sever\": {}}", "\"sever\""},
        {"{\"server\": 3}", "\"server\""},
        {"{\"server\": {\"prot\": 3}}", "server.prot"},
        {"{\"server\": {\"port\": \"80\"}}", "a whole number"},
        {"{\"server\": {\"port\": 80.5}}", "a whole number"},
        {"{\"server\": {\"port\": 70000}}", "0 to 65535"},
        {"{\"server\": {\"port\": 9223372036854775807}}", "0 to 65535"},
        {"{\"server\": {\"host\": 3}}", "a string"},
        {"{\"log\": {\"json\": \"true\"}}", "true or false"},
        {"{\"log\": {\"level\": \"loud\"}}", "debug|info|warn|error"},
        {"{\"server\": {\"drain_s\": -1}}", "server.drain_s"},
        {"{\"server\": {\"port\": null}}", "null"},
        {"{\"server\": {\"port\": {\"a\": 1}}}", "server.port"},
    };
    char line[256];
    snprintf(line, sizeof line, "firstpass --config=%s", file_path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].text);
        REFUSED(line, cases[i].word, file_path);
    }
}
END_TEST

START_TEST(model_paths) {
    static const struct {
        const char *line, *path;
    } cases[] = {
        {"f --model-dir /d --model m", "/d/m.gguf"},
        {"f --model-dir /d --model ./m", "./m"},
        {"f --model-dir /d --model m.gguf", "m.gguf"},
        {"f --model-dir /d --model .gguf", "/d/.gguf.gguf"},
        {"f", "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert(loads(cases[i].line));
        char *path = config_model_path(&c);
        ck_assert_str_eq(path, cases[i].path);
        free(path);
        config_clear(&c);
    }
}
END_TEST

/* A name of a directory, where no file has it. */
START_TEST(model_directories) {
    char dir[] = "/tmp/firstpass-models-XXXXXX", line[128], path[128];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(line, sizeof line, "f --model-dir %s --model m", dir);
    static const char *const files[] = {"m/config.json", "m.gguf"};
    static const char *const found[] = {"m.gguf", "m", "m.gguf"};
    for (int i = 0; i < 3; i++) {
        if (i) {
            snprintf(path, sizeof path, "%s/%s", dir, files[i - 1]);
            FILE *out = fopen(path, "w");
            ck_assert(out && !fclose(out));
        }
        ck_assert(loads(line));
        char *got = config_model_path(&c);
        snprintf(path, sizeof path, "%s/%s", dir, found[i]);
        ck_assert_str_eq(got, path);
        free(got);
        config_clear(&c);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        ck_assert_int_eq(unlink(path), 0);
    }
    snprintf(path, sizeof path, "%s/m", dir);
    ck_assert(!rmdir(path) && !rmdir(dir));
}
END_TEST

START_TEST(help_names_every_setting) {
    char *text = NULL;
    size_t len = 0, n;
    FILE *out = open_memstream(&text, &len);
    config_help(out);
    fclose(out);
    const struct config_setting *s = config_settings(&n);
    for (size_t i = 0; i < n; i++) {
        ck_assert_ptr_nonnull(strstr(text, s[i].key));
        ck_assert_ptr_nonnull(strstr(text, s[i].help));
    }
    free(text);
}
END_TEST

/* ---- the two JSON files that go with the table ---- */

/* A setting's default as JSON. */
static json_t *preset(const struct config_setting *s) {
    switch (s->type) {
    case CONFIG_INT:
        return json_integer(strtol(s->preset, NULL, 10));
    case CONFIG_DOUBLE:
        return json_real(strtod(s->preset, NULL));
    case CONFIG_STRING:
        return json_string(s->preset);
    case CONFIG_BOOL:
        return json_boolean(!strcmp(s->preset, "true"));
    }
    return NULL;
}

static bool same(json_t *a, json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        double difference = json_number_value(a) - json_number_value(b);
        return difference <= 0 && difference >= 0;
    }
    return json_equal(a, b);
}

static json_t *member(json_t *root, const char *key) {
    char group[32];
    size_t len = strcspn(key, ".");
    snprintf(group, sizeof group, "%.*s", (int)len, key);
    json_t *in = json_object_get(root, group);
    json_t *properties = json_object_get(in, "properties");
    return json_object_get(properties ? properties : in, key + len + 1);
}

static size_t count_members(json_t *groups, const char *below) {
    size_t n = 0;
    const char *name;
    json_t *group;
    json_object_foreach(groups, name, group) {
        if (strcmp(name, "$schema"))
            n += json_object_size(below ? json_object_get(group, below) : group);
    }
    return n;
}

START_TEST(defaults_file_and_schema_agree_with_the_table) {
    json_error_t why;
    json_t *file = json_load_file("config/firstpass.json", 0, &why);
    json_t *schema = json_load_file("config/schema.json", 0, &why);
    ck_assert(file && schema);
    json_t *groups = json_object_get(schema, "properties");
    size_t n;
    const struct config_setting *s = config_settings(&n);
    ck_assert_uint_eq(count_members(file, NULL), n);
    ck_assert_uint_eq(count_members(groups, "properties"), n);
    static const char *const types[] = {"integer", "number", "string", "boolean"};
    for (size_t i = 0; i < n; i++) {
        json_t *value = preset(&s[i]), *doc = member(groups, s[i].key);
        ck_assert_msg(same(member(file, s[i].key), value), "%s in firstpass.json", s[i].key);
        ck_assert_msg(same(json_object_get(doc, "default"), value), "%s in schema.json", s[i].key);
        ck_assert_str_eq(json_string_value(json_object_get(doc, "type")), types[s[i].type]);
        ck_assert_str_eq(json_string_value(json_object_get(doc, "description")), s[i].help);
        if (s[i].type == CONFIG_INT || s[i].type == CONFIG_DOUBLE) {
            ck_assert_double_eq(json_number_value(json_object_get(doc, "minimum")), s[i].min);
            ck_assert_double_eq(json_number_value(json_object_get(doc, "maximum")), s[i].max);
        }
        json_decref(value);
    }
    json_decref(file);
    json_decref(schema);
    ck_assert(loads("firstpass --config config/firstpass.json"));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, defaults);
    tcase_add_test(t, flags_in_every_form);
    tcase_add_test(t, every_alias_and_key_is_a_flag);
    tcase_add_test(t, numbers_at_their_limits);
    tcase_add_test(t, bad_flags);
    tcase_add_test(t, origins_in_order);
    tcase_add_test(t, bad_environment);
    tcase_add_test(t, bad_files);
    tcase_add_test(t, model_paths);
    tcase_add_test(t, model_directories);
    tcase_add_test(t, help_names_every_setting);
    tcase_add_test(t, defaults_file_and_schema_agree_with_the_table);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
