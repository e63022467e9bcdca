#include "verifier/box_tree.h"

#include "verifier/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NR_MOUNT_SETATTR = 442, COPY_BYTES = 65536 };

static bool is_beneath(const char *path, const char *directory) {
    size_t n = strlen(directory);
    return !strncmp(path, directory, n) && (path[n] == '/' || !path[n]);
}

/* An existing directory to build under that hides nothing which must still be copied. */
static const char *building_site(const struct interpreter *in) {
    static const char *const sites[] = {"/tmp", "/mnt", "/srv",   "/run",
                                        "/var", "/opt", "/media", "/home"};
    for (size_t i = 0; i < sizeof sites / sizeof sites[0]; i++) {
        struct stat st;
        bool free = !lstat(sites[i], &st) && S_ISDIR(st.st_mode);
        for (int j = 0; j < in->n_read && free; j++)
            free = !is_beneath(in->read[j], sites[i]);
        if (free) return sites[i];
    }
    return NULL;
}

/* Makes the directories above `path`. */
static int make_parents(char *path, size_t from) {
    for (char *slash = strchr(path + from + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int failed = mkdir(path, 0755) && errno != EEXIST;
        *slash = '/';
        if (failed) return errno;
    }
    return 0;
}

/* A bind mount takes over the flags of its source; inside a user namespace those are locked and
 * must be said again. */
static int make_read_only(const char *path) {
    struct {
        uint64_t set, clear, propagation, userns;
    } attr = {.set = 1 | 2 | 4}; /* MOUNT_ATTR_RDONLY | NOSUID | NODEV */
    if (!syscall(NR_MOUNT_SETATTR, AT_FDCWD, path, 0x8000 /* AT_RECURSIVE */, &attr, sizeof attr))
        return 0;
    struct statvfs st;
    if (statvfs(path, &st)) return errno;
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV;
    if (st.f_flag & ST_NOEXEC) flags |= MS_NOEXEC;
    if (st.f_flag & ST_NOATIME) flags |= MS_NOATIME;
    if (st.f_flag & ST_NODIRATIME) flags |= MS_NODIRATIME;
    if (st.f_flag & ST_RELATIME) flags |= MS_RELATIME;
    return mount(NULL, path, NULL, flags, NULL) ? errno : 0;
}

static int copy_link(const char *path, const char *to) {
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return errno;
    target[n] = 0;
    return symlink(target, to) && errno != EEXIST ? errno : 0;
}

static int bring(const char *root, const char *path) {
    char to[PATH_MAX];
    struct stat st, there;
    if (lstat(path, &st)) return errno == ENOENT ? 0 : errno;
    if (snprintf(to, sizeof to, "%s%s", root, path) >= (int)sizeof to) return ENAMETOOLONG;
    int error = make_parents(to, strlen(root));
    /* Under something brought before, or through a link that was: it is there already. */
    if (!error && !lstat(to, &there) && !S_ISDIR(st.st_mode)) return 0;
    if (error == EROFS) return 0;
    if (error) return error;
    if (S_ISLNK(st.st_mode)) return copy_link(path, to);
    if (S_ISDIR(st.st_mode)) {
        if (mkdir(to, 0755) && errno != EEXIST) return errno == EROFS ? 0 : errno;
    } else {
        int fd = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) return errno == EROFS ? 0 : errno;
        close(fd);
    }
    if (mount(path, to, NULL, MS_BIND | MS_REC, NULL)) return errno;
    return make_read_only(to);
}

static int copy_module(const char *root, int module_fd) {
    char to[PATH_MAX], piece[COPY_BYTES];
    snprintf(to, sizeof to, "%s%s", root, BOX_TREE_MODULE);
    int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return errno;
    int error = fchmod(fd, 0644) ? errno : 0;
    off_t at = 0;
    for (ssize_t n; !error && (n = pread(module_fd, piece, sizeof piece, at)) != 0; at += n)
        if (n < 0 || write(fd, piece, (size_t)n) != n) error = n < 0 ? errno : EIO;
    close(fd);
    return error;
}

static int mount_work(const char *root, const struct box_plan *plan, uid_t uid) {
    char to[PATH_MAX], options[128];
    unsigned owner = plan->own_uid ? uid : plan->user_namespace ? BOX_UID : 0;
    snprintf(to, sizeof to, "%s%s", root, BOX_WORK);
    if (mkdir(to, 0755) && errno != EEXIST) return errno;
    snprintf(options, sizeof options, "size=%d,nr_inodes=%d,mode=0700,uid=%u,gid=%u",
             BOX_WORK_BYTES, BOX_WORK_FILES, owner, owner);
    return mount("work", to, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) ? errno : 0;
}

int box_tree_enter(const struct box_plan *plan, uid_t uid, const char **detail) {
    const struct interpreter *in = plan->interpreter;
    mode_t mask = umask(022);
    *detail = "no directory to build the tree in";
    const char *site = building_site(in);
    if (!site) return ENOENT;
    *detail = "making mounts private";
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return errno;
    *detail = "mounting tmpfs";
    if (mount("box", site, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,nr_inodes=2048,mode=0755"))
        return errno;
    *detail = "binding what Python reads";
    for (int i = 0; i < in->n_read; i++) {
        int error = bring(site, in->read[i]);
        if (error) return error;
    }
    *detail = "copying the module";
    int error = copy_module(site, WIRE_FD_MODULE);
    if (error) return error;
    *detail = "mounting the work directory";
    error = mount_work(site, plan, uid);
    if (error) return error;
    *detail = "pivot_root";
    if (chdir(site) || syscall(SYS_pivot_root, ".", ".")) return errno;
    *detail = "leaving the old tree";
    if (umount2(".", MNT_DETACH) || chdir("/")) return errno;
    *detail = "making the root read-only";
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL))
        return errno;
    umask(mask);
    return 0;
}
