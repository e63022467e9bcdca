/* Requests out of JSON: what each field does, what is refused and with which words. */
#include "server/api_tests.h"
#include "tests/server/request_test.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct engine_model model = {.name = "tiny",
                                    .bos_text = "<s>",
                                    .eos_text = "</s>",
                                    .n_vocab = 1000,
                                    .context = 4096,
                                    .fim_prefix = -1,
                                    .fim_suffix = -1,
                                    .fim_middle = -1};

/* Marks what reads as a control token, and only that. */
static char *guard(void *self, const char *text, size_t len, size_t *len_out) {
    (void)self;
    const char *mark = len > 1 ? memmem(text, len, "<|", 2) : NULL;
    size_t at = mark ? (size_t)(mark - text) + 1 : len;
    char *out = calloc(1, len + 2);
    memcpy(out, text, at);
    if (mark) {
        out[at] = '!';
        memcpy(out + at + 1, text + at, len - at);
    }
    *len_out = len + (mark != NULL);
    return out;
}
static const struct api_request_context context = {
    .config = &config, .model = &model, .guard = guard};

/* A completions request with these members beside its prompt; a chat request beside its messages.
 */
static const char *completion(const char *members) {
    static char text[4096];
    snprintf(text, sizeof text, "{\"prompt\":\"p\"%s%s}", *members ? "," : "", members);
    return text;
}
static const char *chat(const char *members) {
    static char text[4096];
    snprintf(text, sizeof text, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
             *members ? "," : "", members);
    return text;
}
static const char *tests(const char *members) {
    static char text[4096];
    snprintf(text, sizeof text,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
             "\"firstpass\":{\"tests\":\"assert f()\"%s%s}}",
             *members ? "," : "", members);
    return text;
}
#define COMPLETIONS API_REQUEST_COMPLETIONS
#define CHAT API_REQUEST_CHAT

/* ---- the document ---- */

START_TEST(what_is_no_json) {
    static const char *const bodies[] = {
        "{",
        "{\"prompt\":\"p\",}",
        "{\"prompt\":\"p\"} x",
        "{\"prompt\":\"a\",\"prompt\":\"b\"}",
        "{\"prompt\":NaN}",
        "{\"prompt\":\"p\",\"temperature\":Infinity}",
        "{\"prompt\":\"p\",\"temperature\":1e999}",
        "{\"prompt\":\"p\",\"seed\":99999999999999999999}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"\\ud800\"}",
        "{'prompt':'p'}",
        "\xef\xbb\xbf{}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        refuses(COMPLETIONS, bodies[i], "", "isn't valid JSON");
    refuses(COMPLETIONS, "", "", "no body");
    refuses(COMPLETIONS, "[]", "", "must be a JSON object, not an array");
    refuses(COMPLETIONS, "null", "", "not null");
    refuses(COMPLETIONS, "\"{}\"", "", "not a string");
}
END_TEST

START_TEST(depth_is_bounded) {
    char body[1000];
    for (int extra = 0; extra < 2; extra++) {
        size_t depth = LIMIT_JSON_DEPTH - 1 + (size_t)extra; /* and the object around */
        size_t used = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"[[{\\\"[[\",\"user\":");
        memset(body + used, '[', depth);
        memset(body + used + depth, ']', depth);
        snprintf(body + used + 2 * depth, 2, "}");
        if (extra)
            refuses(COMPLETIONS, body, "", "nested deeper than 64");
        else
            takes(COMPLETIONS, body);
    }
    static char deep[300000];
    memset(deep, '[', sizeof deep - 1);
    refuses(COMPLETIONS, deep, "", "nested deeper");
}
END_TEST

START_TEST(null_is_absent_and_unknown_fields_are_ignored) {
    takes(
        COMPLETIONS,
        completion("\"n\":null,\"temperature\":null,\"stop\":null,\"logprobs\":null,\"seed\":null,"
                   "\"stream\":null,\"suffix\":null,\"firstpass\":null,\"max_tokens\":null,"
                   "\"audio\":null,\"best_of\":null,\"logit_bias\":null,\"echo\":null,"
                   "\"user\":\"u\",\"metadata\":{\"a\":1},\"made_up\":[1,2]"));
    ck_assert_int_eq(q.n_choices, 1);
    ck_assert_int_eq(q.job.max_tokens, 16);
    ck_assert(q.job.sampling.temperature == 1.0f);
    ck_assert(!q.has_seed && !q.stream && !q.job.logprobs && !q.has_tests);
    takes(CHAT, chat("\"top_logprobs\":null,\"tools\":null,\"tool_choice\":null,"
                     "\"response_format\":null,\"max_completion_tokens\":null"));
    ck_assert_int_eq(q.job.max_tokens, 0);
}
END_TEST

/* ---- fields ---- */

START_TEST(numbers_at_their_bounds) {
    static const struct {
        const char *field, *low, *below, *high, *above;
    } cases[] = {
        {"temperature", "0", "-0.01", "2", "2.01"},
        {"top_p", "0", "-1", "1", "1.1"},
        {"min_p", "0", "-0.1", "1.0", "1.01"},
        {"top_k", "-1", "-2", "1048576", "1048577"},
        {"presence_penalty", "-2", "-2.1", "2", "2.1"},
        {"frequency_penalty", "-2", "-2.1", "2", "2.1"},
        {"repetition_penalty", "0.01", "0", "10", "10.5"},
        {"max_tokens", "1", "0", "131072", "131073"},
        {"n", "1", "0", "10000", "10001"},
        {"seed", "-9223372036854775808", "0.5", "9223372036854775807", "1e300"},
    };
    char body[200];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *values[] = {cases[i].low, cases[i].high, cases[i].below, cases[i].above};
        for (int j = 0; j < 4; j++) {
            snprintf(body, sizeof body, "\"%s\":%s", cases[i].field, values[j]);
            if (j < 2)
                takes(COMPLETIONS, completion(body));
            else
                refuses(COMPLETIONS, completion(body), cases[i].field, "must be");
        }
        static const char *const wrong[] = {"\"1\"", "[1]", "{}", "true"};
        for (int j = 0; j < 4; j++) {
            snprintf(body, sizeof body, "\"%s\":%s", cases[i].field, wrong[j]);
            refuses(COMPLETIONS, completion(body), cases[i].field, "must be a");
        }
    }
    refuses(COMPLETIONS, completion("\"n\":10001"), "n", "between 1 and 10000, not 10001");
    refuses(COMPLETIONS, completion("\"n\":1.5"), "n", "a whole number, not a fraction");
    takes(COMPLETIONS, completion("\"n\":3.0"));
    ck_assert_int_eq(q.job.n_candidates, 3);
}
END_TEST

START_TEST(prompts_in_four_shapes) {
    takes(COMPLETIONS, "{\"prompt\":\"a\\u0000b\"}");
    ck_assert_int_eq(q.n_prompts, 1);
    ck_assert_uint_eq(q.prompts[0].len, 3);
    takes(COMPLETIONS, "{\"prompt\":[\"a\",\"bc\"]}");
    ck_assert_int_eq(q.n_prompts, 2);
    ck_assert_str_eq(q.prompts[1].text, "bc");
    takes(COMPLETIONS, "{\"prompt\":[1,2,999]}");
    ck_assert_int_eq(q.n_prompts, 1);
    ck_assert_uint_eq(q.prompts[0].n_tokens, 3);
    ck_assert_int_eq(q.prompts[0].tokens[2], 999);
    takes(COMPLETIONS, "{\"prompt\":[[1],[2,3]]}");
    ck_assert_int_eq(q.n_prompts, 2);
    ck_assert_int_eq(q.prompts[1].tokens[1], 3);
    takes(COMPLETIONS, "{\"prompt\":[[1],\"text\"]}");

    refuses(COMPLETIONS, "{}", "prompt", "missing");
    refuses(COMPLETIONS, "{\"prompt\":null}", "prompt", "missing");
    refuses(COMPLETIONS, "{\"prompt\":[]}", "prompt", "empty");
    refuses(COMPLETIONS, "{\"prompt\":[[]]}", "prompt", "empty");
    refuses(COMPLETIONS, "{\"prompt\":7}", "prompt", "must be a string");
    refuses(COMPLETIONS, "{\"prompt\":{}}", "prompt", "must be a string");
    refuses(COMPLETIONS, "{\"prompt\":[null]}", "prompt", "not null");
    refuses(COMPLETIONS, "{\"prompt\":[1,\"a\"]}", "prompt", "token 1");
    refuses(COMPLETIONS, "{\"prompt\":[1,1.5]}", "prompt", "whole number");
    refuses(COMPLETIONS, "{\"prompt\":[-1]}", "prompt", "outside the vocabulary");
    refuses(COMPLETIONS, "{\"prompt\":[1000]}", "prompt", "outside the vocabulary of 1000");
}
END_TEST

START_TEST(the_number_of_prompts_is_bounded) {
    for (int n = LIMIT_PROMPTS; n <= LIMIT_PROMPTS + 1; n++) {
        char body[4096];
        size_t used = (size_t)snprintf(body, sizeof body, "{\"prompt\":[\"a\"");
        for (int i = 1; i < n; i++)
            used += (size_t)snprintf(body + used, sizeof body - used, ",\"a\"");
        snprintf(body + used, sizeof body - used, "]}");
        if (n == LIMIT_PROMPTS)
            takes(COMPLETIONS, body);
        else
            refuses(COMPLETIONS, body, "prompt", "the limit is 256");
    }
    refuses(COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"n\":5001}", "n", "10000");
    takes(COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"n\":5000}");
}
END_TEST

START_TEST(stops) {
    takes(COMPLETIONS, completion("\"stop\":\"\\n\\n\""));
    ck_assert_int_eq(q.job.n_stops, 1);
    ck_assert_str_eq(q.job.stops[0], "\n\n");
    takes(COMPLETIONS, completion("\"stop\":[\"a\",\"\",\"bcd\"]"));
    ck_assert_int_eq(q.job.n_stops, 2);
    ck_assert_uint_eq(q.job.stop_lens[1], 3);
    takes(COMPLETIONS, completion("\"stop\":[]"));
    ck_assert_int_eq(q.job.n_stops, 0);
    refuses(COMPLETIONS, completion("\"stop\":5"), "stop", "not a number");
    refuses(COMPLETIONS, completion("\"stop\":[5]"), "stop", "not a number");
    takes(COMPLETIONS,
          completion("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\","
                     "\"b\",\"c\",\"d\",\"e\",\"f\",\"g\"]"));
    refuses(COMPLETIONS,
            completion("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\","
                       "\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]"),
            "stop", "the limit is 16");
    char body[600];
    for (int n = LIMIT_STOP_BYTES; n <= LIMIT_STOP_BYTES + 1; n++) {
        snprintf(body, sizeof body, "\"stop\":\"%0*d\"", n, 0);
        if (n == LIMIT_STOP_BYTES)
            takes(COMPLETIONS, completion(body));
        else
            refuses(COMPLETIONS, completion(body), "stop", "the limit is 256");
    }
    takes(COMPLETIONS, completion("\"stop_token_ids\":[0,999]"));
    ck_assert_int_eq(q.job.n_stop_tokens, 2);
    refuses(COMPLETIONS, completion("\"stop_token_ids\":[1000]"), "stop_token_ids", "no token id");
    refuses(COMPLETIONS, completion("\"stop_token_ids\":\"a\""), "stop_token_ids", "list");
}
END_TEST

START_TEST(lengths) {
    takes(CHAT, chat("\"max_tokens\":5"));
    ck_assert_int_eq(q.job.max_tokens, 5);
    takes(CHAT, chat("\"max_tokens\":5,\"max_completion_tokens\":7"));
    ck_assert_int_eq(q.job.max_tokens, 7);
    refuses(CHAT, chat("\"max_completion_tokens\":0"), "max_completion_tokens", "between 1");
    refuses(CHAT, chat("\"max_tokens\":5,\"min_tokens\":6"), "min_tokens", "max_tokens (5)");
    takes(CHAT, chat("\"max_tokens\":5,\"min_tokens\":5,\"ignore_eos\":true"));
    ck_assert(q.job.ignore_eos);
}
END_TEST

START_TEST(log_probabilities) {
    takes(COMPLETIONS, completion("\"logprobs\":0"));
    ck_assert(q.job.logprobs);
    ck_assert_int_eq(q.job.n_top_logprobs, 0);
    takes(COMPLETIONS, completion("\"logprobs\":5"));
    ck_assert_int_eq(q.job.n_top_logprobs, 5);
    takes(COMPLETIONS, completion("\"logprobs\":false"));
    ck_assert(!q.job.logprobs);
    refuses(COMPLETIONS, completion("\"logprobs\":21"), "logprobs", "20");
    takes(COMPLETIONS, completion("\"logprobs\":1,\"echo\":true,\"prompt_logprobs\":3"));
    ck_assert(q.echo && q.job.prompt_logprobs);
    ck_assert_int_eq(q.job.n_prompt_top, 3);
    ck_assert_int_eq(q.n_prompt_logprobs, 3);
    takes(COMPLETIONS, completion("\"prompt_logprobs\":0"));
    ck_assert(q.job.prompt_logprobs && !q.job.logprobs && q.n_prompt_logprobs == 0);
    takes(COMPLETIONS, completion("\"prompt_logprobs\":false,\"echo\":true"));
    ck_assert(!q.job.prompt_logprobs && q.n_prompt_logprobs == -1);
    refuses(CHAT, chat("\"prompt_logprobs\":21"), "prompt_logprobs", "20");
    refuses(CHAT, chat("\"prompt_logprobs\":1,\"stream\":true"), "prompt_logprobs", "streamed");
    takes(CHAT, chat("\"logprobs\":true,\"top_logprobs\":20"));
    ck_assert_int_eq(q.job.n_top_logprobs, 20);
    refuses(CHAT, chat("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "20");
    refuses(CHAT, chat("\"top_logprobs\":2"), "top_logprobs", "needs");
    refuses(CHAT, chat("\"logprobs\":3"), "logprobs", "true or false");
}
END_TEST

START_TEST(logit_bias) {
    takes(COMPLETIONS, completion("\"logit_bias\":{\"5\":-100,\"999\":1.5}"));
    ck_assert_int_eq(q.job.sampling.n_bias, 2);
    ck_assert(q.job.sampling.bias[0].bias == -100.0f);
    static const char *const wrong[] = {"{\"1000\":1}", "{\"-1\":1}",    "{\"x\":1}",
                                        "{\"5x\":1}",   "{\"\":1}",      "{\"5\":101}",
                                        "[5]",          "{\"5\":\"1\"}", "{\"5\":null}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char body[100];
        snprintf(body, sizeof body, "\"logit_bias\":%s", wrong[i]);
        refuses(COMPLETIONS, completion(body), "logit_bias", "");
    }
}
END_TEST

START_TEST(choices) {
    takes(COMPLETIONS, completion("\"n\":3,\"best_of\":5"));
    ck_assert_int_eq(q.n_choices, 3);
    ck_assert_int_eq(q.job.n_candidates, 5);
    refuses(COMPLETIONS, completion("\"n\":3,\"best_of\":2"), "best_of", "n (3)");
    refuses(COMPLETIONS, completion("\"best_of\":2,\"stream\":true"), "best_of", "stream");
    takes(COMPLETIONS, completion("\"best_of\":1,\"stream\":true"));
    ck_assert(q.job.stream);
}
END_TEST

START_TEST(streaming) {
    takes(CHAT, chat("\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
    ck_assert(q.stream && q.include_usage && q.job.stream);
    refuses(CHAT, chat("\"stream_options\":{\"include_usage\":true}"), "stream_options", "stream");
    refuses(CHAT, chat("\"stream\":true,\"stream_options\":{\"include_usage\":1}"),
            "stream_options.include_usage", "true or false");
    refuses(CHAT, chat("\"stream\":true,\"stream_options\":7"), "stream_options", "object");
    refuses(CHAT, chat("\"stream\":\"yes\""), "stream", "true or false");
}
END_TEST

START_TEST(what_is_not_there_is_refused) {
    static const struct {
        const char *members, *param;
    } cases[] = {
        {"\"audio\":{}", "audio"},
        {"\"functions\":[{}]", "functions"},
        {"\"web_search_options\":{}", "web_search_options"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"response_format\":\"text\"", "response_format"},
        {"\"modalities\":[\"audio\"]", "modalities"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
        {"\"guided_regex\":\"a\"", "guided_regex"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(CHAT, chat(cases[i].members), cases[i].param, "supported");
    takes(CHAT, chat("\"suffix\":\"\",\"functions\":[],\"tools\":[],\"tool_choice\":\"auto\","
                     "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],"
                     "\"parallel_tool_calls\":true,\"store\":false,\"service_tier\":\"auto\""));
}
END_TEST

START_TEST(a_gap_is_filled_where_the_model_can) {
    refuses(COMPLETIONS, completion("\"suffix\":\"x\""), "suffix", "tiny has no tokens");
    model.fim_prefix = 7;
    model.fim_suffix = 8;
    model.fim_middle = 9;
    takes(COMPLETIONS, completion("\"suffix\":\"x\\u0000y\""));
    ck_assert_uint_eq(q.suffix_len, 3);
    takes(COMPLETIONS, completion("\"suffix\":\"\""));
    ck_assert_ptr_null(q.suffix);
    refuses(COMPLETIONS, completion("\"suffix\":5"), "suffix", "must be a string");
    refuses(COMPLETIONS, completion("\"suffix\":\"x\",\"echo\":true"), "suffix", "echo");
    refuses(CHAT, chat("\"suffix\":\"x\""), "suffix", "/v1/completions");
    model.fim_prefix = model.fim_suffix = model.fim_middle = -1;
}
END_TEST

START_TEST(passes_wanted_and_estimated) {
    takes(CHAT, chat("\"firstpass\":{\"tests\":\"t\",\"return\":3,\"max_candidates\":8}"));
    ck_assert_int_eq(q.returns, RACE_FIRST);
    ck_assert_int_eq(q.n_passes, 3);
    takes(CHAT, chat("\"firstpass\":{\"tests\":\"t\",\"return\":\"all\",\"pass_at_k\":[1,32],"
                     "\"first_index\":7}"));
    ck_assert_int_eq(q.n_pass_at, 2);
    ck_assert_int_eq(q.pass_at[1], 32);
    ck_assert_int_eq(q.job.first_index, 7);
    takes(CHAT, chat("\"n\":2,\"firstpass\":{\"first_index\":9998}"));
    refuses(CHAT, chat("\"n\":2,\"firstpass\":{\"first_index\":9999}"), "firstpass.first_index",
            "10000");
    static const struct {
        const char *members, *param, *words;
    } cases[] = {
        {"\"return\":0", "return", "between 1"},
        {"\"return\":33", "return", "33 passes of only 32"},
        {"\"return\":\"some\"", "return", "must be one of"},
        {"\"pass_at_k\":[1]", "pass_at_k", "unbiased"},
        {"\"pass_at_k\":[],\"return\":\"all\"", "pass_at_k", "a list of 1 to 32"},
        {"\"pass_at_k\":[33],\"return\":\"all\"", "pass_at_k", "from 1 to max_candidates"},
        {"\"pass_at_k\":[\"1\"],\"return\":\"all\"", "pass_at_k", "whole number"},
        {"\"first_index\":-1", "first_index", "between 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[200], param[80];
        snprintf(members, sizeof members, "\"firstpass\":{\"tests\":\"t\",%s}", cases[i].members);
        snprintf(param, sizeof param, "firstpass.%s", cases[i].param);
        refuses(CHAT, chat(members), param, cases[i].words);
    }
    refuses(CHAT, chat("\"firstpass\":{\"pass_at_k\":1}"), "firstpass.pass_at_k", "needs");
}
END_TEST

START_TEST(a_ladder_of_temperatures) {
    takes(CHAT, chat("\"n\":4,\"firstpass\":{\"diversity\":{\"temperatures\":[0,0.5,2]}}"));
    ck_assert_int_eq(q.job.sampling.n_temperatures, 3);
    ck_assert_float_eq(q.job.sampling.temperatures[1], 0.5F);
    /* At temperature 0 one candidate is all there is, but not of a ladder. */
    takes(CHAT, chat("\"temperature\":0,\"firstpass\":{\"tests\":\"t\",\"max_candidates\":8,"
                     "\"diversity\":{\"temperatures\":[0,1]}}"));
    ck_assert_int_eq(q.job.n_candidates, 8);
    takes(CHAT, chat("\"firstpass\":{\"diversity\":null}"));
    ck_assert_int_eq(q.job.sampling.n_temperatures, 0);
    static const struct {
        const char *value, *param;
    } cases[] = {
        {"[]", "firstpass.diversity"},
        {"{}", "firstpass.diversity"},
        {"{\"temperatures\":1}", "firstpass.diversity.temperatures"},
        {"{\"temperatures\":[]}", "firstpass.diversity.temperatures"},
        {"{\"temperatures\":[\"1\"]}", "firstpass.diversity.temperatures"},
        {"{\"temperatures\":[2.1]}", "firstpass.diversity.temperatures"},
        {"{\"temperatures\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}",
         "firstpass.diversity.temperatures"},
        {"{\"temperatures\":[1],\"heat\":1}", "firstpass.diversity.heat"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[200];
        snprintf(members, sizeof members, "\"firstpass\":{\"diversity\":%s}", cases[i].value);
        refuses(CHAT, chat(members), cases[i].param, "");
    }
}
END_TEST

/* ---- what clients that can't add fields say instead ---- */

START_TEST(inline_tests_count_only_where_they_are_on) {
    static const char body[] =
        "{\"model\":\"tiny:best-of-9\",\"messages\":[{\"role\":\"user\",\"content\":"
        "\"f?\\n```python test\\nassert f()\\n```\"}]}";
    takes(CHAT, body);
    ck_assert(!q.has_tests);
    ck_assert_str_eq(q.model, "tiny:best-of-9");
    config.server.inline_tests = true;
    takes(CHAT, body);
    ck_assert(q.has_tests);
    ck_assert_str_eq(q.model, "tiny");
    ck_assert_int_eq(q.job.n_candidates, 9);
    ck_assert_uint_eq(q.tests.tests_len, 11);
    takes(COMPLETIONS, completion("\"model\":\"tiny:best-of-9\""));
    ck_assert_int_eq(q.job.n_candidates, 9);
    ck_assert_int_eq(q.n_choices, 1);
    /* The object's own tests win. */
    takes(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"```python test\\nx\\n```\"}],"
                "\"firstpass\":{\"tests\":\"assert 12\"}}");
    ck_assert_uint_eq(q.tests.tests_len, 9);
    config.server.inline_tests = false;
}
END_TEST

/* ---- /v1/responses ---- */

static json_t *variables(void);
static const char *message(json_t *v, size_t i, const char *field);

#define RESPONSES API_REQUEST_RESPONSES

START_TEST(responses_become_chat) {
    takes(
        RESPONSES,
        "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]},"
        "{\"type\":\"reasoning\"},{\"type\":\"message\",\"role\":\"assistant\",\"content\":"
        "[{\"type\":\"output_text\",\"text\":\"b\"}]},{\"type\":\"function_call\",\"call_id\":"
        "\"1\","
        "\"name\":\"g\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"1\","
        "\"output\":\"r\"}],\"instructions\":\"Be <|short\",\"max_output_tokens\":7,"
        "\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":\"auto\",\"store\":true,"
        "\"text\":{\"format\":{\"type\":\"text\"}},\"top_logprobs\":3}");
    json_t *v = variables();
    ck_assert_uint_eq(json_array_size(json_object_get(v, "messages")), 5);
    ck_assert_str_eq(message(v, 0, "content"), "Be <!|short");
    ck_assert_str_eq(message(v, 1, "content"), "a");
    ck_assert_str_eq(message(v, 2, "content"), "b");
    ck_assert_str_eq(message(v, 4, "role"), "tool");
    ck_assert_ptr_null(json_object_get(v, "tools"));
    json_decref(v);
    ck_assert_int_eq(q.job.max_tokens, 7);
    ck_assert(strstr(q.repeated, "\"instructions\":\"Be <|short\"") != NULL);
    takes(RESPONSES, "{\"input\":\"hi\",\"firstpass\":{\"tests\":\"assert f()\"}}");
    ck_assert(q.has_tests);
    static const struct {
        const char *body, *param, *words;
    } cases[] = {
        {"{}", "input", "must be a string"},
        {"{\"input\":[]}", "input", "isn't empty"},
        {"{\"input\":[5]}", "input", "a number"},
        {"{\"input\":[{\"type\":\"computer_call\"}]}", "input", "computer_call"},
        {"{\"input\":\"a\",\"previous_response_id\":\"r\"}", "previous_response_id",
         "stores nothing"},
        {"{\"input\":\"a\",\"background\":true}", "background", "stores nothing"},
        {"{\"input\":\"a\",\"messages\":[]}", "messages", "no field"},
        {"{\"input\":\"a\",\"instructions\":5}", "instructions", "a string"},
        {"{\"input\":\"a\",\"n\":2}", "n", "between 1 and 1"},
        {"{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_object\"}}}", "response_format",
         "supported"},
        {"{\"input\":\"a\",\"tool_choice\":\"required\"}", "tool_choice", "supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(RESPONSES, cases[i].body, cases[i].param, cases[i].words);
}
END_TEST

/* ---- messages ---- */

static json_t *variables(void) {
    json_t *v = json_loadb(q.variables, q.variables_len, JSON_ALLOW_NUL, NULL);
    ck_assert_ptr_nonnull(v);
    return v;
}

static const char *message(json_t *v, size_t i, const char *field) {
    return json_string_value(
        json_object_get(json_array_get(json_object_get(v, "messages"), i), field));
}

START_TEST(messages_are_guarded_and_joined) {
    takes(CHAT,
          "{\"messages\":[{\"role\":\"developer\",\"content\":\"be <|good\"},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a<\"},"
          "{\"type\":\"text\",\"text\":\"|b\"}],\"name\":\"<|me\"},"
          "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":"
          "\"function\",\"function\":{\"name\":\"g\",\"arguments\":"
          "\"{\\\"<|x\\\":\\\"<|y\\\"}\"}}]},"
          "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"\\u0000r\"}],"
          "\"chat_template_kwargs\":{\"enable_thinking\":false,\"messages\":[],\"k\":\"<|v\"}}");
    json_t *v = variables();
    ck_assert_str_eq(message(v, 0, "role"), "system");
    ck_assert_str_eq(message(v, 0, "content"), "be <!|good");
    ck_assert_str_eq(message(v, 1, "content"), "a<!|b");
    ck_assert_str_eq(message(v, 1, "name"), "<!|me");
    ck_assert_str_eq(message(v, 2, "content"), "");
    ck_assert_str_eq(message(v, 3, "tool_call_id"), "1");
    json_t *call = json_array_get(
        json_object_get(json_array_get(json_object_get(v, "messages"), 2), "tool_calls"), 0);
    /* Past calls' arguments are objects to a template, keys and all guarded. */
    json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
    ck_assert_str_eq(json_string_value(json_object_get(arguments, "<!|x")), "<!|y");
    ck_assert(json_is_false(json_object_get(v, "enable_thinking")));
    ck_assert_str_eq(json_string_value(json_object_get(v, "k")), "<!|v");
    ck_assert(json_is_true(json_object_get(v, "add_generation_prompt")));
    ck_assert_str_eq(json_string_value(json_object_get(v, "bos_token")), "<s>");
    json_decref(v);
}
END_TEST

START_TEST(instructions_come_first) {
    takes(CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},"
                "{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"developer\",\"content\":\"c\"},"
                "{\"role\":\"developer\",\"content\":\"d\"}]}");
    json_t *v = variables();
    ck_assert_uint_eq(json_array_size(json_object_get(v, "messages")), 2);
    ck_assert_str_eq(message(v, 0, "role"), "system");
    ck_assert_str_eq(message(v, 0, "content"), "a\n\nc\n\nd");
    ck_assert_str_eq(message(v, 1, "content"), "b");
    json_decref(v);
}
END_TEST

START_TEST(the_last_message_is_continued) {
    takes(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                "{\"role\":\"assistant\",\"content\":\"b<|c\"}],"
                "\"continue_final_message\":true,\"add_generation_prompt\":false}");
    ck_assert_str_eq(q.continued, "b<!|c");
    takes(CHAT, chat("\"continue_final_message\":false"));
    ck_assert_ptr_null(q.continued);
    refuses(CHAT, chat("\"continue_final_message\":true"), "continue_final_message", "needs");
    refuses(CHAT,
            "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}],"
            "\"continue_final_message\":true,\"add_generation_prompt\":false}",
            "continue_final_message", "some content");
}
END_TEST

START_TEST(tools_reach_the_template_unless_none_are_wanted) {
    takes(CHAT, chat("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"<|f\"}}]"));
    json_t *v = variables();
    json_t *f = json_object_get(json_array_get(json_object_get(v, "tools"), 0), "function");
    ck_assert_str_eq(json_string_value(json_object_get(f, "name")), "<!|f");
    json_decref(v);
    takes(CHAT, chat("\"tools\":[{}],\"tool_choice\":\"none\""));
    v = variables();
    ck_assert_ptr_null(json_object_get(v, "tools"));
    json_decref(v);
    refuses(CHAT, chat("\"tools\":5"), "tools", "a list");
    refuses(CHAT, chat("\"chat_template_kwargs\":5"), "chat_template_kwargs", "an object");
}
END_TEST

START_TEST(messages_that_are_none) {
    static const struct {
        const char *messages, *param, *words;
    } cases[] = {
        {"[]", "messages", "empty"},
        {"\"hi\"", "messages", "must be a list"},
        {"{}", "messages", "must be a list"},
        {"[1]", "messages[0]", "an object"},
        {"[{\"content\":\"x\"}]", "messages[0]", "role"},
        {"[{\"role\":\"king\",\"content\":\"x\"}]", "messages[0]", "role"},
        {"[{\"role\":5,\"content\":\"x\"}]", "messages[0]", "role"},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content", "string or a list"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "messages[0].content",
         "image_url"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":7}]}]",
         "messages[0].content", "string"},
        {"[{\"role\":\"user\",\"content\":[5]}]", "messages[0].content", "part 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[300];
        snprintf(body, sizeof body, "{\"messages\":%s}", cases[i].messages);
        refuses(CHAT, body, cases[i].param, cases[i].words);
    }
    refuses(CHAT, "{}", "messages", "missing");
}
END_TEST

/* ---- firstpass ---- */

START_TEST(defaults_with_tests) {
    takes(CHAT, tests(""));
    ck_assert(q.has_tests);
    ck_assert_int_eq(q.job.n_candidates, 32);
    ck_assert_int_eq(q.n_choices, 1);
    ck_assert_int_eq(q.job.width, 0);
    ck_assert_int_eq(q.returns, RACE_FIRST);
    ck_assert_int_eq(q.on_fail, RACE_FAIL_BEST);
    ck_assert_int_eq(q.detail, RACE_CANDIDATES_NONE);
    ck_assert(q.job.sampling.greedy_first && q.job.stop_at_code_end && q.tests.score);
    ck_assert(q.tests.timeout_s == 3.0 && q.deadline_s == 600.0);
    ck_assert_int_eq(q.tests.memory_mb, 256);
    ck_assert_int_eq(q.tests.format, VERIFIER_ASSERTS);
    ck_assert_int_eq(q.tests.extract, VERIFIER_EXTRACT_AUTO);
    ck_assert_int_eq(q.job.max_tokens, 0);
    takes(COMPLETIONS,
          "{\"prompt\":\"p\",\"firstpass\":{\"tests\":\"import x\\ndef check(c):\\n  assert c\"}}");
    ck_assert_int_eq(q.tests.format, VERIFIER_HUMANEVAL);
    ck_assert_int_eq(q.job.max_tokens, 0);
    ck_assert_str_eq(q.tests.prompt, "p");
    takes(CHAT, tests("\"extract\":\"raw\""));
    ck_assert(!q.job.stop_at_code_end); /* a fence is a part of raw code */
}
END_TEST

START_TEST(fields_with_tests) {
    takes(
        CHAT,
        tests(
            "\"format\":\"script\",\"entry_point\":\"f\",\"max_candidates\":100,"
            "\"width\":7,\"return\":\"lowest_index\",\"on_fail\":\"error\",\"timeout_s\":1.5,"
            "\"memory_mb\":64,\"deadline_s\":9,\"extract\":\"fenced\",\"greedy_first\":false,"
            "\"progress\":true,\"candidates\":\"full\",\"score\":true,\"prompt\":\"import math\""));
    ck_assert_int_eq(q.tests.format, VERIFIER_SCRIPT);
    ck_assert_str_eq(q.tests.entry_point, "f");
    ck_assert_int_eq(q.job.n_candidates, 100);
    ck_assert_int_eq(q.job.width, 7);
    ck_assert_int_eq(q.returns, RACE_LOWEST_INDEX);
    ck_assert_int_eq(q.on_fail, RACE_FAIL_ERROR);
    ck_assert_int_eq(q.detail, RACE_CANDIDATES_FULL);
    ck_assert_int_eq(q.progress, API_REQUEST_PROGRESS_COUNTS);
    ck_assert(!q.job.sampling.greedy_first && q.tests.score);
    ck_assert(q.tests.timeout_s == 1.5 && q.deadline_s == 9.0);
    ck_assert_str_eq(q.tests.prompt, "import math");
    takes(CHAT, tests("\"on_fail\":\"error\""));
    ck_assert(!q.tests.score);
    takes(CHAT, tests("\"progress\":\"candidates\""));
    ck_assert_int_eq(q.progress, API_REQUEST_PROGRESS_CANDIDATES);
    ck_assert(!api_request_tells_each(&q) && !q.job.stream); /* without a stream nobody is told */
    takes(CHAT, tests("\"width\":\"auto\",\"progress\":null,\"format\":null"));
    ck_assert_int_eq(q.job.width, 0);
}
END_TEST

START_TEST(wrong_fields_with_tests) {
    static const struct {
        const char *members, *param, *words;
    } cases[] = {
        {"\"test\":\"x\"", "firstpass.test", "no field"},
        {"\"MAX_CANDIDATES\":1", "firstpass.MAX_CANDIDATES", "no field"},
        {"\"format\":\"nose\"", "firstpass.format", "nose"},
        {"\"format\":5", "firstpass.format", "a string"},
        {"\"max_candidates\":0", "firstpass.max_candidates", "between 1 and 10000, not 0"},
        {"\"max_candidates\":10001", "firstpass.max_candidates", "between 1 and 10000, not 10001"},
        {"\"width\":0", "firstpass.width", "between 1"},
        {"\"width\":\"wide\"", "firstpass.width", "auto"},
        {"\"return\":\"second\"", "firstpass.return", "\"lowest_index\""},
        {"\"return\":true", "firstpass.return", "\"lowest_index\""},
        {"\"on_fail\":\"cry\"", "firstpass.on_fail", "\"error\""},
        {"\"candidates\":true", "firstpass.candidates", "\"verdicts\""},
        {"\"timeout_s\":0", "firstpass.timeout_s", "between"},
        {"\"timeout_s\":601", "firstpass.timeout_s", "600"},
        {"\"memory_mb\":8", "firstpass.memory_mb", "between"},
        {"\"deadline_s\":-1", "firstpass.deadline_s", "between"},
        {"\"extract\":\"all\"", "firstpass.extract", "all"},
        {"\"greedy_first\":1", "firstpass.greedy_first", "true or false"},
        {"\"entry_point\":\"a\\u0000b\"", "firstpass.entry_point", "NUL"},
        {"\"prompt\":[\"a\"]", "firstpass.prompt", "a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(CHAT, tests(cases[i].members), cases[i].param, cases[i].words);
    refuses(CHAT, chat("\"firstpass\":\"yes\""), "firstpass", "an object");
    refuses(CHAT, chat("\"firstpass\":{\"tests\":\"\"}"), "firstpass.tests", "empty");
    refuses(CHAT, chat("\"firstpass\":{\"tests\":5}"), "firstpass.tests", "a string");
    refuses(CHAT, chat("\"firstpass\":{\"max_candidates\":5}"), "firstpass.max_candidates",
            "needs firstpass.tests");
    takes(CHAT, chat("\"firstpass\":{\"deadline_s\":5,\"width\":2}"));
    ck_assert(!q.has_tests && q.deadline_s == 5.0);
    refuses(COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"firstpass\":{\"tests\":\"assert 1\"}}",
            "firstpass.tests", "one prompt");
    refuses(COMPLETIONS, "{\"prompt\":\"a\",\"echo\":true,\"firstpass\":{\"tests\":\"assert 1\"}}",
            "firstpass.tests", "echo");
}
END_TEST

static const char *tests_with_n(int n, const char *members) {
    static char text[300];
    snprintf(text, sizeof text,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"n\":%d,"
             "\"firstpass\":{\"tests\":\"assert 1\"%s}}",
             n, members);
    return text;
}

START_TEST(n_with_tests_is_another_name_of_max_candidates) {
    takes(CHAT, tests_with_n(5, ""));
    ck_assert_int_eq(q.job.n_candidates, 5);
    ck_assert_int_eq(q.n_choices, 1);
    takes(CHAT, tests_with_n(1, ",\"max_candidates\":9"));
    ck_assert_int_eq(q.job.n_candidates, 9);
    refuses(CHAT, tests_with_n(5, ",\"max_candidates\":9"), "firstpass.max_candidates",
            "another name");
    takes(CHAT, tests_with_n(9, ",\"max_candidates\":9,\"return\":\"all\""));
    ck_assert_int_eq(q.returns, RACE_ALL);
}
END_TEST

START_TEST(at_temperature_0_there_is_one_candidate) {
    takes(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"temperature\":0,"
                "\"firstpass\":{\"tests\":\"assert 1\",\"max_candidates\":50}}");
    ck_assert_int_eq(q.job.n_candidates, 1);
    takes(CHAT, chat("\"temperature\":0,\"n\":4"));
    ck_assert_int_eq(q.job.n_candidates, 4);
    ck_assert_int_eq(q.n_choices, 4);
}
END_TEST

START_TEST(a_continued_function_ends_at_the_margin) {
#define CONTINUES(extract, more)                                                                   \
    "{\"prompt\":\"def f(x):\\n\"" more ",\"firstpass\":{\"tests\":\"assert f(1)\"," extract       \
    "\"entry_point\":\"f\"}}"
    takes(COMPLETIONS, CONTINUES("", ""));
    ck_assert_int_gt(q.job.n_stops, 0);
    for (int i = 0; i < q.job.n_stops; i++) {
        ck_assert_int_eq(q.job.stops[i][0], '\n');
        ck_assert_uint_eq(strlen(q.job.stops[i]), q.job.stop_lens[i]);
    }
    takes(COMPLETIONS, CONTINUES("\"extract\":\"continuation\",", ""));
    ck_assert_int_gt(q.job.n_stops, 0);
    takes(COMPLETIONS, CONTINUES("", ",\"stop\":\"END\"")); /* the client's own come instead */
    ck_assert_int_eq(q.job.n_stops, 1);
    ck_assert_str_eq(q.job.stops[0], "END");
    takes(COMPLETIONS, CONTINUES("\"extract\":\"fenced\",", ""));
    ck_assert_int_eq(q.job.n_stops, 0);
    /* A question in prose isn't continued, and its answer may hold any line. */
    takes(COMPLETIONS, "{\"prompt\":\"Write f.\",\"firstpass\":{\"tests\":\"assert "
                       "f(1)\",\"entry_point\":\"f\"}}");
    ck_assert_int_eq(q.job.n_stops, 0);
    takes(CHAT, chat("\"firstpass\":{\"tests\":\"assert f(1)\",\"entry_point\":\"f\"}"));
    ck_assert_int_eq(q.job.n_stops, 0);
#undef CONTINUES
}
END_TEST

START_TEST(the_operators_cap) {
    config.server.max_candidates = 20;
    takes(CHAT, tests(""));
    ck_assert_int_eq(q.job.n_candidates, 20);
    takes(CHAT, tests("\"max_candidates\":20"));
    refuses(CHAT, tests("\"max_candidates\":21"), "firstpass.max_candidates", "between 1 and 20");
    refuses(CHAT, chat("\"n\":21"), "n", "between 1 and 20");
    config.server.max_candidates = LIMIT_CANDIDATES;
}
END_TEST

/* ---- the code that a chat's candidates continue ---- */

static void find(const char *text, const char *name, const char *want) {
    size_t len = 0;
    const char *found = api_tests_find_code(text, strlen(text), name, &len);
    if (!want) {
        ck_assert_msg(!found, "found %.*s", (int)len, found);
        return;
    }
    ck_assert_msg(found != NULL, "nothing in %s", text);
    ck_assert_msg(len == strlen(want) && !memcmp(found, want, len), "found %.*s", (int)len, found);
}

START_TEST(code_blocks_in_questions) {
    find("Do:\n```python\nimport a\ndef f(x):\n    ...\n```\nnow", "f",
         "import a\ndef f(x):\n    ...\n");
    find("```\ndef f():\n```", "f", "def f():\n");
    find("~~~~py\nclass f:\n~~~\n~~~~\n", "f", "class f:\n~~~\n");
    find("```python\nasync def f():\n  pass", "f", "async def f():\n  pass");
    find("```python\nx=1\n```\n```python\ndef f(): 1\n```", "f", "def f(): 1\n");
    find("```bash\ndef f():\n```", "f", NULL);
    find("```python\ndef ff():\n```", "f", NULL);
    find("```python\ndef f2():\n```", "f", NULL);
    find("```python\n    def f():\n```", "f", NULL);
    find("def f():\n", "f", NULL);
    find("", "f", NULL);
    find("```", "f", NULL);
    find("```python", "f", NULL);
    find("```python\n", "f", NULL);
    find("```python\n```\ndef f():", "f", NULL);
}
END_TEST

START_TEST(a_chats_code_block_is_the_prompt) {
    takes(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"```python\\ndef f():\\n```\"},"
                "{\"role\":\"assistant\",\"content\":\"?\"},"
                "{\"role\":\"user\",\"content\":\"```python\\ndef f(x):\\n```\"}],"
                "\"firstpass\":{\"tests\":\"assert f(1)\",\"entry_point\":\"f\"}}");
    ck_assert_uint_eq(q.tests.prompt_len, strlen("def f(x):\n"));
    ck_assert(!memcmp(q.tests.prompt, "def f(x):\n", q.tests.prompt_len));
    takes(CHAT, tests("\"entry_point\":\"f\""));
    ck_assert_ptr_null(q.tests.prompt);
    takes(COMPLETIONS,
          "{\"prompt\":\"x\",\"firstpass\":{\"tests\":\"assert 1\",\"extract\":\"fenced\"}}");
    ck_assert_ptr_null(q.tests.prompt);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("api_request");
    TCase *t = tcase_create("api_request");
    tcase_set_timeout(t, 0);
    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_add_test(t, what_is_no_json);
    tcase_add_test(t, depth_is_bounded);
    tcase_add_test(t, null_is_absent_and_unknown_fields_are_ignored);
    tcase_add_test(t, numbers_at_their_bounds);
    tcase_add_test(t, prompts_in_four_shapes);
    tcase_add_test(t, the_number_of_prompts_is_bounded);
    tcase_add_test(t, stops);
    tcase_add_test(t, lengths);
    tcase_add_test(t, log_probabilities);
    tcase_add_test(t, logit_bias);
    tcase_add_test(t, choices);
    tcase_add_test(t, streaming);
    tcase_add_test(t, what_is_not_there_is_refused);
    tcase_add_test(t, a_gap_is_filled_where_the_model_can);
    tcase_add_test(t, passes_wanted_and_estimated);
    tcase_add_test(t, a_ladder_of_temperatures);
    tcase_add_test(t, inline_tests_count_only_where_they_are_on);
    tcase_add_test(t, responses_become_chat);
    tcase_add_test(t, instructions_come_first);
    tcase_add_test(t, the_last_message_is_continued);
    tcase_add_test(t, messages_are_guarded_and_joined);
    tcase_add_test(t, tools_reach_the_template_unless_none_are_wanted);
    tcase_add_test(t, messages_that_are_none);
    tcase_add_test(t, defaults_with_tests);
    tcase_add_test(t, fields_with_tests);
    tcase_add_test(t, wrong_fields_with_tests);
    tcase_add_test(t, n_with_tests_is_another_name_of_max_candidates);
    tcase_add_test(t, at_temperature_0_there_is_one_candidate);
    tcase_add_test(t, a_continued_function_ends_at_the_margin);
    tcase_add_test(t, the_operators_cap);
    tcase_add_test(t, code_blocks_in_questions);
    tcase_add_test(t, a_chats_code_block_is_the_prompt);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
