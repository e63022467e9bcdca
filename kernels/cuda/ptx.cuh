/* All inline PTX and all compiler words that a kernel uses, behind functions that the host
 * emulation has too: the rest of the `.cu` files is plain C++.
 *
 * Fragment layouts of mma.m16n8k16 (PTX manual, "Matrix fragments"), g = lane / 4, t = lane % 4:
 *   a[0] (g, 2t..) a[1] (g+8, 2t..) a[2] (g, 2t+8..) a[3] (g+8, 2t+8..)     two bf16 each
 *   b[0] (k = 2t.., n = g)  b[1] (k = 2t+8.., n = g)                        two bf16 each
 *   c[0], c[1] (g, 2t), (g, 2t+1)   c[2], c[3] (g+8, …)                     f32
 * So the c of one product is laid out as two halves of the a of the next. */
#ifndef KERNELS_CUDA_PTX_CUH
#define KERNELS_CUDA_PTX_CUH

#ifdef KERNELS_HOST_EMULATION
#include "kernels/host_emulation/device.h"
#else
#include <cuda_runtime.h>
#include <stdint.h>
#define LAUNCH(kernel, grid, block, shared, stream, args)                                          \
    kernel<<<grid, block, shared, static_cast<cudaStream_t>(stream)>>>(args)
#define SHARED_DYNAMIC(T, name)                                                                    \
    extern __shared__ __align__(128) unsigned char dynamic_shared[];                               \
    T *name = reinterpret_cast<T *>(dynamic_shared)
#define SHARED(T, name, n) __shared__ T name[n]
#endif

/* Lets the kernel have `bytes` of dynamic shared memory; false where the device has only `most`. */
template <class K> static inline bool allow_shared(K *kernel, size_t bytes, size_t most) {
    if (bytes > most) return false;
#ifdef KERNELS_HOST_EMULATION
    (void)kernel;
    return true;
#else
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes)) == cudaSuccess;
#endif
}

enum { WARP = 32 };
static constexpr unsigned ALL_LANES = 0xffffffffu;

/* ---- bf16: the upper half of an f32, rounded to nearest even ---- */

static __device__ __forceinline__ float bf16_to_f32(uint16_t b) {
    return __uint_as_float(static_cast<unsigned>(b) << 16);
}

/* Two, the first in the lower half. */
static __device__ __forceinline__ uint32_t bf16_pair(float first, float second) {
#ifdef KERNELS_HOST_EMULATION
    auto round = [](float f) {
        unsigned bits = __float_as_uint(f);
        if (f != f) return 0x7fffu;
        return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    };
    return round(second) << 16 | round(first);
#else
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#endif
}
static __device__ __forceinline__ uint16_t bf16_from_f32(float f) {
    return static_cast<uint16_t>(bf16_pair(f, 0.0f) & 0xffffu);
}

/* ---- f16: exact as f32 ---- */

static __device__ __forceinline__ float f32_from_f16(uint16_t h) {
#ifdef KERNELS_HOST_EMULATION
    /* The exponent's offset is 112 smaller; infinity stays what it is, a NaN is a quiet one. */
    constexpr float size = 5.192296858534827628530496329220096e33f; /* 2^112 */
    unsigned sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
    float f =
        rest < 0x0f800000u ? __uint_as_float(rest) * size : __uint_as_float(rest + 0x70000000u);
    if (rest > 0x0f800000u) sign |= 0x00400000u;
    return __uint_as_float(sign | __float_as_uint(f));
#else
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
#endif
}

/* ---- fp8 E4M3 (OCP 8-bit formats): largest 448, no infinity ---- */

static constexpr float FP8_MAX = 448.0f;

/* Rounded to nearest even; beyond the largest: the largest. */
static __device__ __forceinline__ uint8_t fp8_from_f32(float f) {
#if !defined(KERNELS_HOST_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
    return static_cast<uint8_t>(pair & 0xff);
#else
    /* 3 bits of mantissa, exponents down to 2^-6, then steps of 2^-9. */
    unsigned bits = __float_as_uint(f), sign = bits >> 24 & 0x80u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
    if (bits >= __float_as_uint(FP8_MAX)) return static_cast<uint8_t>(sign | 0x7eu);
    if (bits < __float_as_uint(0.015625f)) {
        /* Adding 2^14 leaves steps of 2^-9 in the last bits of an f32. */
        float shifted = __uint_as_float(bits) + 16384.0f;
        return static_cast<uint8_t>(sign | (__float_as_uint(shifted) & 0xfu));
    }
    bits += 0x7ffffu + (bits >> 20 & 1);
    return static_cast<uint8_t>(sign | ((bits >> 20) - (120u << 3)));
#endif
}

/* Two fp8 codes of `four`, as two bf16: bytes 0 and 1, 2 and 3, 0 and 2, 1 and 3.  Exact: a code's
 * bits, shifted to where bf16 has its mantissa, are its value times 2^-120.  A NaN becomes 480. */
static __device__ __forceinline__ uint32_t bf16_pair_of_codes(uint32_t codes) {
    uint32_t small = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 4;
#ifdef KERNELS_HOST_EMULATION
    constexpr float size = 1.329227995784915872903807060280344576e36f; /* 2^120 */
    return bf16_pair(__uint_as_float(small << 16) * size,
                     __uint_as_float(small & 0xffff0000u) * size);
#else
    uint32_t pair; /* 2^120; -0 keeps the sign of a zero */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(pair)
        : "r"(small), "r"(0x7b807b80u), "r"(0x80008000u));
    return pair;
#endif
}
static __device__ __forceinline__ uint32_t fp8_first_pair(uint32_t four) {
    return bf16_pair_of_codes(__byte_perm(four, 0, 0x4140));
}
static __device__ __forceinline__ uint32_t fp8_second_pair(uint32_t four) {
    return bf16_pair_of_codes(__byte_perm(four, 0, 0x4342));
}
static __device__ __forceinline__ uint32_t fp8_even_pair(uint32_t four) {
    return bf16_pair_of_codes(four & 0x00ff00ffu);
}
static __device__ __forceinline__ uint32_t fp8_odd_pair(uint32_t four) {
    return bf16_pair_of_codes(four >> 8 & 0x00ff00ffu);
}

/* ---- arithmetic ---- */

/* 2^x, two units in the last place or so; 2^-inf is 0. */
static __device__ __forceinline__ float exp2_fast(float x) {
#ifdef KERNELS_HOST_EMULATION
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
static constexpr float LOG2_E = 1.44269504088896340736f;
static constexpr float LN_2 = 0.69314718055994530942f;

/* ---- a warp ---- */

static __device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % WARP; }
static __device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / WARP; }

/* Sums and maxima over a warp's lanes, in every lane, always in the same order. */
template <class T> static __device__ __forceinline__ T warp_sum(T v) {
    for (int i = WARP / 2; i; i /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, i);
    return v;
}
static __device__ __forceinline__ float warp_max(float v) {
    for (int i = WARP / 2; i; i /= 2)
        v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, i));
    return v;
}

/* ---- asynchronous copies to shared memory ---- */

/* 16 bytes; where !valid zeros, and `from` isn't read. */
static __device__ __forceinline__ void copy_async(void *to, const void *from, bool valid) {
#ifdef KERNELS_HOST_EMULATION
    emulate_copy_async(to, from, valid);
#else
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
#endif
}
static __device__ __forceinline__ void copy_commit() {
#ifdef KERNELS_HOST_EMULATION
    emulate_copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Returns when all but the last `pending` groups of this thread have arrived. */
template <int pending> static __device__ __forceinline__ void copy_wait() {
#ifdef KERNELS_HOST_EMULATION
    emulate_copy_wait(pending);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* ---- tensor cores ---- */

/* Four 8 x 8 matrices of 16-bit elements; lanes 8 j … 8 j + 7 give the rows of matrix j. */
static __device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row) {
#ifdef KERNELS_HOST_EMULATION
    emulate_ldmatrix(r, row, false);
#else
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#endif
}
static __device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row) {
#ifdef KERNELS_HOST_EMULATION
    emulate_ldmatrix(r, row, true);
#else
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
#endif
}
/* c += a b */
static __device__ __forceinline__ void multiply_add(float c[4], const uint32_t a[4],
                                                    const uint32_t b[2]) {
#ifdef KERNELS_HOST_EMULATION
    emulate_mma_bf16(c, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#endif
