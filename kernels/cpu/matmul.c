#include "kernels/cpu/matmul.h"

struct matmul_tile matmul_tile(int n_rows, int tile_rows, int row) {
    int n_tiles = (n_rows + tile_rows - 1) / tile_rows;
    int size = n_rows / n_tiles, larger = n_rows % n_tiles;
    if (row < larger * (size + 1))
        return (struct matmul_tile){.first = row / (size + 1) * (size + 1), .rows = size + 1};
    return (struct matmul_tile){.first = row - (row - larger * (size + 1)) % size, .rows = size};
}
