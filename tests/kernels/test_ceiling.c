#include "kernels/cpu/ceiling.h"
#include "kernels/cpu/isa.h"
#include "tests/kernels/kernels_test.h"

/* What is said to be computed grows with what is asked for, with every instruction set. */
START_TEST(counts_products) {
    for (int i = 0; isa_names[i]; i++) {
        struct err e = {0};
        struct isa isa;
        if (!isa_available(isa_names[i])) continue;
        ck_assert(isa_choose(isa_names[i], &isa, &e));
        ck_assert_int_eq(isa.ceiling == NULL, isa.is_reference);
        if (!isa.ceiling) continue;
        uint64_t some = isa.ceiling(1 << 12), more = isa.ceiling(1 << 14);
        ck_assert_msg(some > 0 && more > 3 * some && more <= 4 * some, "%s: %llu, %llu", isa.name,
                      (unsigned long long)some, (unsigned long long)more);
    }
}
END_TEST

START_TEST(measures_with_all_threads) {
    const struct kernels *k = kernels_backend("cpu");
    for (int i = 0; isa_names[i]; i++) {
        struct err e = {0};
        struct kernels_device *device;
        struct kernels_ceiling c;
        if (!isa_available(isa_names[i])) continue;
        const struct kernels_options options = {.n_threads = 2, .isa = isa_names[i]};
        ck_assert(k->device_open(&options, &device, &e));
        ck_assert_msg(k->ceiling(device, &c, &e), "%s", e.message);
        k->device_close(device);
        ck_assert_str_eq(c.isa, isa_names[i]);
        ck_assert_int_eq(c.n_threads, 2);
        ck_assert_int_eq(c.macs_per_s > 0, strcmp(c.isa, "reference") != 0);
        ck_assert(c.bytes_per_s > 0);
    }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("ceiling");
    tcase_add_test(t, counts_products);
    tcase_add_test(t, measures_with_all_threads);
    return run_tests(&t, 1, "ceiling");
}
