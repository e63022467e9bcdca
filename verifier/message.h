/* Messages with descriptors over a SOCK_SEQPACKET socket.  Any thread; the caller owns all
 * descriptors. */
#ifndef VERIFIER_MESSAGE_H
#define VERIFIER_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { MESSAGE_FDS = 4 };

/* A connected pair, close-on-exec; false with errno set. */
bool message_pair(int fds[2]);
/* Never blocks and never raises SIGPIPE; false with errno set. */
bool message_send(int fd, const void *data, size_t len, const int *fds, int n_fds);
/* Bytes received, 0 at the end, -1 with errno (EAGAIN: none yet).  *n_fds descriptors that came are
 * the caller's to close. */
ssize_t message_receive(int fd, void *data, size_t len, int fds[MESSAGE_FDS], int *n_fds);

#endif
