/* Attention of many queries against the same keys: prompts, and the prompt that siblings share. */
#include "kernels/cuda/attention.cuh"

static constexpr int WARPS = LAUNCH_TILE_ROWS / LAUNCH_WARP_ROWS, THREADS = WARPS * WARP;
static constexpr int STAGE_BLOCKS = 4; /* KV blocks of one load */

template <int D> static constexpr size_t shared_bytes() {
    return 2 * STAGE_BLOCKS * sizeof(uint16_t) * 2 * LAUNCH_BLOCK * D;
}

/* what      for queries (row, head) of one KV head: states of softmax(q K^T scale) V over the keys
 *           begin … end - 1 of the item, each query up to its own position
 * layout    q f32 [n][stride]; K, V bf16 pages; states f32, see struct launch_attention
 * tile      64 queries (row-major, then head of the group) x 64 keys a stage, two stages; 128
 *           threads, each warp 16 queries; shared 2 x 64 x 2 x 2 D bytes: 32 KiB (D = 64), 64 KiB
 *           (D = 128); grid (items, KV heads)
 * bytes     per item: 4 D keys + 64 (4 D + 4 D + 8)   flops 4 x 64 D keys   intensity 64 flop/B of
 *           keys and more
 * bound     shared prompts: the tensor cores; 64 queries are too few for that where a prompt has
 *           few siblings, then latency
 * order     keys in ascending order, 16 at a time; independent of n and of who shares the keys */
template <int D>
static __global__ void __launch_bounds__(THREADS) attention_tile(struct launch_attention a) {
    SHARED_DYNAMIC(uint16_t, shared);
    constexpr int block_elements = 2 * LAUNCH_BLOCK * D;
    if (static_cast<int>(blockIdx.x) >= a.batch.counts->n_tiles) return;
    struct launch_item item = a.batch.tiles[blockIdx.x];
    int kv_head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    int first = item.first_query + warp_id() * LAUNCH_WARP_ROWS;
    const int32_t *table = a.batch.tables + a.batch.table_of_row[item.first_row];
    attention_state<D> s;
    attention_begin<D>(a, item, kv_head, first, s);
    int seen = max(s.limit[0], s.limit[1]); /* of this lane */

    int n_blocks = (item.end - item.begin + LAUNCH_BLOCK - 1) / LAUNCH_BLOCK;
    int n_stages = (n_blocks + STAGE_BLOCKS - 1) / STAGE_BLOCKS;
    auto load = [&](int stage) {
        uint16_t *to = shared + stage % 2 * STAGE_BLOCKS * block_elements;
        int end = min((stage + 1) * STAGE_BLOCKS, n_blocks);
        for (int i = stage * STAGE_BLOCKS; i < end; i++, to += block_elements)
            tile_load<D>(a, table, kv_head, item.begin + i * LAUNCH_BLOCK, item.end, to, thread,
                         THREADS);
    };
    load(0);
    copy_commit();
    for (int stage = 0; stage < n_stages; stage++) {
        if (stage + 1 < n_stages) load(stage + 1);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        const uint16_t *tile = shared + stage % 2 * STAGE_BLOCKS * block_elements;
        int end = min((stage + 1) * STAGE_BLOCKS, n_blocks);
        for (int i = stage * STAGE_BLOCKS; i < end; i++, tile += block_elements) {
            int key = item.begin + i * LAUNCH_BLOCK;
            /* Wholly masked for all 16 queries: nothing would change. */
            if (!__any_sync(ALL_LANES, key < seen)) continue;
            attend<D>(s, tile, key, a.scale);
        }
        __syncthreads();
    }
    attention_end<D>(a, item, kv_head, first, s);
}

template <int D> static void start(void *stream, const struct launch_attention *a) {
    auto kernel = attention_tile<D>;
    LAUNCH(kernel, dim3(static_cast<unsigned>(a->items), static_cast<unsigned>(a->kv.n_kv_heads)),
           dim3(THREADS), shared_bytes<D>(), stream, *a);
}

void launch_attention_tile(void *stream, const struct launch_attention *a) {
    if (a->kv.head_dim == 64)
        start<64>(stream, a);
    else
        start<128>(stream, a);
}

bool launch_has_head_dim(int head_dim) { return head_dim == 64 || head_dim == 128; }

bool launch_prepare_tile(size_t most) {
    return allow_shared(attention_tile<64>, shared_bytes<64>(), most) &&
           allow_shared(attention_tile<128>, shared_bytes<128>(), most);
}
