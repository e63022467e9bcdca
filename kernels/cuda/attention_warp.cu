/* Attention of few queries against their own keys: what each candidate has written itself. */
#include "kernels/cuda/attention.cuh"

static constexpr int WARPS = 4, THREADS = WARPS * WARP, STAGES = 3;

template <int D, bool fp8> static constexpr size_t shared_bytes() {
    return static_cast<size_t>(WARPS) * STAGES * PAGE_BYTES<D, fp8>;
}

/* what      as attention_tile.cu, at most 16 queries an item (a candidate's heads of one KV head, 4
 *           or 6 or 7 of them, padded to 16): one warp each, going on from the state at item.begin
 *           where that lies within a split
 * layout    q f32 [n][stride]; K, V pages, bf16 or fp8; states f32, see struct launch_attention
 * tile      16 queries x 16 keys, three blocks in flight a warp; 128 threads are 4 items that have
 *           nothing to do with each other; shared 4 x 3 x 64 D bytes: 48 KiB (D = 64), 96 KiB
 *           (D = 128), with fp8 keys half and 1.5 KiB; grid (ceil(items / 4), KV heads)
 * bytes     per item: 4 D keys (fp8: 2 D + 8) + 16 (8 D + 8)
 * flops     4 x 16 D keys, a fourth to a half of them wanted
 * bound     memory: 16 flop/B, with fp8 keys 32
 * order     keys in ascending order, 16 at a time; independent of n */
template <int D, bool fp8>
static __global__ void __launch_bounds__(THREADS) attention_warp(struct launch_attention a) {
    SHARED_DYNAMIC(uint8_t, shared);
    constexpr int page_bytes = PAGE_BYTES<D, fp8>;
    int index = static_cast<int>(blockIdx.x) * WARPS + warp_id();
    if (index >= a.batch.counts->n_warps) return; /* the whole warp */
    struct launch_item item = a.batch.warps[index];
    int kv_head = static_cast<int>(blockIdx.y);
    const int32_t *table = a.batch.tables + a.batch.table_of_row[item.first_row];
    uint8_t *pages = shared + warp_id() * STAGES * page_bytes;
    attention_state<D> s;
    attention_begin<D, fp8>(a, item, kv_head, item.first_query, s);

    int n_blocks = (item.end - item.begin + LAUNCH_BLOCK - 1) / LAUNCH_BLOCK;
    auto load = [&](int i) {
        if (i < n_blocks)
            page_load<D, fp8>(a, table, kv_head, item.begin + i * LAUNCH_BLOCK, item.end,
                              pages + i % STAGES * page_bytes, lane_id(), WARP);
        copy_commit();
    };
    for (int i = 0; i < STAGES - 1; i++)
        load(i);
    for (int i = 0; i < n_blocks; i++) {
        load(i + STAGES - 1);
        copy_wait<STAGES - 1>();
        __syncwarp();
        attend<D, fp8>(s, pages + i % STAGES * page_bytes, item.begin + i * LAUNCH_BLOCK, a.scale);
        __syncwarp();
    }
    attention_end<D, fp8>(a, item, kv_head, item.first_query, s);
}

template <int D, bool fp8> static void start(void *stream, const struct launch_attention *a) {
    auto warp = attention_warp<D, fp8>;
    constexpr size_t shared = shared_bytes<D, fp8>();
    LAUNCH(warp,
           dim3(static_cast<unsigned>((a->items + WARPS - 1) / WARPS),
                static_cast<unsigned>(a->kv.n_kv_heads)),
           dim3(THREADS), shared, stream, *a);
}

void launch_attention_warp(void *stream, const struct launch_attention *a) {
    if (a->kv.head_dim == 64)
        a->kv.fp8 ? start<64, true>(stream, a) : start<64, false>(stream, a);
    else
        a->kv.fp8 ? start<128, true>(stream, a) : start<128, false>(stream, a);
}

template <int D, bool fp8> static bool prepare(size_t most) {
    return allow_shared(attention_warp<D, fp8>, shared_bytes<D, fp8>(), most);
}
bool launch_prepare_warp(size_t most) {
    return prepare<64, false>(most) && prepare<64, true>(most) && prepare<128, false>(most) &&
           prepare<128, true>(most);
}
