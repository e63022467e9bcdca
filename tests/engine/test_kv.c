/* Blocks: references, the chain of published ones, and what is given up first. */
#include "engine/kv.h"

#include <check.h>
#include <stdlib.h>

static void fill(int32_t *tokens, int first) {
    for (int i = 0; i < KERNELS_BLOCK; i++)
        tokens[i] = first + i;
}

START_TEST(gives_every_block_once) {
    struct kv_pool *p = kv_pool_new(5);
    bool given[5] = {false};
    for (int i = 0; i < 5; i++) {
        int b = kv_alloc(p);
        ck_assert_int_ge(b, 0);
        ck_assert_int_lt(b, 5);
        ck_assert(!given[b]);
        given[b] = true;
    }
    ck_assert_int_eq(kv_alloc(p), -1);
    ck_assert_int_eq(kv_free(p), 0);
    kv_unref(p, 3);
    ck_assert_int_eq(kv_free(p), 1);
    ck_assert_int_eq(kv_alloc(p), 3);
    kv_pool_free(p);
}
END_TEST

START_TEST(keeps_a_block_while_referred_to) {
    struct kv_pool *p = kv_pool_new(2);
    int b = kv_alloc(p);
    kv_ref(p, b);
    kv_unref(p, b);
    ck_assert_int_eq(kv_free(p), 1);
    ck_assert_int_eq(kv_refs(p, b), 1);
    kv_unref(p, b);
    ck_assert_int_eq(kv_free(p), 2);
    kv_pool_free(p);
}
END_TEST

START_TEST(finds_published_chains) {
    struct kv_pool *p = kv_pool_new(4);
    int32_t one[KERNELS_BLOCK], two[KERNELS_BLOCK];
    fill(one, 100);
    fill(two, 200);
    int a = kv_alloc(p), b = kv_alloc(p);
    uint64_t after_one = kv_publish(p, a, kv_root("salt"), one);
    kv_publish(p, b, after_one, two);
    kv_unref(p, a);
    kv_unref(p, b);
    ck_assert_int_eq(kv_free(p), 4);
    ck_assert_int_eq(kv_cached(p), 2);

    ck_assert_int_eq(kv_lookup(p, kv_root("other"), one), -1); /* salts never meet */
    ck_assert_int_eq(kv_lookup(p, kv_root("salt"), two), -1);  /* not at the start */
    ck_assert_int_eq(kv_lookup(p, kv_root("salt"), one), a);
    ck_assert_int_eq(kv_lookup(p, kv_identity(p, a), two), b);
    ck_assert_int_eq(kv_cached(p), 0);
    ck_assert_int_eq(kv_refs(p, a), 1);
    kv_unref(p, b);
    kv_unref(p, a);

    /* Memory wanted: unused blocks go first, then the least recently used published one (b was let
     * go first). */
    ck_assert_int_ne(kv_alloc(p), a);
    kv_alloc(p);
    ck_assert_int_eq(kv_alloc(p), b);
    ck_assert_int_eq(kv_lookup(p, kv_root("salt"), one), a);
    kv_unref(p, a);
    ck_assert_int_eq(kv_alloc(p), a);
    ck_assert_int_eq(kv_lookup(p, kv_root("salt"), one), -1);
    kv_pool_free(p);
}
END_TEST

START_TEST(an_equal_block_is_published_once) {
    struct kv_pool *p = kv_pool_new(2);
    int32_t one[KERNELS_BLOCK];
    fill(one, 7);
    int a = kv_alloc(p), b = kv_alloc(p);
    uint64_t first = kv_publish(p, a, kv_root(""), one);
    ck_assert_uint_eq(kv_publish(p, b, kv_root(NULL), one), first);
    kv_unref(p, b);
    ck_assert_int_eq(kv_cached(p), 0); /* b was never published */
    ck_assert_int_eq(kv_free(p), 1);
    kv_pool_free(p);
}
END_TEST

/* A child of a chain whose parent was given up and made again must not be found under the new
 * parent by accident. */
START_TEST(a_new_parent_has_a_new_identity) {
    struct kv_pool *p = kv_pool_new(3);
    int32_t one[KERNELS_BLOCK], two[KERNELS_BLOCK];
    fill(one, 1);
    fill(two, 2);
    int a = kv_alloc(p), b = kv_alloc(p);
    kv_publish(p, b, kv_publish(p, a, kv_root(""), one), two);
    kv_unref(p, a); /* a is older in the cache: given up first */
    kv_unref(p, b);
    int c = kv_alloc(p), again = kv_alloc(p);
    ck_assert_int_eq(again, a);
    uint64_t identity = kv_publish(p, again, kv_root(""), one);
    ck_assert_int_eq(kv_lookup(p, identity, two), -1);
    kv_unref(p, c);
    kv_unref(p, again);
    kv_pool_free(p);
}
END_TEST

/* Random calls against a plain model of reference counts. */
START_TEST(random_calls_keep_count) {
    enum { N = 17 };
    struct kv_pool *p = kv_pool_new(N);
    int refs[N] = {0};
    uint32_t state = 12345;
    for (int step = 0; step < 20000; step++) {
        state = state * 1664525u + 1013904223u;
        int block = (int)(state >> 8) % N;
        int32_t tokens[KERNELS_BLOCK];
        fill(tokens, (int)(state >> 20) % 5);
        switch ((state >> 4) % 5) {
        case 0: {
            int b = kv_alloc(p);
            if (b >= 0) {
                ck_assert_int_eq(refs[b], 0);
                refs[b] = 1;
            }
            break;
        }
        case 1:
            if (refs[block]) {
                kv_ref(p, block);
                refs[block]++;
            }
            break;
        case 2:
            if (refs[block]) {
                kv_unref(p, block);
                refs[block]--;
            }
            break;
        case 3:
            if (refs[block]) kv_publish(p, block, kv_root(""), tokens);
            break;
        case 4: {
            int b = kv_lookup(p, kv_root(""), tokens);
            if (b >= 0) refs[b]++;
            break;
        }
        }
        int n_free = 0;
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(kv_refs(p, i), refs[i]);
            n_free += refs[i] == 0;
        }
        ck_assert_int_eq(kv_free(p), n_free);
    }
    kv_pool_free(p);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kv");
    TCase *t = tcase_create("kv");
    tcase_set_timeout(t, 0); /* ctest has one */
    tcase_add_test(t, gives_every_block_once);
    tcase_add_test(t, keeps_a_block_while_referred_to);
    tcase_add_test(t, finds_published_chains);
    tcase_add_test(t, an_equal_block_is_published_once);
    tcase_add_test(t, a_new_parent_has_a_new_identity);
    tcase_add_test(t, random_calls_keep_count);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
