#include "kernels/check.h"

#include <string.h>

static bool check_rows(const struct kernels_batch *b, int n_blocks, struct err *e) {
    for (int s = 0; s < b->n_tables; s++)
        for (int i = b->table_starts[s]; i < b->table_starts[s + 1]; i++)
            if (b->tables[i] < 0 || b->tables[i] >= n_blocks)
                return err_set(e, ERR_SYSTEM, "block %d of table %d isn't one of the %d blocks",
                               b->tables[i], s, n_blocks);
    for (int r = 0; r < b->n_rows; r++) {
        int s = b->table_of_row[r];
        if (s < 0 || s >= b->n_tables)
            return err_set(e, ERR_SYSTEM, "row %d names table %d of %d", r, s, b->n_tables);
        int length = b->table_starts[s + 1] - b->table_starts[s];
        if (b->positions[r] < 0 || b->positions[r] / KERNELS_BLOCK >= length)
            return err_set(e, ERR_SYSTEM,
                           "row %d is at position %d, but its table has %d blocks of %d", r,
                           b->positions[r], length, KERNELS_BLOCK);
    }
    for (int i = 0; i < b->n_logits; i++)
        if (b->logit_rows[i] < 0 || b->logit_rows[i] >= b->n_rows)
            return err_set(e, ERR_SYSTEM, "logits of row %d of %d are wanted", b->logit_rows[i],
                           b->n_rows);
    return true;
}

static bool check_groups(const struct kernels_batch *b, struct err *e) {
    int next = 0;
    for (int i = 0; i < b->n_groups; i++) {
        struct kernels_group g = b->groups[i];
        if (g.n_rows < 1 || g.n_prefix_blocks < 0 || g.first_row < next ||
            g.n_rows > b->n_rows - g.first_row)
            return err_set(e, ERR_SYSTEM,
                           "group %d (rows %d, %d of them) isn't within the %d rows in order", i,
                           g.first_row, g.n_rows, b->n_rows);
        next = g.first_row + g.n_rows;
        const int32_t *first = b->tables + b->table_starts[b->table_of_row[g.first_row]];
        for (int r = g.first_row; r < next; r++) {
            int s = b->table_of_row[r];
            if (b->positions[r] < g.n_prefix_blocks * KERNELS_BLOCK)
                return err_set(e, ERR_SYSTEM,
                               "row %d is at position %d, inside its group's prefix of %d blocks",
                               r, b->positions[r], g.n_prefix_blocks);
            if (memcmp(b->tables + b->table_starts[s], first,
                       (size_t)g.n_prefix_blocks * sizeof *first) != 0)
                return err_set(e, ERR_SYSTEM,
                               "row %d doesn't have the prefix of its group in its table", r);
        }
    }
    return true;
}

/* Where row r's table begins. */
static const int32_t *table_of(const struct kernels_batch *b, int r) {
    return b->tables + b->table_starts[b->table_of_row[r]];
}

static bool check_family(const struct kernels_batch *b, struct kernels_family f, struct err *e) {
    int position = b->positions[f.first_row], shared = position / KERNELS_BLOCK;
    int logits = 0;
    while (logits < b->n_logits && b->logit_rows[logits] < f.first_row)
        logits++;
    for (int i = 0; i < f.n_rows; i++) {
        int r = f.first_row + i;
        if (b->positions[r] != position || b->draws[r] < 0)
            return err_set(e, ERR_SYSTEM, "row %d isn't like the first of its family, %d", r,
                           f.first_row);
        if (logits + i >= b->n_logits || b->logit_rows[logits + i] != r)
            return err_set(e, ERR_SYSTEM, "row %d of a family has no logits", r);
        if (memcmp(table_of(b, r), table_of(b, f.first_row), (size_t)shared * sizeof(int32_t)) != 0)
            return err_set(e, ERR_SYSTEM, "row %d doesn't have its family's history", r);
        /* Each to its last neighbour: all to all would take a step's time. */
        if (i && table_of(b, r)[shared] == table_of(b, r - 1)[shared])
            return err_set(e, ERR_SYSTEM, "rows %d and %d of a family write to one block", r - 1,
                           r);
    }
    return true;
}

static bool check_families(const struct kernels_batch *b, struct err *e) {
    int next = 0;
    for (int i = 0; i < b->n_families; i++) {
        struct kernels_family f = b->families[i];
        if (f.n_rows < 1 || f.first_row < next || f.n_rows > b->n_rows - f.first_row)
            return err_set(e, ERR_SYSTEM,
                           "family %d (rows %d, %d of them) isn't within the %d rows in order", i,
                           f.first_row, f.n_rows, b->n_rows);
        next = f.first_row + f.n_rows;
        if (!check_family(b, f, e)) return false;
    }
    return true;
}

bool check_batch(const struct kernels_batch *b, int max_rows, int n_blocks, struct err *e) {
    if (b->n_rows < 1 || b->n_rows > max_rows)
        return err_set(e, ERR_SYSTEM, "a step of %d rows; room was reserved for %d", b->n_rows,
                       max_rows);
    return check_rows(b, n_blocks, e) && check_groups(b, e) && check_families(b, e);
}

struct check_unit check_unit_at(const struct kernels_batch *b, int row, int *group) {
    int n = 1, g = *group;
    while (row + n < b->n_rows && b->table_of_row[row + n] == b->table_of_row[row])
        n++;
    if (n > 1)
        return (struct check_unit){row, n, b->positions[row + n - 1] / KERNELS_BLOCK + 1, true};
    while (g < b->n_groups && b->groups[g].first_row + b->groups[g].n_rows <= row)
        g++;
    *group = g;
    if (g == b->n_groups || b->groups[g].first_row > row)
        return (struct check_unit){row, 1, 0, false};
    /* Up to a sequence of several rows, which is a unit of its own. */
    int end = b->groups[g].first_row + b->groups[g].n_rows;
    while (row + n < end &&
           (row + n + 1 == b->n_rows || b->table_of_row[row + n] != b->table_of_row[row + n + 1]))
        n++;
    return (struct check_unit){row, n, b->groups[g].n_prefix_blocks, false};
}

bool check_weight(enum quant_type type, int n_rows, int n_cols, struct err *e) {
    int block = quant_block_elements(type);
    if (n_rows > 0 && n_cols > 0 && n_cols % block == 0) return true;
    return err_set(e, ERR_INPUT, "a %s matrix of %d x %d: rows must be whole blocks of %d elements",
                   quant_name(type), n_rows, n_cols, block);
}
