/* The functions that the module gives to the Python harness, one table over several files. */
#ifndef INSIDE_MODULE_H
#define INSIDE_MODULE_H

#include "verifier/inside/python_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers of the descriptors in a locked child. */
enum { MODULE_FD_CALL = 3, MODULE_FD_REPORT = 4 };

/* ---- codec.c ---- */
PyObject *codec_encode(PyObject *self, PyObject *args);
PyObject *codec_decode(PyObject *self, PyObject *args);
PyObject *codec_send(PyObject *self, PyObject *args);
PyObject *codec_receive(PyObject *self, PyObject *args);
/* The call socket is another one from now on. */
void codec_forget(void);

/* ---- serve.c ---- */
PyObject *serve_loop(PyObject *self, PyObject *args);
PyObject *serve_ready(PyObject *self, PyObject *args);
PyObject *serve_waits(PyObject *self, PyObject *args);
PyObject *serve_take(PyObject *self, PyObject *args);
PyObject *serve_again(PyObject *self, PyObject *args);
PyObject *serve_report(PyObject *self, PyObject *args);

/* ---- lockdown.c ---- */
PyObject *lockdown_setup(PyObject *self, PyObject *args);
PyObject *lockdown_prepare(PyObject *self, PyObject *args);
PyObject *lockdown_enter(PyObject *self, PyObject *args);
PyObject *lockdown_limit(PyObject *self, PyObject *args);
PyObject *lockdown_selftest(PyObject *self, PyObject *args);
/* The limits that come with a job; false with errno set. */
bool lockdown_limit_job(unsigned long long memory, int cpu_s);
/* Removes what a candidate left in the work directory; in the fork server that owns it. */
void lockdown_clean_work(void);

/* False with a Python error set where `object` is not bytes. */
bool module_bytes(PyObject *object, const char **data, size_t *len);

#endif
