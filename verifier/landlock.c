#include "verifier/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* System call numbers are the same on every architecture. */
enum { NR_CREATE_RULESET = 444, NR_ADD_RULE = 445, NR_RESTRICT_SELF = 446 };
enum { CREATE_RULESET_VERSION = 1, RULE_PATH_BENEATH = 1 };

/* linux/landlock.h; each ABI appended a member and the kernel takes the size. */
struct ruleset_attr {
    uint64_t handled_access_fs;
    uint64_t handled_access_net;
    uint64_t scoped;
};
struct path_beneath_attr {
    uint64_t allowed_access;
    int32_t parent_fd;
} __attribute__((packed));

enum {
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_REFER = 1 << 13, /* moving to another directory */
    FS_TRUNCATE = 1 << 14,
};

int landlock_abi(int max, int *error) {
    long abi = syscall(NR_CREATE_RULESET, NULL, 0, CREATE_RULESET_VERSION);
    if (abi < 0) {
        *error = errno;
        return 0;
    }
    *error = 0;
    return max >= 0 && abi > max ? max : (int)abi;
}

/* Every file access right that an ABI knows: 13 at first, then refer, truncate, ioctl on devices.
 */
static uint64_t all_fs(int abi) {
    int bits = abi >= 5 ? 16 : abi >= 3 ? 15 : abi >= 2 ? 14 : 13;
    return (UINT64_C(1) << bits) - 1;
}

int landlock_open(int abi, int *fd) {
    struct ruleset_attr attr = {.handled_access_fs = all_fs(abi)};
    size_t size = sizeof attr.handled_access_fs;
    if (abi >= 4) {
        attr.handled_access_net = 3; /* bind and connect of TCP */
        size = 2 * sizeof(uint64_t);
    }
    if (abi >= 6) {
        attr.scoped = 3; /* abstract unix sockets, signals */
        size = sizeof attr;
    }
    *fd = (int)syscall(NR_CREATE_RULESET, &attr, size, 0);
    return *fd < 0 ? errno : 0;
}

static int allow(int fd, const char *path, uint64_t for_files, uint64_t for_directories) {
    int at = open(path, O_PATH | O_CLOEXEC);
    if (at < 0) return errno == ENOENT ? 0 : errno;
    struct stat st;
    int error = fstat(at, &st) ? errno : 0;
    if (!error) {
        struct path_beneath_attr rule = {
            .allowed_access = S_ISDIR(st.st_mode) ? for_directories : for_files,
            .parent_fd = at,
        };
        if (syscall(NR_ADD_RULE, fd, RULE_PATH_BENEATH, &rule, 0)) error = errno;
    }
    close(at);
    return error;
}

int landlock_allow_read(int fd, const char *path) {
    return allow(fd, path, FS_READ_FILE, FS_READ_FILE | FS_READ_DIR);
}

int landlock_allow_work(int fd, int abi, const char *path) {
    uint64_t rights = FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE |
                      FS_MAKE_DIR | FS_MAKE_REG;
    if (abi >= 2) rights |= FS_REFER;
    if (abi >= 3) rights |= FS_TRUNCATE;
    return allow(fd, path, 0, rights);
}

int landlock_enter(int fd) { return syscall(NR_RESTRICT_SELF, fd, 0) ? errno : 0; }
