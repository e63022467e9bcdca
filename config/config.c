#include "config/config.h"

#include "base/buf.h"
#include "config/limits.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum origin {
    ORIGIN_DEFAULT,
    ORIGIN_MODELS_VARIABLE,
    ORIGIN_FILE,
    ORIGIN_ENVIRONMENT,
    ORIGIN_FLAG
};

#define INT(key, alias, field, low, high, preset, help)                                            \
    { key, alias, CONFIG_INT, offsetof(struct config, field), low, high, NULL, preset, help }
#define DOUBLE(key, alias, field, low, high, preset, help)                                         \
    { key, alias, CONFIG_DOUBLE, offsetof(struct config, field), low, high, NULL, preset, help }
#define STRING(key, alias, field, choices, preset, help)                                           \
    { key, alias, CONFIG_STRING, offsetof(struct config, field), 0, 0, choices, preset, help }
#define BOOL(key, alias, field, preset, help)                                                      \
    { key, alias, CONFIG_BOOL, offsetof(struct config, field), 0, 0, NULL, preset, help }

static const struct config_setting settings[] = {
    STRING("server.host", "host", server.host, NULL, "127.0.0.1", "address to listen on"),
    INT("server.port", "port", server.port, 0, 65535, "8000",
        "port to listen on; 0: any free one, said at start"),
    INT("server.max_body_bytes", NULL, server.max_body_bytes, 1024, LIMIT_BODY_BYTES_MAX, "4194304",
        "largest request body"),
    INT("server.max_connections", NULL, server.max_connections, 1, LIMIT_CONNECTIONS, "2048",
        "connections open at once; more wait in the listen queue"),
    INT("server.max_races", NULL, server.max_races, 1, LIMIT_RACES, "256",
        "requests in work at once; more are answered with 429"),
    INT("server.max_candidates", "max-candidates-cap", server.max_candidates, 1, LIMIT_CANDIDATES,
        "10000", "most candidates that one request may ask for"),
    DOUBLE("server.drain_s", NULL, server.drain_s, 0, LIMIT_REQUEST_SECONDS, "30",
           "seconds that live requests get to end after SIGTERM"),
    DOUBLE("server.idle_s", NULL, server.idle_s, 1, LIMIT_REQUEST_SECONDS, "60",
           "seconds after which a connection without traffic is closed"),
    /* 600 s is when the openai client stops waiting by default. */
    DOUBLE("server.default_deadline_s", NULL, server.default_deadline_s, 0, LIMIT_REQUEST_SECONDS,
           "600", "time limit of requests that give none; 0: none"),
    INT("server.default_max_tokens", NULL, server.default_max_tokens, 1, LIMIT_CONTEXT, "1024",
        "length limit of chat answers where the request gives none"),
    INT("server.max_queued_candidates", NULL, server.max_queued_candidates, 1, 100000000, "100000",
        "candidates that wait, of all requests together; more are answered with 429"),
    DOUBLE("server.read_s", NULL, server.read_s, 0.1, LIMIT_REQUEST_SECONDS, "60",
           "seconds in which a request must have come in whole, else its connection is cut"),
    BOOL("server.inline_tests", "inline-tests", server.inline_tests, "false",
         "for clients that can't add fields: model NAME:best-of-64, tests in a block ```python "
         "test"),
    STRING("server.api_key_file", "api-key-file", server.api_key_file, NULL, "",
           "file of API keys, a line each: NAME KEY; empty: none are asked for; SIGHUP reads it "
           "again"),
    BOOL("server.open_metrics", NULL, server.open_metrics, "false",
         "/metrics may be read without a key"),
    STRING("server.tls_cert", "tls-cert", server.tls_cert, NULL, "",
           "PEM file of the certificate chain; empty: plain HTTP"),
    STRING("server.tls_key", "tls-key", server.tls_key, NULL, "",
           "PEM file of the certificate's private key"),
    STRING("server.cors_origin", NULL, server.cors_origin, NULL, "",
           "origin whose pages in browsers may ask, or *; empty: none"),
    BOOL("server.page", "page", server.page, "true",
         "the page at / is there, needing no key itself; false: only the API is"),

    STRING("model.path", "model", model.path, NULL, "qwen2.5-coder-0.5b-instruct-q4_k_m",
           "model: NAME for NAME.gguf or the Hugging Face directory NAME in model.dir, or the path "
           "of either"),
    STRING("model.name", "model-name", model.name, NULL, "",
           "the model's name as clients see it; empty: from the file's name"),
    STRING("model.dir", "model-dir", model.dir, NULL, "models",
           "where model names are looked up; $FIRSTPASS_MODELS where that is set"),

    STRING("engine.backend", "backend", engine.backend, "auto|cpu|cuda", "auto",
           "what computes: auto, cpu or cuda"),
    STRING("engine.isa", "isa", engine.isa, NULL, "auto",
           "instruction set of the cpu backend: auto, or one that `doctor` lists"),
    STRING("engine.weights", "weights", engine.weights, "auto|bf16|fp8", "auto",
           "element type of the layers' weights on a GPU: fp8 (8.9 and later) halves them; auto: "
           "fp8 where the model's are, else bf16"),
    STRING("engine.kv", "kv", engine.kv, "auto|bf16|fp8", "auto",
           "element type of keys and values on a GPU: fp8 takes half the memory; auto: bf16"),
    INT("engine.threads", "threads", engine.threads, 0, LIMIT_THREADS, "0",
        "compute threads; 0: one for each core"),
    INT("engine.context", "context", engine.context, 0, LIMIT_CONTEXT, "0",
        "positions of one sequence at most; 0: what model and memory allow"),
    INT("engine.max_rows", "max-rows", engine.max_rows, 1, LIMIT_ROWS, "64",
        "candidates' rows in one step at most"),
    INT("engine.prefill_chunk", NULL, engine.prefill_chunk, 1, LIMIT_ROWS, "128",
        "prompt rows in one step at most, beside those of candidates"),
    INT("engine.memory_mb", NULL, engine.memory_mb, 0, 1 << 24, "0",
        "memory of the engine, all buckets together; 0: from what is free"),
    INT("engine.kv_blocks", NULL, engine.kv_blocks, 0, 1 << 24, "0",
        "blocks of 16 positions of keys and values; 0: what memory allows"),

    STRING("verifier.python", "python", verifier.python, NULL, "auto",
           "Python that runs the tests; auto: the first usable CPython >= 3.8"),
    INT("verifier.workers", "workers", verifier.workers, 0, LIMIT_VERIFY_WORKERS, "0",
        "sandbox workers; 0: one for each core"),
    INT("verifier.min_level", "min-level", verifier.min_level, 0, 3, "2",
        "weakest sandbox to start with (0 none … 3 all layers)"),
    INT("verifier.max_level", NULL, verifier.max_level, 0, 3, "3",
        "strongest sandbox to use, to try a weaker one"),
    INT("verifier.max_landlock_abi", NULL, verifier.max_landlock_abi, -1, 1000, "-1",
        "Landlock as on an older kernel; -1: what there is, 0: none"),
    DOUBLE("verifier.timeout_s", NULL, verifier.timeout_s, 0.01, LIMIT_VERIFY_SECONDS, "3",
           "CPU seconds of one candidate where the request gives none"),
    INT("verifier.memory_mb", NULL, verifier.memory_mb, 16, LIMIT_VERIFY_MEMORY_MB, "256",
        "memory of one candidate where the request gives none"),

    STRING("eval.humaneval", "humaneval", eval.humaneval, NULL, "",
           "HumanEval.jsonl.gz for `eval humaneval`; empty: looked for where Python packages are"),

    STRING("log.level", "log-level", log.level, "debug|info|warn|error", "info",
           "least severe log line to write"),
    BOOL("log.json", "log-json", log.json, "false", "log lines as JSON"),
    BOOL("log.prompts", NULL, log.prompts, "false", "what clients ask is logged too"),
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };
_Static_assert((int)N_SETTINGS <= (int)CONFIG_MAX_SETTINGS,
               "struct config keeps an origin for each setting");

const struct config_setting *config_settings(size_t *n) {
    *n = N_SETTINGS;
    return settings;
}

/* ---- one value ---- */

static void *field(struct config *c, const struct config_setting *s) {
    return (char *)c + s->offset;
}

static const void *field_view(const struct config *c, const struct config_setting *s) {
    return (const char *)c + s->offset;
}

static bool refuse_number(const struct config_setting *s, const char *value, const char *from,
                          struct err *e) {
    return err_set(e, ERR_INPUT, "%s (%s) is \"%s\"; it must be %s from %.10g to %.10g", s->key,
                   from, value, s->type == CONFIG_INT ? "a whole number" : "a number", s->min,
                   s->max);
}

static bool in_choices(const char *choices, const char *value) {
    size_t len = strlen(value);
    for (const char *at = choices; at;) {
        const char *end = strchr(at, '|');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        if (n == len && !memcmp(at, value, n)) return true;
        at = end ? end + 1 : NULL;
    }
    return false;
}

static bool set_number(struct config *c, const struct config_setting *s, double value,
                       const char *text, const char *from, struct err *e) {
    if (!(value >= s->min && value <= s->max)) return refuse_number(s, text, from, e);
    if (s->type == CONFIG_INT) {
        if (value != floor(value)) return refuse_number(s, text, from, e);
        *(int *)field(c, s) = (int)value;
    } else {
        *(double *)field(c, s) = value;
    }
    return true;
}

/* `from` names the origin in messages: "--port", "FIRSTPASS_SERVER_PORT", the file. */
static bool set_text(struct config *c, const struct config_setting *s, const char *text,
                     const char *from, struct err *e) {
    switch (s->type) {
    case CONFIG_INT:
    case CONFIG_DOUBLE: {
        /* Decimal only: strtod alone would take blanks, "0x10", "inf" and "nan" too. */
        if (!*text || text[strspn(text, "0123456789+-.eE")]) return refuse_number(s, text, from, e);
        char *end;
        double value = strtod(text, &end);
        if (*end) return refuse_number(s, text, from, e);
        return set_number(c, s, value, text, from, e);
    }
    case CONFIG_BOOL:
        if (strcmp(text, "true") && strcmp(text, "false"))
            return err_set(e, ERR_INPUT, "%s (%s) is \"%s\"; it must be true or false", s->key,
                           from, text);
        *(bool *)field(c, s) = !strcmp(text, "true");
        return true;
    case CONFIG_STRING: {
        if (s->choices && !in_choices(s->choices, text))
            return err_set(e, ERR_INPUT, "%s (%s) is \"%s\"; it must be one of %s", s->key, from,
                           text, s->choices);
        char **string = field(c, s);
        free(*string);
        *string = err_strdup(text);
        return true;
    }
    }
    return false;
}

static void print_value(const struct config *c, const struct config_setting *s, FILE *out) {
    switch (s->type) {
    case CONFIG_INT:
        fprintf(out, "%d", *(const int *)field_view(c, s));
        break;
    case CONFIG_DOUBLE:
        fprintf(out, "%.10g", *(const double *)field_view(c, s));
        break;
    case CONFIG_BOOL:
        fputs(*(const bool *)field_view(c, s) ? "true" : "false", out);
        break;
    case CONFIG_STRING:
        fprintf(out, "\"%s\"", *(char *const *)field_view(c, s));
        break;
    }
}

/* ---- defaults and file ---- */

static void set_defaults(struct config *c) {
    *c = (struct config){0};
    for (size_t i = 0; i < N_SETTINGS; i++) {
        struct err e = {0};
        bool ok = set_text(c, &settings[i], settings[i].preset, "default", &e);
        BUG_ON(!ok);
    }
}

static const struct config_setting *find_key(const char *section, const char *name) {
    size_t len = strlen(section);
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (!strncmp(settings[i].key, section, len) && settings[i].key[len] == '.' &&
            !strcmp(settings[i].key + len + 1, name))
            return &settings[i];
    return NULL;
}

static bool is_section(const char *name, size_t len) {
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (!strncmp(settings[i].key, name, len) && settings[i].key[len] == '.') return true;
    return false;
}

static void mark(struct config *c, const struct config_setting *s, enum origin origin) {
    c->origin[s - settings] = (unsigned char)origin;
}

static bool set_json(struct config *c, const struct config_setting *s, json_t *value,
                     const char *path, struct err *e) {
    static const char *const names[] = {
        [CONFIG_INT] = "a whole number",
        [CONFIG_DOUBLE] = "a number",
        [CONFIG_STRING] = "a string",
        [CONFIG_BOOL] = "true or false",
    };
    bool fits = false;
    switch (s->type) {
    case CONFIG_INT:
        fits = json_is_integer(value);
        break;
    case CONFIG_DOUBLE:
        fits = json_is_number(value);
        break;
    case CONFIG_STRING:
        fits = json_is_string(value);
        break;
    case CONFIG_BOOL:
        fits = json_is_boolean(value);
        break;
    }
    char *text = json_is_string(value) ? err_strdup(json_string_value(value))
                                       : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    bool ok;
    if (!fits)
        ok = err_set(e, ERR_INPUT, "%s (%s) is %s; it must be %s", s->key, path,
                     text ? text : "something else", names[s->type]);
    else if (json_is_number(value))
        ok = set_number(c, s, json_number_value(value), text ? text : "", path, e);
    else
        ok = set_text(c, s, text ? text : "", path, e);
    free(text);
    return ok;
}

static bool read_file(struct config *c, const char *path, struct err *e) {
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    bool ok = false;
    if (!root) {
        if (why.line > 0)
            err_set(e, ERR_INPUT, "%s, line %d, column %d: %s", path, why.line, why.column,
                    why.text);
        else
            err_set(e, ERR_INPUT, "--config: %s", why.text);
        goto done;
    }
    if (!json_is_object(root)) {
        err_set(e, ERR_INPUT, "%s must hold a JSON object such as {\"server\": {\"port\": 8000}}",
                path);
        goto done;
    }
    const char *section, *name;
    json_t *group, *value;
    json_object_foreach(root, section, group) {
        if (!strcmp(section, "$schema")) continue; /* editors look there for the documentation */
        if (!is_section(section, strlen(section)) || !json_is_object(group)) {
            err_set(e, ERR_INPUT,
                    "%s: \"%s\" is no group of settings; groups are server, model, engine, "
                    "verifier, log",
                    path, section);
            goto done;
        }
        json_object_foreach(group, name, value) {
            const struct config_setting *s = find_key(section, name);
            if (!s) {
                err_set(e, ERR_INPUT,
                        "%s: there is no setting %s.%s; `firstpass serve --print-config` lists all",
                        path, section, name);
                goto done;
            }
            if (!set_json(c, s, value, path, e)) goto done;
            mark(c, s, ORIGIN_FILE);
        }
    }
    ok = true;
done:
    json_decref(root);
    return ok;
}

/* ---- environment ---- */

static void variable_name(const struct config_setting *s, char *out, size_t size) {
    int used = snprintf(out, size, "FIRSTPASS_%s", s->key);
    BUG_ON(used < 0 || (size_t)used >= size);
    for (char *at = out; *at; at++)
        *at = *at == '.' ? '_' : (char)toupper((unsigned char)*at);
}

/* A variable that names a group but no setting of it is a typing error.  Others (FIRSTPASS_MODELS,
 * FIRSTPASS_MUST, what an orchestrator adds for a service of this name) aren't ours to judge. */
static bool check_variable(const char *variable, struct err *e) {
    const char *equals = strchr(variable, '=');
    const char *group = variable + strlen("FIRSTPASS_");
    const char *underscore = strchr(group, '_');
    if (!equals || !underscore || underscore > equals) return true;
    char section[32];
    size_t len = (size_t)(underscore - group);
    if (len >= sizeof section) return true;
    for (size_t i = 0; i < len; i++)
        section[i] = (char)tolower((unsigned char)group[i]);
    section[len] = 0;
    if (!is_section(section, len)) return true;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        char name[80];
        variable_name(&settings[i], name, sizeof name);
        size_t n = (size_t)(equals - variable);
        if (strlen(name) == n && !memcmp(name, variable, n)) return true;
    }
    return err_set(e, ERR_INPUT,
                   "environment variable %.*s names no setting; `firstpass serve --print-config` "
                   "lists all",
                   (int)(equals - variable), variable);
}

static bool read_environment(struct config *c, struct err *e) {
    for (char **variable = environ; variable && *variable; variable++)
        if (!strncmp(*variable, "FIRSTPASS_", 10) && !check_variable(*variable, e)) return false;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        char name[80];
        variable_name(&settings[i], name, sizeof name);
        const char *value = getenv(name);
        if (!value) continue;
        if (!set_text(c, &settings[i], value, name, e)) return false;
        mark(c, &settings[i], ORIGIN_ENVIRONMENT);
    }
    return true;
}

/* ---- command line ---- */

/* "-" and "_" are the same in a flag. */
static bool same_name(const char *flag, size_t len, const char *name) {
    if (!name || strlen(name) != len) return false;
    for (size_t i = 0; i < len; i++) {
        char a = flag[i] == '-' ? '_' : flag[i];
        char b = name[i] == '-' ? '_' : name[i];
        if (a != b) return false;
    }
    return true;
}

static const struct config_setting *find_flag(const char *flag, size_t len) {
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (same_name(flag, len, settings[i].key) || same_name(flag, len, settings[i].alias))
            return &settings[i];
    return NULL;
}

/* The value of the option at argv[*i], "=" form or next word; moves *i over it. */
static const char *option_value(int argc, char **argv, int *i, size_t name_len, struct err *e) {
    const char *after = argv[*i] + 2 + name_len;
    if (*after == '=') return after + 1;
    if (*i + 1 >= argc) {
        err_set(e, ERR_INPUT, "%s needs a value", argv[*i]);
        return NULL;
    }
    return argv[++*i];
}

/* One pass over argv.  With `c` NULL only --config is looked for; else settings are taken out. */
static bool read_flags(struct config *c, int *argc, char **argv, const char **config_file,
                       struct err *e) {
    int kept = 0, i = 0;
    for (; i < *argc && strcmp(argv[i], "--"); i++) {
        char *word = argv[i];
        size_t len = !strncmp(word, "--", 2) ? strcspn(word + 2, "=") : 0;
        bool is_config = len && same_name(word + 2, len, "config");
        const struct config_setting *s = len ? find_flag(word + 2, len) : NULL;
        if (len && !s && memchr(word + 2, '.', len))
            return err_set(e, ERR_INPUT,
                           "%.*s names no setting; `firstpass serve --print-config` lists all",
                           (int)len + 2, word);
        if (!is_config && !s) {
            if (c) argv[kept++] = word;
            continue;
        }
        const char *value = "true"; /* "--log-json" alone */
        if (is_config || s->type != CONFIG_BOOL || word[2 + len] == '=') {
            value = option_value(*argc, argv, &i, len, e);
            if (!value) return false;
        }
        if (is_config) {
            *config_file = value;
        } else if (c) {
            char flag[80];
            snprintf(flag, sizeof flag, "%.*s", (int)len + 2, word);
            if (!set_text(c, s, value, flag, e)) return false;
            mark(c, s, ORIGIN_FLAG);
        }
    }
    if (!c) return true;
    for (; i < *argc; i++)
        argv[kept++] = argv[i];
    if (kept < *argc) argv[kept] = NULL;
    *argc = kept;
    return true;
}

/* ---- the whole ---- */

/* What no single range can say. */
static bool check_together(const struct config *c, struct err *e) {
    if (c->verifier.min_level > c->verifier.max_level)
        return err_set(e, ERR_INPUT, "verifier.min_level is %d, above verifier.max_level, %d",
                       c->verifier.min_level, c->verifier.max_level);
    if (!*c->model.path)
        return err_set(e, ERR_INPUT, "model.path is empty; give --model NAME|PATH");
    return true;
}

bool config_load(struct config *c, int *argc, char **argv, struct err *e) {
    set_defaults(c);
    const char *models = getenv("FIRSTPASS_MODELS");
    const char *file = NULL;
    bool ok = true;
    if (models && *models) {
        const struct config_setting *s = find_key("model", "dir");
        ok = set_text(c, s, models, "FIRSTPASS_MODELS", e);
        mark(c, s, ORIGIN_MODELS_VARIABLE);
    }
    ok = ok && read_flags(NULL, argc, argv, &file, e) && (!file || read_file(c, file, e)) &&
         read_environment(c, e) && read_flags(c, argc, argv, &file, e) && check_together(c, e);
    if (!ok) {
        config_clear(c);
        set_defaults(c);
    }
    return ok;
}

void config_clear(struct config *c) {
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (settings[i].type == CONFIG_STRING) free(*(char **)field(c, &settings[i]));
    *c = (struct config){0};
}

void config_print(const struct config *c, FILE *out) {
    static const char *const origins[] = {
        [ORIGIN_DEFAULT] = "default", [ORIGIN_MODELS_VARIABLE] = "environment FIRSTPASS_MODELS",
        [ORIGIN_FILE] = "file",       [ORIGIN_ENVIRONMENT] = "environment",
        [ORIGIN_FLAG] = "flag",
    };
    for (size_t i = 0; i < N_SETTINGS; i++) {
        fprintf(out, "%s = ", settings[i].key);
        print_value(c, &settings[i], out);
        fprintf(out, "   (%s)\n", origins[c->origin[i]]);
    }
}

char *config_model_path(const struct config *c) {
    const char *path = c->model.path;
    size_t len = strlen(path);
    bool is_file = strchr(path, '/') || (len > 5 && !strcmp(path + len - 5, ".gguf"));
    if (is_file) return err_strdup(path);
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b, "%s/%s/config.json", c->model.dir, path);
    bool is_directory = !access(buf_text(&b), F_OK);
    buf_reset(&b);
    buf_printf(&b, "%s/%s.gguf", c->model.dir, path);
    if (is_directory && access(buf_text(&b), F_OK)) {
        buf_reset(&b);
        buf_printf(&b, "%s/%s", c->model.dir, path);
    }
    return buf_take(&b, NULL);
}

void config_help(FILE *out) {
    fputs("Settings, each also as FIRSTPASS_GROUP_NAME in the environment and in --config FILE:\n",
          out);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct config_setting *s = &settings[i];
        fprintf(out, "  --%s%s%s %s\n      %s (default: %s)\n", s->key, s->alias ? ", --" : "",
                s->alias ? s->alias : "", s->type == CONFIG_BOOL ? "" : "VALUE", s->help,
                *s->preset ? s->preset : "empty");
    }
}
