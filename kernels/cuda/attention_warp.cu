/* Attention of few queries against their own keys: what each candidate has written itself. */
#include "kernels/cuda/attention.cuh"

static constexpr int WARPS = 4, THREADS = WARPS * WARP, STAGES = 3;

template <int D> static constexpr size_t shared_bytes() {
    return static_cast<size_t>(WARPS) * STAGES * sizeof(uint16_t) * 2 * LAUNCH_BLOCK * D;
}

/* what      as attention_tile.cu, at most 16 queries an item (a candidate's heads of one KV head, 4
 *           or 6 or 7 of them, padded to 16): one warp each, going on from the state at item.begin
 *           where that lies within a split
 * layout    q f32 [n][stride]; K, V bf16 pages; states f32, see struct launch_attention
 * tile      16 queries x 16 keys, three blocks in flight a warp; 128 threads are 4 items that have
 *           nothing to do with each other; shared 4 x 3 x 64 D bytes: 48 KiB (D = 64), 96 KiB
 *           (D = 128); grid (ceil(items / 4), KV heads)
 * bytes     per item: 4 D keys + 16 (8 D + 8)   flops 4 x 16 D keys, a fourth to a half of them
 * wanted bound     memory: 16 flop/B order     keys in ascending order, 16 at a time; independent
 * of n */
template <int D>
static __global__ void __launch_bounds__(THREADS) attention_warp(struct launch_attention a) {
    SHARED_DYNAMIC(uint16_t, shared);
    constexpr int block_elements = 2 * LAUNCH_BLOCK * D;
    int index = static_cast<int>(blockIdx.x) * WARPS + warp_id();
    if (index >= a.batch.counts->n_warps) return; /* the whole warp */
    struct launch_item item = a.batch.warps[index];
    int kv_head = static_cast<int>(blockIdx.y);
    const int32_t *table = a.batch.tables + a.batch.table_of_row[item.first_row];
    uint16_t *tiles = shared + warp_id() * STAGES * block_elements;
    attention_state<D> s;
    attention_begin<D>(a, item, kv_head, item.first_query, s);

    int n_blocks = (item.end - item.begin + LAUNCH_BLOCK - 1) / LAUNCH_BLOCK;
    auto load = [&](int i) {
        if (i < n_blocks)
            tile_load<D>(a, table, kv_head, item.begin + i * LAUNCH_BLOCK, item.end,
                         tiles + i % STAGES * block_elements, lane_id(), WARP);
        copy_commit();
    };
    for (int i = 0; i < STAGES - 1; i++)
        load(i);
    for (int i = 0; i < n_blocks; i++) {
        load(i + STAGES - 1);
        copy_wait<STAGES - 1>();
        __syncwarp();
        attend<D>(s, tiles + i % STAGES * block_elements, item.begin + i * LAUNCH_BLOCK, a.scale);
        __syncwarp();
    }
    attention_end<D>(a, item, kv_head, item.first_query, s);
}

template <int D> static void start(void *stream, const struct launch_attention *a) {
    auto kernel = attention_warp<D>;
    LAUNCH(kernel,
           dim3(static_cast<unsigned>((a->items + WARPS - 1) / WARPS),
                static_cast<unsigned>(a->kv.n_kv_heads)),
           dim3(THREADS), shared_bytes<D>(), stream, *a);
}

void launch_attention_warp(void *stream, const struct launch_attention *a) {
    if (a->kv.head_dim == 64)
        start<64>(stream, a);
    else
        start<128>(stream, a);
}

bool launch_prepare_warp(size_t most) {
    return allow_shared(attention_warp<64>, shared_bytes<64>(), most) &&
           allow_shared(attention_warp<128>, shared_bytes<128>(), most);
}
