"""A real model as a Hugging Face directory: the same one as its GGUF file."""

import json
import sys

import pytest

from conftest import MODELS, ROOT, SMOL, need_model
from test_bench import TEXT
from test_commands import firstpass

sys.path.insert(0, str(ROOT / "tests" / "vectors"))


def test_a_directory_is_the_model_of_its_file(tmp_path):
    need_model(SMOL)
    import hf_directory
    directory = tmp_path / "smollm2"
    directory.mkdir()
    hf_directory.write(MODELS / f"{SMOL}.gguf", directory)
    text = tmp_path / "text"
    text.write_text(TEXT.read_text()[:2500])
    told = []
    for model in (SMOL, directory):
        done = firstpass("bench", "perplexity", "--model", model, "--file", text, "--chunk", 64, "--json")
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
        done = firstpass("run", "--model", model, "--prompt", "-", "--max-tokens", 1,
                         stdin="What is the capital of France?")
        assert done.returncode == 0, done.stderr
        told[-1]["prompt_tokens"] = json.loads(done.stdout)["usage"]["prompt_tokens"]  # the template's among them
    file, made = told
    # The same tokens; weights rounded to BF16 instead of activations to 8 bits beside the file's: nearly the same numbers.
    assert made["tokens"] == file["tokens"] and made["scored"] == file["scored"] > 100
    assert made["perplexity"] == pytest.approx(file["perplexity"], rel=0.01) and made["perplexity"] != file["perplexity"]
    assert made["prompt_tokens"] == file["prompt_tokens"]
    (directory / "model.safetensors").unlink()  # large, and pytest keeps folders
