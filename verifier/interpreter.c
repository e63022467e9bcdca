#include "verifier/interpreter.h"

#include "base/buf.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_BYTES = 1024 * 1024, PATIENCE_S = 30 };

extern char **environ;

/* Runs outside the box in the user's own Python: nothing of a client or a model is near. */
static const char question[] =
    "import sys,os,json,importlib.util as u\n"
    "base=sys.base_prefix\n"
    "paths=[p for p in dict.fromkeys(os.path.abspath(p) for p in sys.path) if os.path.exists(p)]\n"
    "read=list(paths)\n"
    "read+=['/lib','/lib64','/lib32','/usr/lib','/usr/lib64','/usr/local/lib']\n"
    "read+=['/etc/ld.so.cache','/usr/share/zoneinfo']\n"
    "real=os.path.realpath(getattr(sys,'_base_executable',None) or sys.executable)\n"
    "read+=[real]\n"
    "if base not in ('/','/usr','/usr/local'): read+=[base,os.path.realpath(base)]\n"
    "read=[p for p in dict.fromkeys(read) if os.path.exists(p)]\n"
    "read=[p for p in read if not any(p!=q and p.startswith(q+'/') for q in read)]\n"
    "print(json.dumps({'implementation':sys.implementation.name,'version':list(sys.version_info[:3]"
    "),\n"
    "'path':real,'sys_path':paths,'read':read,\n"
    "'jinja2':u.find_spec('jinja2') is not None}))\n";

/* What the program prints, within PATIENCE_S. */
static bool ask(const char *program, struct buf *answer, struct err *e) {
    int out[2] = {-1, -1};
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    bool ok = false;
    if (pipe2(out, O_CLOEXEC)) {
        err_errno(e, errno, "no pipe to ask %s", program);
        goto done;
    }
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    char *const arguments[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "-I",
                               (char *)(uintptr_t) "-c", (char *)(uintptr_t)question, NULL};
    int error = posix_spawnp(&pid, program, &actions, NULL, arguments, environ);
    if (error) {
        pid = -1;
        err_errno(e, error, "%s can't be run", program);
        goto done;
    }
    close(out[1]);
    out[1] = -1;
    double until = clock_seconds() + PATIENCE_S;
    for (;;) {
        char piece[4096];
        struct pollfd polled = {.fd = out[0], .events = POLLIN};
        double left = until - clock_seconds();
        if (left <= 0 || poll(&polled, 1, (int)(left * 1000)) == 0) {
            err_set(e, ERR_SYSTEM, "%s did not answer within %d s", program, PATIENCE_S);
            goto done;
        }
        ssize_t n = read(out[0], piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        buf_append(answer, piece, (size_t)n);
    }
    ok = answer->len > 0 && !answer->overflowed;
    if (!ok) err_set(e, ERR_SYSTEM, "%s is no Python that works: it printed nothing", program);
done:
    if (pid > 0) {
        if (!ok) kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    for (int i = 0; i < 2; i++)
        if (out[i] >= 0) close(out[i]);
    posix_spawn_file_actions_destroy(&actions);
    return ok;
}

static char **copy_strings(json_t *array, int *n) {
    size_t count = json_array_size(array);
    char **strings = err_alloc(count + 1, sizeof *strings);
    *n = 0;
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_array_get(array, i));
        if (text) strings[(*n)++] = err_strdup(text);
    }
    return strings;
}

static bool understand(struct interpreter *in, const char *program, const struct buf *answer,
                       struct err *e) {
    json_error_t where;
    json_t *root = json_loadb(buf_text(answer), answer->len, JSON_REJECT_DUPLICATES, &where);
    const char *implementation = NULL, *path = NULL;
    int major = 0, minor = 0, micro = 0, jinja2 = 0;
    json_t *sys_path = NULL, *read = NULL;
    bool ok = root && !json_unpack(root, "{s:s, s:[i,i,i], s:s, s:o, s:o, s:b}", "implementation",
                                   &implementation, "version", &major, &minor, &micro, "path",
                                   &path, "sys_path", &sys_path, "read", &read, "jinja2", &jinja2);
    if (!ok) {
        err_set(e, ERR_SYSTEM, "%s is no Python that works: it printed \"%.80s\"", program,
                buf_text(answer));
    } else if (strcmp(implementation, "cpython") != 0 || major != 3 || minor < 8) {
        ok = err_set(e, ERR_SYSTEM, "%s is %s %d.%d; the verifier needs CPython 3.8 or later",
                     program, implementation, major, minor);
    } else {
        in->path = err_strdup(path);
        in->sys_path = copy_strings(sys_path, &in->n_sys_path);
        in->read = copy_strings(read, &in->n_read);
        in->has_jinja2 = jinja2;
        snprintf(in->version, sizeof in->version, "%d.%d.%d", major, minor, micro);
    }
    json_decref(root);
    return ok;
}

static bool resolve(struct interpreter *in, const char *program, struct err *e) {
    *in = (struct interpreter){0};
    struct buf answer;
    buf_init(&answer, ANSWER_BYTES);
    bool ok = ask(program, &answer, e) && understand(in, program, &answer, e);
    buf_clear(&answer);
    return ok;
}

bool interpreter_find(struct interpreter *in, const char *wanted, int skip, struct err *e) {
    if (strcmp(wanted, "auto") != 0) {
        if (skip > 0)
            return err_set(e, ERR_NOT_FOUND, "no other Python than %s was asked for", wanted);
        return resolve(in, wanted, e);
    }
    /* The distribution's own first: it is the one whose packages, jinja2 among them, come from the
     * distribution too. */
    static const char *const places[] = {"/usr/bin/python3", "/usr/local/bin/python3", "python3"};
    enum { N_PLACES = sizeof places / sizeof places[0] };
    int usable = 0;
    struct err last = {0};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < N_PLACES; i++) {
            if (!resolve(in, places[i], &last)) continue;
            if (in->has_jinja2 == (pass == 0) && usable++ == skip) return true;
            interpreter_clear(in);
        }
    return err_set(e, ERR_NOT_FOUND,
                   "no usable CPython 3.8 or later in /usr/bin, /usr/local/bin or on PATH; install "
                   "python3 or set verifier.python (last tried: %.200s)",
                   last.message);
}

static void free_strings(char **strings, int n) {
    for (int i = 0; i < n; i++)
        free(strings[i]);
    free(strings);
}

void interpreter_clear(struct interpreter *in) {
    free(in->path);
    free_strings(in->sys_path, in->n_sys_path);
    free_strings(in->read, in->n_read);
    *in = (struct interpreter){0};
}
