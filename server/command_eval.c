#include "base/clock.h"
#include "config/limits.h"
#include "server/command.h"
#include "server/eval.h"
#include "server/eval_report.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY_BYTES = 4096, PATH_BYTES = 4096, BAR = 24 };

static const char usage[] =
    "usage: firstpass eval TASKS --out DIR [OPTION]… [SETTING]…\n"
    "\n"
    "Asks a model every task of a file, N candidates each, and judges them in the sandbox.\n"
    "TASKS is \"humaneval\" or a file of JSON lines, gzip or not: HumanEval's, EvalPlus', MBPP's,\n"
    "LiveCodeBench's, APPS', or {\"prompt\", \"tests\", \"entry_point\", \"format\"}.\n"
    "\n"
    "  --out DIR           where results go; the same command again goes on where it stood\n"
    "  --n N               candidates of a task at most (32)\n"
    "  --mode M            pass@k: all N are judged (the default); first: until one passes\n"
    "  --base-url URL      asks the firstpass server there; default: the model of the settings,\n"
    "                      in this process.  --key-file FILE: its API key\n"
    "  --k K,K,…           the ks of pass@k; default: powers of two, and N\n"
    "  --temperature T (0.8)  --top-p P (0.95)  --min-p P (0)  --top-k N (0: off)\n"
    "  --max-tokens N (512)   of a candidate\n"
    "  --seed N (1)\n"
    "  --greedy-first      candidate 0 at temperature 0; --mode first does so by itself,\n"
    "                      --no-greedy-first: not there either\n"
    "  --completion        the model continues the task's code; default: it is asked in a chat\n"
    "  --timeout-s S  --memory-mb N   of a candidate's tests\n"
    "  --diversity JSON    {\"temperatures\": [0.6, 1.0], \"prompts\": [\"\", \"Think first.\"]}, "
    "or the\n"
    "                      file that holds it, as firstpass.diversity of the API: candidates are\n"
    "                      dealt over the prompts in turn, those of each over the temperatures;\n"
    "                      {code} in a prompt is the task's code\n"
    "  --in-flight N       candidates at once over all tasks; default: as the machine likes,\n"
    "                      with --base-url 64\n"
    "  --start I  --step S  --limit C   only every S-th task from the I-th (0) on, C at most\n"
    "  --no-plots          don't draw\n"
    "\n"
    "Exit status: 0 all was done, 2 bad input, 3 system failure.\n";

struct command {
    const struct config *config; /* borrowed */
    struct err *e;               /* borrowed */
    struct eval_options options;
    const char *tasks_path, *out, *base_url, *key_file;
    char *key, *diversity; /* owned: the text of either file */
    json_t *prompts;       /* owned: options.prompts */
    int greedy;            /* -1: as the mode has it */
    bool no_plots;

    /* progress */
    bool terminal;
    double drawn_at;
};

/* ---- options ---- */

static bool number(struct command *c, const char *option, const char *text, double low, double high,
                   bool whole, double *out) {
    char *end;
    double x = strtod(text, &end);
    bool ok = *text && !isspace((unsigned char)*text) && !*end && isfinite(x) && x >= low &&
              x <= high && (!whole || x == floor(x));
    if (!ok)
        return err_set(c->e, ERR_INPUT, "--%s is \"%s\"; it must be a %snumber from %.15g to %.15g",
                       option, text, whole ? "whole " : "", low, high);
    *out = x;
    return true;
}

static bool read_ks(struct command *c, const char *text) {
    struct eval_options *o = &c->options;
    o->n_ks = 0;
    for (const char *at = text; at;) {
        const char *comma = strchr(at, ',');
        char *one = err_strndup(at, comma ? (size_t)(comma - at) : strlen(at));
        double k = 0;
        bool ok = number(c, "k", one, 1, LIMIT_CANDIDATES, true, &k);
        free(one);
        if (!ok) return false;
        if (o->n_ks == EVAL_KS)
            return err_set(c->e, ERR_INPUT, "--k has more than %d values", EVAL_KS);
        o->ks[o->n_ks++] = (int)k;
        at = comma ? comma + 1 : NULL;
    }
    return true;
}

static bool take_number(struct command *c, struct command_args *a) {
    struct eval_options *o = &c->options;
    const struct {
        const char *name;
        double low, high;
        int *whole;
        double *real;
    } all[] = {
        {"n", 1, LIMIT_CANDIDATES, &o->n, NULL},
        {"temperature", 0, 2, NULL, &o->temperature},
        {"top-p", 0, 1, NULL, &o->top_p},
        {"min-p", 0, 1, NULL, &o->min_p},
        {"top-k", 0, LIMIT_VOCAB, &o->top_k, NULL},
        {"max-tokens", 1, LIMIT_CONTEXT, &o->max_tokens, NULL},
        {"timeout-s", 0.01, LIMIT_VERIFY_SECONDS, NULL, &o->timeout_s},
        {"memory-mb", 16, LIMIT_VERIFY_MEMORY_MB, &o->memory_mb, NULL},
        {"in-flight", 1, LIMIT_CANDIDATES, &o->in_flight, NULL},
        {"start", 0, EVAL_TASKS_MAX, &o->first_task, NULL},
        {"step", 1, EVAL_TASKS_MAX, &o->step, NULL},
        {"limit", 1, EVAL_TASKS_MAX, &o->limit, NULL},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *text = command_args_value(a, all[i].name);
        double x = 0;
        if (!text) continue;
        if (a->failed) return true;
        a->failed =
            !number(c, all[i].name, text, all[i].low, all[i].high, all[i].whole != NULL, &x);
        if (!a->failed && all[i].whole) *all[i].whole = (int)x;
        if (!a->failed && all[i].real) *all[i].real = x;
        return true;
    }
    return false;
}

static bool take_word(struct command *c, struct command_args *a) {
    const char *value;
    double x = 0;
    if ((value = command_args_value(a, "out"))) {
        c->out = value;
    } else if ((value = command_args_value(a, "base-url"))) {
        c->base_url = value;
    } else if ((value = command_args_value(a, "key-file"))) {
        c->key_file = value;
    } else if ((value = command_args_value(a, "mode"))) {
        bool first = !strcmp(value, "first");
        c->options.mode = first ? EVAL_FIRST : EVAL_PASS_AT_K;
        if (!a->failed && !first && strcmp(value, "pass@k"))
            a->failed =
                !err_set(a->e, ERR_INPUT, "--mode is \"%s\"; it must be pass@k or first", value);
    } else if ((value = command_args_value(a, "k"))) {
        a->failed = a->failed || !read_ks(c, value);
    } else if ((value = command_args_value(a, "seed"))) {
        a->failed = a->failed || !number(c, "seed", value, 0, 9007199254740991.0, true, &x);
        if (!a->failed) c->options.seed = (uint64_t)x;
    } else if ((value = command_args_value(a, "diversity"))) {
        free(c->diversity);
        c->diversity = err_strdup(value);
    } else {
        return false;
    }
    return true;
}

static bool take_flag(struct command *c, const struct command_args *a) {
    if (command_args_flag(a, "completion"))
        c->options.completion = true;
    else if (command_args_flag(a, "greedy-first"))
        c->greedy = 1;
    else if (command_args_flag(a, "no-greedy-first"))
        c->greedy = 0;
    else if (command_args_flag(a, "no-plots"))
        c->no_plots = true;
    else
        return false;
    return true;
}

static bool read_temperatures(struct command *c, json_t *list) {
    struct eval_options *o = &c->options;
    size_t i;
    json_t *item;
    if (!json_is_array(list) || !json_array_size(list) ||
        json_array_size(list) > LIMIT_TEMPERATURES)
        return err_set(c->e, ERR_INPUT,
                       "--diversity: temperatures must be a list of 1 to %d numbers",
                       LIMIT_TEMPERATURES);
    json_array_foreach(list, i, item) {
        double t = json_is_number(item) ? json_number_value(item) : -1;
        if (!(t >= 0 && t <= 2))
            return err_set(c->e, ERR_INPUT,
                           "--diversity: each temperature must be a number from 0 to 2");
        o->temperatures[o->n_temperatures++] = t;
    }
    return true;
}

static bool is_prompt(json_t *item) {
    const char *key;
    json_t *text;
    if (!json_is_object(item)) return json_is_string(item);
    json_object_foreach(item, key, text) {
        if (strcmp(key, "user") && strcmp(key, "assistant")) return false;
        if (!json_is_string(text)) return false;
    }
    return true;
}

static bool read_prompts(struct command *c, json_t *list) {
    size_t i;
    json_t *item;
    if (!json_is_array(list) || !json_array_size(list) ||
        json_array_size(list) > LIMIT_PROMPT_VARIANTS)
        return err_set(c->e, ERR_INPUT, "--diversity: prompts must be a list of 1 to %d prompts",
                       LIMIT_PROMPT_VARIANTS);
    json_array_foreach(list, i, item) {
        if (!is_prompt(item))
            return err_set(c->e, ERR_INPUT,
                           "--diversity: each of prompts must be a text, or an object of the texts "
                           "\"user\" and \"assistant\"");
    }
    c->options.prompts = c->prompts = json_incref(list);
    return true;
}

static bool read_diversity(struct command *c) {
    if (!c->diversity) return true;
    json_t *root = command_json_object("diversity", c->diversity, c->e), *value;
    if (!root) return false;
    bool ok = true;
    const char *key;
    json_object_foreach(root, key, value) {
        if (!ok) break;
        if (!strcmp(key, "temperatures"))
            ok = read_temperatures(c, value);
        else if (!strcmp(key, "prompts"))
            ok = read_prompts(c, value);
        else
            ok =
                err_set(c->e, ERR_INPUT,
                        "--diversity has no field \"%.40s\"; it has temperatures and prompts", key);
    }
    json_decref(root);
    return ok;
}

static bool read_key(struct command *c) {
    size_t len;
    if (!c->key_file) return true;
    c->key = command_read_file(c->key_file, KEY_BYTES, &len, c->e);
    if (!c->key) return err_prefix(c->e, "--key-file");
    c->key[strcspn(c->key, "\r\n")] = 0;
    return *c->key ? true
                   : err_set(c->e, ERR_INPUT, "%s has no key in its first line", c->key_file);
}

static bool settle_options(struct command *c) {
    struct eval_options *o = &c->options;
    if (!c->tasks_path)
        return err_set(c->e, ERR_INPUT, "TASKS is missing; see `firstpass eval --help`");
    if (!c->out) return err_set(c->e, ERR_INPUT, "--out DIR is missing");
    if (c->key_file && !c->base_url) return err_set(c->e, ERR_INPUT, "--key-file needs --base-url");
    o->greedy_first = c->greedy < 0 ? o->mode == EVAL_FIRST : c->greedy == 1;
    if (!o->n_ks) {
        for (int k = 1; k < o->n; k *= 2)
            o->ks[o->n_ks++] = k;
        o->ks[o->n_ks++] = o->n;
    }
    for (int i = 0; i < o->n_ks; i++)
        if (o->ks[i] > o->n)
            return err_set(c->e, ERR_INPUT, "--k %d is above --n %d", o->ks[i], o->n);
    return read_diversity(c) && read_key(c);
}

/* False with ERR_NONE where help was asked for and given. */
static bool parse_args(struct command *c, int argc, char **argv) {
    struct command_args a;
    command_args_init(&a, argc, argv, c->e);
    while (command_args_next(&a)) {
        if (command_args_flag(&a, "help")) {
            fputs(usage, stdout);
            return false;
        }
        if (take_word(c, &a) || take_number(c, &a) || take_flag(c, &a)) continue;
        const char *name = command_args_name(&a);
        if (name && !c->tasks_path)
            c->tasks_path = name;
        else
            command_args_unknown(&a);
    }
    return !a.failed && settle_options(c);
}

/* ---- progress ---- */

static void print_left(double seconds, char *out, size_t size) {
    if (!(seconds >= 0))
        snprintf(out, size, "?");
    else if (seconds < 90)
        snprintf(out, size, "%.0f s", seconds);
    else if (seconds < 5400)
        snprintf(out, size, "%.0f min", seconds / 60);
    else
        snprintf(out, size, "%.1f h", seconds / 3600);
}

/* By candidates where all are judged, else by tasks: how many candidates those will need that are
 * left isn't known. */
static double seconds_left(const struct eval *v, double spent) {
    bool all = v->options->mode == EVAL_PASS_AT_K;
    double total = all ? (double)v->n * v->options->n : v->n;
    double done = all ? v->judged - v->judged_before : v->over - v->over_before;
    double left = total - (all ? v->judged : v->over);
    return done > 0 ? spent / done * left : (double)NAN;
}

struct progress {
    struct command *command;
    const struct eval *eval;
};

static void on_progress(void *arg, const struct eval_result *over) {
    const struct progress *p = arg;
    struct command *c = p->command;
    const struct eval *v = p->eval;
    double now = clock_seconds(), spent = v->seconds - v->seconds_before;
    char left[32], bar[BAR + 1];
    print_left(seconds_left(v, spent), left, sizeof left);
    double rate = spent > 0 ? (double)(v->tokens - v->tokens_before) / spent : 0;
    if (!c->terminal) {
        if (!over) return;
        fprintf(stderr,
                "%s: %s, %d judged, %lld tokens, %.1f s; %d of %d tasks, %d solved, %.0f tokens/s, "
                "%s left\n",
                over->task->id,
                over->error    ? "can't be run"
                : over->passed ? "solved"
                               : "not solved",
                over->judged, (long long)over->tokens, over->seconds, v->over, v->n, v->solved,
                rate, left);
        return;
    }
    if (!over && now - c->drawn_at < 0.2) return;
    c->drawn_at = now;
    double share = v->options->mode == EVAL_PASS_AT_K
                       ? (double)v->judged / ((double)v->n * v->options->n)
                       : (double)v->over / v->n;
    int full = (int)(share * BAR);
    for (int i = 0; i < BAR; i++)
        bar[i] = i < full ? '#' : '.';
    bar[BAR] = 0;
    fprintf(stderr, "\r[%s] %d of %d tasks, %d solved, %d candidates, %.0f tokens/s, %s left\033[K",
            bar, v->over, v->n, v->solved, v->judged, rate, left);
}

/* ---- plots ---- */

/* bench/plots of the tree that this program was built in.  A program by itself has none: then the
 * results are drawn on a machine that does. */
static bool plots_script(char *path) {
    ssize_t n = readlink("/proc/self/exe", path, PATH_BYTES - sizeof "/../bench/plots");
    if (n < 0) return false;
    path[n] = 0;
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    memcpy(slash, "/../bench/plots", sizeof "/../bench/plots");
    return !access(path, X_OK);
}

static void draw(const struct command *c) {
    char path[PATH_BYTES];
    extern char **environ;
    if (!plots_script(path)) return;
    char *out = err_strdup(c->out), installed[] = "--installed";
    char *argv[] = {path, installed, out, NULL};
    pid_t child;
    int status;
    if (!posix_spawn(&child, path, NULL, NULL, argv, environ))
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    free(out);
}

/* ---- the whole ---- */

static bool load_tasks(struct command *c, struct eval_tasks *tasks) {
    BUG_ON(!c->tasks_path);
    if (strcmp(c->tasks_path, "humaneval")) return eval_tasks_load(tasks, c->tasks_path, c->e);
    char *path = *c->config->eval.humaneval ? err_strdup(c->config->eval.humaneval)
                                            : eval_tasks_find_humaneval(c->e);
    bool ok = path && eval_tasks_load(tasks, path, c->e);
    free(path);
    return ok;
}

static bool run(struct command *c, const struct eval_tasks *tasks) {
    struct eval v = {0};
    struct eval_backend backend;
    struct eval_events events = eval_events(&v);
    bool ok = c->base_url
                  ? eval_backend_remote(&backend, c->config, c->base_url, c->key, &events, c->e)
                  : eval_backend_local(&backend, c->config, &events, c->e);
    if (!ok) return false;
    struct progress progress = {c, &v};
    ok = eval_open(&v, &c->options, tasks, &backend, c->out, c->e) &&
         eval_run(&v, on_progress, &progress, c->e) && eval_report_write(&v, c->e);
    if (c->terminal && v.began > 0) fputc('\n', stderr);
    if (ok) eval_report_table(&v, stdout);
    fflush(stdout);
    eval_close(&v);
    if (ok && !c->no_plots) draw(c);
    return ok;
}

int command_eval(int argc, char **argv, const struct config *config) {
    struct err e = {0};
    struct eval_tasks tasks = {0};
    struct command c = {
        .config = config,
        .e = &e,
        .options = {.n = 32,
                    .seed = 1,
                    .temperature = 0.8,
                    .top_p = 0.95,
                    .max_tokens = 512,
                    .timeout_s = config->verifier.timeout_s,
                    .memory_mb = config->verifier.memory_mb,
                    .step = 1},
        .greedy = -1,
        .terminal = isatty(STDERR_FILENO) == 1,
    };
    int status = COMMAND_PASSED;
    bool ok = parse_args(&c, argc, argv) && load_tasks(&c, &tasks) && run(&c, &tasks);
    if (!ok && e.kind != ERR_NONE) status = command_failed("eval", &e);
    eval_tasks_clear(&tasks);
    json_decref(c.prompts);
    free(c.diversity);
    free(c.key);
    return status;
}
