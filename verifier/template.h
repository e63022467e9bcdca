/* Chat templates: one compiled template in its own worker, and the renders that wait for it.  The
 * front door's verifier_template_set and verifier_render.  LOOP thread. */
#ifndef VERIFIER_TEMPLATE_H
#define VERIFIER_TEMPLATE_H

#include "verifier/pool.h"

struct template;

struct template *template_open(struct pool *);
/* Drops what waits, without callbacks. */
void template_close(struct template *);
bool template_set(struct template *, const char *text, size_t len,
                  void (*ready)(void *arg, const struct err *), void *arg, struct err *e);
uint64_t template_render(struct template *, const char *variables, size_t len,
                         void (*done)(void *arg, const char *text, size_t len, const struct err *),
                         void *arg);
void template_cancel(struct template *, uint64_t id);

#endif
