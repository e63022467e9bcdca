/* `firstpass serve`: the server's life from its start to its end.
 *
 * Order of start: the verifier's workers, then the listening socket, then the model; while it
 * loads, requests are answered with 503.  SIGTERM or SIGINT: no new work, live requests end within
 * server.drain_s, exit 0.  A second one cuts what is left at once; a third kills. */
#ifndef SERVER_SERVE_H
#define SERVER_SERVE_H

#include "config/config.h"

/* The exit status. */
int serve_main(int argc, char **argv, const struct config *);

#endif
