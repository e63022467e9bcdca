#include "verifier/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Allowed whatever the arguments.  Found by tracing HumanEval tests and a broad standard-library
 * script. */
static const char *const allowed[] = {
    /* descriptors that are open, and files as far as Landlock or the mount tree let them */
    "read",
    "readv",
    "pread64",
    "preadv",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "lseek",
    "close",
    "dup",
    "dup2",
    "dup3",
    "creat",
    "stat",
    "lstat",
    "fstat",
    "newfstatat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents64",
    "getcwd",
    "chdir",
    "fchdir",
    "mkdir",
    "mkdirat",
    "rmdir",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "ftruncate",
    "umask",
    "statfs",
    "fstatfs",
    "pipe",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "eventfd2",
    "recvfrom",
    "recvmsg", /* how B gets its next job; no descriptor comes to A, since its peer can't send any
                */
    "shutdown",
    /* memory */
    "brk",
    "munmap",
    "mremap",
    "madvise",
    /* time */
    "nanosleep",
    "gettimeofday",
    "time",
    "times",
    "getrusage",
    "alarm",
    "setitimer",
    "getitimer",
    /* own signals and threads */
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigpending",
    "rt_sigtimedwait",
    "rt_sigsuspend",
    "sigaltstack",
    "pause",
    "restart_syscall",
    "set_robust_list",
    "rseq",
    "gettid",
    "sched_yield",
    "sched_getaffinity",
    "set_tid_address",
    "exit",
    "exit_group",
    /* who and where */
    "getpid",
    "getppid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getpgrp",
    "getrlimit",
    "uname",
    "sysinfo",
    "getrandom",
    "getcpu",
};

/* Done by doing nothing: what a candidate may write lies in memory, and on a descriptor of somebody
 * else's file these would make the disk work, or others wait. */
static const char *const idle[] = {"fsync", "fdatasync", "flock"};

/* What a fork server needs beyond that: children, descriptors with messages, the work directory
 * emptied, and the layers that its children take after the fork. */
static const char *const for_servers[] = {
    "wait4",
    "waitid",
    "sendmsg",
    "seccomp",
    "pidfd_open",
    "chmod",
    "fchmod",
    "fchmodat",
    "utimensat",
    "tgkill",
    "close_range",
    "fork",
    "landlock_restrict_self",
};

/* Denied with EPERM rather than ENOSYS, so that the message in Python reads right. */
static const char *const denied[] = {
    "socket",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "sendmsg",
    "sendmmsg",
    "recvmmsg",
    "setsockopt",
    "execve",
    "execveat",
    "fork",
    "vfork",
    "tkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_open",
    "pidfd_send_signal",
    "pidfd_getfd",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "setpriority",
    "ioprio_set",
    "sched_setaffinity",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
    "setrlimit",
    "setuid",
    "setgid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setgroups",
    "setfsuid",
    "setfsgid",
    "setsid",
    "setpgid",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "mount_setattr",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "mknod",
    "mknodat",
    /* Landlock speaks of truncation only since ABI 3, and never of times: by path they reached any
     * file of the same uid, by descriptor a time could tell the next candidate something. */
    "truncate",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "setxattr",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "keyctl",
    "add_key",
    "request_key",
    "seccomp",
    "landlock_create_ruleset",
    "landlock_add_rule",
    "landlock_restrict_self",
    "memfd_create",
    "memfd_secret",
    "shmget",
    "shmat",
    "msgget",
    "semget",
    "mq_open",
    "open_by_handle_at",
    "name_to_handle_at",
    "personality",
    "acct",
    "swapon",
    "reboot",
    "sethostname",
    "init_module",
    "finit_module",
    "kexec_load",
    "quotactl",
    "inotify_init1",
    "fanotify_init",
    "pkey_mprotect",
    "modify_ldt",
    "ioperm",
    "iopl",
    "capset",
    "timer_create",
    "signalfd4",
    "splice",
    "tee",
    "vmsplice",
    "syslog",
    "io_setup",
    "mincore",
    "membarrier",
    "sync",
    "syncfs",
};

struct rule {
    const char *call;
    uint32_t action;
    unsigned n;
    struct scmp_arg_cmp compare[3];
};

static int add(scmp_filter_ctx filter, const struct rule *rule) {
    int number = seccomp_syscall_resolve_name(rule->call);
    if (number == __NR_SCMP_ERROR) return 0; /* newer than this libseccomp: the default denies it */
    int status = seccomp_rule_add_array(filter, rule->action, number, rule->n, rule->compare);
    return status == -EDOM ? 0 : status; /* not on this architecture */
}

static int add_names(scmp_filter_ctx filter, uint32_t action, const char *const *names, size_t n) {
    int status = 0;
    for (size_t i = 0; i < n && !status; i++)
        status = add(filter, &(struct rule){.call = names[i], .action = action});
    return status;
}

static int add_rules(scmp_filter_ctx filter, const struct rule *rules, size_t n) {
    int status = 0;
    for (size_t i = 0; i < n && !status; i++)
        status = add(filter, &rules[i]);
    return status;
}

static bool is_among(const char *call, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(call, names[i])) return true;
    return false;
}

/* All but what is a server's own. */
static int add_denied(scmp_filter_ctx filter) {
    int status = 0;
    for (size_t i = 0; i < sizeof denied / sizeof denied[0] && !status; i++)
        if (!is_among(denied[i], for_servers, sizeof for_servers / sizeof for_servers[0]))
            status =
                add(filter, &(struct rule){.call = denied[i], .action = SCMP_ACT_ERRNO(EPERM)});
    return status;
}

/* What is a server's own, for its children. */
static int add_taken_back(scmp_filter_ctx filter) {
    int status = 0;
    for (size_t i = 0; i < sizeof for_servers / sizeof for_servers[0] && !status; i++) {
        if (!strcmp(for_servers[i], "tgkill")) continue; /* theirs too, for themselves */
        bool known = is_among(for_servers[i], denied, sizeof denied / sizeof denied[0]);
        const struct rule rule = {.call = for_servers[i],
                                  .action = SCMP_ACT_ERRNO(known ? EPERM : ENOSYS)};
        status = add(filter, &rule);
    }
    return status;
}

/* One argument against a list of values: those are allowed. */
static int add_values(scmp_filter_ctx filter, const char *call, unsigned argument,
                      const unsigned long *values, size_t n) {
    int status = 0;
    for (size_t i = 0; i < n && !status; i++)
        status = add(filter,
                     &(struct rule){
                         call, SCMP_ACT_ALLOW, 1, {SCMP_CMP(argument, SCMP_CMP_EQ, values[i], 0)}});
    return status;
}

/* O_TRUNC empties a file that is opened for reading, or for neither (access mode 3), and Landlock
 * before ABI 3 asks for no right to write then: only with O_WRONLY or O_RDWR. */
static int add_open(scmp_filter_ctx filter, const char *call, unsigned flags) {
    const scmp_datum_t mask = O_ACCMODE | O_TRUNC;
    const struct rule rules[] = {
        {call, SCMP_ACT_ALLOW, 1, {SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, O_TRUNC, 0)}},
        {call, SCMP_ACT_ALLOW, 1, {SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, mask, O_TRUNC | O_WRONLY)}},
        {call, SCMP_ACT_ALLOW, 1, {SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, mask, O_TRUNC | O_RDWR)}},
        {call,
         SCMP_ACT_ERRNO(EPERM),
         1,
         {SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, mask, O_TRUNC | O_RDONLY)}},
        {call,
         SCMP_ACT_ERRNO(EPERM),
         1,
         {SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, mask, O_TRUNC | O_ACCMODE)}},
    };
    int status = 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0] && !status; i++)
        status = add(filter, &rules[i]);
    return status;
}

enum {
    /* All that the flags of a futex operation are beside its number. */
    FUTEX_FLAGS = FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME,
};
#define NEW_SPACES                                                                                 \
    ((scmp_datum_t)(CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |     \
                    CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_PTRACE))
/* The low half of an argument that the kernel takes as an int. */
#define INT_WITHOUT(flags) (UINT64_C(0xffffffff) & ~(scmp_datum_t)(flags))

/* Signals and processes: a fork server has its children. */
static int add_server_processes(scmp_filter_ctx filter) {
    const uint32_t allow = SCMP_ACT_ALLOW;
    const struct rule rules[] = {
        /* No process group, not everybody. */
        {"kill", allow, 1, {SCMP_CMP(0, SCMP_CMP_MASKED_EQ, 0x80000000, 0)}},
        /* Its own limits only: prlimit on the fork server was a hole. */
        {"prlimit64", allow, 1, {SCMP_CMP(0, SCMP_CMP_EQ, 0, 0)}},
        {"clone", allow, 1, {SCMP_CMP(0, SCMP_CMP_MASKED_EQ, NEW_SPACES, 0)}},
        {"prctl", allow, 1, {SCMP_CMP(0, SCMP_CMP_EQ, PR_SET_PDEATHSIG, 0)}},
        {"prctl", allow, 1, {SCMP_CMP(0, SCMP_CMP_EQ, PR_SET_NO_NEW_PRIVS, 0)}},
    };
    return add_rules(filter, rules, sizeof rules / sizeof rules[0]);
}

/* A child has itself and its threads. */
static int add_child_processes(scmp_filter_ctx filter) {
    const uint32_t eperm = SCMP_ACT_ERRNO(EPERM), enosys = SCMP_ACT_ERRNO(ENOSYS);
    const scmp_datum_t self = (scmp_datum_t)SECCOMP_THIS_PROCESS;
    const struct rule rules[] = {
        {"kill", eperm, 1, {SCMP_CMP(0, SCMP_CMP_NE, self, 0)}},
        {"tgkill", eperm, 1, {SCMP_CMP(0, SCMP_CMP_NE, self, 0)}},
        /* threads, no processes; glibc falls back from clone3, whose flags a filter can't see */
        {"clone", eperm, 1, {SCMP_CMP(0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0)}},
        {"prctl", enosys, 1, {SCMP_CMP(0, SCMP_CMP_EQ, PR_SET_PDEATHSIG, 0)}},
        {"prctl", enosys, 1, {SCMP_CMP(0, SCMP_CMP_EQ, PR_SET_NO_NEW_PRIVS, 0)}},
    };
    return add_rules(filter, rules, sizeof rules / sizeof rules[0]);
}

/* Clocks of the machine and of the caller; a negative number is some process's CPU clock, which
 * tells what the tests and the server are doing. */
static int add_clock(scmp_filter_ctx filter, const char *call) {
    const struct rule rules[] = {
        {call, SCMP_ACT_ALLOW, 1, {SCMP_CMP(0, SCMP_CMP_MASKED_EQ, INT_WITHOUT(15), 0)}},
        {call,
         SCMP_ACT_ERRNO(EINVAL),
         1,
         {SCMP_CMP(0, SCMP_CMP_MASKED_EQ, 0x80000000, 0x80000000)}},
    };
    return add_rules(filter, rules, sizeof rules / sizeof rules[0]);
}

static int add_futex(scmp_filter_ctx filter) {
    /* What locks of C and Python are made of; none that lends priority. */
    static const scmp_datum_t operations[] = {FUTEX_WAIT,        FUTEX_WAKE,    FUTEX_REQUEUE,
                                              FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP, FUTEX_WAIT_BITSET,
                                              FUTEX_WAKE_BITSET};
    int status = 0;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0] && !status; i++)
        status = add(filter, &(struct rule){"futex",
                                            SCMP_ACT_ALLOW,
                                            1,
                                            {SCMP_CMP(1, SCMP_CMP_MASKED_EQ,
                                                      INT_WITHOUT(FUTEX_FLAGS), operations[i])}});
    return status;
}

static int add_memory_and_sockets(scmp_filter_ctx filter) {
    const uint32_t allow = SCMP_ACT_ALLOW;
    const struct rule rules[] = {
        /* no new code: extension modules are mapped from files, read-only */
        {"mmap", allow, 1, {SCMP_CMP(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)}},
        {"mmap",
         allow,
         2,
         {SCMP_CMP(2, SCMP_CMP_MASKED_EQ, PROT_EXEC | PROT_WRITE, PROT_EXEC),
          SCMP_CMP(3, SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, 0)}},
        {"mprotect", allow, 1, {SCMP_CMP(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)}},
        /* event loops need a pair of sockets; nothing that can name another address */
        {"socketpair",
         allow,
         2,
         {SCMP_CMP(0, SCMP_CMP_EQ, AF_UNIX, 0),
          SCMP_CMP(1, SCMP_CMP_MASKED_EQ, ~(scmp_datum_t)(SOCK_CLOEXEC | SOCK_NONBLOCK),
                   SOCK_STREAM)}},
        {"sendto", allow, 1, {SCMP_CMP(4, SCMP_CMP_EQ, 0, 0)}},
        /* not SO_PEERCRED and SO_PEERPIDFD: a descriptor of the server, which made the sockets */
        {"getsockopt",
         allow,
         2,
         {SCMP_CMP(1, SCMP_CMP_EQ, SOL_SOCKET, 0), SCMP_CMP(2, SCMP_CMP_EQ, SO_TYPE, 0)}},
        {"getsockopt",
         allow,
         2,
         {SCMP_CMP(1, SCMP_CMP_EQ, SOL_SOCKET, 0), SCMP_CMP(2, SCMP_CMP_EQ, SO_ERROR, 0)}},
        {"getsockopt", SCMP_ACT_ERRNO(EPERM), 1, {SCMP_CMP(1, SCMP_CMP_NE, SOL_SOCKET, 0)}},
        /* O_EXCL means a pipe for the kernel's notices */
        {"pipe2",
         allow,
         1,
         {SCMP_CMP(1, SCMP_CMP_MASKED_EQ, INT_WITHOUT(O_CLOEXEC | O_NONBLOCK), 0)}},
        /* O_ASYNC asks for signals */
        {"fcntl",
         allow,
         2,
         {SCMP_CMP(1, SCMP_CMP_EQ, F_SETFL, 0), SCMP_CMP(2, SCMP_CMP_MASKED_EQ, O_ASYNC, 0)}},
    };
    return add_rules(filter, rules, sizeof rules / sizeof rules[0]);
}

static int add_arguments(scmp_filter_ctx filter) {
    static const unsigned long controls[] = {TCGETS,  TIOCGWINSZ, FIONREAD,
                                             FIOCLEX, FIONCLEX,   FIONBIO};
    /* No F_SETOWN, F_SETSIG: those killed the fork server past a filter on kill. */
    static const unsigned long commands[] = {F_DUPFD, F_GETFD, F_SETFD,        F_GETFL,
                                             F_GETLK, F_SETLK, F_DUPFD_CLOEXEC};
    static const unsigned long settings[] = {PR_SET_NAME, PR_GET_NAME};
    static const char *const clocks[] = {"clock_gettime", "clock_getres", "clock_nanosleep"};
    int status = add_memory_and_sockets(filter);
    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0] && !status; i++)
        status = add_clock(filter, clocks[i]);
    if (!status) status = add_futex(filter);
    if (!status) status = add_open(filter, "open", 1);
    if (!status) status = add_open(filter, "openat", 2);
    if (!status)
        status = add_values(filter, "ioctl", 1, controls, sizeof controls / sizeof controls[0]);
    if (!status)
        status = add_values(filter, "fcntl", 1, commands, sizeof commands / sizeof commands[0]);
    if (!status)
        status = add_values(filter, "prctl", 0, settings, sizeof settings / sizeof settings[0]);
    return status;
}

/* libseccomp 2.5 writes the program to a descriptor only. */
static void *export(scmp_filter_ctx filter, size_t *bytes, struct err *e) {
    void *program = NULL;
    int fd = memfd_create("filter", MFD_CLOEXEC);
    struct stat st;
    if (fd < 0 || seccomp_export_bpf(filter, fd) || fstat(fd, &st)) {
        err_errno(e, errno, "the system call filter can't be written");
        goto done;
    }
    *bytes = (size_t)st.st_size;
    program = err_alloc(1, *bytes);
    if (pread(fd, program, *bytes, 0) != (ssize_t)*bytes) {
        err_errno(e, errno, "the system call filter can't be read");
        free(program);
        program = NULL;
    }
done:
    if (fd >= 0) close(fd);
    return program;
}

/* The allow-list. */
static int fill_server(scmp_filter_ctx filter) {
    int status = add_names(filter, SCMP_ACT_ALLOW, allowed, sizeof allowed / sizeof allowed[0]);
    if (!status) status = add_names(filter, SCMP_ACT_ERRNO(0), idle, sizeof idle / sizeof idle[0]);
    if (!status)
        status = add_names(filter, SCMP_ACT_ALLOW, for_servers,
                           sizeof for_servers / sizeof for_servers[0]);
    if (!status) status = add_denied(filter);
    if (!status) status = add_server_processes(filter);
    if (!status) status = add_arguments(filter);
    return status;
}

static int fill_child(scmp_filter_ctx filter) {
    int status = add_taken_back(filter);
    return status ? status : add_child_processes(filter);
}

void *seccomp_build(enum seccomp_program which, size_t *bytes, struct err *e) {
    void *program = NULL;
    scmp_filter_ctx filter =
        seccomp_init(which == SECCOMP_SERVER ? SCMP_ACT_ERRNO(ENOSYS) : SCMP_ACT_ALLOW);
    if (!filter) {
        err_set(e, ERR_SYSTEM, "libseccomp can't make a filter on this architecture");
        return NULL;
    }
    int status = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (!status) status = seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (!status) status = which == SECCOMP_SERVER ? fill_server(filter) : fill_child(filter);
    if (status)
        err_errno(e, -status, "libseccomp refuses the system call filter");
    else
        program = export(filter, bytes, e);
    seccomp_release(filter);
    return program;
}
