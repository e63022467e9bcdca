#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

bool map_open(struct map *m, const char *path, const char *what, struct err *e) {
    *m = (struct map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        err_errno(e, errno, "can't open the %s %s", what, path);
        if (e) e->kind = ERR_INPUT;
        return false;
    }
    struct stat st;
    bool ok = false;
    if (fstat(fd, &st) < 0)
        err_errno(e, errno, "can't read the %s %s", what, path);
    else if (!S_ISREG(st.st_mode))
        err_set(e, ERR_INPUT, "%s is not a file, as a %s is", path, what);
    else if (st.st_size < 1)
        err_set(e, ERR_INPUT, "the %s %s is empty", what, path);
    else
        ok = true;
    if (ok) {
        void *bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            ok = err_errno(e, errno, "can't map the %s %s", what, path);
        else
            *m = (struct map){bytes, (uint64_t)st.st_size};
    }
    close(fd);
    return ok;
}

void map_close(struct map *m) {
    if (m->bytes) munmap((void *)(uintptr_t)m->bytes, (size_t)m->len);
    *m = (struct map){0};
}

void map_forget(const void *bytes, uint64_t len) {
    uintptr_t from = ((uintptr_t)bytes + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t to = ((uintptr_t)bytes + len) & ~(uintptr_t)(PAGE - 1);
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}
