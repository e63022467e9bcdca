/* firstpass: subcommands. */
#include "base/log.h"
#include "config/config.h"
#include "server/command.h"
#include "server/serve.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv, const struct config *);
    const char *help;
} commands[] = {
    {"serve", serve_main, "the HTTP server"},
    {"run", command_run, "one race from files, its result as JSON"},
    {"verify", command_verify, "tests on given code, without a model"},
    {"eval", command_eval, "pass@k over a file of tasks, or how far the first pass is"},
    {"inspect", command_inspect, "what is in a model file"},
    {"doctor", command_doctor, "what this machine gives: kernels, sandbox layers, memory plan"},
    {"bench", command_bench, "the engine or the verifier alone: how fast, and where the time goes"},
};

static void print_help(FILE *out) {
    fputs("usage: firstpass COMMAND [SETTING]… [ARGUMENT]…\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].help);
    fputs("\n  --help, --version, --print-config\n\nSettings, for every command:\n", out);
    config_help(out);
}

static bool has_flag(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], flag)) return true;
    return false;
}

static enum log_level parse_level(const char *name) {
    static const char *const names[] = {"debug", "info", "warn"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) return (enum log_level)i;
    return LOG_ERROR;
}

static int dispatch(int argc, char **argv, const struct config *config) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1, config);
    fprintf(stderr, "firstpass: there is no command \"%s\"; see firstpass --help\n", argv[1]);
    return 2;
}

int main(int argc, char **argv) {
    struct config config;
    struct err e = {0};
    int status = 2;
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help"))) {
        print_help(stdout);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("firstpass %s\n", FIRSTPASS_VERSION);
        return 0;
    }
    if (!config_load(&config, &argc, argv, &e)) {
        fprintf(stderr, "firstpass: %s\n", e.message);
    } else if (has_flag(argc, argv, "--print-config")) {
        config_print(&config, stdout);
        status = 0;
    } else {
        log_setup(parse_level(config.log.level), config.log.json);
        status = dispatch(argc, argv, &config);
    }
    config_clear(&config);
    return status;
}
