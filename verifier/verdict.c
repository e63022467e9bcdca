#include "verifier/verdict.h"

#include <stdlib.h>

const char *verdict_name(enum verdict_kind kind) {
    switch (kind) {
    case VERDICT_PASSED:
        return "passed";
    case VERDICT_FAILED:
        return "failed";
    case VERDICT_TIMEOUT:
        return "timeout";
    case VERDICT_MEMORY:
        return "memory";
    case VERDICT_CRASHED:
        return "crashed";
    case VERDICT_OUTPUT_LIMIT:
        return "output_limit";
    case VERDICT_FORGED:
        return "forged";
    case VERDICT_BROKEN:
        return "broken";
    }
    return "broken";
}

void verdict_keep(struct verdict_kept *kept, const struct verdict *v) {
    verdict_clear(kept);
    kept->code = err_strndup(v->code, v->code_len);
    kept->error = err_strdup(v->error);
    kept->output = err_alloc(v->output_len + 1, 1);
    for (size_t i = 0; i < v->output_len; i++)
        kept->output[i] = v->output[i];
    kept->verdict = *v;
    kept->verdict.code = kept->code;
    kept->verdict.error = kept->error;
    kept->verdict.output = kept->output;
    for (int i = 0; i < v->n_tests; i++)
        feedback_add(&kept->feedback, &v->tests[i]);
    kept->verdict.tests = kept->feedback.tests;
    kept->verdict.n_tests = kept->feedback.n;
}

void verdict_clear(struct verdict_kept *kept) {
    free(kept->code);
    free(kept->error);
    free(kept->output);
    feedback_clear(&kept->feedback);
    *kept = (struct verdict_kept){0};
}
