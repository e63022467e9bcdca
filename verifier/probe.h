/* What this machine gives: found by running the workers' own code in a throw-away process, level by
 * level. Before threads start. */
#ifndef VERIFIER_PROBE_H
#define VERIFIER_PROBE_H

#include "verifier/box.h"
#include "verifier/verifier.h"

enum { PROBE_LAYERS = 20, PROBE_READY_S = 60 };

struct probe {
    struct box_plan plan; /* payload and module descriptors are owned by the probe */
    struct interpreter interpreter;
    struct cgroup cgroup;
    struct verifier_layer layers[PROBE_LAYERS];
    struct verifier_report report; /* layers points above */
};

/* The strongest plan up to options->max_level that works, in *out; false where it is below
 * options->min_level or no interpreter is usable. */
bool probe_run(struct probe *out, const struct verifier_options *options, struct err *e) MUST_CHECK;
void probe_clear(struct probe *);

/* Checks the text of a worker's WIRE_READY against the plan: NULL where it is good, or what is
 * wrong. */
const char *probe_check_ready(const struct box_plan *, const char *text);

#endif
