#!/usr/bin/env python3
"""Writes the hand-made seeds of corpus/fuzz_gguf, fuzz_hf, fuzz_safetensors and fuzz_tokenizer: what random bytes would not find.

A fuzzer's own finds are added beside them by hand, after `-merge=1`.
"""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def u32(v):
    return struct.pack("<I", v)


def u64(v):
    return struct.pack("<Q", v)


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return u64(len(raw)) + raw


def header(n_tensors, n_keys, version=3):
    return b"GGUF" + u32(version) + u64(n_tensors) + u64(n_keys)


def key(name, kind, value):
    return text(name) + u32(kind) + value


def array(name, element, n, items):
    return key(name, ARRAY, u32(element) + u64(n) + items)


def tensor(name, dims, kind, offset):
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def pad(b, to=32):
    return b + b"\0" * (-len(b) % to)


def alphabet():
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    hidden = [b for b in range(256) if b not in visible]
    names = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return [names[b] for b in range(256)]


def vocabulary(kinds=None, merges=("a b", "ab c"), eos=258):
    tokens = alphabet() + ["ab", "abc", "<|im_end|>", "<tool>"]
    kinds = kinds or array("tokenizer.ggml.token_type", 5, len(tokens), struct.pack(f"<{len(tokens)}i", *[1] * 258, 3, 4))
    keys = [
        key("tokenizer.ggml.model", STRING, text("gpt2")),
        key("tokenizer.ggml.pre", STRING, text("qwen2")),
        array("tokenizer.ggml.tokens", STRING, len(tokens), b"".join(map(text, tokens))),
        kinds,
        array("tokenizer.ggml.merges", STRING, len(merges), b"".join(map(text, merges))),
        key("tokenizer.ggml.eos_token_id", U32, u32(eos)),
        key("tokenizer.ggml.add_bos_token", BOOL, b"\0"),
    ]
    return header(0, len(keys)) + b"".join(keys)


def gguf_seeds():
    huge = 2 ** 63
    nested = key("a", ARRAY, (u32(ARRAY) + u64(1)) * 20000 + u32(U8) + u64(0))
    yield "empty", header(0, 0)
    yield "version_2", header(0, 0, 2)
    yield "no_tensors", header(0, 1) + key("general.architecture", STRING, text("llama"))
    yield "keys_2_63", header(0, huge) + b"\0" * 64
    yield "tensors_2_63", header(huge, 0) + b"\0" * 64
    yield "string_2_63", header(0, 1) + text("a") + u32(STRING) + u64(huge) + b"x"
    yield "array_2_63", header(0, 1) + array("a", U64, huge, b"\0" * 64)
    yield "nested_20000", header(0, 1) + nested
    yield "nul_in_key", header(0, 1) + key(b"a\0b", U32, u32(1))
    yield "duplicate_keys", header(0, 2) + key("a", U32, u32(1)) * 2
    yield "scores_as_u8", header(0, 1) + array("tokenizer.ggml.scores", U8, 3, b"abc")
    for value in (0, 1, 48, 2 ** 30, 2 ** 31):
        yield f"alignment_{value}", pad(header(1, 1) + key("general.alignment", U32, u32(value)) + tensor("t", [1], 0, 0)) + b"\0" * 64
    for name, dims, kind, offset in (
            ("one", [32, 2], 0, 0), ("q8", [64, 3], 8, 32), ("unknown_type", [4], 99, 0), ("five_dims", [1] * 5, 0, 0), ("no_dims", [], 0, 0),
            ("zero_dim", [0], 0, 0), ("dims_overflow", [2 ** 32, 2 ** 32], 0, 0), ("dims_2_63", [2 ** 62, 1, 1, 1], 0, 0), ("offset_overflow", [32], 0, 2 ** 64 - 32),
            ("offset_end", [64], 0, 256), ("row_not_in_blocks", [33], 8, 0), ("unaligned", [1], 0, 1)):
        yield f"tensor_{name}", pad(header(1, 0) + tensor("output.weight", dims, kind, offset)) + b"\0" * 512
    two = header(2, 0) + tensor("a", [32], 0, 0) + tensor("b", [32], 0, 64)
    yield "tensors_overlap", pad(two) + b"\0" * 256
    whole = vocabulary()
    yield "vocabulary", whole
    yield "vocabulary_cut", whole[:-40]
    yield "vocabulary_eos_outside", vocabulary(eos=2 ** 31)
    yield "vocabulary_kinds_u8", vocabulary(kinds=array("tokenizer.ggml.token_type", U8, 260, b"\1" * 260))
    yield "vocabulary_kinds_f32", vocabulary(kinds=array("tokenizer.ggml.token_type", F32, 260, b"\0" * 1040))
    yield "vocabulary_merge_unknown", vocabulary(merges=("a zz",))
    yield "vocabulary_merge_no_space", vocabulary(merges=("ab", ""))


def text_seeds():
    samples = {
        "empty": "", "words": "it's 1234 aaaa abc  abcabc\n\n  x", "unicode": "é日 e\u0301 😀 \u180e\u00a0\u2028",
        "special": "a<|im_end|>b<|im_end|<|im_start|>aXa<tool><|endoftext|>", "half": "<|im_", "half_2": "end|>b", "marks": "\ufdd0\ufdd1\ufdd0\ufdd2\ufdd2\ufdd1\ufdd0",
        "inside": "m_e", "spaces": " \t\n <|im_end|> \n", "fence": "Here:\n```python\nx = 1\n``` \nbye END", "fences": "~~~~\n~~~\n```\n\n~~~~\n```text\n```\n````py\nx\n```\n````\n",
        "runs": "a" * 500 + " " * 300 + "\n" * 200 + "1" * 100 + "!" * 100, "stops": "EENEND\n\n\né",
    }
    for name, sample in samples.items():
        for first in range(8):
            if first in (0, 5) or name in ("special", "fence"):
                yield f"{name}_{first}", bytes([first]) + sample.encode()
    yield "cut_character", b"\4\xe6\x97"
    yield "not_utf8", b"\0a\xff\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80\xf0\x9f\xf0\x9f\x98\x80"


def safetensors(header, data_bytes, length=None):
    raw = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return u64(len(raw) if length is None else length) + raw + bytes(i % 256 for i in range(data_bytes))


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    whole = {"__metadata__": {"format": "pt"}, "model.embed_tokens.weight": entry("BF16", [4, 3], 0, 24),
             "w": entry("F8_E4M3", [2, 5], 24, 34), "w_scale": entry("F32", [], 34, 38), "none": entry("I64", [0], 38, 38)}
    yield "whole", safetensors(whole, 38)
    yield "whole_padded", safetensors(json.dumps(whole) + "    ", 38)
    yield "cut", safetensors(whole, 37)
    yield "empty", safetensors("{}", 0)
    yield "no_header", u64(0)
    for name, length in (("2_25", 2 ** 25), ("2_63", 2 ** 63), ("2_64", 2 ** 64 - 1), ("2_64_8", 2 ** 64 - 8)):
        yield f"length_{name}", safetensors("{}", 8, length)
    for name, dtype, shape, begin, end in (
            ("dims_overflow", "U8", [2 ** 32, 2 ** 32], 0, 0), ("bytes_overflow", "F64", [2 ** 61], 0, 0), ("offset_2_63", "U8", [1], 2 ** 63 - 2, 2 ** 63 - 1),
            ("backwards", "U8", [4], 4, 0), ("negative", "U8", [-1], 0, 8), ("nine_dims", "U8", [1] * 9, 0, 1), ("unknown", "F4", [16], 0, 8),
            ("hole", "U8", [4], 4, 8), ("rest", "U8", [4], 0, 4), ("scalar", "F64", [], 0, 8)):
        yield name, safetensors({"t": entry(dtype, shape, begin, end)}, 8)
    yield "overlap", safetensors({"a": entry("U8", [5], 0, 5), "b": entry("U8", [5], 3, 8)}, 8)
    yield "twice", safetensors('{"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', 8)
    yield "deep", safetensors('{"t":' + "[" * 100000, 0)
    yield "nul", safetensors('{"\\u0000":{}}', 0)


def hf_seeds():
    config = {"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
              "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "eos_token_id": [2, 3], "tie_word_embeddings": True}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    groups = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}}}
    for name, changed in (("whole", {}), ("llama3", {"rope_scaling": llama3}), ("rope_parameters", {"rope_parameters": llama3 | {"rope_theta": 5e5}}), ("yarn", {"rope_scaling": {"type": "yarn", "factor": 4}}),
                          ("fp8", {"quantization_config": fp8}), ("groups", {"quantization_config": groups}), ("gptq", {"quantization_config": {"quant_method": "gptq"}}),
                          ("window", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}), ("layer_types", {"layer_types": ["sliding_attention", 3]}),
                          ("zero_heads", {"num_attention_heads": 0}), ("huge", {"hidden_size": 2 ** 62}), ("huge_theta", {"rope_theta": 1e300}), ("tiny_theta", {"rope_theta": 1e-300}),
                          ("odd_head", {"head_dim": 7}), ("partial", {"partial_rotary_factor": 0.001}), ("ends", {"eos_token_id": list(range(100))}), ("negative_end", {"eos_token_id": -1})):
        yield f"config_{name}", b"\0" + json.dumps(config | changed).encode()
    yield "generation", b"\1" + json.dumps({"eos_token_id": [2, 3, 2 ** 30]}).encode()
    words = [b for b in alphabet()] + ["ab", "abc"]
    added = [{"id": 258, "content": "<|im_end|>", "special": True, "rstrip": True}, {"id": 259, "content": "<tool>", "lstrip": True, "special": False}]
    split = {"type": "Split", "pattern": {"Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}, "behavior": "Isolated", "invert": False}
    tokenizer = {"added_tokens": added, "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]},
                 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|im_end|>"}}]}, "model": {"type": "BPE", "vocab": {w: i for i, w in enumerate(words)}, "merges": ["a b", ["ab", "c"]]}}
    for name, changed in (("whole", {}), ("unigram", {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}), ("no_model", {"model": None}), ("merge_unknown", {"model": tokenizer["model"] | {"merges": ["a zz"]}}),
                          ("merge_control", {"model": tokenizer["model"] | {"merges": ["<|im_end|> a"]}}), ("merge_shape", {"model": tokenizer["model"] | {"merges": [["a"], [1, 2], 3]}}),
                          ("id_2_31", {"added_tokens": [added[0] | {"id": 2 ** 31}]}), ("id_2_20", {"added_tokens": [added[0] | {"id": 2 ** 20 - 1}]}), ("no_content", {"added_tokens": [{"id": 1}]}),
                          ("single_word", {"added_tokens": [added[0] | {"single_word": True}]}), ("no_pre", {"pre_tokenizer": None}), ("digits", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False}]}}),
                          ("lowercase", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}})):
        yield f"tokenizer_{name}", b"\2" + json.dumps(tokenizer | changed, ensure_ascii=False).encode()
    yield "settings", b"\3" + json.dumps({"bos_token": {"content": "<|im_end|>"}, "eos_token": 7, "chat_template": [{"name": "default", "template": "{{x}}"}, 3]}).encode()
    yield "settings_deep", b"\3" + b'{"chat_template":' + b"[" * 100000


def main():
    for folder, seeds in (("fuzz_gguf", gguf_seeds()), ("fuzz_safetensors", safetensors_seeds()), ("fuzz_hf", hf_seeds()), ("fuzz_tokenizer", text_seeds())):
        target = os.path.join(HERE, "corpus", folder)
        os.makedirs(target, exist_ok=True)
        for name, data in seeds:
            with open(os.path.join(target, name), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
