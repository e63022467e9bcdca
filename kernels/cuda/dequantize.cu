/* Matrices as they lie in a file, to what products read: once, while a model is loaded. */
#include "kernels/cuda/reduce.cuh"

static constexpr int THREADS = 256;
static constexpr unsigned EACH = 16; /* elements of a thread */
static constexpr int ROW_WARPS = 2, ROW_THREADS = ROW_WARPS * WARP;

/* ---- one element ----
 * Operation by operation as quant_decode() has it, so that bits are equal; products and sums have
 * their names, so that no compiler fuses two of them. */

static __device__ __forceinline__ float f16_at(const uint8_t *p) {
    return f32_from_f16(static_cast<uint16_t>(p[0] | p[1] << 8));
}
static __device__ __forceinline__ uint32_t u32_at(const uint8_t *p) {
    return p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
           static_cast<uint32_t>(p[3]) << 24;
}
static __device__ __forceinline__ float scaled(float scale, int code) {
    return __fmul_rn(scale, static_cast<float>(code));
}

static __device__ __forceinline__ float q4(const uint8_t *codes, int i, float d, float m,
                                           int offset) {
    int code = codes[i % 16] >> (i / 16 * 4) & 15;
    return __fadd_rn(scaled(d, code - offset), m);
}
static __device__ __forceinline__ float q5(const uint8_t *high, int i, float d, float m,
                                           int offset) {
    const uint8_t *codes = high + 4;
    int code = (codes[i % 16] >> (i / 16 * 4) & 15) | (high[i / 8] >> (i % 8) & 1) << 4;
    return __fadd_rn(scaled(d, code - offset), m);
}
static __device__ __forceinline__ float q2_k(const uint8_t *b, int i) {
    int scale = b[i / 16], code = b[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    float d = f16_at(b + 80), dmin = f16_at(b + 82);
    return __fadd_rn(scaled(scaled(d, scale & 15), code), -scaled(dmin, scale >> 4));
}
static __device__ __forceinline__ float q3_k(const uint8_t *b, int i) {
    const uint8_t *packed = b + 96;
    int j = i / 16, low = packed[j % 8] >> (j / 8 * 4) & 15;
    int scale = (low | (packed[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
    int code = b[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    code += b[i % 32] >> (i / 32) & 1 ? 0 : -4;
    return scaled(scaled(f16_at(b + 108), scale), code);
}
/* `high`: a fifth bit of each code lies before the other four. */
static __device__ __forceinline__ float q45_k(const uint8_t *b, int i, bool high) {
    const uint8_t *packed = b + 4, *codes = b + (high ? 48 : 16);
    int j = i / 32, scale, min;
    if (j < 4) {
        scale = packed[j] & 63;
        min = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        min = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
    int code = codes[j / 2 * 32 + i % 32] >> (j % 2 * 4) & 15;
    if (high) code |= (b[16 + i % 32] >> j & 1) << 4;
    return __fadd_rn(scaled(scaled(f16_at(b), scale), code), -scaled(f16_at(b + 2), min));
}
static __device__ __forceinline__ float q6_k(const uint8_t *b, int i) {
    int part = i / 128, in = i % 128;
    int nibble = b[part * 64 + in % 64] >> (in / 64 * 4) & 15;
    int pair = b[128 + part * 32 + in % 32] >> (in / 32 * 2) & 3;
    int scale = (b[192 + i / 16] ^ 128) - 128; /* signed */
    return scaled(scaled(f16_at(b + 208), scale), (nibble | pair << 4) - 32);
}

/* The block of element e, whose number in it i becomes. */
template <unsigned elements, unsigned bytes>
static __device__ __forceinline__ const uint8_t *block_of(const uint8_t *blocks, unsigned e,
                                                          int *i) {
    *i = static_cast<int>(e % elements);
    return blocks + static_cast<size_t>(e / elements) * bytes;
}

static __device__ __forceinline__ float element(enum quant_type type, const uint8_t *blocks,
                                                unsigned e) {
    const uint8_t *b;
    int i;
    switch (type) {
    case QUANT_F32:
        return __uint_as_float(u32_at(block_of<1, 4>(blocks, e, &i)));
    case QUANT_F16:
        return f16_at(block_of<1, 2>(blocks, e, &i));
    case QUANT_BF16:
        b = block_of<1, 2>(blocks, e, &i);
        return bf16_to_f32(static_cast<uint16_t>(b[0] | b[1] << 8));
    case QUANT_Q4_0:
        b = block_of<32, 18>(blocks, e, &i);
        return q4(b + 2, i, f16_at(b), 0, 8);
    case QUANT_Q4_1:
        b = block_of<32, 20>(blocks, e, &i);
        return q4(b + 4, i, f16_at(b), f16_at(b + 2), 0);
    case QUANT_Q5_0:
        b = block_of<32, 22>(blocks, e, &i);
        return q5(b + 2, i, f16_at(b), 0, 16);
    case QUANT_Q5_1:
        b = block_of<32, 24>(blocks, e, &i);
        return q5(b + 4, i, f16_at(b), f16_at(b + 2), 0);
    case QUANT_Q8_0:
        b = block_of<32, 34>(blocks, e, &i);
        return scaled(f16_at(b), static_cast<int8_t>(b[2 + i]));
    case QUANT_Q2_K:
        b = block_of<256, 84>(blocks, e, &i);
        return q2_k(b, i);
    case QUANT_Q3_K:
        b = block_of<256, 110>(blocks, e, &i);
        return q3_k(b, i);
    case QUANT_Q4_K:
        b = block_of<256, 144>(blocks, e, &i);
        return q45_k(b, i, false);
    case QUANT_Q5_K:
        b = block_of<256, 176>(blocks, e, &i);
        return q45_k(b, i, true);
    case QUANT_Q6_K:
        b = block_of<256, 210>(blocks, e, &i);
        return q6_k(b, i);
    }
    return 0;
}

/* ---- kernels ---- */

/* what      out[e] = bf16 of element e, to nearest, ties to even
 * layout    blocks of a GGUF type one behind the other, at any address; out bf16 [n]
 * tile      256 threads, 16 elements each at strides of 256; grid ceil(n / 4,096)
 * bytes     n (bytes of a block / its elements + 2), of which each byte of a block comes from L1
 *           some more times: scales are read for each element
 * bound     the copy from the host before it: 4 MiB take 80 us and more at 50 GB/s, this a tenth
 *           of it; so one kernel for all types, and no shared memory
 * order     no sums */
static __global__ void __launch_bounds__(THREADS) dequantize(struct launch_dequantize a) {
    unsigned n = static_cast<unsigned>(a.n_rows) * static_cast<unsigned>(a.n_cols);
    unsigned first = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    uint16_t *out = reinterpret_cast<uint16_t *>(a.out);
    for (unsigned e = first; e < n && e < first + THREADS * EACH; e += THREADS)
        out[e] = bf16_from_f32(element(a.type, a.blocks, e));
}

/* what      out[r][i] = fp8 of element i of row r over scales[r], the scale that makes the row's
 *           largest magnitude the largest fp8; 1 where the row is nothing.  What isn't finite,
 *           which no sound file has, becomes the largest, and the scale 1.
 * layout    blocks as above, a row's at r row_bytes; out E4M3 [n_rows][n_cols]
 * tile      one block of 64 threads a row, which is decoded twice; a piece has a thousand rows and
 *           more, so that many blocks fill a multiprocessor
 * bytes     n (2 bytes of a block / its elements + 1)   bound: as above
 * order     no sums but the row's largest */
static __global__ void __launch_bounds__(ROW_THREADS) dequantize_fp8(struct launch_dequantize a) {
    SHARED(float, scratch, ROW_WARPS);
    unsigned r = blockIdx.x, n = static_cast<unsigned>(a.n_cols);
    const uint8_t *blocks = a.blocks + static_cast<size_t>(r) * a.row_bytes;
    uint8_t *out = a.out + static_cast<size_t>(r) * n;
    float top = 0;
    for (unsigned e = threadIdx.x; e < n; e += ROW_THREADS) {
        float size = fabsf(element(a.type, blocks, e));
        top = size > top ? size : top; /* never a NaN */
    }
    top = block_max<ROW_WARPS>(top, scratch);
    bool sound = top > 0 && top < __uint_as_float(0x7f800000u);
    float scale = sound ? top / FP8_MAX : 1.0f, inverse = 1.0f / scale;
    for (unsigned e = threadIdx.x; e < n; e += ROW_THREADS) {
        float v = __fmul_rn(element(a.type, blocks, e), inverse);
        v = v > FP8_MAX ? FP8_MAX : v;
        out[e] = fp8_from_f32(v >= -FP8_MAX ? v : -FP8_MAX);
    }
    if (threadIdx.x == 0) a.scales[r] = scale;
}

void launch_dequantize(void *stream, const struct launch_dequantize *a) {
    unsigned rows = static_cast<unsigned>(a->n_rows);
    unsigned n = rows * static_cast<unsigned>(a->n_cols), span = THREADS * EACH;
    if (a->scales)
        LAUNCH(dequantize_fp8, dim3(rows), dim3(ROW_THREADS), 0, stream, *a);
    else
        LAUNCH(dequantize, dim3((n + span - 1) / span), dim3(THREADS), 0, stream, *a);
}
