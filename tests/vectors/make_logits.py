#!/usr/bin/env python3
"""Log-probabilities and greedy continuations from llama.cpp, on a GGUF file and on its weights dequantised to F32.

See README.md beside this file for how to run it and what it writes.
"""
import argparse
import ctypes
import json
import os
import struct
import sys

import llama_cpp
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

GREEDY_TOKENS = 64
TOP = 10

PLAIN = [
    # code
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n",
    "import os\n\ndef count_lines(path):\n    with open(path) as f:\n        return",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "from typing import List\n\ndef is_prime(n: int) -> bool:\n    for i in range(2, int(n ** 0.5) + 1):\n",
    # prose
    "The capital of France is Paris, and the capital of Italy is",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "Water boils at 100 degrees Celsius at sea level. At higher altitudes, it boils at a",
    "In 1969, Neil Armstrong and Buzz Aldrin became the first people to walk on the",
]
CHAT = [
    ("You are a helpful assistant.", "Write a Python function that reverses a string."),
    ("You are a helpful assistant.", "What is the difference between a list and a tuple in Python?"),
    ("Answer in one sentence.", "Why is the sky blue?"),
    ("You write Python only.", "Return the largest element of a list of integers."),
]


def prompts():
    chats = [f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
             for system, user in CHAT]
    return PLAIN + chats


def dequantise_file(source, target):
    """A copy of a GGUF file with every tensor as F32: the metadata byte for byte, the tensors by gguf's own dequantize()."""
    reader = GGUFReader(source)
    alignment = reader.alignment
    metadata_end = min(t.field.offset for t in reader.tensors)
    with open(source, "rb") as f:
        head = f.read(metadata_end)
    infos, offset = b"", 0
    for t in reader.tensors:
        name = t.name.encode()
        dims = [int(d) for d in t.shape]
        infos += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims))
        infos += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", 0, offset)
        offset += -(-4 * int(np.prod(dims)) // alignment) * alignment
    with open(target + ".part", "wb") as f:
        f.write(head + infos)
        f.write(b"\0" * (-f.tell() % alignment))
        for t in reader.tensors:
            data = dequantize(t.data, t.tensor_type).astype("<f4").tobytes()
            f.write(data + b"\0" * (-len(data) % alignment))
    os.replace(target + ".part", target)


class Model:
    def __init__(self, path, threads):
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False  # no repacking: the plain kernels, the same on every machine
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp can't load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = 256
        params.n_batch = params.n_ubatch = 256
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = 0  # F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp can't make a context")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text):
        raw = text.encode()
        tokens = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), tokens, len(tokens), False, True)
        return list(tokens[:n])

    def logprobs(self, tokens):
        """Of the token after these, which follow those given before."""
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            sys.exit("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        x = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.n_vocab,))
        x = x.astype(np.float64)
        x -= x.max()
        return x - np.log(np.exp(x).sum())

    def run(self, tokens):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        result = {"top": None, "greedy": [], "margin": [], "ended": False}
        feed = tokens
        while len(result["greedy"]) < GREEDY_TOKENS:
            p = self.logprobs(feed)
            best = np.argsort(-p, kind="stable")[:TOP]
            if result["top"] is None:
                result["top"] = [[int(i), round(float(p[i]), 5)] for i in best]
            result["margin"].append(round(float(p[best[0]] - p[best[1]]), 5))
            token = int(best[0])
            if llama_cpp.llama_vocab_is_eog(self.vocab, token):
                result["ended"] = True
                break
            result["greedy"].append(token)
            feed = [token]
        return result

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--f32", required=True, help="where the dequantised copy is, or goes")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if not os.path.exists(args.f32):
        dequantise_file(args.model, args.f32)
    name = os.path.basename(args.model).removesuffix(".gguf")

    @llama_cpp.llama_log_callback
    def quiet(level, text, data):
        pass
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()

    cases = []
    for key, path in (("f32", args.f32), ("quantised", args.model)):
        model = Model(path, args.threads)
        for i, text in enumerate(prompts()):
            if key == "f32":
                cases.append({"text": text, "tokens": model.tokenize(text)})
            cases[i][key] = model.run(cases[i]["tokens"])
            print(f"{name} {key} {i + 1}/{len(prompts())}: {len(cases[i]['tokens'])} prompt tokens, "
                  f"{len(cases[i][key]['greedy'])} greedy", flush=True)
        model.close()
    cpu = [w for w in ("AVX2", "AVX512_VNNI")
           if f"{w} = 1" in llama_cpp.llama_print_system_info().decode()]
    out = {"model": name, "made_with": {"llama_cpp_python": llama_cpp.__version__, "cpu": " ".join(cpu)}}
    target = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"logits-{name}.json")
    with open(target, "w") as f:
        head = json.dumps(out)[:-1]
        f.write(head + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
