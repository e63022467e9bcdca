/* Hugging Face directories on the CUDA backend, the whole engine: log-probabilities against those
 * of `transformers` (tests/vectors/make_hf.py), and which weights `auto` takes. */
#include "tests/cuda/cuda_test.h"
#include "tests/engine/hf_test.h"

static struct engine *open_directory(const char *name, const char *weights) {
    char dir[256];
    snprintf(dir, sizeof dir, "tests/vectors/hf/%s", name);
    struct err e = {0};
    struct engine_options o = {.model_path = dir,
                               .backend = "cuda",
                               .isa = "auto",
                               .weights = weights,
                               .max_rows = 4,
                               .prefill_chunk = 48,
                               .memory_bytes = (uint64_t)1 << 28};
    struct engine *g = engine_open(&o, &e);
    ck_assert_msg(g != NULL, "%s: %s", name, e.message);
    return g;
}

/* Those whose heads have 64 dimensions, as the kernels want them.  Their weights are random: logits
 * are of 4 to 9, and nothing evens an error out.  Measured: 0.18, 0.31, 0.47 in bf16, and 5.3 in
 * fp8, whose steps are 16 times as large (tests/cuda/test_cuda_fp8.c has it in the mean square). */
static const struct {
    const char *name, *weights;
    double most; /* difference of a log-probability */
} cases[] = {
    {"tiny-qwen3", "auto", 0.3},
    {"tiny-qwen3-fp8", "bf16", 0.5},
    {"tiny-qwen3-fp8", "auto", 8},
    {"tiny-qwen2-yarn", "auto", 0.7},
};
enum { N_CASES = sizeof cases / sizeof *cases };

START_TEST(logprobs) {
    json_t *root = hf_reference(cases[_i].name);
    struct engine *g = open_directory(cases[_i].name, cases[_i].weights);
    struct err e = {0};
    ck_assert_msg(engine_start(g, hf_no_wake, NULL, &e), "%s", e.message);
    double worst = hf_run_cases(g, root);
    printf("%s, weights %s: log-probabilities within %.4f\n", cases[_i].name, cases[_i].weights,
           worst);
    ck_assert_msg(worst <= cases[_i].most, "%s: %.4f", cases[_i].name, worst);
    engine_close(g);
    json_decref(root);
}
END_TEST

static bool describes(const char *name, const char *weights, const char *text) {
    char all[4096] = {0};
    struct engine *g = open_directory(name, weights);
    FILE *f = fmemopen(all, sizeof all - 1, "w");
    engine_describe(g, f);
    fclose(f);
    engine_close(g);
    return strstr(all, text) != NULL;
}

/* fp8 where the directory's weights are and the device has products of them. */
START_TEST(auto_takes_what_the_directory_has) {
    ck_assert(describes("tiny-qwen3-fp8", "auto", "fp8 layers, the rest bf16"));
    ck_assert(describes("tiny-qwen3-fp8", NULL, "fp8 layers, the rest bf16"));
    ck_assert(!describes("tiny-qwen3-fp8", "bf16", "fp8 layers"));
    ck_assert(!describes("tiny-qwen3", "auto", "fp8 layers"));
#ifdef KERNELS_HOST_EMULATION
    gpu_host_capability(8, 6);
    ck_assert(!describes("tiny-qwen3-fp8", "auto", "fp8 layers"));
#endif
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda hf");
    tcase_add_loop_test(t, logprobs, 0, N_CASES);
    tcase_add_test(t, auto_takes_what_the_directory_has);
    return run_tests(&t, 1, "cuda hf");
}
