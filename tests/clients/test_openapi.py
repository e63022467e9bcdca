"""schemathesis reads server/openapi.json and asks whatever it allows, and some things it doesn't: no 5xx, no answer that
breaks the schema, no status that isn't in it."""

import json
import pathlib
import re

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed here: tests/run clients does it")
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (content_type_conformance, response_headers_conformance,
                                               response_schema_conformance, status_code_conformance)

from e2e_conftest import SMOL, need_model, serving

FILE = pathlib.Path(__file__).resolve().parents[2] / "server" / "openapi.json"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
          response_schema_conformance]
schema = schemathesis.openapi.from_path(FILE)


@pytest.fixture(scope="module")
def target():
    need_model(SMOL)
    with serving("--engine.context", "256", "--server.max_candidates", "8", "--server.default_max_tokens", "8",
                 model=SMOL) as server:
        yield server
        server.assert_serves()
        server.assert_quiet()
        assert server.process.poll() is None, server.log


@pytest.mark.parametrize("source, name", [("api_tests.c", "Firstpass"), ("api_verify.c", "VerifyRequest")])
def test_the_file_has_the_fields_that_the_server_knows(source, name):
    """Where unknown fields are refused, the file must neither lack one nor promise one."""
    text = (FILE.parent / source).read_text()
    (known,) = re.findall(r"known\[\] = \{(.*?)NULL", text, re.S)[:1]
    fields = json.loads(FILE.read_text())["components"]["schemas"][name]
    assert fields["additionalProperties"] is False
    assert set(fields["properties"]) == set(re.findall(r'"(\w+)"', known))


def short(body):
    """What is asked is to be answered soon: deadlines are for other tests."""
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(body.get(name), int):
                body[name] = min(body[name], 8)
        if isinstance(body.get("firstpass"), dict):
            body["firstpass"].pop("deadline_s", None)
        if body.get("model") and len(str(body["model"])) % 4:
            del body["model"]
    return body


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate],
          suppress_health_check=list(HealthCheck))
def test_every_operation(case, target):
    case.body = short(case.body)
    case.call_and_validate(base_url=target.url, checks=CHECKS, timeout=120)
