/* The fork server: one loop for the zygote, for the parents of tests' processes and of renders.
 *
 * THEORY.  The loop holds no tests, no code and no nonce of any child: a child gets its job over
 * its own socket after the fork.  (In a first version the zygote read the tests; the candidate
 * found them in the frames that it had inherited.) A child never returns from serve_child(): an
 * exception in it must not unwind into the parent's Python code. The loop is single-threaded;
 * SIGCHLD is blocked except while it waits, so that no death is missed. */
#include "config/limits.h"
#include "verifier/inside/module.h"
#include "verifier/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
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
    MAX_CHILDREN = 512,
    NR_PIDFD_OPEN = 434,
    EXIT_BROKEN = 70,
    PATIENCE_MS = 50, /* where jobs come one after the other the next one is there by then */
    FD_JOB = 80, /* above all that a locked child has or can open: there the number means nothing */
};

struct child {
    pid_t pid;
    uint32_t id;
    uint32_t kind;
};
struct server {
    int control;
    PyObject *handler; /* borrowed */
    struct child children[MAX_CHILDREN];
    int n_children;
};

/* Static: how long this A waits for its job before it does anything else. */
static int patience_ms;

static void on_child(int signal_number) { (void)signal_number; }

static bool send_message(int fd, const void *data, size_t len, int attached) {
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (attached >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &attached, sizeof attached);
    }
    ssize_t n;
    do
        n = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)len;
}

/* Bytes received, 0 at the end, -1 on error; descriptors that came go to fds, *n_fds of them. */
static ssize_t receive_message(int fd, void *data, size_t len, int fds[WIRE_FDS], int *n_fds) {
    struct iovec iov = {.iov_base = data, .iov_len = len};
    union {
        char bytes[CMSG_SPACE(WIRE_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    *n_fds = 0;
    if (n < 0) return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        *n_fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), (size_t)*n_fds * sizeof(int));
    }
    return n;
}

/* ---- children ---- */

static PyObject *descriptors(const int *fds, int n) {
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple && i < n; i++)
        PyTuple_SetItem(tuple, i, PyLong_FromLongLong(fds[i]));
    return tuple;
}

static ssize_t receive_job(int fd, struct wire_job *job, int fds[WIRE_FDS], int *n_fds) {
    ssize_t n;
    do
        n = receive_message(fd, job, sizeof *job, fds, n_fds);
    while (n < 0 && errno == EINTR);
    return n;
}

/* What the handler gets beside the kind. */
static PyObject *wait_for_job(int job_socket) {
    struct wire_job job;
    int fds[WIRE_FDS], n_fds;
    ssize_t n = receive_job(job_socket, &job, fds, &n_fds);
    if (n == 0) _exit(0); /* cancelled before it began */
    if (n != (ssize_t)sizeof job) _exit(EXIT_BROKEN);
    PyObject *nonce = PyBytes_FromStringAndSize((const char *)job.nonce, WIRE_NONCE);
    PyObject *given = descriptors(fds, n_fds);
    if (!nonce || !given) return NULL;
    return Py_BuildValue("(iOKKiiO)", job_socket, nonce, (unsigned long long)job.address_space,
                         (unsigned long long)job.seed, (int)job.cpu_s, (int)job.flags, given);
}

/* Runs the handler, ends the process.  A and B wait for their job themselves, behind their locks.
 */
static _Noreturn void serve_child(PyObject *handler, uint32_t kind, int given_socket) {
    bool ahead = kind == WIRE_CANDIDATE || kind == WIRE_TESTS;
    int job_socket = fcntl(given_socket, F_DUPFD_CLOEXEC, FD_JOB);
    if (job_socket < 0) _exit(EXIT_BROKEN);
    close(given_socket);
    PyObject *number = PyLong_FromLongLong(kind);
    PyObject *given = ahead ? PyLong_FromLongLong(job_socket) : wait_for_job(job_socket);
    PyObject *result = number && given
                           ? PyObject_CallFunctionObjArgs(handler, number, given, (PyObject *)NULL)
                           : NULL;
    if (!result) {
        PyErr_Print();
        /* Before the lock-down this reaches the supervisor; after it nobody. */
        ssize_t told = write(job_socket, "", 1);
        _exit(told == 1 ? EXIT_BROKEN : EXIT_BROKEN + 1);
    }
    _exit(0);
}

static void tell(struct server *s, struct wire_event event, int attached) {
    if (!send_message(s->control, &event, sizeof event, attached)) _exit(0);
}

static void start(struct server *s, const struct wire_fork *ask, int job_socket) {
    if (s->n_children == MAX_CHILDREN) {
        tell(s, (struct wire_event){.kind = WIRE_FAILED, .id = ask->id, .status = EAGAIN}, -1);
        close(job_socket);
        return;
    }
    bool soon = ask->kind == WIRE_CANDIDATE_SOON;
    uint32_t kind = soon ? (uint32_t)WIRE_CANDIDATE : ask->kind;
    pid_t parent = getpid();
    PyOS_BeforeFork();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(0); /* the parent died before the line above */
        PyOS_AfterFork_Child();
        close(s->control);
        signal(SIGCHLD, SIG_DFL);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        patience_ms = soon ? PATIENCE_MS : 0;
        serve_child(s->handler, kind, job_socket);
    }
    int error = errno;
    PyOS_AfterFork_Parent();
    close(job_socket);
    if (pid < 0) {
        tell(s, (struct wire_event){.kind = WIRE_FAILED, .id = ask->id, .status = error}, -1);
        return;
    }
    s->children[s->n_children++] = (struct child){.pid = pid, .id = ask->id, .kind = kind};
    int pidfd = (int)syscall(NR_PIDFD_OPEN, pid, 0);
    if (pidfd < 0) { /* a child that can't be killed must not run */
        error = errno;
        kill(pid, SIGKILL);
        tell(s, (struct wire_event){.kind = WIRE_FAILED, .id = ask->id, .status = error}, -1);
        return;
    }
    tell(s, (struct wire_event){.kind = WIRE_STARTED, .id = ask->id, .pid = pid}, pidfd);
    close(pidfd);
}

/* Not reaped yet where it is in the table: the number is still its own. */
static void end_child(const struct server *s, uint32_t id) {
    for (int i = 0; i < s->n_children; i++)
        if (s->children[i].id == id) kill(s->children[i].pid, SIGKILL);
}

static void reap(struct server *s) {
    int status;
    struct rusage usage;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &usage)) > 0;) {
        int i = 0;
        while (i < s->n_children && s->children[i].pid != pid)
            i++;
        if (i == s->n_children) continue; /* an orphan of somebody, adopted */
        struct child child = s->children[i];
        s->children[i] = s->children[--s->n_children];
        if (child.kind == WIRE_CANDIDATE) lockdown_clean_work();
        struct wire_event event = {
            .kind = WIRE_EXITED,
            .id = child.id,
            .status = status,
            .pid = pid,
            .cpu_us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * INT64_C(1000000) +
                      usage.ru_utime.tv_usec + usage.ru_stime.tv_usec,
            .max_rss_kb = usage.ru_maxrss,
        };
        tell(s, event, -1);
    }
}

/* Never returns: the process ends with its control socket. */
PyObject *serve_loop(PyObject *self, PyObject *args) {
    (void)self;
    struct server s = {0};
    if (!PyArg_ParseTuple(args, "iO", &s.control, &s.handler)) return NULL;
    sigset_t blocked, waiting;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, &waiting);
    sigdelset(&waiting, SIGCHLD);
    struct sigaction action = {.sa_handler = on_child};
    sigaction(SIGCHLD, &action, NULL);
    for (;;) {
        reap(&s);
        struct pollfd polled = {.fd = s.control, .events = POLLIN};
        if (ppoll(&polled, 1, NULL, &waiting) < 0) {
            if (errno != EINTR) _exit(EXIT_BROKEN);
            continue;
        }
        struct wire_fork ask;
        int fds[WIRE_FDS], n_fds;
        ssize_t n = receive_message(s.control, &ask, sizeof ask, fds, &n_fds);
        if (n < 0 && errno == EINTR) continue;
        if (n == (ssize_t)sizeof ask && n_fds == 0 && ask.kind == WIRE_KILL) {
            end_child(&s, ask.id);
            continue;
        }
        if (n != (ssize_t)sizeof ask || n_fds != 1) _exit(0);
        start(&s, &ask, fds[0]);
    }
}

/* ---- messages of their own ---- */

PyObject *serve_ready(PyObject *self, PyObject *args) {
    (void)self;
    int fd;
    PyObject *text;
    const char *data;
    size_t len;
    char message[sizeof(struct wire_event) + 4096] = {0};
    if (!PyArg_ParseTuple(args, "iO", &fd, &text) || !module_bytes(text, &data, &len)) return NULL;
    if (len > 4096) len = 4096;
    /* What is free in whole pages need not be copied for each child. */
    malloc_trim(0);
    struct wire_event event = {.kind = WIRE_READY};
    memcpy(message, &event, sizeof event);
    memcpy(message + sizeof event, data, len);
    if (!send_message(fd, message, sizeof event + len, -1))
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_IncRef(PYTHON_NONE);
    return PYTHON_NONE;
}

/* ---- jobs of children that are locked already ---- */

PyObject *serve_waits(PyObject *self, PyObject *args) {
    (void)self;
    (void)args;
    struct pollfd polled = {.fd = MODULE_FD_CALL, .events = POLLIN};
    PyObject *waits = poll(&polled, 1, patience_ms) == 0 ? PYTHON_TRUE : PYTHON_FALSE;
    Py_IncRef(waits);
    return waits;
}

static PyObject *read_source(int fd) {
    struct stat st;
    if (fstat(fd, &st) || st.st_size < 0) return NULL;
    char *data = malloc((size_t)st.st_size + 1);
    PyObject *source = NULL;
    if (data && pread(fd, data, (size_t)st.st_size, 0) == st.st_size)
        source = PyBytes_FromStringAndSize(data, st.st_size);
    free(data);
    return source;
}

/* The descriptors of a job of A in place of what was there, the job's socket among it. */
static bool lay_out_job(const struct wire_job *job, const int *fds, int n_fds) {
    enum { CODE, CALL_OR_INPUT, OUTPUT, ERRORS };
    bool program = job->flags & WIRE_PROGRAM;
    if (n_fds != (program ? ERRORS : OUTPUT) + 1) return false;
    bool ok = dup2(fds[OUTPUT], 1) == 1 && dup2(fds[program ? ERRORS : OUTPUT], 2) == 2 &&
              dup2(fds[CALL_OR_INPUT], program ? 0 : MODULE_FD_CALL) >= 0;
    if (program) close(MODULE_FD_CALL);
    for (int i = 0; i < n_fds; i++)
        close(fds[i]);
    return ok;
}

/* Until its job is whole nothing of a candidate is here, and a word on its socket tells the
 * supervisor that there will be no run. */
static _Noreturn void give_up(void) {
    ssize_t told = write(MODULE_FD_CALL, "", 1);
    _exit(told == 1 ? EXIT_BROKEN : EXIT_BROKEN + 1);
}

PyObject *serve_take(PyObject *self, PyObject *args) {
    (void)self;
    (void)args;
    struct wire_job job;
    int fds[WIRE_FDS], n_fds;
    ssize_t n = receive_job(MODULE_FD_CALL, &job, fds, &n_fds);
    if (n == 0) _exit(0); /* cancelled before it began */
    if (n != (ssize_t)sizeof job || n_fds < 1) give_up();
    PyObject *source = read_source(fds[0]);
    PyObject *given =
        source ? Py_BuildValue("(OKi)", source, (unsigned long long)job.seed, (int)job.flags)
               : NULL;
    if (!given || !lockdown_limit_job(job.address_space, (int)job.cpu_s) ||
        !lay_out_job(&job, fds, n_fds))
        give_up();
    Py_DecRef(source);
    return given;
}

/* The limits of a B that does many jobs stay those of the first. */
PyObject *serve_again(PyObject *self, PyObject *args) {
    (void)self;
    (void)args;
    static bool limited; /* this process is one B */
    int fds[WIRE_FDS], n_fds;
    struct wire_job job;
    ssize_t n = receive_job(MODULE_FD_REPORT, &job, fds, &n_fds);
    if (n < 0) return PyErr_SetFromErrno(PyExc_OSError);
    if (n != (ssize_t)sizeof job || n_fds != 1) {
        Py_IncRef(PYTHON_NONE);
        return PYTHON_NONE;
    }
    if (!limited && !lockdown_limit_job(job.address_space, (int)job.cpu_s))
        return PyErr_SetFromErrno(PyExc_OSError);
    limited = true;
    if (fds[0] != MODULE_FD_CALL) { /* it comes there by itself where the number is free */
        if (dup2(fds[0], MODULE_FD_CALL) < 0) return PyErr_SetFromErrno(PyExc_OSError);
        close(fds[0]);
    }
    codec_forget();
    PyObject *nonce = PyBytes_FromStringAndSize((const char *)job.nonce, WIRE_NONCE);
    return nonce ? Py_BuildValue("(OK)", nonce, (unsigned long long)job.seed) : NULL;
}

PyObject *serve_report(PyObject *self, PyObject *args) {
    (void)self;
    int fd, kind, passed, total, again;
    struct {
        PyObject *object;
        const char *data;
        size_t len;
    } nonce, limit, text, feedback;
    if (!PyArg_ParseTuple(args, "iiOiiiOOO", &fd, &kind, &nonce.object, &passed, &total, &again,
                          &limit.object, &text.object, &feedback.object) ||
        !module_bytes(nonce.object, &nonce.data, &nonce.len) ||
        !module_bytes(limit.object, &limit.data, &limit.len) ||
        !module_bytes(text.object, &text.data, &text.len) ||
        !module_bytes(feedback.object, &feedback.data, &feedback.len))
        return NULL;
    if (text.len > WIRE_REPORT_TEXT) text.len = WIRE_REPORT_TEXT;
    if (feedback.len > WIRE_REPORT_FEEDBACK) feedback.len = 0; /* cut it would be no JSON */
    size_t size = sizeof(struct wire_report) + text.len + feedback.len;
    struct wire_report *report = calloc(1, size);
    if (!report) return PyErr_NoMemory();
    report->kind = (uint32_t)kind;
    report->passed = (uint32_t)passed;
    report->total = (uint32_t)total;
    report->again = (uint32_t)again;
    report->text_len = (uint32_t)text.len;
    report->feedback_len = (uint32_t)feedback.len;
    if (nonce.len == WIRE_NONCE) memcpy(report->nonce, nonce.data, WIRE_NONCE);
    memcpy(report->limit, limit.data,
           limit.len < sizeof report->limit - 1 ? limit.len : sizeof report->limit - 1);
    memcpy(report->text, text.data, text.len);
    memcpy(report->text + text.len, feedback.data, feedback.len);
    ssize_t n;
    do /* write, not sendmsg: the filter leaves no other way out */
        n = write(fd, report, size);
    while (n < 0 && errno == EINTR);
    free(report);
    if (n < 0) return PyErr_SetFromErrno(PyExc_OSError);
    Py_IncRef(PYTHON_NONE);
    return PYTHON_NONE;
}
