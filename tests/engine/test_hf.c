/* Hugging Face directories: the tiny ones of tests/vectors/hf against `transformers` and
 * `tokenizers` (tests/vectors/make_hf.py), and damaged copies of them. */
#include "engine/hf.h"

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "tests/engine/hf_test.h"

#include <check.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512, FILE_BYTES = 1 << 20 };

static const char *const names[] = {"tiny-llama", "tiny-llama-fp8",  "tiny-qwen2",
                                    "tiny-qwen3", "tiny-qwen2-yarn", "tiny-qwen3-fp8"};
enum { N_NAMES = sizeof names / sizeof *names };

static void directory(char *out, const char *name) {
    snprintf(out, PATH_BYTES, "tests/vectors/hf/%s", name);
}

/* ---- log-probabilities ---- */

/* Weights of these types aren't rounded and activations neither, and the reference's keys and
 * values are of 16 bits as ours are.  fp8 ones become F16, which holds their product with the scale
 * to 11 bits.  YaRN's size goes into the scores here, there into the keys before they are rounded.
 */
static void check_logprobs(const char *name, const char *isa) {
    double tolerance = strstr(name, "fp8") || strstr(name, "yarn") ? 0.03 : 0.01;
    char dir[PATH_BYTES];
    directory(dir, name);
    json_t *root = hf_reference(name);
    struct err e = {0};
    struct engine_options o = {.model_path = dir,
                               .isa = isa,
                               .backend = "cpu",
                               .max_rows = 8,
                               .memory_bytes = (uint64_t)1 << 30};
    struct engine *g = engine_open(&o, &e);
    ck_assert_msg(g != NULL, "%s", e.message);
    ck_assert_str_eq(engine_model(g)->name, name);
    ck_assert_str_eq(engine_model(g)->chat_template,
                     json_string_value(json_object_get(root, "template")));
    ck_assert_str_eq(engine_model(g)->eos_text, "<|im_end|>");
    ck_assert_msg(engine_start(g, hf_no_wake, NULL, &e), "%s", e.message);
    double worst = hf_run_cases(g, root);
    printf("%s, isa %s: log-probabilities within %.5f\n", name, isa, worst);
    ck_assert_msg(worst <= tolerance, "%s: %.5f", name, worst);
    engine_close(g);
    json_decref(root);
}

START_TEST(logprobs_reference) { check_logprobs(names[_i], "reference"); }
END_TEST
START_TEST(logprobs_auto) { check_logprobs(names[_i], "auto"); }
END_TEST

/* ---- tokens ---- */

static void check_ids(const struct tokenizer *t, const char *text, unsigned flags,
                      const json_t *want) {
    int32_t *ids;
    size_t n;
    struct err e = {0};
    ck_assert_msg(tokenizer_encode(t, text, strlen(text), flags, &ids, &n, &e), "%s", e.message);
    bool same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(want, i));
    ck_assert_msg(same, "\"%s\" gets other tokens", text);
    free(ids);
}

START_TEST(tokens) {
    char dir[PATH_BYTES];
    struct err e = {0};
    directory(dir, names[_i]);
    json_t *root = hf_reference(names[_i]);
    struct hf *h = hf_open(dir, &e);
    ck_assert_msg(h != NULL, "%s", e.message);
    struct tokenizer *t = tokenizer_new(hf_gguf(h), &e);
    ck_assert_msg(t != NULL, "%s", e.message);
    const json_t *texts = json_object_get(root, "texts"), *ids = json_object_get(root, "ids");
    ck_assert_uint_ge(json_array_size(texts), 8);
    for (size_t i = 0; i < json_array_size(texts); i++)
        check_ids(t, json_string_value(json_array_get(texts, i)), ENGINE_TOKENIZE_SPECIAL,
                  json_array_get(ids, i));
    check_ids(t, "x", ENGINE_TOKENIZE_SPECIAL | ENGINE_TOKENIZE_BOS,
              json_object_get(root, "ids_first"));
    ck_assert_int_eq(tokenizer_eos(t), 270);
    ck_assert(tokenizer_ends_generation(t, 270) && tokenizer_ends_generation(t, 268));
    ck_assert(!tokenizer_ends_generation(t, 269) && tokenizer_is_control(t, 269));
    ck_assert(!tokenizer_is_control(t, 271));
    ck_assert_int_eq(tokenizer_bos(t), _i == 0 ? 268 : -1);
    tokenizer_free(t);
    hf_free(h);
    json_decref(root);
}
END_TEST

/* ---- copies with something changed ---- */

static void read_whole(const char *path, struct buf *b) {
    char chunk[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s", path);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_append(b, chunk, n);
    fclose(f);
}

static void write_whole(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    ck_assert(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
}

/* A copy in a new folder whose path goes to `out`. */
static void copy_directory(const char *name, char *out) {
    char from[PATH_BYTES], path[2 * PATH_BYTES];
    directory(from, name);
    snprintf(out, PATH_BYTES, "/tmp/firstpass-hf-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(out));
    DIR *d = opendir(from);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        if (*entry->d_name == '.') continue;
        struct buf b;
        buf_init(&b, FILE_BYTES);
        snprintf(path, sizeof path, "%s/%s", from, entry->d_name);
        read_whole(path, &b);
        snprintf(path, sizeof path, "%s/%s", out, entry->d_name);
        write_whole(path, buf_text(&b), b.len);
        buf_clear(&b);
    }
    closedir(d);
}

static void remove_directory(const char *dir) {
    char path[2 * PATH_BYTES];
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    closedir(d);
    ck_assert_int_eq(rmdir(dir), 0);
}

/* Puts `to` where `from` stands first in a file, which it must; `from` NULL: `to` is the file. */
static void change(const char *dir, const char *file, const char *from, const char *to) {
    char path[2 * PATH_BYTES];
    struct buf b, changed;
    buf_init(&b, FILE_BYTES);
    buf_init(&changed, FILE_BYTES);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (from) {
        read_whole(path, &b);
        char *at = memmem(b.data, b.len, from, strlen(from));
        ck_assert_msg(at != NULL, "%s has no %s", file, from);
        size_t before = (size_t)(at - b.data), behind = before + strlen(from);
        buf_append(&changed, b.data, before);
        buf_puts(&changed, to);
        buf_append(&changed, b.data + behind, b.len - behind);
    } else {
        buf_puts(&changed, to);
    }
    write_whole(path, buf_text(&changed), changed.len);
    buf_clear(&b);
    buf_clear(&changed);
}

/* `to` NULL: the file is taken away. */
static const struct bad {
    const char *name, *file, *from, *to, *says;
} bad[] = {
    {"tiny-qwen2", "config.json", NULL, NULL, "config.json: No such file"},
    {"tiny-qwen2", "config.json", NULL, "", "is empty"},
    {"tiny-qwen2", "config.json", NULL, "[]", "not the JSON object"},
    {"tiny-qwen2", "config.json", NULL, "{", "not the JSON it should be"},
    {"tiny-qwen2", "config.json", "\"qwen2\"", "\"gemma\"", "supported: llama, qwen2, qwen3"},
    {"tiny-qwen2", "config.json", "\"qwen2\"", "7", "model_type must be a string"},
    {"tiny-qwen2", "config.json", "silu", "gelu", "hidden_act \"gelu\""},
    {"tiny-qwen2", "config.json", "\"hidden_size\":48", "\"hidden_size\":-1", "hidden_size must"},
    {"tiny-qwen2", "config.json", "\"hidden_size\":48", "\"hidden_size\":48.0", "hidden_size must"},
    {"tiny-qwen2", "config.json", "\"hidden_size\":48", "\"hidden_size\":96", "has shape"},
    {"tiny-qwen2", "config.json", "\"hidden_size\":48", "\"x\":48", "hidden_size is missing"},
    {"tiny-qwen2", "config.json", "\"num_attention_heads\":6", "\"num_attention_heads\":0",
     "num_attention_heads must"},
    {"tiny-qwen2", "config.json", "\"num_hidden_layers\":2", "\"num_hidden_layers\":3",
     "model.layers.2.input_layernorm.weight is missing"},
    {"tiny-qwen2", "config.json", "\"num_hidden_layers\":2", "\"num_hidden_layers\":1",
     "isn't known for architecture qwen2 with 1 layers"},
    {"tiny-qwen2", "config.json", "\"rope_scaling\":null",
     "\"rope_scaling\":{\"type\":\"longrope\",\"factor\":4}", "rope scaling \"longrope\""},
    {"tiny-qwen2", "config.json", "\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"yarn\"}",
     "factor is missing"},
    {"tiny-qwen2-yarn", "config.json", "\"factor\":4.0", "\"factor\":0.5",
     "yarn with a factor of 0.5"},
    {"tiny-qwen2-yarn", "config.json", "\"factor\":4.0", "\"factor\":4.0,\"beta_fast\":1", "betas"},
    {"tiny-qwen2-yarn", "config.json", "\"factor\":4.0", "\"factor\":4.0,\"truncate\":false",
     "\"truncate\""},
    {"tiny-qwen2-yarn", "config.json", "\"rope_theta\":200.0",
     "\"rope_theta\":200.0,\"partial_rotary_factor\":0.5", "whole heads"},
    {"tiny-qwen2", "config.json", "\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"linear\"}",
     "factor is missing"},
    {"tiny-qwen2", "config.json", "\"rope_theta\":1000000.0", "\"rope_theta\":0",
     "rope_theta must be a number above 0"},
    {"tiny-qwen2", "config.json", "\"eos_token_id\":270", "\"eos_token_id\":[270,273]",
     "eos_token_id 273, but tokenizer.json has 273 tokens"},
    {"tiny-qwen2", "config.json", "\"eos_token_id\":270", "\"eos_token_id\":\"x\"",
     "eos_token_id must"},
    {"tiny-qwen2", "config.json", "\"rope_scaling\":null",
     "\"quantization_config\":{\"quant_method\":\"gptq\"}", "quant_method \"gptq\""},
    {"tiny-qwen2", "config.json", "full_attention", "linear_attention", "layer_types has"},
    {"tiny-qwen3-fp8", "config.json", "\"e4m3\"", "\"e5m2\"", "fmt \"e5m2\""},
    {"tiny-qwen3-fp8", "config.json", "[128,128]", "[128]", "weight_block_size must"},
    {"tiny-qwen3-fp8", "config.json", "[128,128]", "[64,128]", "fits neither"},
    {"tiny-llama-fp8", "config.json", "float-quantized", "pack-quantized", "\"pack-quantized\""},
    {"tiny-llama-fp8", "config.json", "\"num_bits\":8", "\"num_bits\":4", "the weights' type"},
    {"tiny-llama", "config.json", "\"high_freq_factor\":4.0", "\"high_freq_factor\":1.0",
     "high_freq_factor must be above"},
    {"tiny-llama", "config.json", "\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false",
     "lm_head.weight is missing"},
    {"tiny-llama-fp8", "config.json", "\"attention_bias\":false", "\"attention_bias\":true",
     "q_proj.bias is missing"},
    {"tiny-llama", "config.json", "\"llama\"", "\"qwen3\"", "q_norm.weight is missing"},
    {"tiny-qwen3", "config.json", "\"qwen3\"", "\"llama\"", "attn_q_norm.weight isn't known"},
    {"tiny-qwen2", "model.safetensors", NULL, NULL, "neither model.safetensors nor"},
    {"tiny-qwen2", "model.safetensors", "\"BF16\"", "\"U16\" ", "has the dtype U16"},
    {"tiny-qwen2", "model.safetensors", "self_attn.q_proj.bias", "self_attn.x_proj.bias",
     "isn't known"},
    {"tiny-qwen3-fp8", "model.safetensors", "q_proj.weight_scale_inv", "q_proj.weight_scale_abc",
     "isn't known"},
    {"tiny-llama", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
     "../model-00001-of-00002.safetensors", "in no file beside it"},
    {"tiny-llama", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
     "model-00002-of-00002.safetensors", "where it should be"},
    {"tiny-llama", "model.safetensors.index.json", "weight_map", "weight_mop", "weight_map is"},
    {"tiny-llama", "model-00002-of-00002.safetensors", NULL, NULL, "can't open"},
    {"tiny-llama", "model-00002-of-00002.safetensors", NULL, "x", "too short"},
    {"tiny-qwen2", "tokenizer.json", NULL, NULL, "tokenizer.json: No such file"},
    {"tiny-qwen2", "tokenizer.json", "\"BPE\"", "\"Unigram\"", "the tokenizer model \"Unigram\""},
    {"tiny-qwen2", "tokenizer.json", "\"BPE\"", "\"WordPiece\"", "byte-level BPE is"},
    {"tiny-qwen2", "tokenizer.json", "\"byte_fallback\":false", "\"byte_fallback\":true",
     "byte_fallback"},
    {"tiny-qwen2", "tokenizer.json", "\"NFC\"", "\"NFKC\"", "the normalizer \"NFKC\""},
    {"tiny-qwen2", "tokenizer.json", "\"Isolated\"", "\"Removed\"", "the pre-tokenizer"},
    {"tiny-qwen2", "tokenizer.json", "|\\\\p{N}|", "|\\\\p{N}{1,4}|", "the pre-tokenizer"},
    {"tiny-qwen2", "tokenizer.json", "\"single_word\":false", "\"single_word\":true",
     "single_word"},
    {"tiny-qwen2", "tokenizer.json", "\"id\":268", "\"id\":-1", "has no id"},
    {"tiny-qwen2", "tokenizer.json", "\"!\":0", "\"!\":1", "both have id 1"},
    {"tiny-qwen2", "tokenizer.json", "\"merges\":[", "\"merges\":[\"zz zzz\",", "merges"},
    {"tiny-qwen2", "tokenizer.json", "\"merges\":[", "\"merges\":[7,", "is not two tokens"},
    {"tiny-qwen2", "tokenizer.json", "\"vocab\":{", "\"vocab\":[],\"x\":{", "wrong type"},
    {"tiny-qwen2", "tokenizer.json", "\"content\":\"<|im_start|>\"", "\"content\":7",
     "without text"},
    {"tiny-qwen2", "tokenizer_config.json", NULL, "{\"a\":1,\"a\":1}", "not the JSON"},
};

START_TEST(damaged) {
    const struct bad *b = &bad[_i];
    char dir[PATH_BYTES], path[2 * PATH_BYTES];
    struct err e = {0};
    copy_directory(b->name, dir);
    snprintf(path, sizeof path, "%s/%s", dir, b->file);
    if (b->to)
        change(dir, b->file, b->from, b->to);
    else
        ck_assert_int_eq(unlink(path), 0);
    struct model *m = model_open(dir, &e);
    struct tokenizer *t = m ? tokenizer_new(m->gguf, &e) : NULL;
    ck_assert_msg(!t, "%s with %s was read", b->file, b->to ? b->to : "nothing");
    ck_assert_int_eq(e.kind, ERR_INPUT);
    ck_assert_msg(strstr(e.message, b->says) != NULL, "%s, not %s", e.message, b->says);
    ck_assert_msg(strstr(e.message, dir) != NULL, "%s", e.message);
    model_free(m);
    remove_directory(dir);
}
END_TEST

/* What may be otherwise, and what it does. */
START_TEST(variants) {
    char dir[PATH_BYTES];
    struct err e = {0};
    copy_directory("tiny-qwen2", dir);
    struct model *m = model_open(dir, &e);
    ck_assert_msg(m != NULL, "%s", e.message);
    char before[32];
    snprintf(before, sizeof before, "%s", m->fingerprint);
    ck_assert_int_eq(m->shape.context, 512);
    ck_assert(!m->tied && !m->rope.interleaved);
    model_free(m);
    /* A window that some layers have cuts the context; one that none has doesn't. */
    change(dir, "config.json", "\"use_sliding_window\":false",
           "\"sliding_window\":100,\"use_sliding_window\":true");
    m = model_open(dir, &e);
    ck_assert_msg(m != NULL, "%s", e.message);
    ck_assert_int_eq(m->shape.context, 512);
    model_free(m);
    change(dir, "config.json", "\"max_window_layers\":28", "\"max_window_layers\":1");
    m = model_open(dir, &e);
    ck_assert_msg(m != NULL, "%s", e.message);
    ck_assert_int_eq(m->shape.context, 100);
    ck_assert_str_ne(m->fingerprint, before);
    model_free(m);
    /* Tied where the configuration says so, whatever the files hold. */
    change(dir, "config.json", "\"tie_word_embeddings\":false", "\"tie_word_embeddings\":true");
    m = model_open(dir, &e);
    ck_assert_msg(m && m->tied, "%s", e.message);
    model_free(m);
    /* Scaling by a factor. */
    change(dir, "config.json", "\"rope_scaling\":null",
           "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4}");
    m = model_open(dir, &e);
    ck_assert_msg(m != NULL, "%s", e.message);
    ck_assert(fabsf(m->rope.inv_freq[0] - 0.25f) < 1e-6f);
    model_free(m);
    /* No generation_config.json, no tokenizer_config.json, no template. */
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    ck_assert_int_eq(unlink(path), 0);
    struct hf *h = hf_open(dir, &e);
    ck_assert_msg(h != NULL, "%s", e.message);
    ck_assert(!gguf_has(hf_gguf(h), "tokenizer.chat_template"));
    ck_assert_int_eq(hf_n_files(h), 1);
    hf_free(h);
    remove_directory(dir);
}
END_TEST

/* As transformers 5.24 has them (modeling_rope_utils.py, _compute_yarn_parameters). */
START_TEST(yarn) {
    static const struct {
        int pair;
        double frequency;
    } want[] = {{0, 1},
                {1, 0.80503815},
                {5, 0.32773688},
                {13, 0.040670037},
                {14, 0.029540692},
                {31, 0.0014750855}};
    struct err e = {0};
    struct model *m = model_open("tests/vectors/hf/tiny-qwen2-yarn", &e);
    ck_assert_msg(m != NULL, "%s", e.message);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        ck_assert_msg(fabs((double)m->rope.inv_freq[want[i].pair] / want[i].frequency - 1) < 1e-6,
                      "pair %d: %.9g", want[i].pair, (double)m->rope.inv_freq[want[i].pair]);
    ck_assert(fabs((double)m->shape.attention_scale * 8 / (1.138629436 * 1.138629436) - 1) < 1e-6);
    ck_assert_int_eq(m->shape.context, 256); /* four times the 64 of max_position_embeddings */
    model_free(m);
}
END_TEST

int main(void) {
    Suite *s = suite_create("hf");
    TCase *t = tcase_create("hf");
    tcase_add_loop_test(t, logprobs_reference, 0, N_NAMES);
    tcase_add_loop_test(t, logprobs_auto, 0, N_NAMES);
    tcase_add_loop_test(t, tokens, 0, N_NAMES);
    tcase_add_loop_test(t, damaged, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(t, variants);
    tcase_add_test(t, yarn);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
