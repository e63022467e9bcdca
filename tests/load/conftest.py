"""The built server under load.  FIRSTPASS_LOAD=long asks for the long form (tests/run load --long), a number for a mixed
load of so many seconds."""

import importlib.util
import os
import pathlib
import resource
import sys

import pytest

E2E = pathlib.Path(__file__).resolve().parents[1] / "e2e"
spec = importlib.util.spec_from_file_location("e2e_conftest", E2E / "conftest.py")
e2e = importlib.util.module_from_spec(spec)
sys.modules["e2e_conftest"] = e2e
spec.loader.exec_module(e2e)

FORM = os.environ.get("FIRSTPASS_LOAD", "")
LONG = FORM == "long"
MIXED_SECONDS = 1800 if LONG else int(FORM) if FORM.isdigit() else 12
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


@pytest.fixture(scope="module")
def server():
    """As many places as there are; a pool of blocks for about 200 candidates of some tokens."""
    e2e.need_model(e2e.SMOL)
    with e2e.serving("--engine.context", "512", "--engine.kv_blocks", "800", "--engine.max_rows", "256", "--server.max_races", "1024",
                     "--server.max_connections", "4096", "--log-json", model=e2e.SMOL) as server:
        yield server
        server.assert_quiet()
        assert server.process.poll() is None, server.log
