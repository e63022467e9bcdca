/* server/main.c's main(), under the name that it has in tests/cuda/emulated_server.c's program. */
#ifndef TESTS_CUDA_EMULATED_SERVER_H
#define TESTS_CUDA_EMULATED_SERVER_H

int firstpass_main(int argc, char **argv);

#endif
