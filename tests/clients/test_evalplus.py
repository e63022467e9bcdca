"""evalplus' own request code: its decoder for servers of this API, which retries for ever on any error."""

import importlib.metadata
import sys

import pytest

pytest.importorskip("evalplus", reason="evalplus is not installed here: tests/run clients installs it")
from evalplus.provider.openai import OpenAIChatDecoder

VERSION = importlib.metadata.version("evalplus")


def test_codegen(qwen):
    decoder = OpenAIChatDecoder(
        qwen.model, base_url=f"{qwen.url}/v1", batch_size=4, temperature=0.8, max_new_tokens=96,
        instruction_prefix="Please provide a self-contained Python script that solves the following problem:",
        response_prefix="Below is a Python script:")
    outputs = decoder.codegen("def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n", num_samples=4)
    assert len(outputs) == 4, VERSION
    assert sum("def add" in o for o in outputs) >= 3
