/* Decoding of GGUF blocks against vectors of another implementation, and half precision
 * exhaustively. */
#include "tests/kernels/kernels_test.h"

#include "tests/kernels/quant_vectors.h"

enum { N_VECTORS = sizeof quant_vectors / sizeof *quant_vectors };

START_TEST(against_vectors) {
    float out[256];
    ck_assert_uint_eq(quant_block_bytes(quant_vectors[_i].type), quant_vectors[_i].n_bytes);
    ck_assert_int_eq(quant_block_elements(quant_vectors[_i].type), quant_vectors[_i].n);
    quant_decode(quant_vectors[_i].type, quant_vectors[_i].bytes, (size_t)quant_vectors[_i].n, out);
    for (int i = 0, v = 0; i < quant_vectors[_i].n; i += quant_vectors[_i].step, v++) {
        /* That code may round products in another order. */
        double want = (double)quant_vectors[_i].values[v];
        ck_assert_msg(fabs((double)out[i] - want) <= 3e-7 * (fabs(want) + 0.05),
                      "%s element %d: %.9g is not %.9g", quant_name(quant_vectors[_i].type), i,
                      (double)out[i], want);
    }
}
END_TEST

START_TEST(plain_types) {
    float f32[] = {1.5f, -2.25f}, out[4];
    uint16_t f16[] = {0x3c00, 0xc000, 0x0001, 0x7bff}, bf16[] = {0x3f80, 0xc000, 0x4049, 0x0000};
    quant_decode(QUANT_F32, f32, 2, out);
    ck_assert(out[0] == 1.5f && out[1] == -2.25f);
    quant_decode(QUANT_F16, f16, 4, out);
    ck_assert(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-24f && out[3] == 65504);
    quant_decode(QUANT_BF16, bf16, 4, out);
    ck_assert(out[0] == 1 && out[1] == -2 && out[2] == 3.140625f && out[3] == 0);
}
END_TEST

/* Every half survives the way to float and back; its value is sign * mantissa * 2^exponent. */
START_TEST(halves) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = quant_f16_to_f32((uint16_t)h);
        int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
        if (exponent == 31) {
            ck_assert(mantissa ? isnan(f) : isinf(f));
            if (mantissa) continue;
        } else {
            double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
            ck_assert((double)f == (h & 0x8000 ? -value : value));
        }
        ck_assert_uint_eq(quant_f32_to_f16(f), h);
    }
}
END_TEST

/* Nearest, ties to even, between any two neighbours, and beyond the largest. */
START_TEST(rounding_to_half) {
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float low = quant_f16_to_f32((uint16_t)h), high = quant_f16_to_f32((uint16_t)(h + 1));
        float middle = (float)(((double)low + (double)high) / 2);
        ck_assert_uint_eq(quant_f32_to_f16(middle), h % 2 ? h + 1 : h);
        ck_assert_uint_eq(quant_f32_to_f16(nextafterf(middle, low)), h);
        ck_assert_uint_eq(quant_f32_to_f16(nextafterf(middle, high)), h + 1);
        ck_assert_uint_eq(quant_f32_to_f16(-middle), 0x8000u | (h % 2 ? h + 1 : h));
    }
    ck_assert_uint_eq(quant_f32_to_f16(65519.996f), 0x7bff);
    ck_assert_uint_eq(quant_f32_to_f16(65520), 0x7c00);
    ck_assert_uint_eq(quant_f32_to_f16(INFINITY), 0x7c00);
    ck_assert(isnan(quant_f16_to_f32(quant_f32_to_f16(NAN))));
    ck_assert_uint_eq(quant_f32_to_f16(1e-30f), 0);
}
END_TEST

START_TEST(names_and_sizes) {
    ck_assert(!quant_supported(4) && !quant_supported(20) && !quant_supported(99) &&
              !quant_supported(UINT32_MAX));
    ck_assert_str_eq(quant_name(20), "IQ4_NL");
    ck_assert(quant_name(12345) != NULL);
    for (int i = 0; i < N_ALL_TYPES; i++) {
        ck_assert(quant_supported(all_types[i]));
        ck_assert(strstr(quant_supported_names(), quant_name(all_types[i])) != NULL);
        ck_assert_uint_eq(quant_row_bytes(all_types[i], 512),
                          512 / (size_t)quant_block_elements(all_types[i]) *
                              quant_block_bytes(all_types[i]));
    }
}
END_TEST

int main(void) {
    TCase *t = tcase_create("quant");
    tcase_add_loop_test(t, against_vectors, 0, N_VECTORS);
    tcase_add_test(t, plain_types);
    tcase_add_test(t, halves);
    tcase_add_test(t, rounding_to_half);
    tcase_add_test(t, names_and_sizes);
    return run_tests(&t, 1, "quant");
}
