/* The words of CUDA C++ that the `.cu` files use, for a compiler of the host: what nvcc brings
 * along and kernels/host_emulation/emulate.h runs. */
#ifndef KERNELS_HOST_EMULATION_DEVICE_H
#define KERNELS_HOST_EMULATION_DEVICE_H

#include "kernels/host_emulation/emulate.h"
#include "kernels/host_emulation/gpu_host.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

#define threadIdx (emulate_position()->thread)
#define blockIdx (emulate_position()->block)
#define blockDim (emulate_position()->block_dim)
#define gridDim (emulate_position()->grid_dim)

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float cospif(float x) { return (float)std::cos(3.14159265358979323846 * (double)x); }
static inline float sinpif(float x) { return (float)std::sin(3.14159265358979323846 * (double)x); }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

static inline void __syncthreads() { emulate_barrier(0, 0); }
static inline void __syncwarp() { emulate_warp_sync(); }

template <class T> static inline T emulate_exchange(T value, int source) {
    uint64_t bits = 0;
    static_assert(sizeof(T) <= 8, "shuffles take 8 bytes at most");
    std::memcpy(&bits, &value, sizeof value);
    bits = emulate_shuffle(bits, source);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
static inline int emulate_lane() { return (int)(threadIdx.x % EMULATE_WARP); }
template <class T> static inline T __shfl_sync(unsigned, T value, int source) {
    return emulate_exchange(value, source);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulate_exchange(value, emulate_lane() ^ mask);
}
/* Lanes below `delta` keep their own. */
template <class T> static inline T __shfl_up_sync(unsigned, T value, int delta) {
    int lane = emulate_lane();
    return emulate_exchange(value, lane < delta ? lane : lane - delta);
}
static inline unsigned __ballot_sync(unsigned, bool p) { return emulate_ballot(p); }
static inline int __any_sync(unsigned, bool p) { return emulate_ballot(p) != 0; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }

/* One thread runs at a time: nothing else is needed to be atomic. */
template <class T, class U> static inline T atomicAdd(T *p, U v) {
    T old = *p;
    *p = (T)(old + (T)v);
    return old;
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
/* Byte i of the result is byte (selector >> 4 i & 7) of b's and a's eight, a's four first. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++)
        out |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}
/* One rounding each, on any host. */
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline unsigned __float_as_uint(float f) {
    unsigned bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

/* Arguments are evaluated and copied now; the kernel runs when the stream says so. */
template <class F>
static inline void emulate_start(const char *name, dim3 grid, dim3 block, size_t shared,
                                 void *stream, F f) {
    gpu_host_launch(
        stream, name, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared,
        [](void *p) { (*static_cast<F *>(p))(); }, new F(f),
        [](void *p) { delete static_cast<F *>(p); });
}
#define LAUNCH(kernel, grid, block, shared, stream, args)                                          \
    emulate_start(                                                                                 \
        #kernel, grid, block, shared, stream,                                                      \
        [launch_kernel = (kernel), launch_args = (args)] { launch_kernel(launch_args); })

/* A type and the name that is declared: neither can stand in parentheses.
 * NOLINTBEGIN(bugprone-macro-parentheses) */
#define SHARED_DYNAMIC(T, name) T *name = static_cast<T *>(emulate_shared())
#define SHARED(T, name, n)                                                                         \
    static const char name##_key = 0;                                                              \
    T *name = static_cast<T *>(emulate_shared_static(&name##_key, sizeof(T) * (n)))
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
