#!/usr/bin/env python3
"""Token ids of texts.json by Hugging Face `tokenizers`, built from a GGUF file's vocabulary and merges, and compared with
llama.cpp's tokenizer where llama-cpp-python is there.

See README.md beside this file for how to run it and what it writes.
"""
import json
import os
import sys

import tokenizers
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
CONTROL, USER_DEFINED = 3, 4

# As in the models' published tokenizer.json.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def words(digits):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS % digits), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE = {
    "qwen2": words(""),
    "llama-bpe": words("{1,3}"),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
}


def build(path, special):
    """The tokenizer of a GGUF file; `special`: control tokens are recognised in text."""
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    pre = fields["tokenizer.ggml.pre"].contents()
    vocab = {t: i for i, t in enumerate(tokens)}
    t = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    t.pre_tokenizer = PRE[pre]
    t.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds):
        if kind == USER_DEFINED or (kind == CONTROL and special):
            t.add_tokens([AddedToken(token, normalized=False, special=kind == CONTROL)])
    return t


def compare_with_llama_cpp(path, texts, ids, special_ids):
    try:
        import llama_cpp
    except ImportError:
        print("llama-cpp-python isn't there: not compared")
        return
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    for name, want, special in (("plain", ids, False), ("special", special_ids, True)):
        differ = []
        for i, text in enumerate(texts):
            got = model.tokenize(text.encode(), add_bos=False, special=special)
            if got != want[i]:
                differ.append(i)
        print(f"llama.cpp, {name}: {len(texts) - len(differ)} of {len(texts)} equal")
        for i in differ:
            got = model.tokenize(texts[i].encode(), add_bos=False, special=special)
            print(f"  {i} {texts[i]!r:.60}: {got[:12]} instead of {want[i][:12]}")


def main():
    path = sys.argv[1]
    name = os.path.basename(path).removesuffix(".gguf")
    with open(os.path.join(HERE, "texts.json")) as f:
        texts = json.load(f)
    plain, special = build(path, False), build(path, True)
    ids = [plain.encode(t, add_special_tokens=False).ids for t in texts]
    special_ids = [special.encode(t, add_special_tokens=False).ids for t in texts]
    compare_with_llama_cpp(path, texts, ids, special_ids)
    with open(os.path.join(HERE, f"tokens-{name}.json"), "w") as f:
        head = json.dumps({"model": name, "made_with": {"tokenizers": tokenizers.__version__}})[:-1]
        rows = ",\n".join(json.dumps(x, separators=(",", ":")) for x in ids)
        more = ",\n".join(json.dumps([i, s], separators=(",", ":"))
                          for i, (s, p) in enumerate(zip(special_ids, ids)) if s != p)
        f.write(f'{head}, "ids": [\n{rows}\n], "special": [\n{more}\n]}}\n')


if __name__ == "__main__":
    main()
