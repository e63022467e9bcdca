/* API keys out of a file: what is a key, whose it is, and what a reload leaves of the old ones. */
#include "server/keys.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct keys keys;

static void setup(void) { keys_init(&keys); }
static void teardown(void) { keys_clear(&keys); }

static void takes(const char *text) {
    struct err e = {0};
    ck_assert_msg(keys_parse(&keys, text, strlen(text), &e), "%s", e.message);
}

static void refuses(const char *text, const char *words) {
    struct err e = {0};
    ck_assert(!keys_parse(&keys, text, strlen(text), &e));
    ck_assert_msg(strstr(e.message, words) != NULL, "%s", e.message);
}

static const char *name_of(const char *key) {
    const struct keys_holder *h = keys_find(&keys, key);
    return h ? h->name : NULL;
}

START_TEST(without_a_file_everybody_may) {
    ck_assert_str_eq(name_of(NULL), "");
    ck_assert_str_eq(name_of("anything"), "");
}
END_TEST

START_TEST(keys_have_holders) {
    takes("# who may\n\n  alice  secret-of-alice  \r\nbob\tsecret-of-bob\nnameless-key\nalice "
          "new-of-alice");
    ck_assert_str_eq(name_of("secret-of-alice"), "alice");
    ck_assert_str_eq(name_of("new-of-alice"), "alice");
    ck_assert_str_eq(name_of("secret-of-bob"), "bob");
    ck_assert_str_eq(name_of("nameless-key"), "key");
    ck_assert_ptr_eq(keys_find(&keys, "secret-of-alice"), keys_find(&keys, "new-of-alice"));
    ck_assert_int_eq(keys.n, 4);
    ck_assert_int_eq(keys.n_holders, 3);
    static const char *const wrong[] = {
        NULL, "", "secret-of-alic", "secret-of-alicee", "secret-of-Alice", "alice", "# who may"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_ptr_null(keys_find(&keys, wrong[i]));
}
END_TEST

START_TEST(lengths_at_their_limits) {
    char text[2 * KEYS_KEY_BYTES], key[KEYS_KEY_BYTES + 2];
    memset(key, 'k', sizeof key);
    key[KEYS_KEY_BYTES] = 0;
    snprintf(text, sizeof text, "n %s", key);
    takes(text);
    ck_assert_str_eq(name_of(key), "n");
    key[KEYS_KEY_BYTES - 1] = 0;
    ck_assert_ptr_null(keys_find(&keys, key));
    key[KEYS_KEY_BYTES - 1] = 'k';
    key[KEYS_KEY_BYTES] = 'k';
    key[KEYS_KEY_BYTES + 1] = 0;
    ck_assert_ptr_null(keys_find(&keys, key));
    snprintf(text, sizeof text, "n %s", key);
    refuses(text, "8 to 256");
    takes("n 12345678");
    refuses("n 1234567", "8 to 256");
    char name[KEYS_NAME_BYTES + 2];
    memset(name, 'n', sizeof name);
    name[KEYS_NAME_BYTES] = 0;
    snprintf(text, sizeof text, "%s 12345678", name);
    takes(text);
    ck_assert_str_eq(name_of("12345678"), name);
    name[KEYS_NAME_BYTES] = 'n';
    name[KEYS_NAME_BYTES + 1] = 0;
    snprintf(text, sizeof text, "%s 12345678", name);
    refuses(text, "at most 64");
}
END_TEST

START_TEST(what_is_no_file_of_keys) {
    refuses("", "no key");
    refuses("# only words\n\n", "no key");
    refuses("a 12345678\nb 12345678 c\n", "line 2");
    refuses("a 1234\xC3\xA9"
            "5678\n",
            "line 1");
    char *many = calloc(KEYS_MAX + 1, 20);
    for (size_t i = 0, at = 0; i <= KEYS_MAX; i++)
        at += (size_t)snprintf(many + at, 20, "key-%08zu\n", i);
    refuses(many, "more than 4096");
    many[(size_t)KEYS_MAX * 13] = 0;
    takes(many);
    ck_assert_int_eq(keys.n, KEYS_MAX);
    free(many);
}
END_TEST

START_TEST(a_reload_replaces_all_or_nothing) {
    char path[] = "/tmp/firstpass-keys-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    dprintf(fd, "alice old-of-alice\nbob old-of-bob\n");
    struct err e = {0};
    ck_assert_msg(keys_load(&keys, path, &e), "%s", e.message);
    struct keys_holder *alice = keys_find(&keys, "old-of-alice"),
                       *bob = keys_find(&keys, "old-of-bob");
    bob->n_races = 1; /* in work while the key goes */
    ck_assert(!ftruncate(fd, 0) && !lseek(fd, 0, SEEK_SET));
    dprintf(fd, "alice new-of-alice\nbroken line here\n");
    ck_assert(!keys_load(&keys, path, &e));
    ck_assert_msg(strstr(e.message, path) && strstr(e.message, "line 2"), "%s", e.message);
    ck_assert_ptr_eq(keys_find(&keys, "old-of-alice"), alice);
    ck_assert(!ftruncate(fd, 0) && !lseek(fd, 0, SEEK_SET));
    dprintf(fd, "alice new-of-alice\n");
    ck_assert(keys_load(&keys, path, &e));
    ck_assert_ptr_eq(keys_find(&keys, "new-of-alice"), alice);
    ck_assert_ptr_null(keys_find(&keys, "old-of-alice"));
    ck_assert_ptr_null(keys_find(&keys, "old-of-bob"));
    ck_assert_int_eq(bob->n_races, 1);
    close(fd);
    unlink(path);
    ck_assert(!keys_load(&keys, path, &e));
    ck_assert_msg(strstr(e.message, "can't read") != NULL, "%s", e.message);
}
END_TEST

int main(void) {
    Suite *s = suite_create("keys");
    TCase *t = tcase_create("keys");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, without_a_file_everybody_may);
    tcase_add_test(t, keys_have_holders);
    tcase_add_test(t, lengths_at_their_limits);
    tcase_add_test(t, what_is_no_file_of_keys);
    tcase_add_test(t, a_reload_replaces_all_or_nothing);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
