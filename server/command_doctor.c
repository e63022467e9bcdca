#include "kernels/kernels.h"
#include "server/command.h"
#include "server/runtime.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: firstpass doctor [--attack [--json]] [SETTING]…\n"
    "\n"
    "What this machine gives: kernels, sandbox layers, Python, the model, the memory plan.\n"
    "Exit status: 0 the server can start (a missing model is only told), 3 it can't.\n"
    "\n"
    "  --attack   instead: runs the built-in attacks on the sandbox, with all layers and then "
    "with\n"
    "             some switched off, and prints what each layer stopped; takes a minute or two.\n"
    "             Exit status: 0 none worked that must not, 1 one did, 3 no sandbox\n"
    "  --json     that as JSON\n";

struct doctor {
    struct config config; /* borrows its strings */
    int wanted_level;
    bool healthy;
};

/* ---- machine ---- */

/* A line of /proc/meminfo in MiB, or -1. */
static long meminfo_mib(const char *key) {
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    long kib = -1;
    while (f && fgets(line, sizeof line, f)) {
        size_t n = strlen(key);
        if (!strncmp(line, key, n) && line[n] == ':') {
            kib = strtol(line + n + 1, NULL, 10);
            break;
        }
    }
    if (f) fclose(f);
    return kib < 0 ? -1 : kib / 1024;
}

static void print_machine(void) {
    cpu_set_t set;
    int usable = sched_getaffinity(0, sizeof set, &set) ? -1 : CPU_COUNT(&set);
    printf("machine\n  cores: %ld, usable by this process: %d\n", sysconf(_SC_NPROCESSORS_ONLN),
           usable);
    printf("  memory: %ld MiB, available: %ld MiB\n\n", meminfo_mib("MemTotal"),
           meminfo_mib("MemAvailable"));
}

/* Opens a device with this instruction set, as the engine would. */
static bool try_isa(const struct kernels *k, const char *isa, int threads, char *what, size_t size,
                    struct err *e) {
    const struct kernels_options options = {.n_threads = threads, .isa = isa};
    struct kernels_device *device;
    if (!k->device_open(&options, &device, e)) return false;
    snprintf(what, size, "%s", k->describe(device));
    k->device_close(device);
    return true;
}

static void print_kernels(struct doctor *d) {
    printf("kernels\n");
    static const char *const names[] = {"cpu", "cuda"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct kernels *k = kernels_backend(names[i]);
        struct err e = {0};
        char what[256];
        if (!k) {
            printf("  %s: not in this build\n", names[i]);
            continue;
        }
        for (const char *const *isa = k->isas; *isa; isa++) {
            bool there = try_isa(k, *isa, 1, what, sizeof what, &e);
            printf("  %s %s: %s\n", k->name, *isa, there ? "available" : e.message);
        }
        bool ok = try_isa(k, d->config.engine.isa, d->config.engine.threads, what, sizeof what, &e);
        printf("  %s chosen by the settings: %s\n", k->name, ok ? what : e.message);
        if (!ok && strcmp(d->config.engine.backend, "auto")) d->healthy = false;
    }
    printf("\n");
}

/* ---- sandbox ---- */

static void print_sandbox(struct doctor *d, const struct verifier_report *report) {
    printf("sandbox\n  level: %d of 3 (verifier.min_level is %d)\n", report->level,
           d->wanted_level);
    for (int i = 0; i < report->n_layers; i++) {
        const struct verifier_layer *layer = &report->layers[i];
        printf("  %-22s %s%s%s\n", layer->name, layer->active ? "active" : "MISSING",
               *layer->detail ? ": " : "", layer->detail);
    }
    if (report->level < d->wanted_level) {
        printf("  the server would refuse to start below level %d\n", d->wanted_level);
        d->healthy = false;
    }
    printf("  python: %s %s\n", report->python, report->python_version);
}

struct template_check {
    bool done;
    struct err error;
};

static void on_template(void *arg, const struct err *error) {
    struct template_check *check = arg;
    check->done = true;
    if (error) check->error = *error;
}

/* jinja2 renders chat prompts; without it only /v1/completions works. */
static void print_templates(struct runtime *rt) {
    static const char text[] = "{{ messages[0].content }}";
    struct template_check check = {0};
    if (!verifier_template_set(runtime_verifier(rt), text, sizeof text - 1, on_template, &check,
                               &check.error))
        check.done = true;
    while (!check.done)
        uv_run(runtime_loop(rt), UV_RUN_ONCE);
    printf("  chat templates: %s\n\n",
           check.error.kind == ERR_NONE ? "jinja2 found" : check.error.message);
}

/* ---- model ---- */

static void print_model(struct doctor *d, struct runtime *rt) {
    struct err e = {0};
    char *path = config_model_path(&d->config);
    printf("model\n  %s\n", path);
    if (access(path, F_OK)) {
        printf("  isn't there: give --model NAME|PATH, or fetch it with config/fetch-model\n");
    } else if (!runtime_load_wait(rt, NULL, NULL, &e)) {
        printf("  can't be used: %s\n", e.message);
        d->healthy = false;
    } else {
        struct engine *engine = runtime_engine(rt);
        const struct engine_model *model = engine_model(engine);
        printf("  %s: %s, %.1f million parameters, context %d, vocabulary %d, fingerprint %s\n",
               model->name, model->architecture, (double)model->parameters / 1e6, model->context,
               model->n_vocab, model->fingerprint);
        if (!runtime_chat(rt, &e)) printf("  %s\n", e.message);
        printf("\n");
        fflush(stdout);
        engine_describe(engine, stdout);
    }
    free(path);
}

int command_doctor(int argc, char **argv, const struct config *config) {
    struct err e = {0};
    struct command_args a;
    bool attack = false, json = false;
    command_args_init(&a, argc, argv, &e);
    while (command_args_next(&a)) {
        if (command_args_flag(&a, "help")) {
            fputs(usage, stdout);
            return COMMAND_PASSED;
        }
        if (command_args_flag(&a, "attack"))
            attack = true;
        else if (command_args_flag(&a, "json"))
            json = true;
        else
            command_args_unknown(&a);
    }
    if (a.failed) return command_failed("doctor", &e);
    if (attack) return command_attack(config, json);
    if (json) {
        err_set(&e, ERR_INPUT, "--json goes with --attack");
        return command_failed("doctor", &e);
    }

    struct doctor d = {.config = *config, .wanted_level = config->verifier.min_level};
    d.healthy = true;
    d.config.verifier.min_level = 0; /* to tell what there is, not to refuse it */
    printf("firstpass %s\n\n", FIRSTPASS_VERSION);
    print_machine();
    /* Before the kernels, which start threads: the verifier forks its workers. */
    struct runtime *rt = runtime_open(&d.config, &e);
    print_kernels(&d);
    if (rt) {
        print_sandbox(&d, verifier_report(runtime_verifier(rt)));
        print_templates(rt);
        print_model(&d, rt);
    } else {
        printf("sandbox\n  can't be set up: %s\n", e.message);
        d.healthy = false;
    }
    runtime_close(rt);
    return d.healthy ? COMMAND_PASSED : COMMAND_SYSTEM;
}
