/* Guessed tokens: what followed the longest earlier match of the end. */
#include "engine/guess.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Of the sequence `all`, cut anywhere between prompt and text: the same guesses. */
static int guesses(const int32_t *all, int n, int most, int32_t *out) {
    struct guess_texts t = {.prompt = all, .n_prompt = n};
    int count = guess_next(&t, most, out);
    for (int cut = 0; cut <= n; cut++) {
        int32_t other[GUESS_MOST];
        t = (struct guess_texts){
            .prompt = all, .n_prompt = cut, .text = all + cut, .n_text = n - cut};
        ck_assert_int_eq(guess_next(&t, most, other), count);
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

START_TEST(siblings_are_copied_where_they_agree_more) {
    int32_t out[GUESS_MOST];
    int32_t text[] = {9, 1, 2, 3, 70, 9, 1, 2, 3},
            others[] = {8, 9, 1, 2, 3, 60, 61, 5, 4, 9, 1, 2, 3, 50};
    struct guess_texts t = {.prompt = text, .n_prompt = 2, .text = text + 2, .n_text = 7};
    t.siblings = others;
    t.n_siblings = 5;
    ck_assert_int_eq(guess_next(&t, 16, out), 4); /* nothing follows there */
    ck_assert_int_eq(out[0], 70);
    t.n_siblings = 7;
    ck_assert_int_eq(guess_next(&t, 16, out), 4); /* as good: the history first */
    ck_assert_int_eq(out[0], 70);
    text[0] = 6;
    ck_assert_int_eq(guess_next(&t, 16, out), 2); /* no further than the siblings go */
    ck_assert_int_eq(out[0], 60);
    ck_assert_int_eq(out[1], 61);
    t.n_siblings = 14;
    ck_assert_int_eq(guess_next(&t, 16, out), 1); /* the latest */
    ck_assert_int_eq(out[0], 50);
}
END_TEST

START_TEST(nothing_where_nothing_agrees) {
    int32_t out[GUESS_MOST];
    struct guess_texts none = {0};
    ck_assert_int_eq(guess_next(&none, 16, out), 0);
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
    struct guess_texts t = {.prompt = all, .n_prompt = 10, .text = all + 10, .n_text = N - 10};
    ck_assert_int_eq(guess_next(&t, 16, out), 0);
    for (int i = 0; i < 8; i++)
        all[N - 8 + i] = N - 4000 + i;
    ck_assert_int_eq(guess_next(&t, 16, out), 8);
    ck_assert_int_eq(out[0], N - 4000 + 8);
    free(all);
}
END_TEST

int main(void) {
    Suite *s = suite_create("guess");
    TCase *t = tcase_create("guess");
    tcase_add_test(t, what_followed_is_guessed);
    tcase_add_test(t, the_longest_match_wins_then_the_latest);
    tcase_add_test(t, siblings_are_copied_where_they_agree_more);
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
