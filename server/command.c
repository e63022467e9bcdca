#include "server/command.h"

#include "base/buf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void command_args_init(struct command_args *a, int argc, char **argv, struct err *e) {
    *a = (struct command_args){.argc = argc, .argv = argv, .e = e};
}

bool command_args_next(struct command_args *a) {
    if (a->failed || ++a->at >= a->argc) return false;
    if (a->only_names || strcmp(a->argv[a->at], "--")) return true;
    a->only_names = true;
    return ++a->at < a->argc;
}

/* What follows "--NAME" in the present word, or NULL. */
static const char *after_name(const struct command_args *a, const char *name) {
    const char *word = a->argv[a->at];
    size_t len = strlen(name);
    if (a->only_names || strncmp(word, "--", 2) || strncmp(word + 2, name, len)) return NULL;
    return word + 2 + len;
}

const char *command_args_value(struct command_args *a, const char *name) {
    const char *after = after_name(a, name);
    if (!after || (*after && *after != '=')) return NULL;
    if (*after) return after + 1;
    if (a->at + 1 < a->argc) return a->argv[++a->at];
    a->failed = true;
    err_set(a->e, ERR_INPUT, "--%s needs a value", name);
    return "";
}

bool command_args_flag(const struct command_args *a, const char *name) {
    const char *after = after_name(a, name);
    return after && !*after;
}

const char *command_args_name(const struct command_args *a) {
    const char *word = a->argv[a->at];
    bool option = !a->only_names && word[0] == '-' && word[1];
    return option ? NULL : word;
}

void command_args_unknown(struct command_args *a) {
    a->failed = true;
    err_set(a->e, ERR_INPUT, "\"%s\" isn't understood; see `firstpass %s --help`", a->argv[a->at],
            a->argv[0]);
}

char *command_read_file(const char *path, size_t max, size_t *len, struct err *e) {
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    char *text = NULL;
    struct buf b;
    buf_init(&b, max);
    if (!f) {
        err_errno(e, errno, "%s", path);
        if (e) e->kind = ERR_INPUT;
        return NULL;
    }
    char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, f)))
        if (!buf_append(&b, piece, n)) break;
    if (ferror(f)) {
        err_errno(e, errno, "%s can't be read", path);
        if (e) e->kind = ERR_INPUT;
    } else if (b.overflowed) {
        err_set(e, ERR_INPUT, "%s is larger than %zu bytes", path, max);
    } else {
        text = buf_take(&b, len);
    }
    buf_clear(&b);
    if (f != stdin) fclose(f);
    return text;
}

json_t *command_json_object(const char *option, const char *value, struct err *e) {
    enum { MOST_BYTES = 1 << 20 };
    char *text = NULL;
    size_t len;
    if (value[strspn(value, " \t\r\n")] != '{' &&
        !(text = command_read_file(value, MOST_BYTES, &len, e))) {
        err_prefix(e, "--%s", option);
        return NULL;
    }
    json_error_t why;
    json_t *root = json_loads(text ? text : value, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (json_is_object(root)) return root;
    err_set(e, ERR_INPUT, "--%s is no JSON object: %s", option, root ? "it is a list" : why.text);
    json_decref(root);
    return NULL;
}

int command_failed(const char *command, const struct err *e) {
    fprintf(stderr, "firstpass %s: %s\n", command, e->message);
    return e->kind == ERR_SYSTEM || e->kind == ERR_UNAVAILABLE ? COMMAND_SYSTEM : COMMAND_USAGE;
}
