#include "kernels/cuda/items.h"

#include "kernels/check.h"

static int smaller(int a, int b) { return a < b ? a : b; }

void items_most(int n_rows, int group, int n_splits, int *tiles, int *warps) {
    /* A unit of n rows has at most n group / 64 + 1 tiles a split, and units have two rows at
     * least. */
    *tiles = (n_rows * group / LAUNCH_TILE_ROWS + n_rows / 2 + 1) * n_splits;
    *warps = n_rows * n_splits;
}

struct range {
    int first_row, n_rows, begin, end;
};

/* Keys of one split for the rows: tiles of their queries, each up to the last key that one sees. */
static void add_tiles(const struct kernels_batch *b, int group, struct range r, struct items *out) {
    for (int query = 0; query < r.n_rows * group; query += LAUNCH_TILE_ROWS) {
        int last = smaller(r.n_rows - 1, (query + LAUNCH_TILE_ROWS - 1) / group);
        int end = smaller(r.end, b->positions[r.first_row + last] + 1);
        if (end <= r.begin) continue;
        out->tiles[out->n_tiles++] = (struct launch_item){.first_row = r.first_row,
                                                          .n_rows = r.n_rows,
                                                          .first_query = query,
                                                          .begin = r.begin,
                                                          .end = end};
    }
}

static void add(const struct kernels_batch *b, int group, int split, struct range r,
                struct items *out) {
    for (int at = r.begin; at < r.end;) {
        struct range part = {r.first_row, r.n_rows, at, smaller(r.end, (at / split + 1) * split)};
        if (r.n_rows > 1)
            add_tiles(b, group, part, out);
        else
            out->warps[out->n_warps++] = (struct launch_item){
                .first_row = r.first_row, .n_rows = 1, .begin = part.begin, .end = part.end};
        at = part.end;
    }
}

void items_make(const struct kernels_batch *b, int group, int split, struct items *out) {
    out->n_tiles = out->n_warps = 0;
    for (int row = 0, g = 0; row < b->n_rows;) {
        struct check_unit u = check_unit_at(b, row, &g);
        int end = row + u.n_rows, shared = u.n_rows > 1 ? u.n_shared * KERNELS_BLOCK : 0;
        if (u.one_sequence) {
            add(b, group, split, (struct range){row, u.n_rows, 0, b->positions[end - 1] + 1}, out);
        } else {
            if (shared) add(b, group, split, (struct range){row, u.n_rows, 0, shared}, out);
            for (int i = row; i < end; i++)
                add(b, group, split, (struct range){i, 1, shared, b->positions[i] + 1}, out);
        }
        row = end;
    }
}
