#include "engine/batch.h"

#include <stdlib.h>
#include <string.h>

void batch_clear(struct batch *b) {
    free(b->tokens);
    free(b->positions);
    free(b->table_of_row);
    free(b->table_starts);
    free(b->tables);
    free(b->logit_rows);
    free(b->draw_of_row);
    free(b->groups);
    free(b->families);
    free(b->draws);
    *b = (struct batch){0};
}

void batch_reset(struct batch *b) {
    b->rows = (struct kernels_batch){0};
    b->n_table_entries = b->n_draws = 0;
    b->group_job = NULL;
}

static int grown(int capacity, int need) {
    if (!capacity) capacity = 64;
    while (capacity < need)
        capacity *= 2;
    return capacity;
}

static void reserve_rows(struct batch *b, int n) {
    int need = b->rows.n_rows + n;
    if (need <= b->capacity_rows) return;
    b->capacity_rows = grown(b->capacity_rows, need);
    size_t c = (size_t)b->capacity_rows;
    b->tokens = err_realloc(b->tokens, c, sizeof *b->tokens);
    b->positions = err_realloc(b->positions, c, sizeof *b->positions);
    b->table_of_row = err_realloc(b->table_of_row, c, sizeof *b->table_of_row);
    b->logit_rows = err_realloc(b->logit_rows, c, sizeof *b->logit_rows);
    b->draw_of_row = err_realloc(b->draw_of_row, c, sizeof *b->draw_of_row);
    b->draws = err_realloc(b->draws, c, sizeof *b->draws);
}

/* The first n blocks of a table, and `last` behind them where it isn't -1. */
static int add_table(struct batch *b, const int *table, int n, int last) {
    int n_all = n + (last >= 0);
    if (b->rows.n_tables + 2 > b->capacity_tables) {
        b->capacity_tables = grown(b->capacity_tables, b->rows.n_tables + 2);
        b->table_starts =
            err_realloc(b->table_starts, (size_t)b->capacity_tables, sizeof *b->table_starts);
    }
    if (b->n_table_entries + n_all > b->capacity_table_entries) {
        b->capacity_table_entries = grown(b->capacity_table_entries, b->n_table_entries + n_all);
        b->tables = err_realloc(b->tables, (size_t)b->capacity_table_entries, sizeof *b->tables);
    }
    for (int i = 0; i < n; i++)
        b->tables[b->n_table_entries + i] = table[i];
    if (last >= 0) b->tables[b->n_table_entries + n] = last;
    b->table_starts[b->rows.n_tables] = b->n_table_entries;
    b->n_table_entries += n_all;
    b->table_starts[b->rows.n_tables + 1] = b->n_table_entries;
    return b->rows.n_tables++;
}

/* Extends the group of the job's branches, or begins one; nothing where there is no full block to
 * share. */
static void add_to_group(struct batch *b, const struct job *j, int first_row, int n_rows,
                         int n_prefix_blocks) {
    if (!n_prefix_blocks) return;
    if (j && b->group_job == j) {
        struct kernels_group *g = &b->groups[b->rows.n_groups - 1];
        BUG_ON(g->n_prefix_blocks != n_prefix_blocks || g->first_row + g->n_rows != first_row);
        g->n_rows += n_rows;
        return;
    }
    if (b->rows.n_groups == b->capacity_groups) {
        b->capacity_groups = grown(b->capacity_groups, b->rows.n_groups + 1);
        b->groups = err_realloc(b->groups, (size_t)b->capacity_groups, sizeof *b->groups);
    }
    b->groups[b->rows.n_groups++] = (struct kernels_group){first_row, n_rows, n_prefix_blocks};
    b->group_job = j;
}

/* The row of position p says how likely the prompt's token at p + 1 was. */
static void prompt_draws(struct batch *b, struct job *j, int first_row, int n) {
    if (!j->prompt_logprobs || j->announced) return;
    for (int i = 0; i < n; i++) {
        b->logit_rows[b->rows.n_logits] = first_row + i;
        b->draws[b->n_draws++] = (struct batch_draw){
            .logit_row = b->rows.n_logits++, .member = -1, .job = j, .position = j->cached + i + 1};
    }
}

void batch_prompt(struct batch *b, struct job *j, int n) {
    reserve_rows(b, n);
    int table = add_table(b, j->table, j->n_blocks, -1);
    int first = b->rows.n_rows;
    for (int i = 0; i < n; i++) {
        b->tokens[first + i] = j->spec.prompt[j->cached + i];
        b->positions[first + i] = j->cached + i;
        b->table_of_row[first + i] = table;
    }
    b->rows.n_rows += n;
    /* The rows of a chunk have all blocks before it in common. */
    b->group_job = NULL;
    add_to_group(b, NULL, first, n, j->cached / KERNELS_BLOCK);
    prompt_draws(b, j, first, n);
}

void batch_branch(struct batch *b, struct branch *branch, int n, const int32_t *guesses,
                  int n_guesses) {
    bool draws = branch->cached + n == branch_length(branch);
    BUG_ON(n_guesses && !draws);
    reserve_rows(b, n + n_guesses);
    int table = add_table(b, branch->table, branch->n_blocks, -1);
    int first = b->rows.n_rows;
    for (int i = 0; i < n + n_guesses; i++) {
        b->tokens[first + i] = i < n ? branch_token(branch, branch->cached + i) : guesses[i - n];
        b->positions[first + i] = branch->cached + i;
        b->table_of_row[first + i] = table;
    }
    b->rows.n_rows += n + n_guesses;
    add_to_group(b, branch->job, first, n + n_guesses,
                 job_prompt_goal(branch->job) / KERNELS_BLOCK);
    for (int i = 0; draws && i <= n_guesses; i++) {
        b->logit_rows[b->rows.n_logits] = first + n - 1 + i;
        b->draws[b->n_draws++] = (struct batch_draw){
            .branch = branch, .logit_row = b->rows.n_logits++, .ahead = i, .member = -1};
    }
}

void batch_family(struct batch *b, struct branch *branch, int parity) {
    int n = branch->n_members, first = b->rows.n_rows, at = branch_length(branch);
    reserve_rows(b, n);
    if (b->rows.n_families == b->capacity_families) {
        b->capacity_families = grown(b->capacity_families, b->rows.n_families + 1);
        b->families = err_realloc(b->families, (size_t)b->capacity_families, sizeof *b->families);
    }
    b->families[b->rows.n_families++] = (struct kernels_family){first, n};
    for (int i = 0; i < n; i++) {
        int r = first + i, n_full = at / KERNELS_BLOCK;
        b->tokens[r] = 0;
        b->positions[r] = at;
        b->draw_of_row[r] = branch->members[i].draw[parity];
        b->table_of_row[r] = i ? add_table(b, branch->table, n_full, branch->members[i].block)
                               : add_table(b, branch->table, branch->n_blocks, -1);
        b->logit_rows[b->rows.n_logits] = r;
        b->draws[b->n_draws++] = (struct batch_draw){
            .branch = branch, .logit_row = b->rows.n_logits++, .ahead = 1, .member = i};
    }
    b->rows.n_rows += n;
    add_to_group(b, branch->job, first, n, job_prompt_goal(branch->job) / KERNELS_BLOCK);
}

const struct kernels_batch *batch_rows(struct batch *b) {
    b->rows.tokens = b->tokens;
    b->rows.positions = b->positions;
    b->rows.tables = b->tables;
    b->rows.table_starts = b->table_starts;
    b->rows.table_of_row = b->table_of_row;
    b->rows.groups = b->groups;
    b->rows.logit_rows = b->logit_rows;
    b->rows.families = b->families;
    b->rows.draws = b->draw_of_row;
    return &b->rows;
}
