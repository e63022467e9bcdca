/* The whole program on the emulated device, for tests from outside:
 *
 *   emulated_server --write-model                  writes a small model of random weights, prints
 * its path emulated_server --fail-when PATH serve …       as `firstpass serve …`; the device fails
 * once PATH is there */
#include "tests/cuda/emulated_server.h"

#include "kernels/host_emulation/gpu_host.h"
#include "tests/engine/tiny_model.h"

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--write-model")) {
        struct tiny_model model = {.architecture = "qwen2",
                                   .n_layers = 1,
                                   .n_embd = 128,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .n_ff = 64,
                                   .context = 512,
                                   .seed = 5};
        tiny_model_write(&model);
        puts(model.path);
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "--fail-when")) {
        gpu_host_fail_when(argv[2]);
        argv[2] = argv[0];
        argc -= 2;
        argv += 2;
    }
    return firstpass_main(argc, argv);
}
