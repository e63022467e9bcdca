/* Any bytes as a value and as frames of the channel between the candidate and its tests: decoded,
 * encoded again, decoded again; with an allocation refused where the first byte says so.  Both give
 * the same, an error is always said, and no reference is lost or doubled. */
#include "tests/fuzz/fake_python.h"

#define malloc fake_malloc
#define realloc fake_realloc
#include "verifier/inside/codec.c" /* NOLINT(bugprone-suspicious-include): to have its malloc */
#undef malloc
#undef realloc

#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

bool module_bytes(PyObject *object, const char **data, size_t *len) {
    char *at;
    ssize_t n;
    if (PyBytes_AsStringAndSize(object, &at, &n)) return false;
    *data = at;
    *len = (size_t)n;
    return true;
}

/* function(first, hook); an error is said exactly where there is no result. */
static PyObject *call(PyObject *(*function)(PyObject *, PyObject *), PyObject *first) {
    PyObject *items[] = {first, PYTHON_NONE};
    PyObject args = {.refs = 1, .kind = FAKE_ITEMS, .items = items, .n = 2};
    PyObject *result = function(NULL, &args);
    BUG_ON(!result != fake.error);
    fake.error = false;
    return result;
}

static PyObject *bytes_of(const uint8_t *data, size_t size) {
    long left = fake.until_full;
    fake.until_full = -1;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)data, (ssize_t)size);
    fake.until_full = left;
    return bytes;
}

static void try_value(const uint8_t *data, size_t size) {
    PyObject *bytes = bytes_of(data, size), *again = NULL, *value = call(codec_decode, bytes);
    if (value) again = call(codec_encode, value);
    if (again) {
        /* What the codec writes it reads, and writes as before. */
        bool refused = fake.until_full >= 0;
        PyObject *second = call(codec_decode, again);
        PyObject *third = second ? call(codec_encode, second) : NULL;
        BUG_ON(!refused && !third);
        BUG_ON(third && (third->n != again->n || memcmp(third->data, again->data, third->n) != 0));
        Py_DecRef(third);
        Py_DecRef(second);
    }
    Py_DecRef(again);
    Py_DecRef(value);
    Py_DecRef(bytes);
}

/* Until the end or the first that is malformed. */
static void try_frames(const uint8_t *data, size_t size) {
    int fd = memfd_create("frames", MFD_CLOEXEC);
    BUG_ON(fd < 0 || write(fd, data, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET));
    PyObject number = {
        .refs = 1, .kind = FAKE_INT, .type = PyLong_Type, .data = (unsigned char *)&fd, .n = 4};
    PyObject *items[] = {&number};
    PyObject args = {.refs = 1, .kind = FAKE_ITEMS, .items = items, .n = 1};
    codec_forget();
    for (PyObject *frame = PYTHON_TRUE; frame && frame != PYTHON_NONE;) {
        frame = codec_receive(NULL, &args);
        BUG_ON(!frame != fake.error);
        fake.error = false;
        if (frame && frame != PYTHON_NONE) {
            const PyObject *payload = frame->items[2];
            try_value(payload->data, payload->n);
            Py_DecRef(frame);
        }
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    fake.error = false;
    fake.until_full = data[0] & 1 ? data[0] >> 2 : -1;
    if (data[0] & 2)
        try_frames(data + 1, size - 1);
    else
        try_value(data + 1, size - 1);
    BUG_ON(fake.live != 0);
    return 0;
}
