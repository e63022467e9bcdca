/* Prompt variants out of JSON, and the prompts that they make. */
#include "server/api_variants.h"
#include "tests/server/request_test.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct engine_model model = {
    .name = "tiny", .bos_text = "<s>", .eos_text = "</s>", .n_vocab = 1000, .context = 4096};

/* Marks what reads as a control token. */
static char *guard(void *self, const char *text, size_t len, size_t *len_out) {
    (void)self;
    bool control = memmem(text, len, "<|", 2) != NULL;
    char *out = err_alloc(len + 2, 1);
    if (control) out[0] = '!';
    memcpy(out + control, text, len);
    *len_out = len + control;
    return out;
}

static const struct api_request_context context = {
    .config = &config, .model = &model, .guard = guard};

/* A chat request with these members beside its message. */
static const char *chat(const char *members) {
    static char text[4096];
    snprintf(text, sizeof text, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],%s}",
             members);
    return text;
}
#define COMPLETIONS API_REQUEST_COMPLETIONS
#define CHAT API_REQUEST_CHAT
#define VARIANTS(list) "\"firstpass\":{\"diversity\":{\"prompts\":" list "}}"

/* The last user message of the variant's prompt. */
static void expect_question(int variant, const char *expected) {
    size_t len;
    char *text = api_variants_variables(&q, variant, &len);
    json_t *v = json_loadb(text, len, 0, NULL);
    json_t *messages = json_object_get(v, "messages"), *last = NULL;
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(messages, i), "role")),
                    "user"))
            last = json_array_get(messages, i);
    ck_assert_str_eq(json_string_value(json_object_get(last, "content")), expected);
    ck_assert(json_is_true(json_object_get(v, "add_generation_prompt")));
    json_decref(v);
    free(text);
}

START_TEST(variants_of_the_prompt) {
    takes(CHAT,
          chat(VARIANTS("[\"\", \"Be brief.\", {\"user\": \"Once: {question}!\", \"assistant\": "
                        "\"```python\\n\"}, {}]")));
    ck_assert_int_eq(q.n_variants, 4);
    size_t len;
    char *plain = api_variants_variables(&q, 0, &len);
    ck_assert_str_eq(plain, q.variables);
    free(plain);
    expect_question(0, "Hi");
    expect_question(1, "Hi\n\nBe brief.");
    expect_question(2, "Once: Hi!");
    expect_question(3, "Hi");
    ck_assert_uint_eq(q.variants[1].lead_len, 0);
    ck_assert_str_eq(api_variants_behind(&q, 2, &len), "```python\n");
    ck_assert_uint_eq(q.variants[2].lead_len, 10);
    q.job.first_index = 6;
    ck_assert_int_eq(api_request_variant_of(&q, 1), 3);
    /* At temperature 0 each prompt has one candidate. */
    takes(CHAT, chat("\"temperature\":0,\"firstpass\":{\"tests\":\"t\",\"max_candidates\":8,"
                     "\"diversity\":{\"prompts\":[\"\",\"b\",\"c\"]}}"));
    ck_assert_int_eq(q.job.n_candidates, 3);
    /* With a ladder each prompt goes through it. */
    takes(CHAT, chat("\"n\":8,\"firstpass\":{\"diversity\":{\"temperatures\":[0.5,1],"
                     "\"prompts\":[\"\",\"b\"]}}"));
    ck_assert_float_eq(api_request_temperature(&q, 1), 0.5F);
    ck_assert_float_eq(api_request_temperature(&q, 2), 1);
    takes(COMPLETIONS, "{\"prompt\":\"x = \"," VARIANTS("[{\"assistant\":\"1\"}]") "}");
    char *prompt = api_variants_prompt(&q, 0, &len);
    ck_assert_str_eq(prompt, "x = 1");
    free(prompt);
}
END_TEST

START_TEST(variants_that_are_refused) {
    static const struct {
        const char *value, *param;
    } cases[] = {
        {"1", "firstpass.diversity.prompts"},
        {"[]", "firstpass.diversity.prompts"},
        {"[1]", "firstpass.diversity.prompts"},
        {"[null]", "firstpass.diversity.prompts"},
        {"[{\"system\":\"x\"}]", "firstpass.diversity.prompts.system"},
        {"[{\"user\":1}]", "firstpass.diversity.prompts.user"},
        {"[{\"assistant\":[]}]", "firstpass.diversity.prompts.assistant"},
        {"[\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"]",
         "firstpass.diversity.prompts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[300];
        snprintf(members, sizeof members, "\"firstpass\":{\"diversity\":{\"prompts\":%s}}",
                 cases[i].value);
        refuses(CHAT, chat(members), cases[i].param, "");
    }
    const char *param = "firstpass.diversity.prompts";
    refuses(CHAT, chat("\"prompt_logprobs\":1," VARIANTS("[\"a\"]")), param, "prompt_logprobs");
    refuses(COMPLETIONS, "{\"prompt\":\"x\",\"echo\":true," VARIANTS("[\"a\"]") "}", param, "echo");
    refuses(COMPLETIONS, "{\"prompt\":[\"x\",\"y\"]," VARIANTS("[\"a\"]") "}", param, "several");
    refuses(COMPLETIONS, "{\"prompt\":[1,2]," VARIANTS("[\"a\"]") "}", param, "ids");
    refuses(CHAT,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
            "\"content\":\"b\"}],\"continue_final_message\":true,\"add_generation_prompt\":"
            "false," VARIANTS("[\"a\"]") "}",
            param, "continue_final_message");
    refuses(CHAT,
            "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"}]," VARIANTS("[\"a\"]") "}",
            param, "user");
    /* Its length: at the limit, and one over. */
    static char body[2 * LIMIT_VARIANT_BYTES];
    for (int over = 0; over < 2; over++) {
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"firstpass\":"
                 "{\"diversity\":{\"prompts\":[\"%0*d\"]}}}",
                 LIMIT_VARIANT_BYTES + over, 0);
        if (over)
            refuses(CHAT, body, param, "limit");
        else
            takes(CHAT, body);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("api_variants");
    TCase *t = tcase_create("api_variants");
    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_set_timeout(t, 0);
    tcase_add_test(t, variants_of_the_prompt);
    tcase_add_test(t, variants_that_are_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
