/* The Python that runs inside the box: found once, resolved to the real program, never a shim that
 * a version manager puts on PATH (those cost 150 ms at each start and live in somebody's home
 * directory).  Before threads start. */
#ifndef VERIFIER_INTERPRETER_H
#define VERIFIER_INTERPRETER_H

#include "base/err.h"

struct interpreter {
    char *path;       /* owned; the real program */
    char version[32]; /* "3.11.2" */
    char **sys_path;  /* owned; where modules are imported from */
    int n_sys_path;
    char **read; /* owned; directories and files that it needs to read: sys_path, libraries, its own
                    program */
    int n_read;
    bool has_jinja2;
};

/* `wanted` is a path or name of a program, or "auto": the first CPython >= 3.8 of the usual places,
 * one with jinja2 before one without.  `skip` of the usual places are passed over, so that a caller
 * can go on where one proved unusable; ERR_NOT_FOUND when no more are left. */
bool interpreter_find(struct interpreter *, const char *wanted, int skip, struct err *e) MUST_CHECK;
void interpreter_clear(struct interpreter *);

#endif
