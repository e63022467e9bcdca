/* The tensor types of GGUF files and their block layouts (ggml-common.h of the GGUF format
 * describes them; little-endian).  Pure; any thread. */
#ifndef KERNELS_QUANT_H
#define KERNELS_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values are those stored in GGUF files. */
enum quant_type {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q2_K = 10,
    QUANT_Q3_K = 11,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_BF16 = 30,
};

/* Whether firstpass reads the type with this GGUF number. */
bool quant_supported(uint32_t gguf_type);
/* The name of any GGUF type number; unknown ones share one name; static. */
const char *quant_name(uint32_t gguf_type);
/* "F32, F16, …": the supported ones, for messages. */
const char *quant_supported_names(void);
/* Elements and bytes of one block; a row holds whole blocks. */
int quant_block_elements(enum quant_type type);
size_t quant_block_bytes(enum quant_type type);
/* Bytes of one row of n elements; n must be a multiple of the block. */
size_t quant_row_bytes(enum quant_type type, size_t n);
/* Dequantises n elements (whole blocks) to f32: the definition of each type. */
void quant_decode(enum quant_type type, const void *blocks, size_t n, float *out);

/* The 16 sub-block scales (-32 … 31) of a Q3_K block, from its 12 packed bytes. */
void quant_q3_k_scales(const uint8_t packed[12], int8_t out[16]);
/* Scale and minimum (0 … 63) of sub-block j (0 … 7) of a Q4_K or Q5_K block, from its 12 packed
 * bytes. */
void quant_k_scale_min(const uint8_t packed[12], int j, uint8_t *scale, uint8_t *min);

float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float f); /* round to nearest even */

#endif
