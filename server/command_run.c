#include "config/limits.h"
#include "server/api_response.h"
#include "server/api_variants.h"
#include "server/command.h"
#include "server/prompt.h"
#include "server/runtime.h"
#include "server/writer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ANSWER_BYTES = 512 * 1024 * 1024 };

static const char usage[] =
    "usage: firstpass run --prompt FILE [--tests FILE] [OPTION]… [SETTING]…\n"
    "\n"
    "Runs one race in this process and writes the API's answer as JSON to standard output.  FILE "
    "may\n"
    "be - for standard input.\n"
    "\n"
    "  --chat | --completion   the prompt is a user message (where the model has a template) or "
    "the\n"
    "                          text to continue\n"
    "  --system FILE           system message, with --chat\n"
    "  --code FILE             the code that answers continue and that the tests may use\n"
    "  --max-tokens N  --temperature T  --top-p P  --min-p P  --top-k N  --seed N  --n N\n"
    "  --diversity JSON        {\"temperatures\": [0.6, 1.0], \"prompts\": [\"\", \"Think "
    "first.\"]}, "
    "or a\n"
    "                          file that holds it: firstpass.diversity of the API\n"
    "  with --tests: --format F  --entry-point NAME  --max-candidates N  --width N  --timeout-s S\n"
    "                --memory-mb N  --deadline-s S  --extract E\n"
    "                --return first|lowest_index|best|all  --on-fail best|error\n"
    "                --candidates none|verdicts|full\n"
    "\n"
    "Exit status: 0 verified (without tests: answered), 1 not verified, 2 bad input, 3 system "
    "failure.\n";

/* Options that are fields of the request; the API's parser judges their values. */
static const struct {
    const char *option, *field;
    bool text;  /* a string; else a number */
    bool tests; /* of the object firstpass */
} fields[] = {
    {"max-tokens", "max_tokens", false, false},
    {"temperature", "temperature", false, false},
    {"top-p", "top_p", false, false},
    {"min-p", "min_p", false, false},
    {"top-k", "top_k", false, false},
    {"seed", "seed", false, false},
    {"n", "n", false, false},
    {"format", "format", true, true},
    {"entry-point", "entry_point", true, true},
    {"max-candidates", "max_candidates", false, true},
    {"width", "width", false, true},
    {"timeout-s", "timeout_s", false, true},
    {"memory-mb", "memory_mb", false, true},
    {"deadline-s", "deadline_s", false, true},
    {"extract", "extract", true, true},
    {"return", "return", true, true},
    {"on-fail", "on_fail", true, true},
    {"candidates", "candidates", true, true},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

struct run {
    const struct config *config; /* borrowed */
    struct runtime *runtime;     /* owned */
    struct err *e;               /* borrowed */

    const char *prompt_path, *tests_path, *system_path, *code_path;
    bool chat, completion;
    json_t *body, *firstpass; /* owned */

    struct api_request request;
    struct api_response_head head;
    bool parsed;
    char *rendered; /* owned */
    size_t rendered_len;
    struct prompt_set prompts;   /* owned */
    bool done, failed, verified; /* of the present wait */
    struct buf answer;
};

/* ---- options to a request ---- */

/* Integers stay integers, so that a seed keeps all its digits. */
static json_t *number(struct command_args *a, const char *option, const char *text) {
    char *end;
    bool whole = *text && !text[strspn(text, "-0123456789")];
    bool decimal = *text && !text[strspn(text, "-+.eE0123456789")];
    long long i = strtoll(text, &end, 10);
    if (whole && !*end) return json_integer(i);
    double d = strtod(text, &end);
    if (decimal && !*end && isfinite(d)) return json_real(d);
    a->failed = true;
    err_set(a->e, ERR_INPUT, "--%s: \"%s\" is no number", option, text);
    return NULL;
}

static bool take_field(struct run *r, struct command_args *a) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        const char *text = command_args_value(a, fields[i].option);
        if (!text) continue;
        if (a->failed) return true;
        json_t *value = fields[i].text ? json_string(text) : number(a, fields[i].option, text);
        if (fields[i].text && !value) {
            a->failed = true;
            err_set(a->e, ERR_INPUT, "--%s is no UTF-8", fields[i].option);
        }
        if (value)
            json_object_set_new(fields[i].tests ? r->firstpass : r->body, fields[i].field, value);
        return true;
    }
    return false;
}

static bool take_path(struct run *r, struct command_args *a) {
    const char *value;
    if ((value = command_args_value(a, "prompt")))
        r->prompt_path = value;
    else if ((value = command_args_value(a, "tests")))
        r->tests_path = value;
    else if ((value = command_args_value(a, "system")))
        r->system_path = value;
    else if ((value = command_args_value(a, "code")))
        r->code_path = value;
    return value != NULL;
}

static bool take_diversity(struct run *r, struct command_args *a) {
    const char *value = command_args_value(a, "diversity");
    if (!value) return false;
    json_t *diversity = a->failed ? NULL : command_json_object("diversity", value, a->e);
    if (diversity)
        json_object_set_new(r->firstpass, "diversity", diversity);
    else
        a->failed = true;
    return true;
}

/* False with ERR_NONE where help was asked for and given. */
static bool parse_args(struct run *r, int argc, char **argv) {
    struct command_args a;
    command_args_init(&a, argc, argv, r->e);
    while (command_args_next(&a)) {
        if (command_args_flag(&a, "help")) {
            fputs(usage, stdout);
            return false;
        }
        if (command_args_flag(&a, "chat"))
            r->chat = true;
        else if (command_args_flag(&a, "completion"))
            r->completion = true;
        else if (command_args_flag(&a, "json"))
            continue; /* there is no other form */
        else if (!take_path(r, &a) && !take_field(r, &a) && !take_diversity(r, &a))
            command_args_unknown(&a);
    }
    if (a.failed) return false;
    if (!r->prompt_path) {
        fputs(usage, stderr);
        return err_set(r->e, ERR_INPUT, "--prompt FILE is missing");
    }
    if (r->chat && r->completion)
        return err_set(r->e, ERR_INPUT, "--chat and --completion exclude each other");
    if (r->completion && r->system_path) return err_set(r->e, ERR_INPUT, "--system needs --chat");
    return true;
}

/* The file's text as a JSON string. */
static json_t *read_text(struct run *r, const char *path, size_t max) {
    size_t len;
    char *text = command_read_file(path, max, &len, r->e);
    if (!text) return NULL;
    json_t *value = json_stringn(text, len);
    free(text);
    if (!value) err_set(r->e, ERR_INPUT, "%s is no UTF-8 text", path);
    return value;
}

static bool set_text(struct run *r, json_t *object, const char *key, const char *path, size_t max) {
    if (!path) return true;
    json_t *value = read_text(r, path, max);
    return value && !json_object_set_new(object, key, value);
}

static bool add_message(struct run *r, json_t *messages, const char *role, const char *path) {
    if (!path) return true;
    json_t *message = json_pack("{s:s}", "role", role);
    bool ok = set_text(r, message, "content", path, LIMIT_BODY_BYTES_MAX);
    json_array_append_new(messages, message);
    return ok;
}

static bool build_body(struct run *r) {
    if (!set_text(r, r->firstpass, "tests", r->tests_path, LIMIT_TESTS_BYTES)) return false;
    if (!set_text(r, r->firstpass, "prompt", r->code_path, LIMIT_CODE_BYTES)) return false;
    if (!r->completion) {
        json_t *messages = json_array();
        json_object_set_new(r->body, "messages", messages);
        return add_message(r, messages, "system", r->system_path) &&
               add_message(r, messages, "user", r->prompt_path);
    }
    return set_text(r, r->body, "prompt", r->prompt_path, LIMIT_BODY_BYTES_MAX);
}

/* ---- request to prompt tokens ---- */

static char *guard(void *self, const char *text, size_t len, size_t *len_out) {
    return engine_guard(self, text, len, len_out);
}

static const char *token_text(const void *self, int32_t token, size_t *len) {
    return engine_token_text(self, token, len);
}

static bool parse_request(struct run *r) {
    struct engine *engine = runtime_engine(r->runtime);
    const struct engine_model *model = engine_model(engine);
    const struct api_request_context context = {
        .config = r->config, .model = model, .guard = guard, .self = engine};
    enum api_request_kind kind = r->completion ? API_REQUEST_COMPLETIONS : API_REQUEST_CHAT;
    if (kind == API_REQUEST_CHAT && !runtime_chat(r->runtime, r->e)) return false;
    char *body = json_dumps(r->body, JSON_COMPACT);
    r->parsed = true;
    bool ok = api_request_parse(&r->request, kind, body, strlen(body), &context, r->e);
    free(body);
    if (!ok) return false;
    prompt_choose_seed(&r->request);
    r->head = (struct api_response_head){
        .request = &r->request,
        .model = model->name,
        .fingerprint = model->fingerprint,
        .created = (int64_t)time(NULL),
        .sandbox_level = verifier_report(runtime_verifier(r->runtime))->level,
        .token_text = token_text,
        .self = engine,
    };
    snprintf(r->head.id, sizeof r->head.id, "run-%016llx", (unsigned long long)r->request.job.seed);
    return true;
}

/* Runs the loop until a callback has set done; false where it also set failed. */
static bool wait_for(struct run *r) {
    while (!r->done)
        uv_run(runtime_loop(r->runtime), UV_RUN_ONCE);
    return !r->failed;
}

static void on_rendered(void *arg, const char *text, size_t len, const struct err *error) {
    struct run *r = arg;
    r->done = true;
    r->failed = error != NULL;
    if (error) {
        *r->e = *error;
        err_prefix(r->e, "the chat template refused the message");
        return;
    }
    r->rendered = err_strndup(text, len);
    r->rendered_len = len;
}

/* The next variant of a chat's prompt. */
static bool tokenize_next(struct run *r) {
    size_t len;
    char *variables = api_variants_variables(&r->request, r->prompts.n, &len);
    r->done = false;
    verifier_render(runtime_verifier(r->runtime), variables, len, on_rendered, r);
    free(variables);
    bool ok = wait_for(r) && prompt_set_add_chat(&r->prompts, runtime_engine(r->runtime),
                                                 &r->request, r->rendered, r->rendered_len, r->e);
    free(r->rendered);
    r->rendered = NULL;
    return ok;
}

static bool tokenize(struct run *r) {
    const struct api_request *q = &r->request;
    if (q->kind == API_REQUEST_COMPLETIONS)
        return prompt_set_add(&r->prompts, runtime_engine(r->runtime), q, &q->prompts[0], r->e);
    while (r->prompts.n < api_request_n_variants(q))
        if (!tokenize_next(r)) return false;
    return true;
}

/* ---- the race ---- */

static void write_answer(struct run *r, const struct race_result *result) {
    struct writer w;
    writer_init(&w, &r->answer);
    writer_object(&w);
    api_response_write_head(&w, &r->head, false);
    const struct api_response_prompt no_prompt = {0};
    writer_key(&w, "choices");
    writer_array(&w);
    for (int i = 0; i < result->n_choices; i++)
        api_response_write_choice(&w, &r->head, i, result->choices[i], &no_prompt);
    writer_array_end(&w);
    struct api_response_totals totals = {0};
    api_response_add(&totals, &result->counts);
    writer_key(&w, "usage");
    api_response_write_usage(&w, &totals);
    writer_key(&w, "firstpass");
    api_response_write_firstpass(&w, &r->head, result);
    writer_object_end(&w);
}

static void on_done(void *arg, const struct race_result *result) {
    struct run *r = arg;
    r->done = true;
    r->verified = result->verified;
    /* That none passed is an answer too: it says what became of the candidates. */
    r->failed = result->error.kind != ERR_NONE && result->error.kind != ERR_NONE_PASSED;
    if (r->failed)
        *r->e = result->error;
    else
        write_answer(r, result);
}

static bool race(struct run *r) {
    const struct race_callbacks callbacks = {.on_done = on_done};
    struct race_request request;
    struct race *started;
    if (!prompt_race(&r->request, engine_model(runtime_engine(r->runtime)),
                     r->config->server.default_max_tokens, &r->prompts, &request, r->e))
        return false;
    r->done = false;
    if (!race_start(runtime_races(r->runtime), &request, &callbacks, r, &started, r->e))
        return false;
    return wait_for(r);
}

/* ---- the whole ---- */

static bool run_all(struct run *r) {
    if (!build_body(r)) return false;
    if (json_object_size(r->firstpass)) json_object_set(r->body, "firstpass", r->firstpass);
    r->runtime = runtime_open(r->config, r->e);
    return r->runtime && runtime_load_wait(r->runtime, NULL, NULL, r->e) && parse_request(r) &&
           tokenize(r) && race(r);
}

int command_run(int argc, char **argv, const struct config *config) {
    struct err e = {0};
    struct run r = {.config = config, .e = &e};
    r.body = json_object();
    r.firstpass = json_object();
    buf_init(&r.answer, ANSWER_BYTES);
    int status = COMMAND_PASSED;
    if (!parse_args(&r, argc, argv) || !run_all(&r)) {
        if (e.kind != ERR_NONE) status = command_failed("run", &e);
        if (e.kind == ERR_DEADLINE) status = COMMAND_NOT_PASSED;
    } else {
        printf("%s\n", buf_text(&r.answer));
        if (r.request.has_tests && !r.verified) status = COMMAND_NOT_PASSED;
    }
    runtime_close(r.runtime);
    if (r.parsed) api_request_clear(&r.request);
    json_decref(r.body);
    json_decref(r.firstpass);
    buf_clear(&r.answer);
    prompt_set_clear(&r.prompts);
    return status;
}
