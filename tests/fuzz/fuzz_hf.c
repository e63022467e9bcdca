/* Any bytes as one of a Hugging Face directory's JSON files, the others being good ones: the first
 * byte says which.  What is read must be metadata that parses, and a tokenizer that can be used. */
#include "base/buf.h"
#include "engine/engine.h"
#include "engine/hf_tokenizer.h"
#include "engine/tokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                    "tokenizer_config.json"};
static const char *const good[] = {
    "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":4,\"intermediate_size\":4,"
    "\"num_attention_heads\":1,\"max_position_embeddings\":8,\"eos_token_id\":2}",
    "{\"eos_token_id\":[2,3]}",
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<|im_end|>\",\"special\":true,\"lstrip\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":"
    "\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}",
    "{\"eos_token\":\"<|im_end|>\",\"chat_template\":\"x\"}",
};
enum { N_FILES = sizeof files / sizeof *files, METADATA_BYTES = 64 << 20 };

static void write_file(const char *dir, int i, const void *bytes, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, files[i]);
    FILE *f = fopen(path, "wb");
    BUG_ON(!f || fwrite(bytes, 1, n, f) != n || fclose(f));
}

static void use(const struct gguf *g) {
    struct err e = {0};
    struct tokenizer *t = tokenizer_new(g, &e);
    BUG_ON(!t && (e.kind != ERR_INPUT || !e.message[0]));
    int32_t *tokens;
    size_t n;
    if (t && tokenizer_encode(t, "ab <|im_end|> c", 15, ENGINE_TOKENIZE_SPECIAL, &tokens, &n, &e))
        free(tokens);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    char dir[] = "/tmp/firstpass-fuzz-XXXXXX", path[256];
    BUG_ON(!mkdtemp(dir));
    int chosen = data[0] % N_FILES;
    for (int i = 0; i < N_FILES; i++)
        write_file(dir, i, i == chosen ? data + 1 : (const void *)good[i],
                   i == chosen ? size - 1 : strlen(good[i]));
    struct err e = {0};
    struct metadata m;
    struct hf_config c;
    const void *bytes;
    uint64_t len;
    metadata_init(&m, METADATA_BYTES);
    bool ok = hf_config_read(&c, dir, &m, &e) && hf_tokenizer_read(dir, &c, &m, &e);
    BUG_ON(!ok && (e.kind != ERR_INPUT || !e.message[0]));
    if (ok && metadata_finish(&m, &bytes, &len)) {
        struct gguf *g = gguf_parse(bytes, len, "fuzz", &e);
        BUG_ON(!g);
        use(g);
        gguf_free(g);
    }
    hf_config_clear(&c);
    metadata_clear(&m);
    for (int i = 0; i < N_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    BUG_ON(rmdir(dir));
    return 0;
}
