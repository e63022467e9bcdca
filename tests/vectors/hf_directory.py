"""A Hugging Face directory made of a GGUF file: what is read of it, and a plain way to write it (safetensors in one file, BF16).

Wants `gguf` (which brings NumPy) and nothing else.
"""
import json
import pathlib

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL, USER_DEFINED = 3, 4


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def words(digits):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": WORDS % digits}, "behavior": "Isolated", "invert": False}, byte_level(False)]}


PRE = {"qwen2": words(""), "llama-bpe": words("{1,3}"), "gpt-2": byte_level(True),
       "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)]}}


def hf_name(name):
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    return f"{NAMES[parts[0]]}.{parts[1]}"


def unpermute(w, heads):
    """From interleaved rotary pairs, as `llama` GGUF files have them, to halves."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def weights_of(reader, arch, heads, kv):
    """(name, F32 array), one after the other: all of them at once would be much."""
    for t in reader.tensors:
        w = dequantize(t.data, t.tensor_type).astype(np.float32, copy=False).reshape([int(d) for d in reversed(t.shape)])
        if arch == "llama" and ".attn_q." in t.name:
            w = unpermute(w, heads)
        if arch == "llama" and ".attn_k." in t.name:
            w = unpermute(w, kv)
        yield hf_name(t.name), np.ascontiguousarray(w)


def read(path):
    """What a directory is made of: {file name: what it says} of its JSON files, and the weights."""
    reader = GGUFReader(path)

    def field(key, default=None):
        return reader.fields[key].contents() if key in reader.fields else default

    arch = field("general.architecture")

    def a(key, default=None):
        return field(f"{arch}.{key}", default)

    heads, kv = a("attention.head_count"), a("attention.head_count_kv")
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    pre, eos, bos = (field(f"tokenizer.ggml.{key}") for key in ("pre", "eos_token_id", "bos_token_id"))
    config = {"model_type": arch, "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[arch] + "ForCausalLM"],
              "hidden_act": "silu", "hidden_size": a("embedding_length"), "intermediate_size": a("feed_forward_length"),
              "num_hidden_layers": a("block_count"), "num_attention_heads": heads, "num_key_value_heads": kv,
              "max_position_embeddings": a("context_length"), "rms_norm_eps": a("attention.layer_norm_rms_epsilon"),
              "rope_theta": a("rope.freq_base", 10000.0), "tie_word_embeddings": all(t.name != "output.weight" for t in reader.tensors),
              "torch_dtype": "bfloat16", "vocab_size": len(tokens), "eos_token_id": eos}
    added = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kind == CONTROL}
             for i, (s, kind) in enumerate(zip(tokens, kinds)) if kind in (CONTROL, USER_DEFINED)]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": PRE[pre],
                 "post_processor": None, "decoder": byte_level(True),
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                           "fuse_unk": False, "byte_fallback": False, "ignore_merges": pre == "llama-bpe",
                           "vocab": {s: i for i, s in enumerate(tokens)}, "merges": [m.split(" ") for m in field("tokenizer.ggml.merges")]}}
    settings = {"chat_template": field("tokenizer.chat_template"), "eos_token": tokens[eos], "bos_token": None if bos is None else tokens[bos]}
    return {"config.json": config, "tokenizer.json": tokenizer, "tokenizer_config.json": settings}, weights_of(reader, arch, heads, kv)


def bf16(w):
    """The upper halves of F32, rounded to nearest even."""
    bits = w.view(np.uint32)
    return ((bits + (0x7fff + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def write_json(target, name, value):
    (pathlib.Path(target) / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def write(path, target):
    """The directory `target` of the GGUF file `path`, in BF16."""
    files, weights = read(path)
    for name, value in files.items():
        write_json(target, name, value)
    header, arrays, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, w in weights:
        arrays.append(bf16(w))
        header[name] = {"dtype": "BF16", "shape": list(w.shape), "data_offsets": [at, at + arrays[-1].nbytes]}
        at += arrays[-1].nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(pathlib.Path(target) / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for w in arrays:
            out.write(w.tobytes())
