"""Everything at once, and then the end in the middle of it: what has threads is to get in each other's way here.

tests/run tsan runs this file on the server built with the thread sanitizer, which ends a server at its first report."""

import asyncio
import collections
import random
import signal

import aiohttp
import pytest

from clients import KINDS, act
from conftest import LONG, adds_up, run
from e2e_conftest import ROOT, Server

# Small enough to take many steps a second where a sanitizer makes each ten times as long.
MODEL = ROOT / "tests" / "vectors" / "hf" / "tiny-qwen2"
SECONDS = 120 if LONG else 12
CLIENTS = 16
KEY = {"Authorization": "Bearer alice-secret"}


@pytest.fixture
def tiny(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice alice-secret\nbob bob-secret\n")
    keys.chmod(0o600)
    server = Server("--engine.context", "512", "--engine.kv_blocks", "400", "--engine.max_rows", "64", "--engine.threads", "2",
                    "--verifier.workers", "2", "--server.max_races", "256", "--api-key-file", str(keys), "--log-json",
                    "--server.drain_s", "60", model=MODEL)
    server.http.headers.update(KEY)
    yield server.ready()
    server.close()


async def watch(session):
    """What a router reads every 50 ms, for ever."""
    while True:
        async with session.get("/metrics") as answer:
            assert answer.status == 200 and "vllm:num_requests_running" in await answer.text()
        await asyncio.sleep(0.05)


def ended_well(server):
    assert server.wait(120) == 0, server.log
    assert "Sanitizer" not in server.log and "BUG" not in server.log, server.log


async def beside(session, work):
    """`work` beside a router; whichever fails first fails both."""
    router = asyncio.ensure_future(watch(session))
    job = asyncio.ensure_future(work)
    try:
        await asyncio.wait({router, job}, return_when=asyncio.FIRST_COMPLETED)
        if router.done():
            router.result()
        return await job
    finally:
        router.cancel()
        job.cancel()


def test_everything_at_once(tiny):
    dice, counts = random.Random(3), collections.Counter()
    async def reload_keys():
        while True:
            tiny.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.2)
    async def work(session):
        reloading = asyncio.ensure_future(reload_keys())
        await beside(session, act(session, SECONDS, CLIENTS, dice, counts))
        reloading.cancel()
    run(tiny, work, headers=KEY)
    assert {kind.__name__ for kind in KINDS} == {name.split()[0] for name in counts}
    adds_up(tiny)
    print(f"everything at once: {sum(counts.values())} requests")
    tiny.process.send_signal(signal.SIGTERM)
    ended_well(tiny)


@pytest.mark.parametrize("signals", [1, 2], ids=["drained", "cut"])
def test_the_end_in_the_middle(tiny, signals):
    """Whoever was taken gets an answer or an error; who comes later is told so, or finds nobody."""
    dice, counts = random.Random(4 + signals), collections.Counter()
    refused = collections.Counter()
    async def until_refused(session):
        while True:
            kind = dice.choice(KINDS)
            try:
                outcome = await asyncio.wait_for(kind(session, dice), 90)
            except AssertionError as error:
                # It is the words of the refusal: "the server is shutting down".
                assert "shutting down" in str(error) or "draining" in str(error), error
                refused["told"] += 1
                return
            except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError):
                refused["gone"] += 1
                return
            counts[kind.__name__] += 1
    async def work(session):
        clients = [asyncio.ensure_future(until_refused(session)) for _ in range(CLIENTS)]
        await asyncio.sleep(SECONDS / 4)
        assert not any(c.done() for c in clients), [c for c in clients if c.done()]
        for _ in range(signals):
            tiny.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
        await asyncio.gather(*clients)
    run(tiny, work, headers=KEY)
    print(f"the end in the middle: {sum(counts.values())} requests, then {dict(refused)}")
    ended_well(tiny)
