/* The pages about the server itself: /health, /ready, /metrics, /v1/models, /version.
 *
 * None of them waits for the engine or the verifier: they answer within the turn, whatever the
 * load. */
#ifndef SERVER_STATUS_H
#define SERVER_STATUS_H

#include "server/api.h"

/* 200 while requests are taken, else 503: routers take it for "may get traffic". */
void status_health(struct api *, struct http_request *);
/* The same with the reasons: phase, model, sandbox with its layers. */
void status_ready(struct api *, struct http_request *);
void status_metrics(struct api *, struct http_request *);
void status_models(struct api *, struct http_request *);
void status_model(struct api *, struct http_request *, const char *id);
void status_version(struct api *, struct http_request *);

#endif
