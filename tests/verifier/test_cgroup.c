/* Limits by cgroup v2 on a tree of plain files: what is written where, and what is left alone where
 * the tree gives less. */
#include "verifier/cgroup.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 256, SLOT = 3, TRIAL = 9999 };

static char root[PATH_BYTES];

static const char *in_root(const char *name) {
    static char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void put(const char *name, const char *text) {
    FILE *f = fopen(in_root(name), "we");
    ck_assert_msg(f != NULL, "%s: %s", name, strerror(errno));
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static void make(const char *name) { ck_assert_int_eq(mkdir(in_root(name), 0755), 0); }

static void expect(const char *name, const char *text) {
    char got[256] = "";
    int fd = open(in_root(name), O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0, "%s: %s", name, strerror(errno));
    ck_assert_int_ge(read(fd, got, sizeof got - 1), 0);
    close(fd);
    ck_assert_msg(!strcmp(got, text), "%s: \"%s\", not \"%s\"", name, got, text);
}

/* A group of a worker as the kernel would show it at mkdir. */
static void make_worker(int slot, bool swap) {
    static const char *const files[] = {"memory.max", "pids.max", "cgroup.procs",
                                        "memory.swap.max"};
    char name[PATH_BYTES];
    snprintf(name, sizeof name, "a/b/firstpass-%d-worker-%d", (int)getpid(), slot);
    make(name);
    for (int i = 0; i < 3 + swap; i++) {
        snprintf(name, sizeof name, "a/b/firstpass-%d-worker-%d/%s", (int)getpid(), slot, files[i]);
        put(name, "");
    }
}

static void set_up(void) {
    snprintf(root, sizeof root, "/tmp/firstpass-cgroup-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    make("a");
    make("a/b");
    put("self", "1:name=systemd:/\n0::/a/b\n");
    put("a/b/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma\n");
    put("a/b/cgroup.subtree_control", "");
    put("a/b/cgroup.procs", "");
    make("a/b/firstpass-server");
    put("a/b/firstpass-server/cgroup.procs", "");
}

static void tear_down(void) {
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/rm", "rm", "-r", root, (char *)NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

static bool open_it(struct cgroup *g) {
    char self[2 * PATH_BYTES];
    snprintf(self, sizeof self, "%s", in_root("self"));
    return cgroup_open(g, root, self);
}

START_TEST(test_divided) {
    struct cgroup g;
    char pid[32], name[PATH_BYTES];
    make_worker(TRIAL, true);
    make_worker(SLOT, _i == 0); /* with and without swap accounting */
    ck_assert_msg(open_it(&g), "%s (%d)", g.why, g.error);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    expect("a/b/firstpass-server/cgroup.procs", pid);
    expect("a/b/cgroup.subtree_control", "+memory +pids");
    int fd = cgroup_worker(&g, SLOT, 123456789, 77);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "0", 1), 1);
    close(fd);
    snprintf(name, sizeof name, "a/b/firstpass-%d-worker-%d/memory.max", (int)getpid(), SLOT);
    expect(name, "123456789");
    snprintf(name, sizeof name, "a/b/firstpass-%d-worker-%d/pids.max", (int)getpid(), SLOT);
    expect(name, "77");
    snprintf(name, sizeof name, "a/b/firstpass-%d-worker-%d/cgroup.procs", (int)getpid(), SLOT);
    expect(name, "0");
    snprintf(name, sizeof name, "a/b/firstpass-%d-worker-%d/memory.swap.max", (int)getpid(), SLOT);
    if (_i == 0) expect(name, "0");
}
END_TEST

/* A second verifier of the process, which is in its leaf by then. */
START_TEST(test_again_from_the_leaf) {
    struct cgroup g;
    make_worker(TRIAL, true);
    put("self", "0::/a/b/firstpass-server\n");
    put("a/b/cgroup.subtree_control", "memory pids\n");
    ck_assert_msg(open_it(&g), "%s (%d)", g.why, g.error);
    ck_assert_str_eq(g.base + strlen(root), "/a/b");
    expect("a/b/cgroup.subtree_control", "memory pids\n");
}
END_TEST

START_TEST(test_not_to_be_had) {
    static const struct {
        const char *self, *controllers, *why;
        int error;
    } cases[] = {
        {"12:memory:/\n1:name=systemd:/\n", "memory pids", "no cgroup v2", 0},
        {"0::/a/b\n", "cpu io hugetlb", "lacks the controllers", 0},
        {"0::/a/b\n", "memoryx xpids memory", "lacks the controllers", 0},
        {"0::/elsewhere\n", "memory pids", "lacks the controllers", 0},
        {"0::/../../x\n", "memory pids", "outside", 0},
        {"", "memory pids", "no cgroup v2", 0},
        /* no group can be made for a worker: the tree has no files for it */
        {"0::/a/b\n", "memory pids", "a group for a worker", ENOENT},
    };
    struct cgroup g;
    char pid[32];
    put("self", cases[_i].self);
    put("a/b/cgroup.controllers", cases[_i].controllers);
    ck_assert(!open_it(&g));
    ck_assert_msg(strstr(g.why, cases[_i].why) != NULL, "%s", g.why);
    ck_assert_int_eq(g.error, cases[_i].error);
    ck_assert_str_eq(g.base, "");
    /* The process is back where it was, or never left. */
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    expect("a/b/cgroup.procs", cases[_i].error ? pid : "");
}
END_TEST

START_TEST(test_no_list) {
    struct cgroup g;
    ck_assert(!cgroup_open(&g, root, in_root("nothing")));
    ck_assert_int_eq(g.error, ENOENT);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("cgroup");
    TCase *tc = tcase_create("a fake tree");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_loop_test(tc, test_divided, 0, 2);
    tcase_add_test(tc, test_again_from_the_leaf);
    tcase_add_loop_test(tc, test_not_to_be_had, 0, 7);
    tcase_add_test(tc, test_no_list);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
