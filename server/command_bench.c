/* `firstpass bench MEASURE`: the engine alone, or the verifier alone, without HTTP. */
#include "server/command_bench.h"

#include "server/runtime.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: firstpass bench MEASURE [OPTION]… [SETTING]…\n"
    "\n"
    "  decode       tokens a second for N candidates of one prompt, and share of the roofline\n"
    "      --n 1,8,32,64  --prompt TOKENS  --gen TOKENS  --repeat TIMES  --temperature T  --top-p "
    "P\n"
    "      --no-share    equal rows are computed as often as there are candidates\n"
    "      --json\n"
    "  perplexity   of a text, in the way of llama.cpp's llama-perplexity\n"
    "      --file TEXT  --chunk TOKENS  --json\n"
    "  verify       verdicts alone, without a model: latency one at a time, rate many at once\n"
    "      --tasks FILE  one object a line: format, tests, code; entry_point, prompt, extract\n"
    "      --repeat VERDICTS  --many VERDICTS  of each task  --json\n";

struct engine_options command_bench_options(const struct config *c, const char *path,
                                            int max_rows) {
    struct engine_options o = runtime_engine_options(c, path);
    if (o.max_rows < max_rows) o.max_rows = max_rows;
    return o;
}

int command_bench(int argc, char **argv, const struct config *c) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv, const struct config *);
    } measures[] = {{"decode", command_bench_decode},
                    {"perplexity", command_bench_perplexity},
                    {"verify", command_bench_verify}};
    for (size_t i = 0; argc > 1 && i < sizeof measures / sizeof *measures; i++)
        if (!strcmp(argv[1], measures[i].name)) return measures[i].run(argc - 1, argv + 1, c);
    bool help = argc > 1 && !strcmp(argv[1], "--help");
    fputs(usage, help ? stdout : stderr);
    return help ? COMMAND_PASSED : COMMAND_USAGE;
}
