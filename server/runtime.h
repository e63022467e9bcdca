/* What `serve` and the commands share: verifier, engine and races in one process on one libuv loop,
 * set up in the one right order.
 *
 * Order.  runtime_open() starts the verifier's workers before any thread exists and before a device
 * is touched.  runtime_load() reads the model in a thread of libuv's pool, so that the loop can
 * answer "loading" meanwhile; then it starts the ENGINE thread and compiles the chat template.
 * Engine events reach the races through one uv_async.
 *
 * LOOP thread.  The configuration is borrowed while the runtime lives. */
#ifndef SERVER_RUNTIME_H
#define SERVER_RUNTIME_H

#include "base/err.h"
#include "config/config.h"
#include "engine/engine.h"
#include "server/race.h"
#include "verifier/verifier.h"

#include <uv.h>

struct runtime;

/* What the settings say of the engine; borrows both. */
struct engine_options runtime_engine_options(const struct config *, const char *model_path);

/* Verifier and loop; no model yet. */
struct runtime *runtime_open(const struct config *, struct err *e);

/* Starts to load the model.  `ready(arg, NULL)` comes from the loop when races may start, or
 * `ready(arg, error)`.  At most once a runtime.  `progress` may be NULL; it is called from the
 * loading thread. */
void runtime_load(struct runtime *, void (*progress)(void *arg, const char *what, double share),
                  void (*ready)(void *arg, const struct err *), void *arg);
/* runtime_load() and waits for it by running the loop. */
bool runtime_load_wait(struct runtime *,
                       void (*progress)(void *arg, const char *what, double share), void *arg,
                       struct err *e) MUST_CHECK;

/* Fails what races are live, waits until engine and verifier have let go of them, closes all.  The
 * caller's own handles on the loop must be closed, or closing, before.  NULL is fine. */
void runtime_close(struct runtime *);

uv_loop_t *runtime_loop(struct runtime *);
struct verifier *runtime_verifier(struct runtime *);
struct race_set *runtime_races(struct runtime *);
struct engine *runtime_engine(struct runtime *); /* NULL until loaded */
bool runtime_loaded(const struct runtime *);
/* Measures once, in a thread of the pool, what the device can do at most: half a second on all
 * cores, so it is called when they have nothing else to do.  Later calls do nothing. */
void runtime_measure(struct runtime *);
/* NULL until that is known. */
const struct engine_ceiling *runtime_ceiling(const struct runtime *);
/* True where chat prompts can be rendered; else the error says why (no template, no jinja2). */
bool runtime_chat(const struct runtime *, struct err *e) MUST_CHECK;

#endif
