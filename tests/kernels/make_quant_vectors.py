#!/usr/bin/env python3
"""Writes quant_vectors.h: one random block (two for small types) of each GGUF type, and what the `gguf` package
(PyPI, its NumPy code) says its elements are.

    pip install gguf numpy && python3 tests/kernels/make_quant_vectors.py > tests/kernels/quant_vectors.h
"""
import struct

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

SCALES = {  # offset of f16 scales in a block
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q2_K": 84, "Q3_K": 110,
         "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}

print("/* Made by make_quant_vectors.py with the gguf package's NumPy code; elements 0, step, 2 step, ... of each. */")
random = np.random.default_rng(20240811)
cases = []
for name, size in BYTES.items():
    block = bytearray(random.integers(0, 256, size, dtype=np.uint8).tobytes())
    for at in SCALES[name]:
        block[at:at + 2] = struct.pack("<e", random.uniform(-0.05, 0.05))
    values = dequantize(np.frombuffer(bytes(block), np.uint8), T[name]).astype(np.float32)
    step = 3 if len(values) == 256 else 1
    print(f"static const uint8_t {name}_bytes[] = {{{', '.join(str(b) for b in block)}}};")
    print(f"static const float {name}_values[] = {{{', '.join(float(v).hex() + 'f' for v in values[::step])}}};")
    cases.append(f"    {{QUANT_{name}, {name}_bytes, sizeof {name}_bytes, {name}_values, {len(values)}, {step}}},")
print("static const struct {\n    enum quant_type type;\n    const uint8_t *bytes;\n    size_t n_bytes;\n"
      "    const float *values;\n    int n, step;\n} quant_vectors[] = {")
print("\n".join(cases))
print("};")
