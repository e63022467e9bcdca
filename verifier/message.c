#include "verifier/message.h"

#include "base/err.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

union control {
    char bytes[CMSG_SPACE(MESSAGE_FDS * sizeof(int))];
    struct cmsghdr align;
};

bool message_pair(int fds[2]) {
    return !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds);
}

bool message_send(int fd, const void *data, size_t len, const int *fds, int n_fds) {
    BUG_ON(n_fds > MESSAGE_FDS);
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    union control control = {0};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        size_t bytes = (size_t)n_fds * sizeof(int);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *head = &control.align; /* CMSG_FIRSTHDR, which can't be NULL here */
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(head), fds, bytes);
    }
    ssize_t n;
    do
        n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)len;
}

ssize_t message_receive(int fd, void *data, size_t len, int fds[MESSAGE_FDS], int *n_fds) {
    struct iovec iov = {.iov_base = data, .iov_len = len};
    union control control = {0};
    struct msghdr message = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    *n_fds = 0;
    ssize_t n;
    do
        n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        *n_fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), (size_t)*n_fds * sizeof(int));
    }
    return n;
}
