/* Any bytes as tests of programs: read whole or refused with a reason, and what was read is what it
 * says. */
#include "config/limits.h"
#include "verifier/cases.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_item(const struct compare *how, const struct cases_item *item) {
    int line = 0;
    BUG_ON(!item->input || !item->expected || !item->name);
    BUG_ON(item->input[item->input_len] || item->expected[item->expected_len]);
    /* What is expected is right. */
    BUG_ON(!compare_output(how, item->expected, item->expected_len, item->expected,
                           item->expected_len, &line));
    BUG_ON(line < 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const enum verifier_format formats[] = {VERIFIER_STDIO, VERIFIER_APPS,
                                                   VERIFIER_LIVECODEBENCH, VERIFIER_STDIO};
    if (!size || size > 1 << 20) return 0;
    enum verifier_format format = formats[data[0] & 3];
    struct cases cases;
    struct err e = {0};
    if (!cases_read(format, (const char *)data + 1, size - 1, &cases, &e)) {
        BUG_ON(e.kind != ERR_INPUT || !e.message[0]);
        BUG_ON(cases.items || cases.checker || cases.n);
        return 0;
    }
    BUG_ON(cases.functional ? cases.n : cases.n < 1 || cases.n > LIMIT_TESTS_CASES);
    BUG_ON(cases.functional && format == VERIFIER_STDIO);
    BUG_ON(!(cases.compare.abs_tol >= 0) || !(cases.compare.rel_tol >= 0));
    for (int i = 0; i < cases.n; i++)
        check_item(&cases.compare, &cases.items[i]);
    cases_clear(&cases);
    return 0;
}
