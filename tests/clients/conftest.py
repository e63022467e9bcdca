"""What client libraries see: each as its users install it, against the built server.

The servers are those of tests/e2e/conftest.py; the libraries live in environments of their own (tests/run clients)."""

import importlib.util
import os
import pathlib
import sys

import pytest

E2E = pathlib.Path(__file__).resolve().parents[1] / "e2e"
spec = importlib.util.spec_from_file_location("e2e_conftest", E2E / "conftest.py")
e2e = importlib.util.module_from_spec(spec)
sys.modules["e2e_conftest"] = e2e
spec.loader.exec_module(e2e)

# Nothing asked here may leave the machine.
os.environ.update({"OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
                   "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                   "LANGCHAIN_TRACING_V2": "false", "NO_PROXY": "127.0.0.1"})

smol = e2e.smol
qwen = e2e.qwen


@pytest.fixture(scope="session")
def races():
    """A server with everything on that is off by default."""
    e2e.need_model(e2e.QWEN)
    with e2e.serving("--engine.context", "4096", "--inline-tests", model=e2e.QWEN) as server:
        yield server
        assert server.process.poll() is None, server.log
