/* Guessed tokens: what followed the longest earlier match of the end. */
#include "engine/guess.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Of the sequence `all`, cut anywhere between prompt and text: the same guesses. */
static int guesses(const int32_t *all, int n, int most, int32_t *out) {
    int count = guess_next(all, n, NULL, 0, most, out);
    for (int cut = 0; cut <= n; cut++) {
        int32_t other[GUESS_MOST];
        ck_assert_int_eq(guess_next(all, cut, all + cut, n - cut, most, other), count);
        ck_assert(!memcmp(other, out, (size_t)count * sizeof *out));
    }
    return count;
}

#define GUESSES(most, out, ...)                                                                    \
    guesses((const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4, most, out)

START_TEST(what_followed_is_guessed) {
    int32_t out[GUESS_MOST];
    ck_assert_int_eq(GUESSES(16, out, 1, 2, 3, 4, 5, 6, 9, 1, 2, 3), 3); /* as many as agree */
    ck_assert(!memcmp(out, ((int32_t[]){4, 5, 6}), 12));
    ck_assert_int_eq(GUESSES(2, out, 1, 2, 3, 4, 5, 6, 9, 1, 2, 3), 2);
    ck_assert_int_eq(GUESSES(16, out, 7, 1, 2, 3, 4, 5, 6, 9, 7, 1, 2, 3), 4);
    ck_assert(!memcmp(out, ((int32_t[]){4, 5, 6, 9}), 16));
}
END_TEST

START_TEST(the_longest_match_wins_then_the_latest) {
    int32_t out[GUESS_MOST];
    ck_assert_int_eq(GUESSES(1, out, 8, 1, 2, 3, 40, 1, 2, 3, 50, 8, 1, 2, 3), 1);
    ck_assert_int_eq(out[0], 40);
    ck_assert_int_eq(GUESSES(1, out, 1, 2, 3, 40, 1, 2, 3, 50, 1, 2, 3), 1);
    ck_assert_int_eq(out[0], 50);
}
END_TEST

START_TEST(nothing_where_nothing_agrees) {
    int32_t out[GUESS_MOST];
    ck_assert_int_eq(guess_next(NULL, 0, NULL, 0, 16, out), 0);
    ck_assert_int_eq(GUESSES(16, out, 1), 0);
    ck_assert_int_eq(GUESSES(16, out, 1, 2, 3), 0);
    ck_assert_int_eq(GUESSES(16, out, 1, 2, 4, 5, 1, 2), 0); /* two are too few */
    ck_assert_int_eq(GUESSES(16, out, 1, 2, 3, 4, 5, 6, 7, 8), 0);
}
END_TEST

START_TEST(repetition_goes_on) {
    int32_t out[GUESS_MOST], same[40];
    for (int i = 0; i < 40; i++)
        same[i] = 5;
    ck_assert_int_eq(guesses(same, 40, 16, out), 16);
    for (int i = 0; i < 16; i++)
        ck_assert_int_eq(out[i], 5);
    ck_assert_int_eq(GUESSES(6, out, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4), 6);
    ck_assert(!memcmp(out, ((int32_t[]){1, 2, 3, 4, 1, 2}), 24));
}
END_TEST

START_TEST(long_histories_are_bounded) {
    enum { N = 200000 };
    int32_t *all = malloc(N * sizeof *all), out[GUESS_MOST];
    for (int i = 0; i < N; i++)
        all[i] = i;
    for (int i = 0; i < 8; i++)
        all[N - 8 + i] = 100 + i; /* beyond what is searched */
    ck_assert_int_eq(guess_next(all, 10, all + 10, N - 10, 16, out), 0);
    for (int i = 0; i < 8; i++)
        all[N - 8 + i] = N - 4000 + i;
    ck_assert_int_eq(guess_next(all, 10, all + 10, N - 10, 16, out), 8);
    ck_assert_int_eq(out[0], N - 4000 + 8);
    free(all);
}
END_TEST

int main(void) {
    Suite *s = suite_create("guess");
    TCase *t = tcase_create("guess");
    tcase_add_test(t, what_followed_is_guessed);
    tcase_add_test(t, the_longest_match_wins_then_the_latest);
    tcase_add_test(t, nothing_where_nothing_agrees);
    tcase_add_test(t, repetition_goes_on);
    tcase_add_test(t, long_histories_are_bounded);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
