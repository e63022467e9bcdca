/* Attention of many queries against the same keys: prompts, and the prompt that siblings share. */
#include "kernels/cuda/attention.cuh"

static constexpr int WARPS = LAUNCH_TILE_ROWS / LAUNCH_WARP_ROWS, THREADS = WARPS * WARP;
static constexpr int STAGE_BLOCKS = 4; /* KV blocks of one load */

template <int D, bool fp8> static constexpr size_t shared_bytes() {
    return 2 * STAGE_BLOCKS * PAGE_BYTES<D, fp8>;
}

/* what      for queries (row, head) of one KV head: states of softmax(q K^T scale) V over the keys
 *           begin … end - 1 of the item, each query up to its own position
 * layout    q f32 [n][stride]; K, V pages, bf16 or fp8; states f32, see struct launch_attention
 * tile      64 queries (row-major, then head of the group) x 64 keys a stage, two stages; 128
 *           threads, each warp 16 queries; shared 2 x 64 x 2 x 2 D bytes: 32 KiB (D = 64), 64 KiB
 *           (D = 128), with fp8 keys half and 1 KiB; grid (items, KV heads)
 * bytes     per item: 4 D keys (fp8: 2 D + 8) + 64 (4 D + 4 D + 8)   flops 4 x 64 D keys
 *           intensity 64 flop/B of keys and more
 * bound     shared prompts: the tensor cores; 64 queries are too few for that where a prompt has
 *           few siblings, then latency
 * order     keys in ascending order, 16 at a time; independent of n and of who shares the keys */
template <int D, bool fp8>
static __global__ void __launch_bounds__(THREADS) attention_tile(struct launch_attention a) {
    SHARED_DYNAMIC(uint8_t, shared);
    constexpr int page_bytes = PAGE_BYTES<D, fp8>;
    if (static_cast<int>(blockIdx.x) >= a.batch.counts->n_tiles) return;
    struct launch_item item = a.batch.tiles[blockIdx.x];
    int kv_head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    int first = item.first_query + warp_id() * LAUNCH_WARP_ROWS;
    const int32_t *table = a.batch.tables + a.batch.table_of_row[item.first_row];
    attention_state<D> s;
    attention_begin<D, fp8>(a, item, kv_head, first, s);
    int seen = max(s.limit[0], s.limit[1]); /* of this lane */

    int n_blocks = (item.end - item.begin + LAUNCH_BLOCK - 1) / LAUNCH_BLOCK;
    int n_stages = (n_blocks + STAGE_BLOCKS - 1) / STAGE_BLOCKS;
    auto load = [&](int stage) {
        uint8_t *to = shared + stage % 2 * STAGE_BLOCKS * page_bytes;
        int end = min((stage + 1) * STAGE_BLOCKS, n_blocks);
        for (int i = stage * STAGE_BLOCKS; i < end; i++, to += page_bytes)
            page_load<D, fp8>(a, table, kv_head, item.begin + i * LAUNCH_BLOCK, item.end, to,
                              thread, THREADS);
    };
    load(0);
    copy_commit();
    for (int stage = 0; stage < n_stages; stage++) {
        if (stage + 1 < n_stages) load(stage + 1);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        const uint8_t *page = shared + stage % 2 * STAGE_BLOCKS * page_bytes;
        int end = min((stage + 1) * STAGE_BLOCKS, n_blocks);
        for (int i = stage * STAGE_BLOCKS; i < end; i++, page += page_bytes) {
            int key = item.begin + i * LAUNCH_BLOCK;
            /* Wholly masked for all 16 queries: nothing would change. */
            if (!__any_sync(ALL_LANES, key < seen)) continue;
            attend<D, fp8>(s, page, key, a.scale);
        }
        __syncthreads();
    }
    attention_end<D, fp8>(a, item, kv_head, first, s);
}

template <int D, bool fp8> static void start(void *stream, const struct launch_attention *a) {
    auto tile = attention_tile<D, fp8>;
    constexpr size_t shared = shared_bytes<D, fp8>();
    LAUNCH(tile, dim3(static_cast<unsigned>(a->items), static_cast<unsigned>(a->kv.n_kv_heads)),
           dim3(THREADS), shared, stream, *a);
}

void launch_attention_tile(void *stream, const struct launch_attention *a) {
    if (a->kv.head_dim == 64)
        a->kv.fp8 ? start<64, true>(stream, a) : start<64, false>(stream, a);
    else
        a->kv.fp8 ? start<128, true>(stream, a) : start<128, false>(stream, a);
}

bool launch_has_head_dim(int head_dim) { return head_dim == 64 || head_dim == 128; }

template <int D, bool fp8> static bool prepare(size_t most) {
    return allow_shared(attention_tile<D, fp8>, shared_bytes<D, fp8>(), most);
}
bool launch_prepare_tile(size_t most) {
    return prepare<64, false>(most) && prepare<64, true>(most) && prepare<128, false>(most) &&
           prepare<128, true>(most);
}
