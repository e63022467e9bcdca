/* The last layers: Landlock and seccomp of the fork servers, and what each child takes itself:
 * descriptors, limits, Landlock, seccomp.
 *
 * THEORY.  Set up once in the zygote (rulesets, filters).  The zygote then enters the candidates'
 * ruleset and a filter of its own, which all its children inherit: what compiles tests and
 * templates reads text of clients.  Each child enters its own on top: A and B while they wait for
 * their job, ahead of it.  The filter speaks of "this process" by a placeholder, since it is built
 * before the process exists; entering replaces it by the real number. */
#include "config/limits.h"
#include "verifier/inside/module.h"
#include "verifier/landlock.h"
#include "verifier/seccomp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_FILTER = 4096,
    FD_CALL = MODULE_FD_CALL,
    FD_REPORT = MODULE_FD_REPORT,
    FD_FIRST_FREE = 5,
    FD_PARKED = 100, /* descriptors wait here while the low numbers are laid out */
    FD_RULES = 90,   /* the rulesets, out of the way of what children get */
    NR_CLOSE_RANGE = 436,
    FILE_BYTES = 16 * 1024 * 1024,
    OPEN_FILES = 64,
    PROCESSES = 64,
    STACK_BYTES = 8 * 1024 * 1024,
};

/* Static globals of this file: what setup() made in the zygote, read by its children. */
static struct {
    int rules_candidate, rules_tests; /* Landlock rulesets; -1: none */
    char work[64];                    /* the candidate's writable directory; "": none */
    struct sock_filter filter[MAX_FILTER];
    unsigned short n_filter; /* 0: no filter */
    int own_uid;             /* nobody else runs under this uid: count its processes */
    int limits;              /* 0: none are set, for tests */
} box = {.rules_candidate = -1, .rules_tests = -1};

/* ---- in the zygote ---- */

static int open_rules(int abi, PyObject *paths, const char *work, int *fd) {
    int made;
    int error = landlock_open(abi, &made);
    if (error) return error;
    for (ssize_t i = 0; i < PyList_Size(paths) && !error; i++) {
        const char *path;
        size_t len;
        if (!module_bytes(PyList_GetItem(paths, i), &path, &len)) return EINVAL;
        error = landlock_allow_read(made, path);
    }
    if (!error && work[0]) error = landlock_allow_work(made, abi, work);
    if (!error) {
        *fd = fcntl(made, F_DUPFD_CLOEXEC, FD_RULES);
        if (*fd < 0) error = errno;
    }
    close(made);
    return error;
}

static PyObject *failed(int error) {
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static bool load_filter(const struct sock_filter *filter, unsigned short n) {
    struct sock_fprog program = {.len = n, .filter = (struct sock_filter *)(uintptr_t)filter};
    return !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

/* The zygote's own layers.  NULL, or the one that failed, with errno. */
static const char *enter_as_server(const char *filter, size_t bytes) {
    if (box.rules_candidate >= 0) {
        errno = landlock_enter(box.rules_candidate);
        if (errno) return "landlock";
    }
    if (!bytes) return NULL;
    struct sock_filter *copy = malloc(bytes); /* as aligned as the kernel wants it */
    if (!copy) return "seccomp";
    memcpy(copy, filter, bytes);
    bool ok = load_filter(copy, (unsigned short)(bytes / sizeof *copy));
    free(copy);
    return ok ? NULL : "seccomp";
}

PyObject *lockdown_setup(PyObject *self, PyObject *args) {
    (void)self;
    int abi, own_uid, limits;
    PyObject *paths, *work, *filter, *server;
    const char *work_path, *filter_data, *server_data;
    size_t work_len, filter_len, server_len;
    if (!PyArg_ParseTuple(args, "iOOOOii", &abi, &paths, &work, &filter, &server, &own_uid,
                          &limits) ||
        !module_bytes(work, &work_path, &work_len) ||
        !module_bytes(filter, &filter_data, &filter_len) ||
        !module_bytes(server, &server_data, &server_len))
        return NULL;
    if (work_len >= sizeof box.work || filter_len > sizeof box.filter ||
        server_len > sizeof box.filter || filter_len % sizeof(struct sock_filter)) {
        PyErr_SetString(PyExc_ValueError, "work path or filter too long");
        return NULL;
    }
    memcpy(box.work, work_path, work_len);
    memcpy(box.filter, filter_data, filter_len);
    box.n_filter = (unsigned short)(filter_len / sizeof(struct sock_filter));
    box.own_uid = own_uid;
    box.limits = limits;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return failed(errno);
    if (abi > 0) {
        int error = open_rules(abi, paths, box.work, &box.rules_candidate);
        if (!error) error = open_rules(abi, paths, "", &box.rules_tests);
        if (error) return failed(error);
    }
    if (enter_as_server(server_data, server_len)) return failed(errno);
    lockdown_clean_work(); /* as every candidate finds it */
    Py_IncRef(PYTHON_NONE);
    return PYTHON_NONE;
}

/* Empties the directory `fd`, which it closes.  Links are never followed; names come from the
 * directory itself. */
static void clean_directory(int fd, int depth) {
    DIR *directory = fdopendir(fd);
    if (!directory) {
        close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));) {
        const char *name = entry->d_name;
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        if (!unlinkat(fd, name, 0)) continue;
        if (depth < 600) {
            fchmodat(fd, name, 0700, 0);
            int below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (below >= 0) clean_directory(below, depth + 1);
        }
        unlinkat(fd, name, AT_REMOVEDIR);
    }
    closedir(directory);
}

void lockdown_clean_work(void) {
    if (!box.work[0]) return;
    chmod(box.work, 0700);
    int fd = open(box.work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) clean_directory(fd, 0);
    /* When the last file was made or removed would tell the next candidate of it. */
    const struct timespec never[2] = {{0}, {0}};
    utimensat(AT_FDCWD, box.work, never, AT_SYMLINK_NOFOLLOW);
}

/* ---- in a child ---- */

/* Never above the hard limit that is there: raising it fails where it could be lower already. */
static bool set_limit(int which, rlim_t value) {
    struct rlimit now;
    if (getrlimit((__rlimit_resource_t)which, &now)) return false;
    if (now.rlim_max != RLIM_INFINITY && value > now.rlim_max) value = now.rlim_max;
    struct rlimit wanted = {.rlim_cur = value, .rlim_max = value};
    return !setrlimit((__rlimit_resource_t)which, &wanted);
}

bool lockdown_limit_job(unsigned long long memory, int cpu_s) {
    if (!box.limits) return true;
    if (memory && !set_limit(RLIMIT_AS, (rlim_t)memory)) return false;
    /* The soft limit's signal can be caught; the hard one kills. */
    return cpu_s <= 0 || set_limit(RLIMIT_CPU, (rlim_t)cpu_s);
}

static bool limit_all(unsigned long long memory, int cpu_s) {
    return set_limit(RLIMIT_CORE, 0) && set_limit(RLIMIT_FSIZE, FILE_BYTES) &&
           set_limit(RLIMIT_STACK, STACK_BYTES) && set_limit(RLIMIT_MEMLOCK, 0) &&
           set_limit(RLIMIT_MSGQUEUE, 0) && (!box.own_uid || set_limit(RLIMIT_NPROC, PROCESSES)) &&
           lockdown_limit_job(memory, cpu_s);
}

/* What a child gets; -1: nothing (of the first three: a null device). */
struct given {
    int call, report, output, input, errors;
};

/* The lowest numbers become: 0 the input, 1 and 2 the output (or 2 the errors), 3 the call socket,
 * 4 the report; all others close. */
static bool lay_out(const struct given *given) {
    int null = fcntl(0, F_DUPFD, FD_PARKED);
    int errors = given->errors >= 0 ? given->errors : given->output;
    int wanted[FD_FIRST_FREE] = {given->input, given->output, errors, given->call, given->report};
    int parked[FD_FIRST_FREE];
    for (int i = 0; i < FD_FIRST_FREE; i++) {
        bool none = i < FD_CALL && wanted[i] < 0;
        parked[i] = none ? null : wanted[i] < 0 ? -1 : fcntl(wanted[i], F_DUPFD, FD_PARKED);
        if (parked[i] < 0 && (none || wanted[i] >= 0)) return false;
    }
    for (int i = 0; i < FD_FIRST_FREE; i++)
        if (parked[i] < 0)
            close(i);
        else if (dup2(parked[i], i) != i)
            return false;
    return true;
}

static bool close_others(unsigned first) {
    if (!syscall(NR_CLOSE_RANGE, first, ~0U, 0)) return true;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return false;
    for (int fd = (int)first; fd < (int)files.rlim_cur; fd++)
        close(fd);
    return true;
}

static bool enter_filter(void) {
    if (!box.n_filter) return true;
    for (int i = 0; i < box.n_filter; i++)
        if (box.filter[i].k == SECCOMP_THIS_PROCESS) box.filter[i].k = (uint32_t)getpid();
    return load_filter(box.filter, box.n_filter);
}

/* NULL, or the name of the layer that failed, with errno. */
static const char *enter(char kind, unsigned long long memory, int cpu_s,
                         const struct given *given) {
    int rules = kind == 'A' ? box.rules_candidate : box.rules_tests;
    if (!lay_out(given)) return "descriptors";
    if (chdir(kind == 'A' && box.work[0] ? box.work : "/")) return "working directory";
    if (rules >= 0) {
        int error = landlock_enter(rules);
        errno = error;
        if (error) return "landlock";
    }
    if (!close_others(FD_FIRST_FREE)) return "descriptors";
    if (box.limits && (!set_limit(RLIMIT_NOFILE, OPEN_FILES) || !limit_all(memory, cpu_s)))
        return "limits";
    if (!enter_filter()) return "seccomp";
    return NULL;
}

static PyObject *entered(const char *layer) {
    if (layer) {
        char message[128];
        snprintf(message, sizeof message, "layer %s: errno %d", layer, errno);
        PyErr_SetString(PyExc_OSError, message);
        return NULL;
    }
    Py_IncRef(PYTHON_NONE);
    return PYTHON_NONE;
}

/* Before anything of the job is there; its limits of memory and time come with it. */
PyObject *lockdown_prepare(PyObject *self, PyObject *args) {
    (void)self;
    int kind, job_socket;
    if (!PyArg_ParseTuple(args, "ii", &kind, &job_socket)) return NULL;
    struct given given = {.call = -1, .report = -1, .output = -1, .input = -1, .errors = -1};
    *(kind == 'A' ? &given.call : &given.report) = job_socket;
    const char *layer = enter((char)kind, 0, 0, &given);
    int error = errno;
    if (layer && fcntl(job_socket, F_GETFD) < 0) {
        /* Closed already: what the supervisor must hear is said where the socket is now. */
        ssize_t told = write(kind == 'A' ? FD_CALL : FD_REPORT, "", 1);
        errno = told == 1 ? error : EPIPE;
    }
    return entered(layer);
}

PyObject *lockdown_enter(PyObject *self, PyObject *args) {
    (void)self;
    int kind, cpu_s;
    unsigned long long memory;
    struct given given;
    if (!PyArg_ParseTuple(args, "iKiiiiii", &kind, &memory, &cpu_s, &given.call, &given.report,
                          &given.output, &given.input, &given.errors))
        return NULL;
    return entered(enter((char)kind, memory, cpu_s, &given));
}

PyObject *lockdown_limit(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long memory;
    int cpu_s;
    if (!PyArg_ParseTuple(args, "Ki", &memory, &cpu_s)) return NULL;
    if (!lockdown_limit_job(memory, cpu_s)) return PyErr_SetFromErrno(PyExc_OSError);
    Py_IncRef(PYTHON_NONE);
    return PYTHON_NONE;
}

/* ---- self-test: what a locked child can do and must not ---- */

static void *nothing(void *argument) { return argument; }

/* What only the filter keeps away, asked so that nothing changes where it doesn't. */
static bool can_change_files(void) {
    const struct timespec never[2] = {{.tv_nsec = -1}, {.tv_nsec = -1}};
    if (!truncate("/", 0) || errno != EPERM) return true;
    if (!utimensat(AT_FDCWD, "/", never, 0) || errno != EPERM) return true;
    return open("/", O_RDONLY | O_TRUNC | O_CLOEXEC) >= 0 || errno != EPERM;
}

/* Bits by SELFTEST_*; in a child that has entered. */
static int possible(pid_t parent) {
    int bits = 0;
    int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) bits |= SELFTEST_FILE;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0) bits |= SELFTEST_SOCKET;
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    if (pid > 0) bits |= SELFTEST_FORK;
    if (!kill(parent, 0)) bits |= SELFTEST_KILL;
    struct rlimit limit;
    if (!prlimit(parent, RLIMIT_CPU, NULL, &limit)) bits |= SELFTEST_PRLIMIT;
    if (!fcntl(FD_CALL, F_SETOWN, parent)) bits |= SELFTEST_OWNER;
    char *const arguments[] = {(char *)(uintptr_t) "x", NULL};
    if (execve("/", arguments, NULL) && errno == EACCES && box.n_filter) bits |= SELFTEST_EXEC;
    if (can_change_files()) bits |= SELFTEST_CHANGE;
    /* The honest twin: a thread must still be possible. */
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL))
        bits |= SELFTEST_THREAD;
    else
        pthread_join(thread, NULL);
    return bits;
}

/* Of the fork server itself. */
static int server_possible(void) {
    int bits = 0;
    int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        bits |= SELFTEST_SERVER_FILE;
    }
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0) close(fd);
    char *const arguments[] = {(char *)(uintptr_t) "x", NULL};
    if (fd >= 0 || (execve("/", arguments, NULL) && errno == EACCES)) bits |= SELFTEST_SERVER_CALL;
    return bits;
}

PyObject *lockdown_selftest(PyObject *self, PyObject *args) {
    (void)self;
    (void)args;
    int pipe_fds[2], pair[2];
    if (pipe2(pipe_fds, O_CLOEXEC)) return PyErr_SetFromErrno(PyExc_OSError);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        close(pipe_fds[0]);
        close(pipe_fds[1]);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        char result[64] = {0};
        const struct given given = {pair[0], pipe_fds[1], -1, -1, -1};
        const char *layer = enter('A', 0, 0, &given);
        if (layer)
            snprintf(result, sizeof result, "%s: errno %d", layer, errno);
        else
            snprintf(result, sizeof result, "=%d", possible(parent));
        ssize_t n = write(layer ? pipe_fds[1] : FD_REPORT, result, strlen(result));
        _exit(n < 0);
    }
    close(pair[0]);
    close(pair[1]);
    close(pipe_fds[1]);
    char result[64] = {0};
    ssize_t n = read(pipe_fds[0], result, sizeof result - 1);
    close(pipe_fds[0]);
    if (pid > 0) waitpid(pid, NULL, 0);
    if (n > 0 && result[0] == '=')
        n = snprintf(result, sizeof result, "=%ld",
                     strtol(result + 1, NULL, 10) | (long)server_possible());
    return PyBytes_FromStringAndSize(result, n < 0 ? 0 : n);
}
