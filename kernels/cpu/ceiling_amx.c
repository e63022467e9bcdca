#include "kernels/cpu/ceiling.h"

#if defined(__AMX_INT8__) || defined(__AMXINT8__) /* GCC; clang 14 */
#include "kernels/cpu/tiles.h"

enum { ROWS = 16, ROW_BYTES = 64, SUMS = 4, PRODUCTS = ROWS * ROWS * ROW_BYTES };

uint64_t ceiling_amx(int rounds) {
    struct tiles c = {0};
    static const int8_t ones[ROWS][ROW_BYTES] = {{1}};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = ROW_BYTES;
        c.rows[i] = ROWS;
    }
    tiles_configure(&c);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, ones, ROW_BYTES);
    _tile_loadd(5, ones, ROW_BYTES);
    _tile_loadd(6, ones, ROW_BYTES);
    _tile_loadd(7, ones, ROW_BYTES);
    for (int r = 0; r < rounds; r++) {
        _tile_dpbssd(0, 4, 6); /* four independent sums, so that no product waits for another */
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return (uint64_t)rounds * SUMS * PRODUCTS;
}
#endif
