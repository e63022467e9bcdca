/* The part of CPython's stable ABI that the module uses, declared by hand.
 *
 * One binary serves every CPython from 3.8 on, so it is built without any version's headers.  Names
 * and signatures are those of the limited API in CPython's documentation ("C API Stability"); only
 * functions and data of it appear here, never a macro that reaches into a struct.  Everything holds
 * the GIL. */
#ifndef INSIDE_PYTHON_ABI_H
#define INSIDE_PYTHON_ABI_H

#include <stddef.h>
#include <sys/types.h>

typedef struct python_object PyObject; /* opaque */

/* ---- modules ---- */
typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *args);
struct python_method {
    const char *name;
    PyCFunction function;
    int flags; /* 1: METH_VARARGS, 4: METH_NOARGS */
    const char *doc;
};
/* PyModuleDef: a PyObject header (count, type), then init, index, copy; then the fields. */
struct python_module {
    ssize_t count;
    void *type;
    PyObject *(*init)(void);
    ssize_t index;
    PyObject *copy;
    const char *name, *doc;
    ssize_t size;
    struct python_method *methods;
    void *slots;
    void *traverse, *clear, *free;
};
PyObject *PyModule_Create2(struct python_module *definition, int abi_version);
int PyArg_ParseTuple(PyObject *args, const char *format, ...);

/* ---- objects ---- */
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
PyObject *PyObject_Type(PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);
PyObject *PyObject_CallMethod(PyObject *, const char *name, const char *format, ...);
PyObject *PyObject_GetIter(PyObject *);
PyObject *PyIter_Next(PyObject *);
PyObject *Py_BuildValue(const char *format, ...);

PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
long long PyLong_AsLongLongAndOverflow(PyObject *, int *overflow);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject *);
PyObject *PyComplex_FromDoubles(double, double);
double PyComplex_RealAsDouble(PyObject *);
double PyComplex_ImagAsDouble(PyObject *);
PyObject *PyUnicode_DecodeUTF8(const char *, ssize_t len, const char *errors);
PyObject *PyUnicode_AsEncodedString(PyObject *, const char *encoding, const char *errors);
PyObject *PyBytes_FromStringAndSize(const char *, ssize_t len);
int PyBytes_AsStringAndSize(PyObject *, char **data, ssize_t *len);
PyObject *PyByteArray_FromStringAndSize(const char *, ssize_t len);
char *PyByteArray_AsString(PyObject *);
ssize_t PyByteArray_Size(PyObject *);
PyObject *PyList_New(ssize_t);
ssize_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, ssize_t); /* borrowed */
int PyList_Append(PyObject *, PyObject *);
PyObject *PyTuple_New(ssize_t);
ssize_t PyTuple_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, ssize_t);             /* borrowed */
int PyTuple_SetItem(PyObject *, ssize_t, PyObject *stolen); /* takes the reference */
PyObject *PyDict_New(void);
int PyDict_SetItem(PyObject *, PyObject *key, PyObject *value);
int PyDict_Next(PyObject *, ssize_t *at, PyObject **key, PyObject **value); /* borrowed */
ssize_t PyDict_Size(PyObject *);
PyObject *PySet_New(PyObject *);
PyObject *PyFrozenSet_New(PyObject *);
int PySet_Add(PyObject *, PyObject *);
ssize_t PySet_Size(PyObject *);

/* Types are compared by address only. */
extern char PyBool_Type[], PyLong_Type[], PyFloat_Type[], PyComplex_Type[], PyUnicode_Type[],
    PyBytes_Type[], PyByteArray_Type[], PyList_Type[], PyTuple_Type[], PyDict_Type[], PySet_Type[],
    PyFrozenSet_Type[];
extern char _Py_NoneStruct[], _Py_TrueStruct[], _Py_FalseStruct[];
#define PYTHON_NONE ((PyObject *)(void *)_Py_NoneStruct)
#define PYTHON_TRUE ((PyObject *)(void *)_Py_TrueStruct)
#define PYTHON_FALSE ((PyObject *)(void *)_Py_FalseStruct)

/* ---- errors ---- */
extern PyObject *PyExc_ValueError, *PyExc_TypeError, *PyExc_OSError, *PyExc_MemoryError,
    *PyExc_EOFError;
void PyErr_SetString(PyObject *type, const char *message);
PyObject *PyErr_SetFromErrno(PyObject *type);
PyObject *PyErr_Occurred(void);
PyObject *PyErr_NoMemory(void);
void PyErr_Print(void);
void PyErr_Clear(void);

/* ---- threads and forks ---- */
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
void PyOS_BeforeFork(void);
void PyOS_AfterFork_Parent(void);
void PyOS_AfterFork_Child(void);

#endif
