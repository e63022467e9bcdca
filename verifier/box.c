#include "verifier/box.h"

#include "verifier/box_tree.h"
#include "verifier/message.h"
#include "verifier/procfs.h"
#include "verifier/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NR_PIDFD_OPEN = 434, NR_CLOSE_RANGE = 436, FIRST_FREE = 6, PARKED = 32, OPEN_FILES = 1024 };
enum {
    SPACES =
        CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_NEWNS
};

static const char host_name[] = "firstpass";
const struct box_process box_no_process = {
    .pid = -1, .pidfd = -1, .control = -1, .errors_fd = -1, .uid_fd = -1};

/* Loads the harness from the payload; all else is in boot.py. */
static const char loader[] =
    "import os,sys\n"
    "d=os.pread(4,os.fstat(4).st_size,0);files={};i=0\n"
    "while i<len(d):\n"
    " a=int.from_bytes(d[i:i+4],'little');b=int.from_bytes(d[i+4:i+8],'little');i+=8\n"
    " files[d[i:i+a].decode()]=d[i+a:i+a+b];i+=a+b\n"
    "del d\n"
    "exec(compile(files['boot.py'],'<firstpass>/"
    "boot.py','exec'),{'files':files,'__name__':'firstpass'})\n";

/* ---- in the new process: each returns 0 or an errno ---- */

static int enter_session(void) {
    if (setsid() < 0) return errno;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || prctl(PR_SET_CHILD_SUBREAPER, 1)) return errno;
    /* The kernel's own choice of whom to kill should fall on these first; without /proc it stays as
     * it is. */
    (void)!procfs_write("/proc/self/oom_score_adj", "1000");
    umask(077);
    return 0;
}

/* Not to 0: uid 0 inside would regain every capability at exec. */
static int map_user(uid_t uid, gid_t gid) {
    char text[64];
    if (!procfs_write("/proc/self/setgroups", "deny")) return errno;
    snprintf(text, sizeof text, "%d %u 1", BOX_UID, (unsigned)uid);
    if (!procfs_write("/proc/self/uid_map", text)) return errno;
    snprintf(text, sizeof text, "%d %u 1", BOX_UID, (unsigned)gid);
    return procfs_write("/proc/self/gid_map", text) ? 0 : errno;
}

static int drop_bounding_set(void) {
    for (int cap = 0; cap < 64; cap++)
        if (prctl(PR_CAPBSET_READ, cap) == 1 && prctl(PR_CAPBSET_DROP, cap) && errno != EPERM)
            return errno;
    return 0; /* without the right to drop them, no_new_privs alone keeps them out of reach */
}

/* Root that could not change its uid (a container that knows no other) would keep its rights, and
 * anybody may hold ambient ones.  Neither comes back at exec: no_new_privs is set. */
static int drop_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    int error = drop_bounding_set();
    if (error) return error;
    /* EINVAL: a kernel that knows no such thing. */
    if (prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED) && errno != EPERM &&
        errno != EINVAL)
        return errno;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL) return errno;
    return syscall(SYS_capset, &header, none) ? errno : 0;
}

/* The system's own calls: those of libc wait for threads of the caller that this process hasn't. */
static int change_uid(uid_t uid) {
    if (syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, uid, uid, uid) ||
        syscall(SYS_setresuid, uid, uid, uid))
        return errno;
    return syscall(SYS_setuid, 0) == 0 ? EPERM : 0; /* the way back must be shut */
}

static int set_base_limits(void) {
    struct rlimit none = {0, 0}, files = {OPEN_FILES, OPEN_FILES}, now;
    if (getrlimit(RLIMIT_NOFILE, &now)) return errno;
    if (now.rlim_max < files.rlim_max) files = (struct rlimit){now.rlim_max, now.rlim_max};
    return setrlimit(RLIMIT_CORE, &none) || setrlimit(RLIMIT_NOFILE, &files) ? errno : 0;
}

/* 0 and 1 /dev/null, 2 the errors, then as wire.h numbers them; nothing else stays open but
 * `status`, which exec closes. */
static int lay_out(const struct box_plan *plan, int control, int errors_fd, int *status) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) return errno;
    int wanted[FIRST_FREE] = {null, null, errors_fd, control, plan->payload_fd, plan->module_fd};
    for (int i = 0; i < FIRST_FREE; i++)
        if ((wanted[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, PARKED)) < 0) return errno;
    int moved = fcntl(*status, F_DUPFD_CLOEXEC, PARKED);
    if (moved < 0) return errno;
    for (int i = 0; i < FIRST_FREE; i++)
        if (dup2(wanted[i], i) != i) return errno;
    if (dup3(moved, FIRST_FREE, O_CLOEXEC) < 0) return errno;
    *status = FIRST_FREE;
    if (syscall(NR_CLOSE_RANGE, FIRST_FREE + 1, ~0U, 0)) {
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files)) return errno;
        for (int fd = FIRST_FREE + 1; fd < (int)files.rlim_cur; fd++)
            close(fd);
    }
    return 0;
}

/* The processes of a worker take turns: on one core the next one is woken where its memory is in
 * the caches, and no idle core has to be woken for it.  Children inherit it, and their filter keeps
 * them from changing it.  Where it fails the worker runs anywhere. */
static void choose_core(int slot) {
    cpu_set_t allowed, own;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    int skip = slot;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
        CPU_ZERO(&own);
        CPU_SET(cpu, &own);
        (void)!sched_setaffinity(0, sizeof own, &own);
        return;
    }
}

static int run_python(const struct box_plan *plan, const char *flavour) {
    static const char *const arguments[] = {"firstpass-worker", "-s", "-S", "-B", "-c", loader};
    enum { N_FIXED = sizeof arguments / sizeof arguments[0] };
    const char *all[N_FIXED + 2] = {0};
    memcpy(all, arguments, sizeof arguments);
    all[N_FIXED] = flavour;
    /* Made from nothing: no key and no path of the server's own environment gets inside.
     * LD_BIND_NOW: what the zygote has looked up each of its children would look up again. */
    static const char *const environment[] = {
        "PATH=/usr/bin:/bin",
        "HOME=/",
        "LANG=C.UTF-8",
        "TZ=UTC",
        "PYTHONHASHSEED=0",
        "PYTHONUTF8=1",
        /* numpy's libraries would take a thread and tens of megabytes for each core. */
        "OPENBLAS_NUM_THREADS=1",
        "OMP_NUM_THREADS=1",
        "MKL_NUM_THREADS=1",
        "LD_BIND_NOW=1",
        NULL,
    };
    execve(plan->interpreter->path, (char *const *)(uintptr_t)all,
           (char *const *)(uintptr_t)environment);
    return errno;
}

struct entry {
    const struct box_plan *plan;
    uid_t uid; /* of its own, where the plan says so */
    const char *flavour;
    int slot;
    int control, errors_fd, status;
    int group; /* its cgroup.procs, or -1 */
    uid_t outer_uid;
    gid_t outer_gid;
};

static _Noreturn void fail(const struct entry *in, const char *layer, int error,
                           const char *detail) {
    struct box_failure failure = {.error = error};
    snprintf(failure.layer, sizeof failure.layer, "%s", layer);
    snprintf(failure.detail, sizeof failure.detail, "%s", detail);
    ssize_t n = write(in->status, &failure, sizeof failure);
    _exit(n == (ssize_t)sizeof failure ? 1 : 2);
}

static _Noreturn void enter(struct entry *in) {
    const struct box_plan *plan = in->plan;
    const char *detail = "";
    if (plan->own_core) choose_core(in->slot);
    int error = enter_session();
    if (error) fail(in, "session", error, "setsid");
    if (plan->namespaces && plan->user_namespace) {
        error = map_user(in->outer_uid, in->outer_gid);
        if (error) fail(in, "user namespace", error, "uid_map");
    }
    if (plan->namespaces) {
        /* Of a namespace of its own: the machine's says where a candidate runs. */
        if (sethostname(host_name, sizeof host_name - 1) || setdomainname("", 0))
            fail(in, "uts namespace", errno, "sethostname");
        error = box_tree_enter(plan, in->uid, &detail);
        if (error) fail(in, "mount tree", error, detail);
    }
    /* After the tree: /dev/null is opened from the old one where there is one. */
    if (plan->own_uid || (plan->namespaces && plan->user_namespace)) {
        error = drop_bounding_set();
        if (error) fail(in, "capabilities", error, "PR_CAPBSET_DROP");
    }
    if (plan->own_uid) {
        error = change_uid(in->uid);
        if (error) fail(in, "uid", error, "setresuid");
    }
    /* A change of uid clears the death signal. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) fail(in, "session", errno, "PR_SET_PDEATHSIG");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail(in, "no_new_privs", errno, "prctl");
    error = drop_capabilities();
    if (error) fail(in, "capabilities", error, "capset");
    error = set_base_limits();
    if (error) fail(in, "limits", error, "setrlimit");
    signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    error = run_python(plan, in->flavour);
    fail(in, "interpreter", error, plan->interpreter->path);
}

/* ---- in the caller ---- */

/* Half of the machine's memory: whatever a worker's processes do together, the machine stays. */
static int open_group(const struct box_plan *plan, int slot) {
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGESIZE);
    return cgroup_worker(plan->cgroup, slot, pages / 2 * page, BOX_PROCESSES);
}

#ifdef __SANITIZE_THREAD__
/* The thread sanitizer sees fork() only where it goes through libc.  Its hooks for bare system
 * calls take its locks before and free them on both sides after: else one that its own thread holds
 * at that moment stays taken in the child for ever. */
void __sanitizer_syscall_pre_impl_fork(void);
void __sanitizer_syscall_post_impl_fork(long result);
#else
static void __sanitizer_syscall_pre_impl_fork(void) {}
static void __sanitizer_syscall_post_impl_fork(long result) { (void)result; }
#endif

/* The first uid that no server has: a name among the abstract sockets belongs to one, and is free
 * again when it ends in whatever way.  -1, and *uid as it was, where there is none: then two
 * servers may share it, and with it the number of processes that it may have. */
static int claim_uid(uid_t *uid) {
    for (unsigned at = BOX_UID; at <= BOX_UID_LAST; at++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "firstpass-uid-%u", at);
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return -1;
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
        if (!bind(fd, (const struct sockaddr *)&name, size)) {
            *uid = at;
            return fd;
        }
        bool taken = errno == EADDRINUSE;
        close(fd);
        if (!taken) return -1;
    }
    return -1;
}

static pid_t clone_process(unsigned long flags) {
    __sanitizer_syscall_pre_impl_fork();
    /* Not clone3: Docker's default profile answers ENOSYS to it.  No stack given: this is a fork
     * with namespaces. */
    long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    __sanitizer_syscall_post_impl_fork(pid);
    return (pid_t)pid;
}

static bool spawn_failed(struct box_failure *failure, const char *layer, const char *detail) {
    *failure = (struct box_failure){.error = errno};
    snprintf(failure->layer, sizeof failure->layer, "%s", layer);
    snprintf(failure->detail, sizeof failure->detail, "%s", detail);
    return false;
}

/* Waits for exec (the pipe ends) or for the report of a failure. */
static bool wait_for_exec(int status, struct box_failure *failure) {
    size_t got = 0;
    *failure = (struct box_failure){0};
    while (got < sizeof *failure) {
        ssize_t n = read(status, (char *)failure + got, sizeof *failure - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        got += (size_t)n;
    }
    if (got == 0) return true;
    failure->layer[sizeof failure->layer - 1] = failure->detail[sizeof failure->detail - 1] = 0;
    return false;
}

bool box_spawn(const struct box_plan *plan, int slot, const char *flavour, struct box_process *out,
               struct box_failure *failure) {
    *out = box_no_process;
    int pair[2] = {-1, -1}, status[2] = {-1, -1}, errors_fd = -1, uid_fd = -1;
    bool ok = false;
    struct entry in = {
        .plan = plan,
        .uid = (uid_t)(BOX_UID + slot),
        .flavour = flavour,
        .slot = slot,
        .group = -1,
        .outer_uid = geteuid(),
        .outer_gid = getegid(),
    };
    if (!message_pair(pair) || pipe2(status, O_CLOEXEC) ||
        (errors_fd = memfd_create("errors", MFD_CLOEXEC)) < 0) {
        spawn_failed(failure, "descriptors", "socketpair, pipe or memfd_create");
        goto done;
    }
    if (plan->cgroup && (in.group = open_group(plan, slot)) < 0) {
        spawn_failed(failure, "cgroup", "the group of a worker");
        goto done;
    }
    if (plan->own_uid) uid_fd = claim_uid(&in.uid);
    unsigned long flags = 0;
    if (plan->namespaces) flags = SPACES | (plan->user_namespace ? CLONE_NEWUSER : 0UL);
    pid_t pid = clone_process(flags);
    if (pid < 0) {
        spawn_failed(failure, plan->namespaces ? "namespaces" : "process", "clone");
        goto done;
    }
    if (pid == 0) {
        in.control = pair[1];
        in.errors_fd = errors_fd;
        in.status = status[1];
        if (in.group >= 0 && write(in.group, "0", 1) != 1)
            fail(&in, "cgroup", errno, "entering the group of the worker");
        /* /dev/null must be opened while the old tree is there. */
        int error = lay_out(plan, in.control, in.errors_fd, &in.status);
        if (error) fail(&in, "descriptors", error, "dup");
        enter(&in);
    }
    close(status[1]);
    status[1] = -1;
    ok = wait_for_exec(status[0], failure);
    int pidfd = ok ? (int)syscall(NR_PIDFD_OPEN, pid, 0) : -1;
    if (ok && pidfd < 0) ok = spawn_failed(failure, "pidfd", "pidfd_open");
    if (!ok) {
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        goto done;
    }
    *out = (struct box_process){pid, pidfd, pair[0], errors_fd, uid_fd};
    pair[0] = errors_fd = uid_fd = -1;
done:
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0) close(pair[i]);
        if (status[i] >= 0) close(status[i]);
    }
    if (errors_fd >= 0) close(errors_fd);
    if (uid_fd >= 0) close(uid_fd);
    if (in.group >= 0) close(in.group);
    return ok;
}

void box_process_clear(struct box_process *p) {
    if (p->pidfd >= 0) close(p->pidfd);
    if (p->control >= 0) close(p->control);
    if (p->errors_fd >= 0) close(p->errors_fd);
    if (p->uid_fd >= 0) close(p->uid_fd);
    *p = box_no_process;
}

void box_last_words(int errors_fd, char *out, size_t size) {
    char text[4096];
    off_t end = lseek(errors_fd, 0, SEEK_END);
    out[0] = 0;
    if (end <= 0) return;
    off_t from = end > (off_t)sizeof text - 1 ? end - ((off_t)sizeof text - 1) : 0;
    ssize_t n = pread(errors_fd, text, sizeof text - 1, from);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    if (n <= 0) return;
    text[n] = 0;
    const char *line = strrchr(text, '\n');
    snprintf(out, size, "%s", line ? line + 1 : text);
}

bool box_try_namespace(int flag, bool in_user_namespace, int *error) {
    pid_t pid = fork();
    if (pid == 0) {
        int flags = flag | (in_user_namespace ? CLONE_NEWUSER : 0);
        _exit(unshare(flags) ? errno : 0);
    }
    int status = 0;
    if (pid < 0) {
        *error = errno;
        return false;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    *error = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
    return *error == 0;
}
