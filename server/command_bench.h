/* What `firstpass bench` measures: each its own file. */
#ifndef SERVER_COMMAND_BENCH_H
#define SERVER_COMMAND_BENCH_H

#include "engine/engine.h"
#include "server/command.h"

/* As command_bench(); argv[0] is the measure's name. */
int command_bench_decode(int argc, char **argv, const struct config *);
int command_bench_perplexity(int argc, char **argv, const struct config *);
int command_bench_verify(int argc, char **argv, const struct config *);

/* What the settings say of the engine, with steps of at least max_rows rows; borrows both. */
struct engine_options command_bench_options(const struct config *, const char *path, int max_rows);

#endif
