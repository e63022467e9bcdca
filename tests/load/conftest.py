"""The built server under load.  FIRSTPASS_LOAD=long asks for the long form (tests/run load --long), a number for a mixed
load of so many seconds."""

import asyncio
import importlib.util
import json
import os
import pathlib
import resource
import sys

import aiohttp
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
    """As many places as there are; a pool of blocks for about 200 candidates of some tokens; no haste, for a machine that is busy
    with this."""
    e2e.need_model(e2e.SMOL)
    with e2e.serving("--engine.context", "512", "--engine.kv_blocks", "800", "--engine.max_rows", "256", "--server.max_races", "1024",
                     "--server.max_connections", "4096", "--server.read_s", "600", "--log-json", model=e2e.SMOL) as server:
        yield server
        server.assert_quiet()
        assert server.process.poll() is None, server.log


def adds_up(server):
    m = server.assert_quiet()
    started, finished, stopped = (m[f"firstpass_candidates_{what}_total"] for what in ("started", "finished", "stopped"))
    assert started == finished + stopped, m
    ended = sum(v for k, v in m.items() if k.startswith("firstpass_races_ended_total"))
    assert ended == m["firstpass_races_total"]
    return m


def run(server, work, limit=600, **options):
    async def inside():
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=limit)
        async with aiohttp.ClientSession(server.url, connector=connector, timeout=timeout, **options) as session:
            return await work(session)
    return asyncio.run(inside())


async def stream(session, body, leave_after=None):
    """The text of a whole stream, or None where this client left after so many seconds."""
    text, done = "", False
    async def read():
        nonlocal text, done
        async with session.post("/v1/completions", json={**body, "stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: [DONE]"):
                    done = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    assert "error" not in event, event["error"]["message"]
                    for choice in event["choices"]:
                        text += choice["text"]
    if leave_after is None:
        await read()
        assert done
        return text
    try:
        await asyncio.wait_for(read(), leave_after)
        return text
    except asyncio.TimeoutError:
        return None
