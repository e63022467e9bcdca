/* Draws from rows of logits, without sorting them: see struct kernels_draw for what a draw is. */
#include "kernels/cuda/reduce.cuh"

static constexpr int THREADS = 512, WARPS = THREADS / WARP;
typedef unsigned long long mass_t; /* of weights, in units of 2^-40: sums that no order changes */

/* ---- log-sum-exp ---- */

/* what      sums[r] = log sum_i e^logits[r][i]
 * layout    logits f32 [n][n_vocab]
 * tile      one block a row, 512 threads, running maximum and sum a thread
 * bytes     4 n n_vocab   flops 3 n n_vocab   bound: memory
 * order     thread i takes i, i + 512, …; lanes pairwise; warps in order: independent of n */
static __global__ void __launch_bounds__(THREADS) logsumexp(struct launch_logsumexp a) {
    SHARED(float, scratch, WARPS);
    if (a.n_logits && a.first + static_cast<int>(blockIdx.x) >= *a.n_logits) return;
    const float *row = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.n_vocab);
    float top = -INFINITY, sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < a.n_vocab; i += THREADS) {
        float v = row[i];
        if (v > top) {
            sum = sum * exp2_fast((top - v) * LOG2_E) + 1.0f;
            top = v;
        } else if (v > -INFINITY) {
            sum += exp2_fast((v - top) * LOG2_E);
        }
    }
    float all = block_max<WARPS>(top, scratch);
    float share = top == -INFINITY ? 0.0f : sum * exp2_fast((top - all) * LOG2_E);
    float total = block_sum<WARPS>(share, scratch);
    if (threadIdx.x == 0) a.sums[blockIdx.x] = all + logf(total);
}

void launch_logsumexp(void *stream, const struct launch_logsumexp *a) {
    LAUNCH(logsumexp, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}

/* ---- random numbers ---- */

/* First word of Philox4x32-10 (Salmon et al., SC 2011), its upper 24 bits. */
static __device__ __forceinline__ uint32_t draw_bits(uint64_t seed, uint32_t position,
                                                     uint32_t candidate) {
    uint32_t c0 = position, c1 = candidate, c2 = 0, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint32_t h0 = __umulhi(0xd2511f53u, c0), l0 = 0xd2511f53u * c0;
        uint32_t h1 = __umulhi(0xcd9e8d57u, c2), l1 = 0xcd9e8d57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0 >> 8;
}

/* ---- a row's weights ---- */

/* Weights e^((logit - top) / temperature), 0 … 1. */
struct weights {
    const float *logits;
    int n;
    float top, factor; /* log2 e / temperature */
};
static __device__ __forceinline__ float weight_at(const struct weights &w, int i) {
    return exp2_fast((w.logits[i] - w.top) * w.factor);
}
static __device__ __forceinline__ mass_t mass_of(float weight) {
    return static_cast<mass_t>(weight * 1099511627776.0f);
}

/* What is kept: weights whose bits are above `bits`, and the first `ties` equal to it. */
struct threshold {
    uint32_t bits, ties;
};

static constexpr mass_t NO_MASS = 1ull << 62; /* more than any row has */
static constexpr int LEVELS = 3, BINS = 2048; /* radix select over the 30 bits of 0 … 1 */
static constexpr int MAX_CHUNKS = 1024;       /* spans of the vocabulary for the draws */
static constexpr int CHUNKS_LANE = MAX_CHUNKS / WARP;

struct sample_shared {
    union {
        struct {
            mass_t mass[BINS];
            uint32_t count[BINS];
        } bins;
        struct {
            mass_t before[MAX_CHUNKS + 1]; /* mass of all chunks before */
            uint32_t ties[MAX_CHUNKS];     /* equal weights in all chunks before */
        } chunks;
    };
    mass_t total[WARPS];
    float scratch[WARPS];
    int token[WARPS];
    /* What one warp finds for all. */
    uint32_t prefix, last_count, count;
    mass_t sum;
    mass_t all;
    float top_logit[LAUNCH_TOP];
    int top_token[LAUNCH_TOP];
};

static __device__ __forceinline__ mass_t block_mass(mass_t v, struct sample_shared *s) {
    v = warp_sum(v);
    __syncthreads();
    if (lane_id() == 0) s->total[warp_id()] = v;
    __syncthreads();
    mass_t sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += s->total[i];
    return sum;
}

/* The largest below (limit, limit_token) in descending order of logits, ties by token; token -1:
 * none. */
static __device__ __forceinline__ float block_next(const float *logits, int n, float limit,
                                                   int limit_token, struct sample_shared *s,
                                                   int *token) {
    float best = -INFINITY;
    int at = -1;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += THREADS) {
        float v = logits[i];
        bool below = v < limit || (v == limit && i > limit_token);
        if (below && (at < 0 || v > best)) {
            best = v;
            at = i;
        }
    }
    for (int i = WARP / 2; i; i /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, best, i);
        int other_at = __shfl_xor_sync(ALL_LANES, at, i);
        if (other_at >= 0 && (at < 0 || other > best || (other == best && other_at < at))) {
            best = other;
            at = other_at;
        }
    }
    __syncthreads();
    if (lane_id() == 0) {
        s->scratch[warp_id()] = best;
        s->token[warp_id()] = at;
    }
    __syncthreads();
    best = s->scratch[0];
    at = s->token[0];
    for (int i = 1; i < WARPS; i++) {
        float other = s->scratch[i];
        int other_at = s->token[i];
        if (other_at >= 0 && (at < 0 || other > best || (other == best && other_at < at))) {
            best = other;
            at = other_at;
        }
    }
    *token = at;
    return best;
}

/* ---- selection ---- */

/* Warp 0: the bin in which a prefix of the descending order ends that has max_count tokens or a
 * mass of `mass`; adds to s->count and s->sum what lies above it. */
static __device__ __forceinline__ void find_bin(struct sample_shared *s, int width,
                                                uint32_t max_count, mass_t mass) {
    int lane = lane_id(), bins = 1 << width, own = bins / WARP;
    int high = bins - lane * own; /* lane 0 has the heaviest */
    uint32_t count = 0;
    mass_t sum = 0;
    for (int i = 1; i <= own; i++) {
        count += s->bins.count[high - i];
        sum += s->bins.mass[high - i];
    }
    uint32_t before = s->count, after;
    mass_t sum_before = s->sum, sum_after;
    for (int i = 0; i < WARP; i++) {
        uint32_t c = __shfl_sync(ALL_LANES, count, i);
        mass_t m = __shfl_sync(ALL_LANES, sum, i);
        if (i < lane) {
            before += c;
            sum_before += m;
        }
    }
    after = before + count;
    sum_after = sum_before + sum;
    bool ends = count && (after >= max_count || sum_after >= mass);
    unsigned ending = __ballot_sync(ALL_LANES, ends), there = __ballot_sync(ALL_LANES, count > 0);
    /* Nobody's: the lightest there is. */
    int owner = ending ? __ffs(static_cast<int>(ending)) - 1 : -1;
    for (int i = 0; owner < 0 && i < WARP; i++)
        if (there >> (WARP - 1 - i) & 1) owner = WARP - 1 - i;
    if (lane == owner) {
        int bin = -1;
        uint32_t c = before, kept_count = before;
        mass_t m = sum_before, kept_sum = sum_before;
        for (int i = 1; i <= own; i++) {
            uint32_t here = s->bins.count[high - i];
            if (!here) continue;
            bin = high - i;
            kept_count = c;
            kept_sum = m;
            c += here;
            m += s->bins.mass[bin];
            if (c >= max_count || m >= mass) break;
        }
        s->prefix = s->prefix << width | static_cast<uint32_t>(bin);
        s->last_count = s->bins.count[bin];
        s->count = kept_count;
        s->sum = kept_sum;
    }
    __syncwarp();
}

/* The shortest prefix of the descending order with max_count tokens or a mass of `mass`; *kept is
 * its mass. */
static __device__ __forceinline__ struct threshold select(const struct weights &w,
                                                          struct sample_shared *s,
                                                          uint32_t max_count, mass_t mass,
                                                          mass_t *kept) {
    __syncthreads();
    if (threadIdx.x == 0) {
        s->prefix = s->count = 0;
        s->sum = 0;
    }
    for (int level = 0; level < LEVELS; level++) {
        int shift = level == 0 ? 19 : level == 1 ? 9 : 0, width = 11 - level, bins = 1 << width;
        for (int i = static_cast<int>(threadIdx.x); i < bins; i += THREADS) {
            s->bins.count[i] = 0;
            s->bins.mass[i] = 0;
        }
        __syncthreads();
        uint32_t prefix = s->prefix;
        for (int i = static_cast<int>(threadIdx.x); i < w.n; i += THREADS) {
            float v = weight_at(w, i);
            uint32_t bits = __float_as_uint(v);
            if (level && bits >> (shift + width) != prefix) continue;
            int bin = static_cast<int>(bits >> shift) & (bins - 1);
            atomicAdd(&s->bins.count[bin], 1u);
            atomicAdd(&s->bins.mass[bin], mass_of(v));
        }
        __syncthreads();
        if (warp_id() == 0) find_bin(s, width, max_count, mass);
        __syncthreads();
    }
    struct threshold t = {s->prefix, 0};
    mass_t one = mass_of(__uint_as_float(t.bits)), sum = s->sum;
    uint32_t most = min(s->last_count, max_count - s->count);
    if (one && sum < mass) {
        mass_t wanted = (mass - sum + one - 1) / one;
        t.ties = wanted < most ? static_cast<uint32_t>(wanted) : most;
    } else if (sum < mass) {
        t.ties = most;
    }
    *kept = sum + one * t.ties;
    return t;
}

/* ---- the draws of a job ---- */

/* Exclusive sums over chunks, by warp 0. */
template <class T> static __device__ __forceinline__ T exclusive_sums(T *values, int n) {
    int lane = lane_id(), begin = lane * CHUNKS_LANE;
    T own = 0, before = 0, all = 0;
    for (int i = begin; i < begin + CHUNKS_LANE && i < n; i++)
        own += values[i];
    for (int i = 0; i < WARP; i++) {
        T other = __shfl_sync(ALL_LANES, own, i);
        if (i < lane) before += other;
        all += other;
    }
    for (int i = begin; i < begin + CHUNKS_LANE && i < n; i++) {
        T here = values[i];
        values[i] = before;
        before += here;
    }
    return all;
}

/* Mass of token i of 32 that the lanes look at, 0 where it isn't kept; *ties counts equal weights.
 */
static __device__ __forceinline__ mass_t kept_mass(const struct weights &w,
                                                   const struct threshold &t, int i, int end,
                                                   uint32_t *ties) {
    float v = i < end ? weight_at(w, i) : 0.0f;
    uint32_t bits = __float_as_uint(v);
    unsigned equal = __ballot_sync(ALL_LANES, i < end && bits == t.bits);
    uint32_t rank = *ties + static_cast<uint32_t>(__popc(equal & ((1u << lane_id()) - 1u)));
    *ties += static_cast<uint32_t>(__popc(equal));
    bool kept = i < end && (bits > t.bits || (bits == t.bits && rank < t.ties));
    return kept ? mass_of(v) : 0;
}

/* Masses of chunks, and what lies before each. */
static __device__ __forceinline__ void sum_chunks(const struct weights &w,
                                                  const struct threshold &t,
                                                  struct sample_shared *s, int span, int n_chunks) {
    __syncthreads();
    for (int c = warp_id(); c < n_chunks; c += WARPS) {
        int end = min((c + 1) * span, w.n);
        uint32_t equal = 0;
        for (int i = c * span; i < end; i += WARP) {
            int at = i + lane_id();
            bool is = at < end && __float_as_uint(weight_at(w, at)) == t.bits;
            equal += static_cast<uint32_t>(__popc(__ballot_sync(ALL_LANES, is)));
        }
        if (lane_id() == 0) s->chunks.ties[c] = equal;
    }
    __syncthreads();
    if (warp_id() == 0) exclusive_sums(s->chunks.ties, n_chunks);
    __syncthreads();
    for (int c = warp_id(); c < n_chunks; c += WARPS) {
        int end = min((c + 1) * span, w.n);
        uint32_t ties = s->chunks.ties[c];
        mass_t sum = 0;
        for (int i = c * span; i < end; i += WARP)
            sum += kept_mass(w, t, i + lane_id(), end, &ties);
        sum = warp_sum(sum);
        if (lane_id() == 0) s->chunks.before[c] = sum;
    }
    __syncthreads();
    if (warp_id() == 0) {
        mass_t all = exclusive_sums(s->chunks.before, n_chunks);
        if (lane_id() == 0) s->chunks.before[n_chunks] = s->all = all;
    }
    __syncthreads();
}

/* One warp: the first token, in order of ids, at which the kept mass passes bits / 2^24 of it. */
static __device__ __forceinline__ int find_token(const struct weights &w, const struct threshold &t,
                                                 const struct sample_shared *s, int span,
                                                 int n_chunks, uint32_t bits) {
    mass_t all = s->all, target = __umul64hi(all, bits) << 40 | all * bits >> 24;
    int chunk = 0;
    for (int i = 0; i < n_chunks; i += WARP) {
        int c = i + lane_id();
        bool here =
            c < n_chunks && s->chunks.before[c] <= target && target < s->chunks.before[c + 1];
        unsigned found = __ballot_sync(ALL_LANES, here);
        if (found) {
            chunk = i + __ffs(static_cast<int>(found)) - 1;
            break;
        }
    }
    int end = min((chunk + 1) * span, w.n);
    uint32_t ties = s->chunks.ties[chunk];
    mass_t before = s->chunks.before[chunk];
    for (int i = chunk * span; i < end; i += WARP) {
        mass_t sum = kept_mass(w, t, i + lane_id(), end, &ties);
        for (int k = 1; k < WARP; k *= 2) {
            mass_t lower = __shfl_up_sync(ALL_LANES, sum, k);
            if (lane_id() >= k) sum += lower;
        }
        unsigned past = __ballot_sync(ALL_LANES, before + sum > target);
        if (past) return i + __ffs(static_cast<int>(past)) - 1;
        before += __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
    return -1;
}

/* Whether a draw is made from these logits, by their number among those that may be. */
static __device__ __forceinline__ bool is_of(const struct launch_sample &a,
                                             const struct launch_draw &d, int logit_row) {
    return !a.founders || a.founders[d.logit_row] == logit_row;
}

/* Tokens of the job's draws from this row into their results. */
static __device__ __forceinline__ void draw_job(const struct launch_sample &a,
                                                const struct launch_job &job, const float *logits,
                                                int logit_row, struct sample_shared *s) {
    int best;
    struct weights w = {logits, a.n_vocab, 0, 0};
    w.top = block_next(logits, a.n_vocab, INFINITY, -1, s, &best);
    if (best < 0) best = 0; /* no number among them */
    bool greedy = job.temperature <= 0 || w.top == -INFINITY || w.top == INFINITY;
    int span = 1, n_chunks = 1;
    struct threshold t = {0, 0};
    if (!greedy) {
        w.factor = LOG2_E * fminf(1.0f / job.temperature, 1e30f);
        mass_t all = 0;
        bool has_k = job.top_k > 0 && job.top_k < a.n_vocab, has_p = job.top_p < 1;
        if (has_p && !has_k) {
            for (int i = static_cast<int>(threadIdx.x); i < a.n_vocab; i += THREADS)
                all += mass_of(weight_at(w, i));
            all = block_mass(all, s);
        }
        if (has_k) t = select(w, s, static_cast<uint32_t>(job.top_k), NO_MASS, &all);
        if (has_p) {
            double wanted = static_cast<double>(job.top_p) * static_cast<double>(all);
            mass_t mass = wanted < 1 ? 1 : static_cast<mass_t>(wanted);
            struct threshold p = select(w, s, 0xffffffffu, mass, &all);
            /* Both are prefixes of one order: the shorter one. */
            if (!has_k || p.bits > t.bits || (p.bits == t.bits && p.ties < t.ties)) t = p;
        }
        if (!has_k && !has_p) t.ties = 0xffffffffu;
        uint32_t least = __float_as_uint(fminf(job.min_p, 1.0f));
        if (job.min_p > 0 && least > t.bits) {
            t.bits = least;
            t.ties = 0xffffffffu;
        }
        span = (a.n_vocab + MAX_CHUNKS - 1) / MAX_CHUNKS;
        span = (span + WARP - 1) / WARP * WARP;
        n_chunks = (a.n_vocab + span - 1) / span;
        sum_chunks(w, t, s, span, n_chunks);
    }
    for (int i = warp_id(); i < job.n_draws; i += WARPS) {
        struct launch_draw d = a.draws[job.first_draw + i];
        if (!is_of(a, d, logit_row)) continue;
        int token = best;
        if (!greedy) {
            int found =
                find_token(w, t, s, span, n_chunks, draw_bits(d.seed, d.position, d.candidate));
            if (found >= 0) token = found;
        }
        if (lane_id() == 0) a.out[d.index].token = token;
    }
}

/* ---- penalties ---- */

/* Changes the row's logits in place and keeps what they were; undone by restore(). */
static __device__ __forceinline__ void change(const struct launch_sample &a,
                                              const struct launch_job &job, float *logits) {
    const struct launch_change *list = a.changes + job.first_change;
    float *saved = a.saved + job.first_change;
    int n = job.n_seen + job.n_bias + job.n_forbidden, thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < n; i += THREADS)
        saved[i] = logits[list[i].token];
    __syncthreads();
    for (int i = thread; i < job.n_seen; i += THREADS) {
        float l = logits[list[i].token];
        if (job.repetition != 1.0f) l = l > 0 ? l / job.repetition : l * job.repetition;
        if (list[i].count > 0)
            l -= job.presence + job.frequency * static_cast<float>(list[i].count);
        logits[list[i].token] = l;
    }
    __syncthreads();
    list += job.n_seen;
    for (int i = thread; i < job.n_bias; i += THREADS)
        atomicAdd(&logits[list[i].token], __uint_as_float(static_cast<uint32_t>(list[i].count)));
    __syncthreads();
    list += job.n_bias;
    for (int i = thread; i < job.n_forbidden; i += THREADS)
        logits[list[i].token] = -INFINITY;
    __syncthreads();
}

static __device__ __forceinline__ void restore(const struct launch_sample &a,
                                               const struct launch_job &job, float *logits) {
    int n = job.n_seen + job.n_bias + job.n_forbidden;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n; i += THREADS)
        logits[a.changes[job.first_change + i].token] = a.saved[job.first_change + i];
    __syncthreads();
}

/* what      for each job of a row: penalties, temperature, top-k, top-p, min-p; then for each of
 * its draws one inverse-CDF look-up in order of tokens; log-probabilities of the raw row layout
 * logits f32 [*][n_vocab]; jobs, draws and changes as struct launch_sample has them tile      one
 * block a row, 512 threads; 24 KiB of shared memory: a histogram for the radix select (11, 10 and 9
 * bits of a weight's 30), then sums of up to 1,024 chunks bytes     4 n_vocab a row and pass;
 * passes, the first from memory, the others from L2: maximum 1, top-k 3, top-p 3 or 4, sums 2; each
 * draw 4 n_vocab / 1024 more bound     memory; with few rows latency order     masses are integers
 * in units of 2^-40, so no order changes them: the result depends on the row, the settings and
 * (seed, candidate, position) alone source    the filters as in kernels/cpu/sample.c; Philox of
 * Salmon et al., SC 2011 */
/* One block a multiprocessor: with registers for two, sm_90a spills. */
static __global__ void __launch_bounds__(THREADS, 1) sample(struct launch_sample a) {
    SHARED(struct sample_shared, shared, 1);
    struct sample_shared *s = shared;
    struct launch_row row = a.row[blockIdx.x];
    if (a.founders && a.founders[row.logit_row] != row.logit_row) return;
    int at = (a.places ? a.places[row.logit_row] : row.logit_row) - a.first;
    if (at < 0 || at >= a.n_logits) return;
    float *logits = a.logits + static_cast<size_t>(at) * static_cast<size_t>(a.n_vocab);
    float limit = INFINITY;
    int token = -1;
    for (int i = 0; i < row.n_top; i++) {
        limit = block_next(logits, a.n_vocab, limit, token, s, &token);
        if (threadIdx.x == 0) {
            s->top_logit[i] = limit;
            s->top_token[i] = token;
        }
    }
    for (int j = row.first_job; j < row.first_job + row.n_jobs; j++) {
        struct launch_job job = a.jobs[j];
        bool any = false;
        for (int i = 0; i < job.n_draws && !any; i++)
            any = is_of(a, a.draws[job.first_draw + i], row.logit_row);
        if (!any) continue;
        bool changes = job.n_seen + job.n_bias + job.n_forbidden > 0;
        if (changes) change(a, job, logits);
        draw_job(a, job, logits, row.logit_row, s);
        if (changes) restore(a, job, logits);
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < job.n_draws; i += THREADS) {
            struct launch_draw d = a.draws[job.first_draw + i];
            if (!is_of(a, d, row.logit_row)) continue;
            struct launch_drawn *out = &a.out[d.index];
            float sum = a.sums[at];
            out->logprob = logits[out->token] - sum;
            int n = min(d.n_top, a.n_vocab);
            out->n_top = n;
            for (int k = 0; k < n; k++) {
                out->top_token[k] = s->top_token[k];
                out->top_logprob[k] = s->top_logit[k] - sum;
            }
        }
        __syncthreads();
    }
}

void launch_sample(void *stream, const struct launch_sample *a) {
    LAUNCH(sample, dim3(static_cast<unsigned>(a->rows)), dim3(THREADS), 0, stream, *a);
}
