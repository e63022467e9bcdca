/* The kernel that makes a step's rows of those that may be, against its definition; and steps whose
 * tokens the host doesn't know, against steps whose tokens it does. */
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "tests/cuda/step_test.h"

/* ---- the kernel ---- */

enum { ROWS = 700, ITEMS = 900, TABLE = 8, DRAWS = 40 };

struct rows {
    struct launch_counts counts;
    int32_t tokens[ROWS], positions[ROWS], starts[ROWS], tables[ROWS * TABLE], logit_rows[ROWS];
    int32_t families[ROWS], draws[ROWS];
    struct launch_item tiles[ITEMS], warps[ITEMS];
    int32_t founders[ROWS], places[ROWS], pairs[2 * ROWS], n_pairs;
    struct launch_drawn drawn[DRAWS];
};

/* Rows alone, and families of up to 40; a tile for some rows that follow each other. */
static void make_batch(struct random *r, int n_rows, bool families, struct rows *b) {
    memset(b, 0, sizeof *b);
    b->counts.n_rows = n_rows;
    for (int i = 0; i < DRAWS; i++)
        b->drawn[i].token = 100 + random_int(r, 6);
    for (int i = 0; i < n_rows * TABLE; i++)
        b->tables[i] = i;
    for (int at = 0; at < n_rows;) {
        int n = families && random_int(r, 3) ? 1 + random_int(r, 40) : 1,
            position = random_int(r, 16 * TABLE);
        bool waits = families && (n > 1 || random_int(r, 2)), logits = waits || random_int(r, 2);
        if (n > n_rows - at) n = n_rows - at;
        for (int i = at; i < at + n; i++) {
            b->tokens[i] = random_int(r, 50);
            b->positions[i] = position;
            b->starts[i] = i * TABLE;
            b->families[i] = waits ? at : -1;
            b->draws[i] = waits ? random_int(r, DRAWS) : -1;
            if (logits) b->logit_rows[b->counts.n_logits++] = i;
            b->warps[b->counts.n_warps++] =
                (struct launch_item){.first_row = i, .n_rows = 1, .begin = 16, .end = 20 + i};
        }
        for (int query = 0; query < n * 7; query += 64)
            b->tiles[b->counts.n_tiles++] = (struct launch_item){
                .first_row = at, .n_rows = n, .first_query = query, .begin = 0, .end = 16};
        at += n;
    }
}

/* The definition: a row lives unless one before it in its family has its token. */
static void define(const struct rows *in, int group, struct rows *out) {
    static int32_t before[ROWS + 1], founder[ROWS], token[ROWS];
    memset(out, 0, sizeof *out);
    for (int r = 0; r < in->counts.n_rows; r++) {
        token[r] = in->families[r] < 0 ? in->tokens[r] : in->drawn[in->draws[r]].token;
        founder[r] = r;
        for (int k = in->families[r]; k >= 0 && k < r && founder[r] == r; k++)
            if (token[k] == token[r]) founder[r] = k;
        before[r] = out->counts.n_rows;
        before[r + 1] = before[r] + (founder[r] == r);
        if (founder[r] != r) continue;
        int at = out->counts.n_rows++, block = in->positions[r] / 16;
        out->tokens[at] = token[r];
        out->positions[at] = in->positions[r];
        out->starts[at] = in->starts[r];
        if (in->families[r] < 0 || in->families[r] == r || in->positions[r] % 16 == 0) continue;
        out->pairs[2 * out->n_pairs] = in->tables[in->starts[in->families[r]] + block];
        out->pairs[2 * out->n_pairs++ + 1] = in->tables[in->starts[r] + block];
    }
    for (int l = 0; l < in->counts.n_logits; l++) {
        int r = in->logit_rows[l];
        out->founders[l] = l;
        while (in->logit_rows[out->founders[l]] != founder[r])
            out->founders[l]--;
        out->places[l] = founder[r] == r ? out->counts.n_logits : -1;
        if (founder[r] == r) out->logit_rows[out->counts.n_logits++] = before[r];
    }
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (k ? in->counts.n_warps : in->counts.n_tiles); i++) {
            struct launch_item item = k ? in->warps[i] : in->tiles[i];
            int first = before[item.first_row];
            item.n_rows = before[item.first_row + item.n_rows] - first;
            item.first_row = first;
            if (item.first_query >= item.n_rows * group) continue;
            if (k)
                out->warps[out->counts.n_warps++] = item;
            else
                out->tiles[out->counts.n_tiles++] = item;
        }
}

static void check_ints(const char *what, const int32_t *got, const int32_t *want, int n) {
    for (int i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i], "%s %d is %d, not %d", what, i, got[i], want[i]);
}

static void check_batch_is(const struct rows *got, const struct rows *want, const struct rows *in) {
    struct launch_counts g = got->counts, w = want->counts;
    ck_assert_msg(g.n_rows == w.n_rows && g.n_logits == w.n_logits && g.n_tiles == w.n_tiles &&
                      g.n_warps == w.n_warps,
                  "%d rows, %d logits, %d tiles, %d warps", g.n_rows, g.n_logits, g.n_tiles,
                  g.n_warps);
    check_ints("token", got->tokens, want->tokens, w.n_rows);
    check_ints("position", got->positions, want->positions, w.n_rows);
    check_ints("table", got->starts, want->starts, w.n_rows);
    check_ints("table entry", got->tables, in->tables, in->counts.n_rows * TABLE);
    check_ints("logit row", got->logit_rows, want->logit_rows, w.n_logits);
    check_ints("founder", got->founders, want->founders, in->counts.n_logits);
    for (int l = 0; l < in->counts.n_logits; l++)
        ck_assert(want->places[l] < 0 || got->places[l] == want->places[l]);
    ck_assert(!memcmp(got->tiles, want->tiles, (size_t)w.n_tiles * sizeof *got->tiles));
    ck_assert(!memcmp(got->warps, want->warps, (size_t)w.n_warps * sizeof *got->warps));
    ck_assert_int_eq(got->n_pairs, want->n_pairs);
    check_ints("block", got->pairs, want->pairs, 2 * want->n_pairs);
}

START_TEST(rows_split) {
    static struct rows in, want, got;
    struct random r = {(uint64_t)_i + 1};
    struct gpu *gpu;
    struct gpu_info info;
    struct err e = {0};
    ck_assert_msg(gpu_open(&gpu, &info, &e), "%s", e.message);
    struct rows *from = gpu_alloc(gpu, sizeof *from, "a batch", &e),
                *to = gpu_alloc(gpu, sizeof *to, "a batch", &e);
    int32_t *between = gpu_alloc(gpu, (3 * ROWS + 1) * sizeof *between, "ranks", &e);
    const int sizes[] = {1, 2, 33, 256, 257, ROWS};
    for (int turn = 0; turn < 12; turn++) {
        bool families = turn % 4 != 3;
        use_order(turn % N_ORDERS);
        make_batch(&r, sizes[turn % 6], families, &in);
        define(&in, 7, &want);
        gpu_put(gpu, from, &in, sizeof in);
        struct launch_split s = {.n_rows = in.counts.n_rows,
                                 .n_logits = in.counts.n_logits,
                                 .n_tiles = in.counts.n_tiles,
                                 .n_warps = in.counts.n_warps,
                                 .n_tables = in.counts.n_rows * TABLE,
                                 .group = 7,
                                 .tokens = from->tokens,
                                 .positions = from->positions,
                                 .table_of_row = from->starts,
                                 .tables = from->tables,
                                 .logit_rows = from->logit_rows,
                                 .tiles = from->tiles,
                                 .warps = from->warps,
                                 .families = families ? from->families : NULL,
                                 .draws = families ? from->draws : NULL,
                                 .drawn = from->drawn,
                                 .live = {&to->counts, to->tokens, to->positions, to->starts,
                                          to->tables, to->logit_rows, to->tiles, to->warps},
                                 .token = between,
                                 .founder = between + ROWS,
                                 .before = between + 2 * ROWS,
                                 .founders = to->founders,
                                 .places = to->places,
                                 .pairs = to->pairs,
                                 .n_pairs = &to->n_pairs};
        launch_split(gpu_stream(gpu), &s);
        gpu_get(gpu, &got, to, sizeof got);
        ck_assert_msg(gpu_wait(gpu, &e), "%s", e.message);
        check_batch_is(&got, &want, &in);
    }
    gpu_release(gpu, from);
    gpu_release(gpu, to);
    gpu_release(gpu, between);
    gpu_close(gpu);
}
END_TEST

/* ---- steps ---- */

enum { MEMBERS = 40, PROMPT = 21, OTHERS = 3 };

static struct tiny_model small = {.architecture = "llama",
                                  .n_layers = 2,
                                  .n_embd = 128,
                                  .n_heads = 2,
                                  .n_kv_heads = 1,
                                  .n_ff = 64,
                                  .context = 512,
                                  .seed = 9};

static void draw_for(struct kernels_draw *d, int row, int member, int position) {
    /* Neighbours differ in their settings, as candidates with several temperatures do. */
    *d = (struct kernels_draw){.logit_row = row,
                               .seed = 11,
                               .candidate = (uint32_t)member,
                               .position = (uint32_t)position,
                               .temperature = member % 5 ? 0.7f : 1.5f,
                               .top_p = 0.95f,
                               .repetition = 1,
                               .n_top = member % 3};
}

/* Members of a branch, and others that go on with tokens the host knows. */
static void siblings(struct step_rows *s, int n, int position, const int32_t *tokens) {
    step_rows_siblings(s, PROMPT, n + OTHERS, position - PROMPT);
    for (int i = 0; i < n && tokens; i++)
        s->tokens[OTHERS + i] = tokens[i];
}

static void draw_all(struct step_run *r, struct kernels_draw *draws, int n) {
    struct kernels_draws all = {.draws = draws, .n_draws = n};
    step_draw(r->step, &all);
}

static void take_all(struct step_run *r, int n, struct kernels_drawn *out) {
    struct err e = {0};
    ck_assert_msg(step_collect(r->step, out, n, &e), "%s", e.message);
}

static void check_drawn(const struct kernels_drawn *a, const struct kernels_drawn *b, int n,
                        bool exact) {
    for (int i = 0; i < n; i++) {
        ck_assert_msg(a[i].token == b[i].token, "draw %d: %d and %d", i, a[i].token, b[i].token);
        ck_assert_int_eq(a[i].n_top, b[i].n_top);
        size_t top = (size_t)a[i].n_top * sizeof(float);
        if (exact)
            ck_assert(!memcmp(&a[i].logprob, &b[i].logprob, sizeof(float)) &&
                      !memcmp(a[i].top_logprob, b[i].top_logprob, top));
    }
}

/* One row draws for all members; then each member's row follows, with tokens that the device knows
 * alone, in one family among other rows; then once more, after two positions, in the families that
 * the first draws made of them. */
static void follow(struct step_run *r, bool known, struct kernels_drawn *out) {
    static struct step_rows s;
    static struct kernels_draw draws[MEMBERS + OTHERS];
    static int32_t tokens[MEMBERS], number[STEP_ROWS];
    step_rows_prompt(&s, PROMPT, false);
    step_run_forward(r, &s);
    for (int i = 0; i < MEMBERS; i++)
        draw_for(&draws[i], 0, i, 0);
    draw_all(r, draws, MEMBERS);
    if (known) {
        take_all(r, MEMBERS, out);
        for (int i = 0; i < MEMBERS; i++)
            tokens[i] = out[i].token;
        step_run_copy_last_block(r, PROMPT, MEMBERS + OTHERS);
    } else {
        for (int i = 0; i < MEMBERS + OTHERS; i++) /* a block that nobody has written */
            r->s.k->kv_copy_block(r->s.dev, 100 + 2 * i, STEP_BLOCKS - 1, KERNELS_BLOCK);
        /* Those that begin in the middle of a block without being forks, and the family's first. */
        step_run_copy_last_block(r, PROMPT, OTHERS + 1);
    }
    siblings(&s, MEMBERS, PROMPT, known ? tokens : NULL);
    static const struct kernels_family family = {OTHERS, MEMBERS};
    if (!known) {
        for (int i = 0; i < MEMBERS; i++)
            number[OTHERS + i] = i;
        s.batch.families = &family;
        s.batch.n_families = 1;
        s.batch.draws = number;
    }
    step_run_forward(r, &s);
    for (int i = 0; i < OTHERS + MEMBERS; i++)
        draw_for(&draws[i], i, i, 1);
    draw_all(r, draws, OTHERS + MEMBERS);
    if (!known) take_all(r, MEMBERS, out);
    take_all(r, OTHERS + MEMBERS, out + MEMBERS);
}

START_TEST(steps_follow) {
    enum { ALL = 2 * MEMBERS + OTHERS };
    static struct kernels_drawn want[ALL], got[ALL];
    tiny_model_write(&small);
    struct step_run cpu = step_run_open(small.path, "cpu", "reference", true, NULL);
    follow(&cpu, true, want);
    follow(&cpu, false, got);
    check_drawn(got, want, ALL, true);
    step_run_close(&cpu);
    for (int graphs = 0; graphs < 2; graphs++) {
        struct step_run r = step_run_open(small.path, "cuda", "auto", graphs, NULL);
        follow(&r, true, want);
        int distinct = 0;
        for (int i = 0; i < MEMBERS; i++) {
            bool seen = false;
            for (int k = 0; k < i; k++)
                seen |= want[k].token == want[i].token;
            distinct += !seen;
        }
        ck_assert_int_gt(distinct, 3);
        ck_assert_int_lt(distinct, MEMBERS);
        for (int turn = 0; turn < 1 + 2 * graphs; turn++) {
            follow(&r, false, got);
            check_drawn(got, want, ALL, true);
        }
        step_run_close(&r);
    }
    unlink(small.path);
}
END_TEST

/* More rows than have logits at once, each a family of its own. */
START_TEST(chunks_follow) {
    enum { MANY = 1100 };
    static int32_t tokens[MANY], positions[MANY], tables[MANY], starts[MANY + 1], rows[MANY];
    static struct kernels_family families[MANY];
    static struct kernels_draw draws[MANY];
    static struct kernels_drawn want[2 * MANY], got[2 * MANY];
    struct tiny_model one = small;
    one.n_layers = 1;
    one.n_embd = one.n_heads * 32;
    one.n_heads = 1;
    tiny_model_write(&one);
    struct step_run r =
        step_run_open_as(one.path, "cuda", (struct kernels_options){.isa = "auto"}, MANY);
    for (int known = 1; known >= 0; known--) {
        struct kernels_drawn *out = known ? want : got;
        for (int turn = 0; turn < 2; turn++) {
            for (int i = 0; i < MANY; i++) {
                tokens[i] = !turn ? i % 250 : known ? out[i].token : 0;
                positions[i] = turn;
                tables[i] = starts[i] = rows[i] = i;
                families[i] = (struct kernels_family){i, 1};
                draw_for(&draws[i], i, i, turn);
            }
            starts[MANY] = MANY;
            struct kernels_batch b = {.n_rows = MANY,
                                      .tokens = tokens,
                                      .positions = positions,
                                      .tables = tables,
                                      .table_starts = starts,
                                      .table_of_row = rows,
                                      .n_tables = MANY,
                                      .logit_rows = rows,
                                      .n_logits = MANY,
                                      .families = families,
                                      .n_families = turn && !known ? MANY : 0,
                                      .draws = rows};
            struct err e = {0};
            ck_assert_msg(step_forward(r.step, &b, &e), "%s", e.message);
            draw_all(&r, draws, MANY);
            if (known) take_all(&r, MANY, out + turn * MANY);
        }
        for (int turn = 0; turn < 2 && !known; turn++)
            take_all(&r, MANY, out + turn * MANY);
    }
    check_drawn(got, want, 2 * MANY, true);
    step_run_close(&r);
    unlink(one.path);
}
END_TEST

/* Families that can't be are refused. */
START_TEST(families_are_checked) {
    static struct step_rows s;
    static int32_t number[STEP_ROWS];
    tiny_model_write(&small);
    struct step_run r = step_run_open(small.path, "cuda", "auto", true, NULL);
    const struct kernels_family wrong[][2] = {
        {{0, 0}, {0, 1}}, {{3, 5}, {7, 2}}, {{0, 9}, {9, 1}}, {{-1, 2}, {4, 1}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err e = {0};
        step_rows_siblings(&s, PROMPT, 9, 0);
        s.batch.families = wrong[i];
        s.batch.n_families = 2;
        s.batch.draws = number;
        ck_assert(!step_forward(r.step, step_rows_batch(&s), &e));
        ck_assert_msg(strstr(e.message, "famil"), "%s", e.message);
    }
    struct kernels_family all = {0, 9};
    for (int kind = 0; kind < 3; kind++) {
        struct err e = {0};
        step_rows_siblings(&s, PROMPT, 9, 0);
        s.batch.families = &all;
        s.batch.n_families = 1;
        s.batch.draws = number;
        if (kind == 0) s.positions[4]++;
        if (kind == 1) s.batch.n_logits--;
        if (kind == 2) s.tables[s.starts[5]] = 99;
        s.batch.n_groups = 0;
        ck_assert(!step_forward(r.step, step_rows_batch(&s), &e));
        ck_assert_msg(strstr(e.message, "famil"), "%s", e.message);
    }
    step_run_close(&r);
    unlink(small.path);
}
END_TEST

int main(void) {
    if (!cuda_test_can_run()) return 77;
    TCase *t = tcase_create("cuda split");
    tcase_add_loop_test(t, rows_split, 0, 4);
    tcase_add_test(t, steps_follow);
    tcase_add_test(t, chunks_follow);
    tcase_add_test(t, families_are_checked);
    return run_tests(&t, 1, "cuda split");
}
