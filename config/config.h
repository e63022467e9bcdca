/* Every knob of firstpass in one validated struct.
 *
 * A setting's value comes from, later ones winning: the default, the JSON file of --config, the
 * environment (FIRSTPASS_ and the dotted name in upper case with underscores:
 * FIRSTPASS_SERVER_PORT), the command line.  `--print-config` shows each with its value and origin.
 * config/schema.json documents the file, config/firstpass.json is the defaults written out; a test
 * holds both equal to the table in config.c.  This is the only file of the program that reads the
 * environment.  Filled by main before threads start, read-only after. */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CONFIG_MAX_SETTINGS = 64 };

struct config {
    struct {
        char *host; /* address to listen on */
        int port;   /* 0: any free one, said at start */
        int max_body_bytes;
        int max_connections;
        int max_races;             /* accepted at once */
        int max_candidates;        /* of one race: the operator's cap, at most LIMIT_CANDIDATES */
        double drain_s;            /* SIGTERM: seconds for live races to end */
        double idle_s;             /* a connection without traffic is closed after this */
        double default_deadline_s; /* of races that give none; 0: none */
        int default_max_tokens;    /* chat requests that give none */
        int max_queued_candidates; /* of all requests together, not started yet */
        double read_s;             /* a request is whole after this, or its connection is cut */
        bool inline_tests;         /* NAME:best-of-N and fenced tests in chat messages count */
        char *api_key_file;        /* "": no keys */
        bool open_metrics;         /* /metrics needs no key */
        char *tls_cert, *tls_key;  /* PEM files; "": plain HTTP */
        char *cors_origin;         /* "": no CORS headers */
        bool page;                 /* the page at "/" is there */
    } server;
    struct {
        char *path; /* NAME of a file NAME.gguf or a directory NAME in `dir`, or a path */
        char *name; /* as clients see it; "": from the file's name */
        char *dir;  /* where NAME is looked up */
    } model;
    struct {
        char *backend;
        char *isa;
        char *weights, *kv;
        int threads;
        int context;
        int max_rows;
        int prefill_chunk;
        int memory_mb; /* 0: from what is free */
        int kv_blocks;
    } engine;
    struct {
        char *python;
        int workers;
        int min_level, max_level, max_landlock_abi;
        double timeout_s; /* of a candidate where the request gives none */
        int memory_mb;
    } verifier;
    struct {
        char *humaneval; /* HumanEval.jsonl.gz; "": looked for where Python packages are */
    } eval;
    struct {
        char *level; /* "debug", "info", "warn", "error" */
        bool json;
        bool prompts; /* what clients ask is logged too */
    } log;
    /* Where each setting's value came from, in the order of config_settings(). */
    unsigned char origin[CONFIG_MAX_SETTINGS];
};

/* Reads file, environment and the options in argv[0 … *argc-1] that are settings
 * ("--server.port 8000", "--port=8000"), leaving in argv the rest in order; everything after "--"
 * is left alone, and an option without a dot that is no setting is left for the command to judge.
 * `c` holds defaults afterwards even on failure; free with config_clear. */
bool config_load(struct config *c, int *argc, char **argv, struct err *e) MUST_CHECK;
void config_clear(struct config *c);
/* Every setting, its value and origin, as lines "server.port = 8000   (flag)". */
void config_print(const struct config *c, FILE *out);
/* The file that config.model.path names, whether it exists or not; free() it. */
char *config_model_path(const struct config *c);
/* Lines for --help: each setting with its flag, default and meaning. */
void config_help(FILE *out);

/* ---- the table itself, for tests and documentation ---- */

enum config_type { CONFIG_INT, CONFIG_DOUBLE, CONFIG_STRING, CONFIG_BOOL };
struct config_setting {
    const char *key;   /* "server.port" */
    const char *alias; /* "port": short flag, or NULL */
    enum config_type type;
    size_t offset;       /* of the field in struct config */
    double min, max;     /* of numbers */
    const char *choices; /* of strings: "a|b|c", or NULL: any */
    const char *preset;  /* the default as text */
    const char *help;
};
const struct config_setting *config_settings(size_t *n);

#endif
