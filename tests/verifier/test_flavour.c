/* Which package a candidate's code asks for, told from its text. */
#include "verifier/flavour.h"

#include <check.h>
#include <string.h>

static const struct {
    const char *code;
    enum flavour flavour;
} cases[] = {
    {"", FLAVOUR_STANDARD},
    {"import numpy", FLAVOUR_NUMPY},
    {"import numpy as np\n", FLAVOUR_NUMPY},
    {"x = 1\n    \timport numpy as np\n", FLAVOUR_NUMPY},
    {"from numpy import array", FLAVOUR_NUMPY},
    {"from\tnumpy.linalg import norm", FLAVOUR_NUMPY},
    {"import os, numpy", FLAVOUR_NUMPY},
    {"import math\nimport numpy\n", FLAVOUR_NUMPY},
    {"import scipy.stats\nimport numpy\n", FLAVOUR_SCIPY},
    {"import numpy\nimport pandas as pd\nimport scipy\n", FLAVOUR_PANDAS},
    {"# numpy would be faster\nx = 'import numpy'\n", FLAVOUR_STANDARD},
    {"import numpy_financial", FLAVOUR_STANDARD},
    {"import mynumpy", FLAVOUR_STANDARD},
    {"importnumpy", FLAVOUR_STANDARD},
    {"import", FLAVOUR_STANDARD},
    {"import ", FLAVOUR_STANDARD},
    {"from", FLAVOUR_STANDARD},
    {"important numpy", FLAVOUR_STANDARD},
};

START_TEST(test_of_text) {
    ck_assert_msg(flavour_of(cases[_i].code, strlen(cases[_i].code)) == cases[_i].flavour, "%s",
                  cases[_i].code);
}
END_TEST

/* A text without an end: only what is within its length is read. */
START_TEST(test_within_its_length) {
    static const char code[] = {'i', 'm', 'p', 'o', 'r', 't', ' ', 'n', 'u', 'm', 'p', 'y'};
    ck_assert_int_eq(flavour_of(code, sizeof code), FLAVOUR_NUMPY);
    for (size_t len = 0; len < sizeof code; len++)
        ck_assert_int_eq(flavour_of(code, len), FLAVOUR_STANDARD);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("flavour");
    TCase *tc = tcase_create("flavour");
    tcase_add_loop_test(tc, test_of_text, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_test(tc, test_within_its_length);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
