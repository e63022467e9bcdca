/* RMSNorm, and SwiGLU: a row in f32 to a row that products read. */
#include "kernels/cuda/reduce.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* what      out[r][i] = x[r][i] / sqrt(mean_i x[r][i]^2 + eps) weight[i]   (arXiv 1910.07467)
 *           The residual was added by the product before (its beta is 1), so x is the stream.
 * layout    x f32 [n][d]; out an operand of width d (bf16, and fp8 with a scale where wanted)
 * tile      one block a row, 256 threads; the row is kept in shared memory, 4 d bytes, so that out
 *           may lie where x lies
 * bytes     n d (4 + 2 or 3) + 4 d   flops 4 n d   bound: memory
 * order     thread i sums i, i + 256, …; lanes pairwise; warps in order: independent of n */
static __global__ void __launch_bounds__(THREADS) rms_norm(struct launch_norm a) {
    SHARED_DYNAMIC(float, row);
    SHARED(float, scratch, WARPS);
    int r = static_cast<int>(blockIdx.x), d = a.out.width;
    if (a.n_rows && r >= *a.n_rows) return;
    const float *x = a.x + static_cast<size_t>(r) * static_cast<size_t>(d);
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < d; i += THREADS) {
        float v = x[i];
        row[i] = v;
        sum += v * v;
    }
    sum = block_sum<WARPS>(sum, scratch);
    float scale = 1.0f / sqrtf(sum / static_cast<float>(d) + a.eps);
    const float *weight = a.weight;
    operand_store<WARPS>(a.out, r, scratch, [=](int i) { return row[i] * scale * weight[i]; });
}

bool launch_prepare_norm(size_t most, int width) {
    return allow_shared(rms_norm, static_cast<size_t>(width) * sizeof(float), most);
}

void launch_norm(void *stream, const struct launch_norm *a) {
    LAUNCH(rms_norm, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS),
           static_cast<size_t>(a->out.width) * sizeof(float), stream, *a);
}

/* what      x[i] = x[i] / sqrt(mean_i x[i]^2 + eps) weight[i] for each head x of q and k  (Qwen3)
 * layout    heads f32: row r at r stride, head h at h head_dim in it; q's first, then k's
 * tile      grid (n, ceil(heads / 8)), 256 threads: a warp a head, a lane every 32nd value; read
 *           twice, the second time from L1, so that no head size needs a kernel of its own
 * bytes     8 n heads head_dim   flops 4 n heads head_dim   bound: memory, most of it still in L2
 * order     lane i sums i, i + 32, …; lanes pairwise: independent of n
 * tried     not fused into rope, whose threads share a row's heads by pairs and not by heads */
static __global__ void __launch_bounds__(THREADS) head_norm(struct launch_head_norm a) {
    int r = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y) * WARPS + warp_id();
    if (a.n_rows && r >= *a.n_rows) return;
    if (h >= a.n_heads + a.n_kv_heads) return;
    float *x = a.heads + static_cast<size_t>(r) * static_cast<size_t>(a.stride) + h * a.head_dim;
    const float *weight = h < a.n_heads ? a.q_weight : a.k_weight;
    float sum = 0;
    for (int i = lane_id(); i < a.head_dim; i += WARP)
        sum += x[i] * x[i];
    sum = warp_sum(sum);
    float scale = 1.0f / sqrtf(sum / static_cast<float>(a.head_dim) + a.eps);
    for (int i = lane_id(); i < a.head_dim; i += WARP)
        x[i] *= scale * weight[i];
}

void launch_head_norm(void *stream, const struct launch_head_norm *a) {
    unsigned heads = static_cast<unsigned>(a->n_heads + a->n_kv_heads);
    LAUNCH(head_norm, dim3(static_cast<unsigned>(a->rows), (heads + WARPS - 1) / WARPS),
           dim3(THREADS), 0, stream, *a);
}

/* what      out[r][i] = g / (1 + e^-g) u with g = gate_up[r][i], u = gate_up[r][d + i]
 * layout    gate_up f32 [n][2 d]; out an operand of width d
 * tile      bf16: grid (n, ceil(d / 1024)), 256 threads; fp8: one block a row, since its scale is
 *           the row's
 * bytes     n d (8 + 2), fp8: n d (16 + 3), half of it from L2   flops 5 n d   bound: memory
 * order     no sums but the row's largest */
static __device__ __forceinline__ float swiglu_value(float g, float u) {
    return g / (1.0f + exp2_fast(-g * LOG2_E)) * u;
}

static constexpr int SWIGLU_SPAN = 1024;

static __global__ void __launch_bounds__(THREADS) swiglu(struct launch_swiglu a) {
    int r = static_cast<int>(blockIdx.x), d = a.out.width;
    if (a.n_rows && r >= *a.n_rows) return;
    const float *gate = a.gate_up + static_cast<size_t>(r) * 2 * static_cast<size_t>(d);
    uint16_t *to = operand_row(a.out, r);
    int begin = static_cast<int>(blockIdx.y) * SWIGLU_SPAN, end = min(begin + SWIGLU_SPAN, d);
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += THREADS)
        to[i] = bf16_from_f32(swiglu_value(gate[i], gate[d + i]));
}

static __global__ void __launch_bounds__(THREADS) swiglu_fp8(struct launch_swiglu a) {
    SHARED(float, scratch, WARPS);
    int r = static_cast<int>(blockIdx.x), d = a.out.width;
    if (a.n_rows && r >= *a.n_rows) return;
    const float *gate = a.gate_up + static_cast<size_t>(r) * 2 * static_cast<size_t>(d);
    operand_store<WARPS>(a.out, r, scratch,
                         [=](int i) { return swiglu_value(gate[i], gate[d + i]); });
}

void launch_swiglu(void *stream, const struct launch_swiglu *a) {
    unsigned rows = static_cast<unsigned>(a->rows);
    unsigned spans = static_cast<unsigned>((a->out.width + SWIGLU_SPAN - 1) / SWIGLU_SPAN);
    if (a->out.scales)
        LAUNCH(swiglu_fp8, dim3(rows), dim3(THREADS), 0, stream, *a);
    else
        LAUNCH(swiglu, dim3(rows, spans), dim3(THREADS), 0, stream, *a);
}
