/* The step's rows, from those that may be: where candidates drew equal tokens after equal texts,
 * one row goes on for all of them. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* How many threads before this one have their flag set; *all: how many there are.  The same for all
 * orders of threads. */
static __device__ __forceinline__ int rank_of(bool flag, int *scratch, int *all) {
    unsigned set = __ballot_sync(ALL_LANES, flag);
    int rank = __popc(set & ((1u << lane_id()) - 1u));
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = __popc(set);
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < WARPS; i++) {
        if (i < warp_id()) rank += scratch[i];
        sum += scratch[i];
    }
    *all = sum;
    return rank;
}

/* The first row of r's family whose token is r's. */
static __device__ __forceinline__ int founder_of(const struct launch_split &a, int r) {
    int at = a.families && a.families[r] >= 0 ? a.families[r] : r;
    while (a.token[at] != a.token[r])
        at++;
    return at;
}

static __device__ __forceinline__ int split_rows(const struct launch_split &a, int *scratch) {
    int live = 0, all;
    for (int base = 0; base < a.n_rows; base += THREADS) {
        int r = base + static_cast<int>(threadIdx.x);
        bool there = r < a.n_rows;
        int founder = there ? founder_of(a, r) : -1;
        int rank = live + rank_of(there && founder == r, scratch, &all);
        if (there) {
            a.founder[r] = founder;
            a.before[r] = rank;
        }
        if (there && founder == r) {
            a.live.tokens[rank] = a.token[r];
            a.live.positions[rank] = a.positions[r];
            a.live.table_of_row[rank] = a.table_of_row[r];
        }
        live += all;
    }
    if (threadIdx.x == 0) a.before[a.n_rows] = live;
    return live;
}

static __device__ __forceinline__ int split_logits(const struct launch_split &a, int *scratch) {
    int live = 0, all;
    for (int base = 0; base < a.n_logits; base += THREADS) {
        int l = base + static_cast<int>(threadIdx.x);
        bool there = l < a.n_logits;
        int r = there ? a.logit_rows[l] : 0, founder = there ? a.founder[r] : -1;
        int rank = live + rank_of(founder == r, scratch, &all);
        /* A family's logits follow each other as its rows do. */
        if (there) a.founders[l] = l - (r - founder);
        if (founder == r) {
            a.live.logit_rows[rank] = a.before[r];
            a.places[l] = rank;
        }
        live += all;
    }
    return live;
}

/* Items of rows that live, and of the others nothing. */
static __device__ __forceinline__ int split_items(const struct launch_split &a,
                                                  const struct launch_item *items, int n,
                                                  struct launch_item *to, int *scratch) {
    int kept = 0, all;
    for (int base = 0; base < n; base += THREADS) {
        int i = base + static_cast<int>(threadIdx.x);
        struct launch_item item = {0, 0, 0, 0, 0};
        if (i < n) {
            item = items[i];
            int first = a.before[item.first_row];
            item.n_rows = a.before[item.first_row + item.n_rows] - first;
            item.first_row = first;
        }
        bool keeps = item.first_query < item.n_rows * a.group;
        int rank = kept + rank_of(keeps, scratch, &all);
        if (keeps) to[rank] = item;
        kept += all;
    }
    return kept;
}

/* Blocks to copy: where a row other than its family's first begins in the middle of one. */
static __device__ __forceinline__ void split_blocks(const struct launch_split &a, int *scratch) {
    int n = 0, all;
    for (int base = 0; base < a.n_rows; base += THREADS) {
        int r = base + static_cast<int>(threadIdx.x);
        bool copies = r < a.n_rows && a.families && a.families[r] >= 0 && a.families[r] != r &&
                      a.founder[r] == r && a.positions[r] % LAUNCH_BLOCK != 0;
        int rank = n + rank_of(copies, scratch, &all);
        if (copies) {
            int block = a.positions[r] / LAUNCH_BLOCK;
            a.pairs[2 * rank] = a.tables[a.table_of_row[a.families[r]] + block];
            a.pairs[2 * rank + 1] = a.tables[a.table_of_row[r] + block];
        }
        n += all;
    }
    if (threadIdx.x == 0) *a.n_pairs = n;
}

/* what      the trie's split: a row of a family lives if none before it in the family has its
 * token, which is the draw that it names; live rows, their logits and their work items, moved
 *           together; which logits each draw is made from; the blocks that a fork begins with
 * layout    as struct launch_split has it; a row's table stays where it is in `tables`
 * tile      block 0, 256 threads, a row or an item a thread and turn, ranks by ballots; the other
 *           blocks bring the tables from the upload to their place
 * bytes     8 (rows + logits) + 40 items + 8 table entries   bound: latency: 5 us for 256 rows
 * order     ranks are sums of integers: the result depends on tokens and order of rows alone
 * source    engine/decode.c's settle_position(), which finds the same founders on the host */
static __global__ void __launch_bounds__(THREADS) split(struct launch_split a) {
    SHARED(int, scratch, WARPS);
    int thread = static_cast<int>(threadIdx.x);
    if (blockIdx.x) {
        int step = (static_cast<int>(gridDim.x) - 1) * THREADS;
        for (int i = (static_cast<int>(blockIdx.x) - 1) * THREADS + thread; i < a.n_tables;
             i += step)
            a.live.tables[i] = a.tables[i];
        return;
    }
    for (int r = thread; r < a.n_rows; r += THREADS)
        a.token[r] = a.families && a.families[r] >= 0 ? a.drawn[a.draws[r]].token : a.tokens[r];
    __syncthreads();
    struct launch_counts counts;
    counts.n_rows = split_rows(a, scratch);
    __syncthreads();
    counts.n_logits = split_logits(a, scratch);
    counts.n_tiles = split_items(a, a.tiles, a.n_tiles, a.live.tiles, scratch);
    counts.n_warps = split_items(a, a.warps, a.n_warps, a.live.warps, scratch);
    split_blocks(a, scratch);
    if (thread == 0) *a.live.counts = counts;
}

void launch_split(void *stream, const struct launch_split *a) {
    int copiers = (a->n_tables + 8 * THREADS - 1) / (8 * THREADS);
    LAUNCH(split, dim3(static_cast<unsigned>(1 + copiers)), dim3(THREADS), 0, stream, *a);
}
