/* tokenizer.json, tokenizer_config.json and chat_template.jinja of a Hugging Face directory,
 * written as a GGUF file's metadata.
 *
 * Read is byte-level BPE with the pre-tokenizers of engine/pretokenizer.h, found by their patterns;
 * other models (Unigram, WordPiece, WordLevel), normalizers but NFC (engine/pretokenizer.h says
 * what becomes of it) and pre-tokenizers are refused by name.
 *
 * Any thread. */
#ifndef ENGINE_HF_TOKENIZER_H
#define ENGINE_HF_TOKENIZER_H

#include "engine/hf_config.h"

/* `ends`: what the configuration says of it. */
bool hf_tokenizer_read(const char *dir, const struct hf_config *ends, struct metadata *out,
                       struct err *e) MUST_CHECK;

#endif
