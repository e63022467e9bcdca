/* The commands beside `serve`: each in its file, called by main with argv[0] the command's name and
 * all settings already taken out of argv; each returns the exit status.
 *
 * Exit status of all: 0 done and (where there is something to judge) all of it passed; 1 it didn't;
 * 2 what the user gave can't be used; 3 the system, the model or the sandbox failed. */
#ifndef SERVER_COMMAND_H
#define SERVER_COMMAND_H

#include "base/err.h"
#include "config/config.h"

#include <jansson.h>

enum { COMMAND_PASSED = 0, COMMAND_NOT_PASSED = 1, COMMAND_USAGE = 2, COMMAND_SYSTEM = 3 };

/* One race from files, in this process: the API's answer as JSON on standard output. */
int command_run(int argc, char **argv, const struct config *);
/* Tests on given code. */
int command_verify(int argc, char **argv, const struct config *);
/* What this machine gives: kernels, sandbox layers, Python, model, memory plan. */
int command_doctor(int argc, char **argv, const struct config *);
/* `doctor --attack`: the built-in attacks on this machine, and what each layer stopped. */
int command_attack(const struct config *, bool json);
/* pass@k over a file of tasks, in this process or against a server. */
int command_eval(int argc, char **argv, const struct config *);
/* Metadata and tensors of a model file. */
int command_inspect(int argc, char **argv, const struct config *);

/* The engine alone: tokens a second, and where the time goes. */
int command_bench(int argc, char **argv, const struct config *);

/* ---- what they share ---- */

/* Walks over the words after the command's name.  The first failure is kept and ends the walk. */
struct command_args {
    int argc;
    char **argv;     /* borrowed */
    int at;          /* of the present word */
    bool only_names; /* after "--": no more options */
    struct err *e;   /* borrowed */
    bool failed;
};
void command_args_init(struct command_args *, int argc, char **argv, struct err *e);
/* Steps to the next word; false at the end or after a failure. */
bool command_args_next(struct command_args *);
/* The value where the present word is the option "--NAME VALUE" or "--NAME=VALUE", else NULL. */
const char *command_args_value(struct command_args *, const char *name);
/* Whether the present word is the option "--NAME". */
bool command_args_flag(const struct command_args *, const char *name);
/* The present word where it is no option, else NULL. */
const char *command_args_name(const struct command_args *);
/* The present word is none that the command knows. */
void command_args_unknown(struct command_args *);

/* All of a file, or of standard input for "-", at most `max` bytes; NUL after it; free() it. */
char *command_read_file(const char *path, size_t max, size_t *len, struct err *e);
/* An option's JSON object, given as such or as the file that holds it; NULL and an error where it
 * is none.  json_decref() it. */
json_t *command_json_object(const char *option, const char *value, struct err *e);
/* Says the error on standard error and returns the exit status that goes with its kind. */
int command_failed(const char *command, const struct err *);

#endif
