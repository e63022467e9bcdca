#!/usr/bin/env python3
"""Hugging Face directories: tiny random ones with the log-probabilities that `transformers` computes (hf/NAME, committed),
or a real model's from its GGUF file (`--from FILE --to DIR`).

See README.md beside this file for how to run it and what it writes.
"""
import argparse
import json
import os
import shutil
import sys

import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import hf_directory
from hf_directory import WORDS, write_json

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = 5
MERGES = [("Ġ", "t"), ("h", "e"), ("i", "n"), ("Ġt", "he"), ("r", "e"), ("o", "n"), ("Ġ", "a"), ("Ġ", "Ġ"), ("1", "2"), ("ĠĠ", "ĠĠ"), ("Ã", "©"), ("Ċ", "Ċ")]
TEMPLATE = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}{% endif %}"
TEXTS = ["", "the 12345 in  the    end\n\n\nHere's a tree, isn't it? IT'S <|im_end|> x", "é日本語 e\u0301 😀\u00a0\u2028 \u180e x", "def f(x):\n    return x  # 3.14\r\n\t\tpass",
         "a <mask> b<mask>c  <mask>\n d", "x<|im_start|>user\nhi<|im_end|>\n", "<tool> \u3000<tool>y <|im_end", "123456 1 12 ½ ²³ Ⅷ", " leading and trailing \n"]


def split(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE = {
    "qwen2": split(WORDS % ""),
    "llama-bpe": split(WORDS % "{1,3}"),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
}


def tiny_tokenizer(pre, nfc, bos):
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(m) for m in MERGES]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, MERGES, ignore_merges=pre == "llama-bpe"))
    t.pre_tokenizer, t.decoder = PRE[pre], decoders.ByteLevel()
    if nfc:
        t.normalizer = normalizers.NFC()
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    t.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False), AddedToken("<tool>", rstrip=True, normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if bos:
        first = t.token_to_id("<|endoftext|>")
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                                processors.TemplateProcessing("<|endoftext|> $A", "<|endoftext|> $A <|endoftext|> $B", [("<|endoftext|>", first)])])
    return t


# ---- weights ----

def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=g)
        if "norm" in name:
            x = 1 + 0.2 * x
        elif "embed" in name or "lm_head" in name:
            x = 0.7 * x
        elif name.endswith("bias"):
            x = 0.3 * x
        else:
            x = x * 1.5 / p.shape[1] ** 0.5
        p.data = x.to(p.dtype)


def to_fp8(weights, block):
    """E4M3 with the scale of each row (block None) or block, and what it then stands for."""
    out, meant = {}, {}
    for name, w in weights.items():
        meant[name] = out[name] = w
        if w.dim() != 2 or "embed" in name or "lm_head" in name:
            continue
        rows, cols = w.shape
        height, width = block or (1, cols)
        scale = torch.zeros(-(-rows // height), -(-cols // width))
        codes = torch.zeros(rows, cols, dtype=torch.float8_e4m3fn)
        value = torch.zeros(rows, cols)
        for r in range(scale.shape[0]):
            for c in range(scale.shape[1]):
                at = np.s_[r * height:(r + 1) * height, c * width:(c + 1) * width]
                part = w[at].float()
                scale[r, c] = part.abs().max() / 448
                codes[at] = (part / scale[r, c]).to(torch.float8_e4m3fn)
                value[at] = codes[at].float() * scale[r, c]
        out[name], meant[name] = codes, value
        out[name + ("_scale_inv" if block else "_scale")] = scale if block else scale.to(torch.bfloat16)
        if not block:
            meant[name] = codes.float() * scale.to(torch.bfloat16).float()
    return out, meant


def reference(model, prompts):
    """Log-probabilities after each token of each prompt: in F32, but for keys and values of F16, as firstpass's CPU backend keeps them."""
    cases, module = [], sys.modules[type(model).__module__]
    exact = module.eager_attention_forward
    module.eager_attention_forward = lambda m, q, k, v, *args, **named: exact(m, q, k.half().float(), v.half().float(), *args, **named)
    for tokens in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].double()
        p = torch.log_softmax(logits, -1)
        top = torch.topk(p, TOP, -1)
        cases.append({"tokens": tokens, "top": [[[int(i), round(float(v), 5)] for i, v in zip(ids, values)] for ids, values in zip(top.indices, top.values)]})
    module.eager_attention_forward = exact
    return cases


def save(target, weights, shards):
    weights = {k: v.contiguous() for k, v in weights.items()}
    if shards == 1:
        safetensors.torch.save_file(weights, os.path.join(target, "model.safetensors"), metadata={"format": "pt"})
        return
    names, where = sorted(weights), {}
    for i in range(shards):
        part = {n: weights[n] for n in names[i::shards]}
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        safetensors.torch.save_file(part, os.path.join(target, file), metadata={"format": "pt"})
        where |= {n: file for n in part}
    with open(os.path.join(target, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": where}, f, indent=1)


# ---- tiny ones ----

COMMON = {"vocab_size": 288, "max_position_embeddings": 512, "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "bos_token_id": None, "pad_token_id": None}
TINY = {
    "tiny-llama": dict(kind="Llama", dtype="float16", pre="llama-bpe", bos=True, shards=2, old=True, template_file=True,
                       config=dict(hidden_size=32, intermediate_size=72, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=[270, 268],
                                   rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})),
    "tiny-llama-fp8": dict(kind="Llama", dtype="bfloat16", pre="smollm", fp8="rows",
                           config=dict(hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=2, eos_token_id=270)),
    "tiny-qwen2": dict(kind="Qwen2", dtype="bfloat16", pre="qwen2", nfc=True, old=True,
                       config=dict(hidden_size=48, intermediate_size=64, num_attention_heads=6, num_key_value_heads=2, eos_token_id=270, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "tiny-qwen2-yarn": dict(kind="Qwen2", dtype="bfloat16", pre="qwen2", nfc=True, old=True,
                            config=dict(hidden_size=64, intermediate_size=32, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=1, tie_word_embeddings=True, eos_token_id=270, max_position_embeddings=64,
                                        rope_parameters={"rope_type": "yarn", "rope_theta": 200.0, "factor": 4.0, "original_max_position_embeddings": 64})),
    "tiny-qwen3": dict(kind="Qwen3", dtype="bfloat16", pre="qwen2", nfc=True,
                       config=dict(hidden_size=32, intermediate_size=64, num_attention_heads=3, num_key_value_heads=1, head_dim=64, tie_word_embeddings=True, eos_token_id=270,
                                   rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "tiny-qwen3-fp8": dict(kind="Qwen3", dtype="bfloat16", pre="qwen2", nfc=True, fp8="blocks",
                           config=dict(hidden_size=160, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_hidden_layers=1, tie_word_embeddings=True, eos_token_id=270)),
}


def old_config(config):
    """As transformers before version 5 wrote it."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    return config


def make_tiny(name, t, target):
    kind = t["kind"]
    config = getattr(transformers, kind + "Config")(**(COMMON | t["config"]))
    model = getattr(transformers, kind + "ForCausalLM")(config).to(getattr(torch, t["dtype"])).eval()
    randomise(model, len(name))
    weights = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight" or not config.tie_word_embeddings}
    written = {k: v for k, v in config.to_dict().items() if v is not None and k not in ("transformers_version",)} | {"architectures": [kind + "ForCausalLM"], "dtype": t["dtype"]}
    if t.get("old"):
        written = old_config(written)
    if t.get("fp8") == "blocks":
        weights, meant = to_fp8(weights, (128, 128))
        written["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    elif t.get("fp8") == "rows":
        weights, meant = to_fp8(weights, None)
        written["quantization_config"] = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                                          "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}}
    else:
        meant = weights
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    write_json(target, "config.json", written)
    write_json(target, "generation_config.json", {"eos_token_id": [270, 268], "do_sample": True})
    tokenizer = tiny_tokenizer(t["pre"], t.get("nfc", False), t.get("bos", False))
    raw = json.loads(tokenizer.to_str())
    if t.get("old"):
        raw["model"]["merges"] = [" ".join(m) for m in raw["model"]["merges"]]
    write_json(target, "tokenizer.json", raw)
    settings = {"bos_token": "<|endoftext|>" if t.get("bos") else None, "eos_token": {"content": "<|im_end|>", "special": True} if t.get("old") else "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if t.get("template_file"):
        with open(os.path.join(target, "chat_template.jinja"), "w") as f:
            f.write(TEMPLATE)
    else:
        settings["chat_template"] = TEMPLATE if t.get("old") else [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    write_json(target, "tokenizer_config.json", settings)
    save(target, weights, t.get("shards", 1))
    exact = getattr(transformers, kind + "ForCausalLM")._from_config(config, attn_implementation="eager").float().eval()
    exact.load_state_dict({k: v.float() for k, v in meant.items()}, strict=False)
    exact.tie_weights()
    g = np.random.default_rng(len(name))
    prompts = [[int(x) for x in g.integers(0, 256, n)] for n in (1, 7, 90)]
    plain = Tokenizer.from_str(json.dumps(raw | {"normalizer": None}))
    write_json(target, "reference.json", {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__, "tokenizers": tokenizers.__version__},
        "template": TEMPLATE, "cases": reference(exact, prompts), "texts": TEXTS, "ids": [plain.encode(s, add_special_tokens=False).ids for s in TEXTS],
        "ids_first": plain.encode("x").ids})
    print(name, sum(os.path.getsize(os.path.join(target, f)) for f in os.listdir(target)), "bytes")


# ---- real ones ----

def convert(path, target, dtype, fp8):
    files, read = hf_directory.read(path)
    weights = {name: torch.from_numpy(w).to(getattr(torch, dtype)) for name, w in read}
    config = files["config.json"] | {"torch_dtype": dtype}
    if fp8:
        weights, _ = to_fp8(weights, None if fp8 == "rows" else (128, 128))
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]} if fp8 == "blocks" else {
            "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}}
    os.makedirs(target, exist_ok=True)
    for name, value in (files | {"config.json": config}).items():
        write_json(target, name, value)
    save(target, weights, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", help="a GGUF file")
    parser.add_argument("--to", help="the directory that is made of it")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--fp8", choices=("rows", "blocks"))
    parser.add_argument("--only", metavar="NAME", help="this tiny one alone")
    args = parser.parse_args()
    if args.source:
        convert(args.source, args.to, args.dtype, args.fp8)
        return
    for name, t in TINY.items():
        if args.only and name != args.only:
            continue
        make_tiny(name, t, os.path.join(HERE, "hf", name))


if __name__ == "__main__":
    main()
