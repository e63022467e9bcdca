#include "verifier/payload.h"

#include "base/buf.h"
#include "verifier/box_tree.h"
#include "verifier/inside/embedded.h"
#include "verifier/seccomp.h"
#include "verifier/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAYLOAD_BYTES = 8 * 1024 * 1024 };

int payload_memfd(const char *name, const void *data, size_t len, struct err *e) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const char *at = data;
    while (fd >= 0 && len) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        at += n;
        len -= (size_t)n;
    }
    if (fd < 0 || len ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)) {
        err_errno(e, errno, "a memfd for %s can't be made", name);
        if (fd >= 0) close(fd);
        return -1;
    }
    return fd;
}

static void put_record(struct buf *b, const char *name, const void *data, size_t len) {
    uint32_t head[2] = {(uint32_t)strlen(name), (uint32_t)len};
    buf_append(b, head, sizeof head);
    buf_puts(b, name);
    buf_append(b, data, len);
}

static json_t *strings(char *const *list, int n) {
    json_t *array = json_array();
    for (int i = 0; i < n; i++) {
        json_t *text = json_string(list[i]);
        if (text)
            json_array_append_new(array, text); /* a path that isn't UTF-8 can't be imported from */
    }
    return array;
}

static bool put_config(struct buf *b, const struct box_plan *plan, struct err *e) {
    char by_descriptor[64];
    snprintf(by_descriptor, sizeof by_descriptor, "/proc/self/fd/%d", WIRE_FD_MODULE);
    const struct interpreter *in = plan->interpreter;
    json_t *config = json_pack(
        "{s:o, s:o, s:s, s:s, s:i, s:i, s:i}", "sys_path", strings(in->sys_path, in->n_sys_path),
        "read", strings(in->read, in->n_read), "module",
        plan->namespaces ? BOX_TREE_MODULE : by_descriptor, "work",
        plan->namespaces ? BOX_WORK : "", "landlock_abi", plan->landlock_abi, "own_uid",
        plan->own_uid || (plan->namespaces && plan->user_namespace), "limits", plan->limits);
    char *text = config ? json_dumps(config, JSON_COMPACT) : NULL;
    if (text) put_record(b, "config.json", text, strlen(text));
    free(text);
    json_decref(config);
    return text || err_set(e, ERR_SYSTEM, "the configuration of the workers can't be written");
}

bool payload_make(struct box_plan *plan, struct err *e) {
    struct buf b;
    void *filter = NULL, *server_filter = NULL;
    size_t filter_bytes = 0, server_bytes = 0;
    plan->payload_fd = plan->module_fd = -1;
    buf_init(&b, PAYLOAD_BYTES);
    bool ok = put_config(&b, plan, e);
    if (ok && plan->filter)
        ok = (filter = seccomp_build(SECCOMP_CHILD, &filter_bytes, e)) &&
             (server_filter = seccomp_build(SECCOMP_SERVER, &server_bytes, e));
    if (ok) {
        put_record(&b, "filter", filter, filter_bytes);
        put_record(&b, "server_filter", server_filter, server_bytes);
        for (int i = 0; i < embedded_n_files && ok; i++) {
            const struct embedded_file *file = &embedded_files[i];
            if (strcmp(file->name, "module.so") != 0)
                put_record(&b, file->name, file->data, file->len);
            else
                ok = (plan->module_fd = payload_memfd("module", file->data, file->len, e)) >= 0;
        }
    }
    BUG_ON(b.overflowed);
    if (ok) ok = (plan->payload_fd = payload_memfd("payload", b.data, b.len, e)) >= 0;
    free(filter);
    free(server_filter);
    buf_clear(&b);
    return ok;
}
