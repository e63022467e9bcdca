#include "verifier/procfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 8192 };

int procfs_numbers(const char *path, const char *key, uint64_t *out, int max) {
    char text[FILE_BYTES];
    size_t len = 0;
    int n = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    while (len < sizeof text - 1) {
        ssize_t got = read(fd, text + len, sizeof text - 1 - len);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        len += (size_t)got;
    }
    close(fd);
    text[len] = 0;
    const char *at = key ? strstr(text, key) : text;
    if (at && key) at += strlen(key);
    while (at && n < max) {
        while (isspace((unsigned char)*at))
            at++;
        if (!isdigit((unsigned char)*at)) break;
        char *end;
        out[n++] = strtoull(at, &end, 10);
        at = end;
    }
    return n;
}

bool procfs_write(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int error = errno;
    close(fd);
    errno = error;
    return ok;
}
