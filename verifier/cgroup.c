#include "verifier/cgroup.h"

#include "verifier/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES = 4096, PID_BYTES = 16, TRIAL = 9999 };
#define LEAF "firstpass-server"

/* ---- files ---- */

static bool read_text(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, size - 1);
    int error = errno;
    close(fd);
    errno = error;
    text[n > 0 ? n : 0] = 0;
    return n >= 0;
}

static bool write_text(const char *directory, const char *name, const char *text) {
    char path[CGROUP_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return procfs_write(path, text);
}

/* Whether a line of words has this one. */
static bool has_word(const char *text, const char *word) {
    size_t len = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += len)
        if ((at == text || strchr(" \n", at[-1])) && (!at[len] || strchr(" \n", at[len])))
            return true;
    return false;
}

/* ---- the divided group ---- */

static bool none(struct cgroup *g, int error, const char *why) {
    g->base[0] = 0;
    g->error = error;
    snprintf(g->why, sizeof g->why, "%s", why);
    return false;
}

/* The line "0::PATH" is v2's. */
static bool find_base(struct cgroup *g, const char *mounted, const char *self) {
    char text[TEXT_BYTES];
    if (!read_text(self, text, sizeof text)) return none(g, errno, "the list of groups");
    const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!line) return none(g, 0, "this machine has no cgroup v2");
    line = strstr(line, "0::") + 3;
    size_t len = strcspn(line, "\n");
    /* Where this process moved itself before. */
    const size_t leaf = sizeof LEAF - 1;
    if (len > leaf && line[len - leaf - 1] == '/' && !strncmp(line + len - leaf, LEAF, leaf))
        len -= leaf + 1;
    if (len == 1) len = 0; /* "/" */
    if (strstr(line, "/../"))
        return none(g, 0, "the server's group lies outside its cgroup namespace");
    int n = snprintf(g->base, sizeof g->base, "%s%.*s", mounted, (int)len, line);
    return n < (int)sizeof g->base || none(g, ENAMETOOLONG, "the path of the server's group");
}

static bool has_controllers(const struct cgroup *g, const char *file) {
    char path[CGROUP_PATH + 64], text[TEXT_BYTES];
    snprintf(path, sizeof path, "%s/%s", g->base, file);
    return read_text(path, text, sizeof text) && has_word(text, "memory") && has_word(text, "pids");
}

/* A directory of ours in the divided group; "" where the path is too long. */
static void path_of(const struct cgroup *g, const char *name, char out[CGROUP_PATH]) {
    if (snprintf(out, CGROUP_PATH, "%s/%s", g->base, name) >= CGROUP_PATH) out[0] = 0;
}

bool cgroup_open(struct cgroup *g, const char *mounted, const char *self) {
    char leaf[CGROUP_PATH], pid[PID_BYTES];
    *g = (struct cgroup){0};
    if (!find_base(g, mounted, self)) return false;
    if (!has_controllers(g, "cgroup.controllers"))
        return none(g, 0, "the server's cgroup v2 group lacks the controllers memory and pids");
    path_of(g, LEAF, leaf);
    if (mkdir(leaf, 0755) && errno != EEXIST)
        return none(g, errno, "dividing the server's cgroup v2 group");
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (!write_text(leaf, "cgroup.procs", pid)) {
        int error = errno;
        rmdir(leaf);
        return none(g, error, "moving the server to a leaf of its cgroup v2 group");
    }
    const char *what = "giving memory and pids to the groups of workers";
    bool divided = has_controllers(g, "cgroup.subtree_control") ||
                   write_text(g->base, "cgroup.subtree_control", "+memory +pids");
    int fd = -1, error = errno;
    if (divided) {
        what = "making a group for a worker";
        fd = cgroup_worker(g, TRIAL, UINT64_C(1) << 30, 64);
        error = errno;
        cgroup_remove(g, TRIAL);
    }
    if (fd >= 0) {
        close(fd);
        return true;
    }
    /* As by others that are in the group too: back to them. */
    if (write_text(g->base, "cgroup.procs", pid)) rmdir(leaf);
    return none(g, error, what);
}

/* ---- workers ---- */

static void worker_path(const struct cgroup *g, int slot, char out[CGROUP_PATH]) {
    char name[48];
    snprintf(name, sizeof name, "firstpass-%d-worker-%d", (int)getpid(), slot);
    path_of(g, name, out);
}

int cgroup_worker(const struct cgroup *g, int slot, uint64_t memory_bytes, int processes) {
    char path[CGROUP_PATH], file[CGROUP_PATH + 64], memory[32], pids[32];
    worker_path(g, slot, path);
    rmdir(path);
    if (mkdir(path, 0755) && errno != EEXIST) return -1;
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)memory_bytes);
    snprintf(pids, sizeof pids, "%d", processes);
    if (!write_text(path, "memory.max", memory) || !write_text(path, "pids.max", pids)) return -1;
    /* A kernel without swap accounting has no such file. */
    if (!write_text(path, "memory.swap.max", "0") && errno != ENOENT) return -1;
    snprintf(file, sizeof file, "%s/cgroup.procs", path);
    return open(file, O_WRONLY | O_CLOEXEC);
}

void cgroup_remove(const struct cgroup *g, int slot) {
    char path[CGROUP_PATH];
    worker_path(g, slot, path);
    rmdir(path);
}
