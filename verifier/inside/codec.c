/* The codec between A and B: exact builtin values as bytes, and the frames that carry them.
 *
 * THEORY.  A is hostile, so B trusts nothing here: every length is checked against the bytes that
 * are there, depth and node count are limited, nothing is looked up or called by a name that A
 * chose (the hook maps a few fixed tags).  Types are compared by address, so a subclass never takes
 * part: its lying methods stay in A.
 *
 * A value is one tag byte and what follows:
 *   N T F              None, True, False
 *   i  int64           I  sign byte, u32 n, magnitude little-endian
 *   d  double          c  two doubles
 *   s  u32 n, UTF-8 (lone surrogates pass)     b B  u32 n, bytes or bytearray
 *   l t S Z  u32 n, values: list, tuple, set, frozenset        D  u32 n, key and value n times
 *   h  u64             a handle: an object that stays in the other process
 *   x  value, value    a tag (str) and plain content: Decimal, Counter, … by the hook
 *
 * encode(value, hook): hook(object) gives an int (a handle) or a pair (tag, content) for what isn't
 * plain. decode(bytes, hook): hook(number, None) makes the proxy of a handle, hook(tag, content)
 * the extended value. */
#include "config/limits.h"
#include "verifier/inside/module.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_NODES = 8 * 1024 * 1024, FRAME_HEADER = 13 };

/* ---- writing ---- */

struct writer {
    unsigned char *data; /* owned */
    size_t len, capacity;
    PyObject *hook; /* borrowed */
};

static bool put(struct writer *w, const void *data, size_t len) {
    if (len > LIMIT_CODEC_BYTES - w->len) {
        PyErr_SetString(PyExc_ValueError, "the value is too large to hand over");
        return false;
    }
    if (w->len + len > w->capacity) {
        size_t capacity = w->capacity ? w->capacity * 2 : 256;
        while (capacity < w->len + len)
            capacity *= 2;
        unsigned char *bigger = realloc(w->data, capacity);
        if (!bigger) {
            PyErr_NoMemory();
            return false;
        }
        w->data = bigger;
        w->capacity = capacity;
    }
    if (len) memcpy(w->data + w->len, data, len);
    w->len += len;
    return true;
}

static bool put_tag(struct writer *w, char tag) { return put(w, &tag, 1); }

static bool put_counted(struct writer *w, char tag, size_t n) {
    if (n > LIMIT_CODEC_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the value is too large to hand over");
        return false;
    }
    uint32_t count = (uint32_t)n;
    return put_tag(w, tag) && put(w, &count, sizeof count);
}

static bool put_value(struct writer *w, PyObject *value, int depth);

/* What the hook answered for an object that isn't plain. */
static bool put_hooked(struct writer *w, PyObject *value, int depth) {
    PyObject *answer = PyObject_CallFunctionObjArgs(w->hook, value, (PyObject *)NULL);
    if (!answer) return false;
    PyObject *type = PyObject_Type(answer);
    Py_DecRef(type);
    bool ok = false;
    if ((void *)type == PyTuple_Type && PyTuple_Size(answer) == 2) {
        ok = put_tag(w, 'x') && put_value(w, PyTuple_GetItem(answer, 0), depth + 1) &&
             put_value(w, PyTuple_GetItem(answer, 1), depth + 1);
    } else if ((void *)type == PyLong_Type) {
        uint64_t id = PyLong_AsUnsignedLongLong(answer);
        ok = !PyErr_Occurred() && put_tag(w, 'h') && put(w, &id, sizeof id);
    } else {
        PyErr_SetString(PyExc_TypeError, "the hook gave no handle");
    }
    Py_DecRef(answer);
    return ok;
}

/* Beyond 64 bits: sign and magnitude, through int's own methods, which no Python code can replace.
 */
static bool put_big_int(struct writer *w, PyObject *value) {
    bool ok = false;
    PyObject *magnitude = PyObject_CallMethod(value, "__abs__", NULL);
    PyObject *bits = magnitude ? PyObject_CallMethod(magnitude, "bit_length", NULL) : NULL;
    PyObject *zero = PyLong_FromLongLong(0);
    PyObject *is_negative = zero ? PyObject_CallMethod(value, "__lt__", "(O)", zero) : NULL;
    if (bits && is_negative) {
        uint64_t n = PyLong_AsUnsignedLongLong(bits) / 8 + 1;
        PyObject *bytes =
            PyObject_CallMethod(magnitude, "to_bytes", "(Ks)", (unsigned long long)n, "little");
        const char *data;
        size_t len;
        unsigned char sign = is_negative == PYTHON_TRUE;
        if (bytes && module_bytes(bytes, &data, &len)) {
            uint32_t count = (uint32_t)len;
            ok = len <= LIMIT_CODEC_BYTES && put_tag(w, 'I') && put(w, &sign, 1) &&
                 put(w, &count, sizeof count) && put(w, data, len);
            if (!ok && !PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "the value is too large to hand over");
        }
        if (bytes) Py_DecRef(bytes);
    }
    if (magnitude) Py_DecRef(magnitude);
    if (bits) Py_DecRef(bits);
    if (zero) Py_DecRef(zero);
    if (is_negative) Py_DecRef(is_negative);
    return ok;
}

static bool put_int(struct writer *w, PyObject *value) {
    int overflow;
    int64_t small = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return put_big_int(w, value);
    return put_tag(w, 'i') && put(w, &small, sizeof small);
}

static bool put_text(struct writer *w, PyObject *value) {
    PyObject *bytes = PyUnicode_AsEncodedString(value, "utf-8", "surrogatepass");
    const char *data;
    size_t len;
    if (!bytes) return false;
    bool ok = module_bytes(bytes, &data, &len) && put_counted(w, 's', len) && put(w, data, len);
    Py_DecRef(bytes);
    return ok;
}

/* The length is read again at each turn: the hook runs Python code, which might change the list. */
static bool put_sequence(struct writer *w, PyObject *value, char tag, int depth) {
    bool is_list = tag == 'l';
    ssize_t n = is_list ? PyList_Size(value) : PyTuple_Size(value);
    if (!put_counted(w, tag, (size_t)n)) return false;
    for (ssize_t i = 0; i < n; i++) {
        PyObject *item = is_list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
        if (!item) return false;
        Py_IncRef(item);
        bool ok = put_value(w, item, depth + 1);
        Py_DecRef(item);
        if (!ok) return false;
    }
    return true;
}

static bool put_set(struct writer *w, PyObject *value, char tag, int depth) {
    ssize_t n = PySet_Size(value), done = 0;
    PyObject *iterator = PyObject_GetIter(value);
    bool ok = iterator && put_counted(w, tag, (size_t)n);
    for (PyObject *item; ok && (item = PyIter_Next(iterator)); done++) {
        ok = put_value(w, item, depth + 1);
        Py_DecRef(item);
    }
    if (iterator) Py_DecRef(iterator);
    if (ok && !PyErr_Occurred() && done != n)
        PyErr_SetString(PyExc_ValueError, "a set changed while it was handed over");
    return ok && !PyErr_Occurred();
}

static bool put_dict(struct writer *w, PyObject *value, int depth) {
    ssize_t n = PyDict_Size(value), at = 0, done = 0;
    if (!put_counted(w, 'D', (size_t)n)) return false;
    for (PyObject *key, *item; done < n && PyDict_Next(value, &at, &key, &item); done++) {
        Py_IncRef(key);
        Py_IncRef(item);
        bool ok = put_value(w, key, depth + 1) && put_value(w, item, depth + 1);
        Py_DecRef(key);
        Py_DecRef(item);
        if (!ok) return false;
    }
    if (done != n) PyErr_SetString(PyExc_ValueError, "a dict changed while it was handed over");
    return done == n;
}

static bool put_scalar(struct writer *w, PyObject *value, const void *type, bool *known) {
    *known = true;
    if (value == PYTHON_NONE) return put_tag(w, 'N');
    if (value == PYTHON_TRUE) return put_tag(w, 'T');
    if (value == PYTHON_FALSE) return put_tag(w, 'F');
    if (type == PyLong_Type) return put_int(w, value);
    if (type == PyUnicode_Type) return put_text(w, value);
    if (type == PyFloat_Type) {
        double d = PyFloat_AsDouble(value);
        return put_tag(w, 'd') && put(w, &d, sizeof d);
    }
    if (type == PyComplex_Type) {
        double parts[2] = {PyComplex_RealAsDouble(value), PyComplex_ImagAsDouble(value)};
        return put_tag(w, 'c') && put(w, parts, sizeof parts);
    }
    if (type == PyBytes_Type) {
        const char *data;
        size_t len;
        return module_bytes(value, &data, &len) && put_counted(w, 'b', len) && put(w, data, len);
    }
    if (type == PyByteArray_Type) {
        size_t len = (size_t)PyByteArray_Size(value);
        return put_counted(w, 'B', len) && put(w, PyByteArray_AsString(value), len);
    }
    *known = false;
    return true;
}

static bool put_value(struct writer *w, PyObject *value, int depth) {
    if (depth > LIMIT_CODEC_DEPTH) {
        PyErr_SetString(PyExc_ValueError, "the value nests too deep to hand over");
        return false;
    }
    void *type = PyObject_Type(value);
    Py_DecRef(type); /* the value keeps it alive */
    bool known;
    if (!put_scalar(w, value, type, &known)) return false;
    if (known) return true;
    if (type == PyList_Type) return put_sequence(w, value, 'l', depth);
    if (type == PyTuple_Type) return put_sequence(w, value, 't', depth);
    if (type == PyDict_Type) return put_dict(w, value, depth);
    if (type == PySet_Type) return put_set(w, value, 'S', depth);
    if (type == PyFrozenSet_Type) return put_set(w, value, 'Z', depth);
    return put_hooked(w, value, depth);
}

PyObject *codec_encode(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *value, *result = NULL;
    struct writer w = {0};
    if (!PyArg_ParseTuple(args, "OO", &value, &w.hook)) return NULL;
    if (put_value(&w, value, 0))
        result = PyBytes_FromStringAndSize((const char *)w.data, (ssize_t)w.len);
    free(w.data);
    return result;
}

/* ---- reading ---- */

struct reader {
    const unsigned char *at, *end;
    PyObject *hook; /* borrowed */
    int nodes;
};

static PyObject *malformed(const char *what) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

static bool take(struct reader *r, void *out, size_t len) {
    if (len > (size_t)(r->end - r->at)) return false;
    memcpy(out, r->at, len);
    r->at += len;
    return true;
}

/* A count of things of at least `unit` bytes each that must still be there. */
static bool take_count(struct reader *r, size_t unit, ssize_t *n) {
    uint32_t count;
    if (!take(r, &count, sizeof count) || count > (size_t)(r->end - r->at) / unit) return false;
    *n = (ssize_t)count;
    return true;
}

static PyObject *get_value(struct reader *r, int depth);

static PyObject *get_int(struct reader *r, char tag) {
    if (tag == 'i') {
        int64_t small;
        return take(r, &small, sizeof small) ? PyLong_FromLongLong(small)
                                             : malformed("cut off in an int");
    }
    unsigned char sign;
    ssize_t n;
    if (!take(r, &sign, 1) || !take_count(r, 1, &n)) return malformed("cut off in an int");
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)r->at, n);
    r->at += n;
    if (!bytes) return NULL;
    PyObject *value =
        PyObject_CallMethod((PyObject *)(void *)PyLong_Type, "from_bytes", "(Os)", bytes, "little");
    Py_DecRef(bytes);
    if (value && sign) {
        PyObject *negative = PyObject_CallMethod(value, "__neg__", NULL);
        Py_DecRef(value);
        value = negative;
    }
    return value;
}

static PyObject *get_bytes(struct reader *r, char tag) {
    ssize_t n;
    if (!take_count(r, 1, &n)) return malformed("cut off in a string");
    const char *data = (const char *)r->at;
    r->at += n;
    if (tag == 's') return PyUnicode_DecodeUTF8(data, n, "surrogatepass");
    return tag == 'b' ? PyBytes_FromStringAndSize(data, n) : PyByteArray_FromStringAndSize(data, n);
}

/* Grown item by item: memory follows bytes that really came, not a count that was claimed. */
static PyObject *get_list(struct reader *r, char tag, int depth) {
    ssize_t n;
    if (!take_count(r, 1, &n)) return malformed("cut off in a list");
    PyObject *list = tag == 't' ? PyTuple_New(n) : PyList_New(0);
    for (ssize_t i = 0; list && i < n; i++) {
        PyObject *item = get_value(r, depth + 1);
        int failed = !item;
        if (item && tag == 't') {
            failed = PyTuple_SetItem(list, i, item);
        } else if (item) {
            failed = PyList_Append(list, item);
            Py_DecRef(item);
        }
        if (failed) {
            Py_DecRef(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *get_set(struct reader *r, char tag, int depth) {
    ssize_t n;
    if (!take_count(r, 1, &n)) return malformed("cut off in a set");
    PyObject *set = PySet_New(NULL);
    for (ssize_t i = 0; set && i < n; i++) {
        PyObject *item = get_value(r, depth + 1);
        int failed = !item || PySet_Add(set, item);
        if (item) Py_DecRef(item);
        if (failed) {
            Py_DecRef(set);
            return NULL;
        }
    }
    if (!set || tag == 'S') return set;
    PyObject *frozen = PyFrozenSet_New(set);
    Py_DecRef(set);
    return frozen;
}

static PyObject *get_dict(struct reader *r, int depth) {
    ssize_t n;
    if (!take_count(r, 2, &n)) return malformed("cut off in a dict");
    PyObject *dict = PyDict_New();
    for (ssize_t i = 0; dict && i < n; i++) {
        PyObject *key = get_value(r, depth + 1);
        PyObject *value = key ? get_value(r, depth + 1) : NULL;
        int failed = !value || PyDict_SetItem(dict, key, value);
        if (key) Py_DecRef(key);
        if (value) Py_DecRef(value);
        if (failed) {
            Py_DecRef(dict);
            return NULL;
        }
    }
    return dict;
}

static PyObject *get_hooked(struct reader *r, char tag, int depth) {
    PyObject *first = NULL, *second = PYTHON_NONE, *result = NULL;
    if (tag == 'h') {
        uint64_t id;
        if (!take(r, &id, sizeof id)) return malformed("cut off in a handle");
        first = PyLong_FromUnsignedLongLong(id);
        Py_IncRef(second);
    } else {
        first = get_value(r, depth + 1);
        second = first ? get_value(r, depth + 1) : NULL;
    }
    if (first && second)
        result = PyObject_CallFunctionObjArgs(r->hook, first, second, (PyObject *)NULL);
    if (first) Py_DecRef(first);
    if (second) Py_DecRef(second);
    return result;
}

static PyObject *get_value(struct reader *r, int depth) {
    char tag;
    double d[2];
    if (depth > LIMIT_CODEC_DEPTH) return malformed("nested too deep");
    if (++r->nodes > MAX_NODES) return malformed("too many values");
    if (!take(r, &tag, 1)) return malformed("cut off");
    switch (tag) {
    case 'N':
        Py_IncRef(PYTHON_NONE);
        return PYTHON_NONE;
    case 'T':
        Py_IncRef(PYTHON_TRUE);
        return PYTHON_TRUE;
    case 'F':
        Py_IncRef(PYTHON_FALSE);
        return PYTHON_FALSE;
    case 'i':
    case 'I':
        return get_int(r, tag);
    case 'd':
        return take(r, d, sizeof d[0]) ? PyFloat_FromDouble(d[0]) : malformed("cut off in a float");
    case 'c':
        return take(r, d, sizeof d) ? PyComplex_FromDoubles(d[0], d[1])
                                    : malformed("cut off in a complex");
    case 's':
    case 'b':
    case 'B':
        return get_bytes(r, tag);
    case 'l':
    case 't':
        return get_list(r, tag, depth);
    case 'S':
    case 'Z':
        return get_set(r, tag, depth);
    case 'D':
        return get_dict(r, depth);
    case 'h':
    case 'x':
        return get_hooked(r, tag, depth);
    default:
        return malformed("unknown tag");
    }
}

PyObject *codec_decode(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *bytes;
    struct reader r = {0};
    const char *data;
    size_t len;
    if (!PyArg_ParseTuple(args, "OO", &bytes, &r.hook) || !module_bytes(bytes, &data, &len))
        return NULL;
    r.at = (const unsigned char *)data;
    r.end = r.at + len;
    PyObject *value = get_value(&r, 0);
    if (value && r.at != r.end) {
        Py_DecRef(value);
        return malformed("bytes left over");
    }
    return value;
}

/* ---- frames: u32 length of the payload, u64 request, one byte operation, payload ----
 *
 * One write a frame and, where it is small, one read: every further one may cost a change of
 * processes. */

enum { AHEAD_BYTES = 8192 };

/* Static: what has been read of the call socket beyond the frame that was asked for; a process has
 * one such socket at a time. */
static struct {
    size_t at, n;
    unsigned char bytes[AHEAD_BYTES];
} ahead;

void codec_forget(void) { ahead.at = ahead.n = 0; }

static bool write_all(int fd, struct iovec *parts, int n_parts) {
    while (n_parts) {
        ssize_t n = writev(fd, parts, n_parts);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        for (; n_parts && (size_t)n >= parts->iov_len; parts++, n_parts--)
            n -= (ssize_t)parts->iov_len;
        if (!n_parts) break;
        parts->iov_base = (char *)parts->iov_base + n;
        parts->iov_len -= (size_t)n;
    }
    return true;
}

/* Without the GIL, into memory of the caller's own. */
static ssize_t read_some(int fd, void *data, size_t len) {
    ssize_t n;
    void *thread = PyEval_SaveThread();
    do
        n = read(fd, data, len);
    while (n < 0 && errno == EINTR);
    int error = errno;
    PyEval_RestoreThread(thread);
    errno = error;
    return n;
}

static size_t take_ahead(void *data, size_t len) {
    size_t n = ahead.n - ahead.at < len ? ahead.n - ahead.at : len;
    memcpy(data, ahead.bytes + ahead.at, n);
    ahead.at += n;
    return n;
}

/* 1: all there; 0: the other end closed before the first byte; -1: an error, or cut off. */
static int read_all(int fd, void *data, size_t len) {
    char *to = data;
    size_t got = take_ahead(to, len);
    while (got < len) {
        unsigned char piece[AHEAD_BYTES];
        bool small = len - got < sizeof piece;
        ssize_t n =
            read_some(fd, small ? piece : (void *)(to + got), small ? sizeof piece : len - got);
        if (n < 0) return -1;
        if (n == 0) return got ? -1 : 0;
        if (small) {
            memcpy(ahead.bytes, piece, (size_t)n);
            ahead.at = 0;
            ahead.n = (size_t)n;
            got += take_ahead(to + got, len - got);
        } else {
            got += (size_t)n;
        }
    }
    return 1;
}

PyObject *codec_send(PyObject *self, PyObject *args) {
    (void)self;
    int fd, operation;
    unsigned long long request;
    PyObject *payload;
    const char *data;
    size_t len;
    if (!PyArg_ParseTuple(args, "iKiO", &fd, &request, &operation, &payload) ||
        !module_bytes(payload, &data, &len))
        return NULL;
    unsigned char head[FRAME_HEADER];
    uint32_t count = (uint32_t)len;
    uint64_t id = request;
    memcpy(head, &count, 4);
    memcpy(head + 4, &id, 8);
    head[12] = (unsigned char)operation;
    struct iovec parts[2] = {{head, sizeof head}, {(void *)(uintptr_t)data, len}};
    void *thread = PyEval_SaveThread();
    bool ok = write_all(fd, parts, 2);
    int error = errno;
    PyEval_RestoreThread(thread);
    if (!ok) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_IncRef(PYTHON_NONE);
    return PYTHON_NONE;
}

PyObject *codec_receive(PyObject *self, PyObject *args) {
    (void)self;
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd)) return NULL;
    unsigned char head[FRAME_HEADER];
    int got = read_all(fd, head, sizeof head);
    if (got < 0 && errno == ECONNRESET) got = 0; /* it died with our request unread */
    if (got == 0) {
        Py_IncRef(PYTHON_NONE);
        return PYTHON_NONE;
    }
    uint32_t len;
    uint64_t request;
    memcpy(&len, head, 4);
    memcpy(&request, head + 4, 8);
    if (got < 0 || len > LIMIT_CODEC_BYTES) return malformed("a frame is cut off or too long");
    char *data = malloc(len ? len : 1);
    if (!data) return PyErr_NoMemory();
    got = len ? read_all(fd, data, len) : 1;
    PyObject *result = NULL, *payload = NULL;
    if (got == 1) payload = PyBytes_FromStringAndSize(data, (ssize_t)len);
    if (payload) {
        result = Py_BuildValue("(KiO)", (unsigned long long)request, (int)head[12], payload);
        Py_DecRef(payload);
    } else {
        malformed("a frame is cut off");
    }
    free(data);
    return result;
}
