/* The part of CPython's stable ABI that inside/codec.c calls, as a few plain objects: enough to run
 * the codec under sanitizers without an interpreter.  Counts live objects, so that a lost or a
 * doubled reference is seen, and can refuse an allocation.  Included once, by the fuzz target. */
#ifndef TESTS_FAKE_PYTHON_H
#define TESTS_FAKE_PYTHON_H

#include "base/err.h"
#include "verifier/inside/python_abi.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum fake_kind {
    FAKE_INT,    /* sign and magnitude, little-endian, without zeros at its end */
    FAKE_FLOAT,  /* one or two doubles */
    FAKE_BYTES,  /* str, bytes, bytearray */
    FAKE_ITEMS,  /* list, tuple, dict (key, value, key, …), set, frozenset */
    FAKE_CURSOR, /* an iterator over items */
    FAKE_OPAQUE, /* what the hooks make: a handle, or a pair of items */
};
struct python_object {
    long refs;
    enum fake_kind kind;
    void *type;
    bool negative;
    double d[2];
    unsigned char *data; /* owned */
    PyObject **items;    /* owned */
    size_t n;            /* of data or items */
    size_t at;           /* of a cursor */
};

/* Never looked into; as large as an object, since the compiler can't know that. */
enum { FAKE_BYTES_OF_STATIC = 128 };
_Static_assert(sizeof(struct python_object) <= FAKE_BYTES_OF_STATIC, "a static object");
#define FAKE_STATIC(name) _Alignas(16) char name[FAKE_BYTES_OF_STATIC]
FAKE_STATIC(PyBool_Type);
FAKE_STATIC(PyLong_Type);
FAKE_STATIC(PyFloat_Type);
FAKE_STATIC(PyComplex_Type);
FAKE_STATIC(PyUnicode_Type);
FAKE_STATIC(PyBytes_Type);
FAKE_STATIC(PyByteArray_Type);
FAKE_STATIC(PyList_Type);
FAKE_STATIC(PyTuple_Type);
FAKE_STATIC(PyDict_Type);
FAKE_STATIC(PySet_Type);
FAKE_STATIC(PyFrozenSet_Type);
FAKE_STATIC(_Py_NoneStruct);
FAKE_STATIC(_Py_TrueStruct);
FAKE_STATIC(_Py_FalseStruct);
static FAKE_STATIC(fake_opaque_type);
static FAKE_STATIC(fake_cursor_type);
static FAKE_STATIC(fake_exception);
PyObject *PyExc_ValueError = (PyObject *)(void *)fake_exception,
         *PyExc_TypeError = (PyObject *)(void *)fake_exception,
         *PyExc_OSError = (PyObject *)(void *)fake_exception,
         *PyExc_MemoryError = (PyObject *)(void *)fake_exception,
         *PyExc_EOFError = (PyObject *)(void *)fake_exception;

static struct {
    long live;       /* objects that are not freed */
    long until_full; /* allocations until one is refused; negative: none is */
    bool error;
} fake;

static bool fake_is_static(const void *o) {
    const void *all[] = {PyBool_Type,      PyLong_Type,    PyFloat_Type,     PyComplex_Type,
                         PyUnicode_Type,   PyBytes_Type,   PyByteArray_Type, PyList_Type,
                         PyTuple_Type,     PyDict_Type,    PySet_Type,       PyFrozenSet_Type,
                         _Py_NoneStruct,   _Py_TrueStruct, _Py_FalseStruct,  fake_opaque_type,
                         fake_cursor_type, fake_exception};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (o == all[i]) return true;
    return false;
}

static bool fake_refuse(void) {
    if (fake.until_full < 0 || fake.until_full-- > 0) return false;
    fake.until_full = -1;
    return true;
}

static void *fake_realloc(void *old, size_t n) { return fake_refuse() ? NULL : realloc(old, n); }
static void *fake_malloc(size_t n) { return fake_realloc(NULL, n); }

void PyErr_SetString(PyObject *type, const char *message) {
    BUG_ON(!type || !message[0]);
    fake.error = true;
}
PyObject *PyErr_SetFromErrno(PyObject *type) {
    PyErr_SetString(type, "errno");
    return NULL;
}
PyObject *PyErr_NoMemory(void) { return PyErr_SetFromErrno(PyExc_MemoryError); }
PyObject *PyErr_Occurred(void) { return fake.error ? PyExc_ValueError : NULL; }
void PyErr_Clear(void) { fake.error = false; }
void *PyEval_SaveThread(void) { return &fake; }
void PyEval_RestoreThread(void *state) { BUG_ON(state != &fake); }

static PyObject *fake_new(enum fake_kind kind, void *type) {
    if (fake_refuse()) return PyErr_NoMemory();
    PyObject *o = err_alloc(1, sizeof *o);
    *o = (PyObject){.refs = 1, .kind = kind, .type = type};
    fake.live++;
    return o;
}

void Py_IncRef(PyObject *o) {
    if (o && !fake_is_static(o)) o->refs++;
}
void Py_DecRef(PyObject *o) {
    if (!o || fake_is_static(o)) return;
    BUG_ON(o->refs < 1);
    if (--o->refs) return;
    for (size_t i = 0; o->items && i < o->n; i++)
        Py_DecRef(o->items[i]);
    free(o->items);
    free(o->data);
    free(o);
    fake.live--;
}

PyObject *PyObject_Type(PyObject *o) {
    if (o == PYTHON_TRUE || o == PYTHON_FALSE) return (PyObject *)(void *)PyBool_Type;
    if (fake_is_static(o)) return (PyObject *)(void *)fake_opaque_type;
    return o->type;
}

/* ---- numbers ---- */

static PyObject *fake_int(bool negative, const unsigned char *data, size_t n) {
    PyObject *o = fake_new(FAKE_INT, PyLong_Type);
    if (!o) return NULL;
    while (n && !data[n - 1])
        n--;
    o->negative = negative && n;
    o->data = err_alloc(n + 1, 1);
    if (n) memcpy(o->data, data, n);
    o->n = n;
    return o;
}
PyObject *PyLong_FromUnsignedLongLong(unsigned long long v) {
    return fake_int(false, (const unsigned char *)&v, sizeof v);
}
PyObject *PyLong_FromLongLong(long long v) {
    unsigned long long magnitude = v < 0 ? 0ULL - (unsigned long long)v : (unsigned long long)v;
    return fake_int(v < 0, (const unsigned char *)&magnitude, sizeof magnitude);
}
static bool fake_magnitude(const PyObject *o, unsigned long long *out) {
    *out = 0;
    if (o->n > sizeof *out) return false;
    memcpy(out, o->data, o->n);
    return true;
}
long long PyLong_AsLongLongAndOverflow(PyObject *o, int *overflow) {
    unsigned long long magnitude;
    BUG_ON(o->kind != FAKE_INT);
    bool fits = fake_magnitude(o, &magnitude) && magnitude <= (1ULL << 63) - !o->negative;
    *overflow = fits ? 0 : o->negative ? -1 : 1;
    if (!fits) return -1;
    return o->negative ? (long long)(0ULL - magnitude) : (long long)magnitude;
}
unsigned long long PyLong_AsUnsignedLongLong(PyObject *o) {
    unsigned long long magnitude;
    if (!o->negative && fake_magnitude(o, &magnitude)) return magnitude;
    PyErr_SetString(PyExc_ValueError, "too large");
    return (unsigned long long)-1;
}
PyObject *PyFloat_FromDouble(double v) {
    PyObject *o = fake_new(FAKE_FLOAT, PyFloat_Type);
    if (o) o->d[0] = v;
    return o;
}
double PyFloat_AsDouble(PyObject *o) { return o->d[0]; }
PyObject *PyComplex_FromDoubles(double re, double im) {
    PyObject *o = fake_new(FAKE_FLOAT, PyComplex_Type);
    if (o) memcpy(o->d, (double[]){re, im}, sizeof o->d);
    return o;
}
double PyComplex_RealAsDouble(PyObject *o) { return o->d[0]; }
double PyComplex_ImagAsDouble(PyObject *o) { return o->d[1]; }

/* ---- bytes ---- */

static PyObject *fake_bytes(void *type, const char *data, size_t n) {
    PyObject *o = fake_new(FAKE_BYTES, type);
    if (!o) return NULL;
    o->data = err_alloc(n + 1, 1);
    if (n) memcpy(o->data, data, n);
    o->n = n;
    return o;
}
PyObject *PyBytes_FromStringAndSize(const char *data, ssize_t n) {
    return fake_bytes(PyBytes_Type, data, (size_t)n);
}
PyObject *PyByteArray_FromStringAndSize(const char *data, ssize_t n) {
    return fake_bytes(PyByteArray_Type, data, (size_t)n);
}
/* Well-formed enough: what the real one refuses is refused by its first byte here. */
PyObject *PyUnicode_DecodeUTF8(const char *data, ssize_t n, const char *errors) {
    BUG_ON(strcmp(errors, "surrogatepass") != 0);
    if (n && (unsigned char)data[0] == 0xff) {
        PyErr_SetString(PyExc_ValueError, "not UTF-8");
        return NULL;
    }
    return fake_bytes(PyUnicode_Type, data, (size_t)n);
}
PyObject *PyUnicode_AsEncodedString(PyObject *o, const char *encoding, const char *errors) {
    BUG_ON(o->type != PyUnicode_Type || !encoding[0] || !errors[0]);
    return fake_bytes(PyBytes_Type, (const char *)o->data, o->n);
}
int PyBytes_AsStringAndSize(PyObject *o, char **data, ssize_t *n) {
    BUG_ON(o->type != PyBytes_Type);
    *data = (char *)o->data;
    *n = (ssize_t)o->n;
    return 0;
}
char *PyByteArray_AsString(PyObject *o) { return (char *)o->data; }
ssize_t PyByteArray_Size(PyObject *o) { return (ssize_t)o->n; }

/* ---- containers ---- */

static int fake_push(PyObject *o, PyObject *item) {
    if (fake_refuse()) {
        PyErr_NoMemory();
        return -1;
    }
    if ((o->n & (o->n - 1)) == 0) /* grown at powers of two */
        o->items = err_realloc(o->items, o->n ? o->n * 2 : 1, sizeof *o->items);
    Py_IncRef(item);
    o->items[o->n++] = item;
    return 0;
}
static bool fake_hashable(const PyObject *o) {
    if (fake_is_static(o) ||
        (o->type != PyList_Type && o->type != PyDict_Type && o->type != PySet_Type))
        return true;
    PyErr_SetString(PyExc_TypeError, "unhashable");
    return false;
}
PyObject *PyList_New(ssize_t n) {
    BUG_ON(n != 0);
    return fake_new(FAKE_ITEMS, PyList_Type);
}
ssize_t PyList_Size(PyObject *o) { return (ssize_t)o->n; }
PyObject *PyList_GetItem(PyObject *o, ssize_t i) {
    BUG_ON(i < 0 || (size_t)i >= o->n);
    return o->items[i];
}
int PyList_Append(PyObject *o, PyObject *item) { return fake_push(o, item); }
PyObject *PyTuple_New(ssize_t n) {
    PyObject *o = fake_new(FAKE_ITEMS, PyTuple_Type);
    if (!o) return NULL;
    o->items = err_alloc((size_t)n + 1, sizeof *o->items);
    o->n = (size_t)n;
    return o;
}
ssize_t PyTuple_Size(PyObject *o) { return (ssize_t)o->n; }
PyObject *PyTuple_GetItem(PyObject *o, ssize_t i) {
    BUG_ON(i < 0 || (size_t)i >= o->n || !o->items[i]);
    return o->items[i];
}
int PyTuple_SetItem(PyObject *o, ssize_t i, PyObject *stolen) {
    BUG_ON(i < 0 || (size_t)i >= o->n || o->items[i] || !stolen);
    o->items[i] = stolen;
    return 0;
}
PyObject *PyDict_New(void) { return fake_new(FAKE_ITEMS, PyDict_Type); }
int PyDict_SetItem(PyObject *o, PyObject *key, PyObject *value) {
    if (!fake_hashable(key) || fake_push(o, key)) return -1;
    if (!fake_push(o, value)) return 0;
    Py_DecRef(o->items[--o->n]); /* the key goes again */
    return -1;
}
int PyDict_Next(PyObject *o, ssize_t *at, PyObject **key, PyObject **value) {
    if ((size_t)*at >= o->n) return 0;
    *key = o->items[*at];
    *value = o->items[*at + 1];
    *at += 2;
    return 1;
}
ssize_t PyDict_Size(PyObject *o) { return (ssize_t)o->n / 2; }
PyObject *PySet_New(PyObject *from) {
    BUG_ON(from != NULL);
    return fake_new(FAKE_ITEMS, PySet_Type);
}
PyObject *PyFrozenSet_New(PyObject *from) {
    PyObject *o = fake_new(FAKE_ITEMS, PyFrozenSet_Type);
    for (size_t i = 0; o && i < from->n; i++)
        if (fake_push(o, from->items[i])) {
            Py_DecRef(o);
            return NULL;
        }
    return o;
}
int PySet_Add(PyObject *o, PyObject *item) { return fake_hashable(item) ? fake_push(o, item) : -1; }
ssize_t PySet_Size(PyObject *o) { return (ssize_t)o->n; }
PyObject *PyObject_GetIter(PyObject *o) {
    PyObject *cursor = fake_new(FAKE_CURSOR, fake_cursor_type);
    if (cursor && fake_push(cursor, o)) {
        Py_DecRef(cursor);
        return NULL;
    }
    return cursor;
}
PyObject *PyIter_Next(PyObject *cursor) {
    PyObject *o = cursor->items[0];
    if (cursor->at >= o->n) return NULL;
    Py_IncRef(o->items[cursor->at]);
    return o->items[cursor->at++];
}

/* ---- calls ---- */

int PyArg_ParseTuple(PyObject *args, const char *format, ...) {
    va_list out;
    BUG_ON(args->n != strlen(format));
    va_start(out, format);
    for (size_t i = 0; format[i]; i++) {
        int overflow;
        if (format[i] == 'O')
            *va_arg(out, PyObject **) = args->items[i];
        else if (format[i] == 'K')
            *va_arg(out, unsigned long long *) = PyLong_AsUnsignedLongLong(args->items[i]);
        else
            *va_arg(out, int *) = (int)PyLong_AsLongLongAndOverflow(args->items[i], &overflow);
    }
    va_end(out);
    return 1;
}
PyObject *Py_BuildValue(const char *format, ...) {
    va_list in;
    BUG_ON(strcmp(format, "(KiO)") != 0);
    PyObject *o = PyTuple_New(3);
    if (!o) return NULL;
    va_start(in, format);
    o->items[0] = PyLong_FromUnsignedLongLong(va_arg(in, unsigned long long));
    o->items[1] = PyLong_FromLongLong(va_arg(in, int));
    o->items[2] = va_arg(in, PyObject *);
    va_end(in);
    Py_IncRef(o->items[2]);
    if (o->items[0] && o->items[1]) return o;
    Py_DecRef(o);
    return NULL;
}

static PyObject *fake_bits(const PyObject *o) {
    unsigned long long bits = o->n ? (o->n - 1) * 8 : 0;
    for (unsigned top = o->n ? o->data[o->n - 1] : 0; top; top >>= 1)
        bits++;
    return PyLong_FromUnsignedLongLong(bits);
}
PyObject *PyObject_CallMethod(PyObject *o, const char *name, const char *format, ...) {
    va_list in;
    PyObject *result = NULL;
    va_start(in, format);
    if (!strcmp(name, "__abs__")) {
        result = fake_int(false, o->data, o->n);
    } else if (!strcmp(name, "__neg__")) {
        result = fake_int(!o->negative, o->data, o->n);
    } else if (!strcmp(name, "bit_length")) {
        result = fake_bits(o);
    } else if (!strcmp(name, "__lt__")) {
        BUG_ON(va_arg(in, PyObject *)->n != 0); /* compared with 0 only */
        result = o->negative ? PYTHON_TRUE : PYTHON_FALSE;
    } else if (!strcmp(name, "to_bytes")) {
        size_t n = (size_t)va_arg(in, unsigned long long);
        result = fake_bytes(PyBytes_Type, NULL, 0);
        if (result) {
            BUG_ON(n < o->n);
            free(result->data);
            result->data = err_alloc(n + 1, 1);
            if (o->n) memcpy(result->data, o->data, o->n);
            result->n = n;
        }
    } else {
        BUG_ON(strcmp(name, "from_bytes") != 0);
        const PyObject *bytes = va_arg(in, PyObject *);
        result = fake_int(false, bytes->data, bytes->n);
    }
    va_end(in);
    return result;
}

/* The hooks: reading, (number, None) becomes a handle and (tag, content) a pair; writing, back
 * again. A tag that is no string is refused, as by the harness. */
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...) {
    va_list in;
    va_start(in, callable);
    PyObject *first = va_arg(in, PyObject *), *second = va_arg(in, PyObject *);
    va_end(in);
    PyObject *o = NULL;
    if (second) {
        bool is_handle = !fake_is_static(first) && first->kind == FAKE_INT;
        if (fake_is_static(first) || (!is_handle && first->type != PyUnicode_Type)) {
            PyErr_SetString(PyExc_ValueError, "malformed extended value");
            return NULL;
        }
        o = fake_new(FAKE_OPAQUE, fake_opaque_type);
        if (o && (fake_push(o, first) || (!is_handle && fake_push(o, second)))) {
            Py_DecRef(o);
            return NULL;
        }
        return o;
    }
    BUG_ON(fake_is_static(first) || first->kind != FAKE_OPAQUE);
    if (first->n == 1) {
        Py_IncRef(first->items[0]);
        return first->items[0];
    }
    o = PyTuple_New(2);
    for (int i = 0; o && i < 2; i++) {
        Py_IncRef(first->items[i]);
        o->items[i] = first->items[i];
    }
    return o;
}

#endif
