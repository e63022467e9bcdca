/* firstpass_inside: the C half of what runs inside the box.  See boot.py for the Python half. */
#include "verifier/inside/module.h"

bool module_bytes(PyObject *object, const char **data, size_t *len) {
    char *at;
    ssize_t n;
    if (PyBytes_AsStringAndSize(object, &at, &n)) return false;
    *data = at;
    *len = (size_t)n;
    return true;
}

/* Python wants the tables writable; this process writes them once, at import. */
static struct python_method methods[] = {
    {"encode", codec_encode, 1, "encode(value, hook) -> bytes"},
    {"decode", codec_decode, 1, "decode(bytes, hook) -> value"},
    {"send", codec_send, 1, "send(fd, request, operation, bytes)"},
    {"receive", codec_receive, 1, "receive(fd) -> (request, operation, bytes) or None at the end"},
    {"serve", serve_loop, 1,
     "serve(control, handler): forks children until the control socket ends"},
    {"ready", serve_ready, 1, "ready(control, text)"},
    {"report", serve_report, 1, "report(fd, kind, nonce, passed, total, limit, text, feedback)"},
    {"waits", serve_waits, 4, "waits() -> whether the job of A lets some milliseconds pass"},
    {"take", serve_take, 4, "take() -> (source, seed, flags) of the job of A, all in place"},
    {"again", serve_again, 4,
     "again() -> (nonce, seed) of the next job of B, its call socket in place; or None"},
    {"setup", lockdown_setup, 1,
     "setup(abi, read_paths, work, filter, server_filter, own_uid, limits)"},
    {"prepare", lockdown_prepare, 1,
     "prepare(kind, job_socket): enters ahead of the job of A (socket at 3) or B (at 4)"},
    {"enter", lockdown_enter, 1, "enter(kind, memory, cpu, call, report, output, input, errors)"},
    {"limit", lockdown_limit, 1, "limit(memory, cpu)"},
    {"selftest", lockdown_selftest, 1, "selftest() -> bits of what was possible and must not be"},
    {0},
};

static struct python_module definition = {
    .count = 1,
    .name = "firstpass_inside",
    .doc = "The sandbox side of firstpass.",
    .size = -1,
    .methods = methods,
};

PyObject *PyInit_firstpass_inside(void);
__attribute__((visibility("default"))) PyObject *PyInit_firstpass_inside(void) {
    return PyModule_Create2(&definition, 3);
}
