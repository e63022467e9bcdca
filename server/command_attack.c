/* `doctor --attack`: the built-in attacks on this very machine, and what each layer stopped. */
#include "server/command.h"
#include "server/writer.h"
#include "verifier/verifier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_BYTES = 16 * 1024 * 1024, NAME_BYTES = 96 };

/* "landlock or namespaces": any of them stops it. */
static void name_layers(unsigned layers, const char *between, char out[NAME_BYTES]) {
    size_t len = 0;
    out[0] = 0;
    for (unsigned bit = 1; bit <= VERIFIER_WITHOUT_LIMITS; bit <<= 1)
        if (layers & bit && len < NAME_BYTES)
            len += (size_t)snprintf(out + len, NAME_BYTES - len, "%s%s", len ? between : "",
                                    verifier_without_name((enum verifier_without)bit));
}

static void on_progress(void *arg, unsigned without, int done, int total) {
    char names[NAME_BYTES];
    const bool *quiet = arg;
    if (*quiet || (done != total && done % 10)) return;
    name_layers(without, ", ", names);
    fprintf(stderr, "\r%s%s: %d of %d   %s", without ? "without " : "all layers", names, done,
            total, done == total ? "\n" : "");
}

/* ---- text ---- */

static void print_group(const struct verifier_attacks *a, unsigned layers) {
    int n = 0;
    for (int i = 0; i < a->n; i++)
        n += a->items[i].stopped_by == layers && !(a->items[i].through & 1);
    if (!n) return;
    char names[NAME_BYTES];
    name_layers(layers, " or ", names);
    if (layers)
        printf("\n  stopped by %s: %d that work where %s off\n", names, n,
               layers & (layers - 1) ? "all of these are" : "it is");
    else
        printf("\n  never worked, whatever layer was off: %d\n  (candidate and tests are apart, "
               "values are rebuilt, the supervisor has the clock)\n",
               n);
    for (int i = 0; i < a->n; i++)
        if (a->items[i].stopped_by == layers && !(a->items[i].through & 1))
            printf("    %-70s %s\n", a->items[i].name, verdict_name(a->items[i].verdict));
}

static void print_unwanted(const struct verifier_attacks *a, const char *result, const char *what) {
    bool first = true;
    for (int i = 0; i < a->n; i++) {
        const struct verifier_attack *seen = &a->items[i];
        if (strcmp(seen->result, result) != 0) continue;
        if (first) printf("\n  %s\n", what);
        first = false;
        printf("    %-70s %s%s%s%s\n", seen->name, verdict_name(seen->verdict),
               *seen->said ? ": " : "", seen->said,
               seen->twin_ran && !seen->twin_passed ? " (its honest twin did not pass)" : "");
    }
}

static void print_text(const struct verifier_attacks *a) {
    int twins = 0, passed = 0;
    for (int i = 0; i < a->n; i++) {
        twins += a->items[i].twin_ran;
        passed += a->items[i].twin_passed;
    }
    printf(
        "attacks\n  level %d: %d stopped, %d open as the documentation says, %d through, %d with "
        "an unexpected verdict\n  honest twins: %d of %d passed\n",
        a->level, a->n_stopped, a->n_open, a->n_through, a->n_wrong, passed, twins);
    print_unwanted(a, "through", "WORKED, and must not:");
    print_unwanted(a, "wrong", "unexpected verdict:");
    print_unwanted(a, "open", "work at this level, as documented:");
    for (int i = 1; i < a->n_arrangements; i++)
        print_group(a, a->without[i]);
    print_group(a, 0);
}

/* ---- JSON ---- */

static void write_layers(struct writer *w, unsigned layers) {
    writer_array(w);
    for (unsigned bit = 1; bit <= VERIFIER_WITHOUT_LIMITS; bit <<= 1)
        if (layers & bit) writer_text(w, verifier_without_name((enum verifier_without)bit));
    writer_array_end(w);
}

static void write_attack(struct writer *w, const struct verifier_attacks *a, int i) {
    const struct verifier_attack *seen = &a->items[i];
    writer_object(w);
    writer_key(w, "name");
    writer_text(w, seen->name);
    writer_key(w, "result");
    writer_text(w, seen->result);
    writer_key(w, "verdict");
    writer_text(w, verdict_name(seen->verdict));
    writer_key(w, "error");
    writer_text(w, seen->said);
    writer_key(w, "twin_passed");
    if (seen->twin_ran)
        writer_bool(w, seen->twin_passed);
    else
        writer_null(w);
    writer_key(w, "stopped_by");
    write_layers(w, seen->stopped_by);
    writer_key(w, "works_without");
    writer_array(w);
    for (int at = 0; at < a->n_arrangements; at++)
        if (seen->through >> at & 1) write_layers(w, a->without[at]);
    writer_array_end(w);
    writer_object_end(w);
}

static void print_json(const struct verifier_attacks *a) {
    struct buf out;
    struct writer w;
    buf_init(&out, ANSWER_BYTES);
    writer_init(&w, &out);
    writer_object(&w);
    writer_key(&w, "level");
    writer_int(&w, a->level);
    writer_key(&w, "stopped");
    writer_int(&w, a->n_stopped);
    writer_key(&w, "open");
    writer_int(&w, a->n_open);
    writer_key(&w, "through");
    writer_int(&w, a->n_through);
    writer_key(&w, "wrong");
    writer_int(&w, a->n_wrong);
    writer_key(&w, "tried_without");
    writer_array(&w);
    for (int at = 0; at < a->n_arrangements; at++)
        write_layers(&w, a->without[at]);
    writer_array_end(&w);
    writer_key(&w, "attacks");
    writer_array(&w);
    for (int i = 0; i < a->n; i++)
        write_attack(&w, a, i);
    writer_array_end(&w);
    writer_object_end(&w);
    puts(buf_text(&out));
    buf_clear(&out);
}

int command_attack(const struct config *config, bool json) {
    struct err e = {0};
    struct verifier_attacks attacks;
    const struct verifier_options options = {
        .python = config->verifier.python,
        .workers = config->verifier.workers,
        .min_level = 0, /* to tell what there is, not to refuse it */
        .max_level = config->verifier.max_level,
        .max_landlock_abi = config->verifier.max_landlock_abi,
    };
    bool quiet = json || !isatty(STDERR_FILENO);
    if (!verifier_attacks_run(&options, &attacks, on_progress, &quiet, &e))
        return command_failed("doctor --attack", &e);
    if (json)
        print_json(&attacks);
    else
        print_text(&attacks);
    int status = attacks.n_through || attacks.n_wrong ? COMMAND_NOT_PASSED : COMMAND_PASSED;
    verifier_attacks_clear(&attacks);
    return status;
}
