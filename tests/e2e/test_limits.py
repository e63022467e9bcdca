"""Hard limits: many candidates on a tiny pool, hostile candidates, more requests than are taken at once."""

import concurrent.futures

import pytest

from conftest import SMOL, error_of, need_model, serving


@pytest.fixture(scope="module")
def tiny():
    """Memory for about 600 positions in all, few rows, few races."""
    need_model(SMOL)
    with serving("--engine.context", "256", "--engine.kv_blocks", "40", "--server.max_races", "4",
                 "--max-rows", "64") as server:
        yield server
        assert server.process.poll() is None, server.log


def test_ten_thousand_candidates_on_a_tiny_pool(tiny):
    """All run, in waves: memory decides how many at once, never whether it crashes."""
    response = tiny.post("/v1/completions", {"prompt": "a b c", "n": 10_000, "max_tokens": 1, "temperature": 2.0, "seed": 1})
    assert response.status_code == 200, response.text[:500]
    answer = response.json()
    assert [c["index"] for c in answer["choices"]] == list(range(10_000))
    assert answer["usage"]["completion_tokens"] <= 10_000
    assert len({c["text"] for c in answer["choices"]}) > 100
    tiny.assert_quiet()


END = {"2": 100}  # logit_bias that makes this model end at once: what it adds to its prompt is nothing


def test_ten_thousand_candidates_with_tests_stop_at_the_first_pass(tiny):
    body = {"prompt": "def f():\n    return 1\n", "max_tokens": 3, "logit_bias": END,
            "firstpass": {"tests": "assert f() == 1", "entry_point": "f", "max_candidates": 10_000}}
    response = tiny.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    first = response.json()["firstpass"]
    assert first["verified"] is True and first["counts"]["started"] < 1000, first
    m = tiny.assert_quiet()
    assert m["firstpass_candidates_waiting"] == 0


def test_more_candidates_than_allowed(tiny):
    for n in (0, 10_001):
        message = error_of(tiny.post("/v1/completions", {"prompt": "a", "n": n}), 400, param="n")
        assert "10000" in message


def test_more_than_the_pool_ever_holds(tiny):
    error_of(tiny.post("/v1/completions", {"prompt": "word " * 250, "max_tokens": 100}), 400, "context_length_exceeded")
    tiny.assert_serves()


def test_long_candidates_share_a_tiny_pool(tiny):
    """Eight sequences of up to 250 positions where about two fit at once."""
    response = tiny.post("/v1/completions", {"prompt": "a b c", "n": 8, "max_tokens": 240, "ignore_eos": True, "seed": 2})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 8 * 240
    tiny.assert_quiet()


def test_same_texts_on_a_tiny_pool_and_a_large_one(tiny, smol):
    ask = {"prompt": "Once upon a time", "n": 6, "max_tokens": 60, "seed": 11}
    small, large = (s.post("/v1/completions", ask).json()["choices"] for s in (tiny, smol))
    assert [c["text"] for c in small] == [c["text"] for c in large]


def test_429_beyond_max_races(tiny):
    ask = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: tiny.post("/v1/completions", ask), range(12)))
    statuses = sorted(a.status_code for a in answers)
    assert set(statuses) == {200, 429}, statuses
    for answer in answers:
        if answer.status_code == 429:
            error_of(answer, 429, "rate_limit_exceeded")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    tiny.assert_quiet()


HOSTILE = {
    "loops": "    while True:\n        pass\n",
    "sleeps": "    import time\n    time.sleep(1000)\n",
    "forks": "    import os\n    while True:\n        os.fork()\n",
    "allocates": "    x = []\n    while True:\n        x.append(bytearray(10 ** 7))\n",
    "prints": "    while True:\n        print('x' * 10000)\n",
    "exits": "    import os\n    os._exit(0)\n",
    "kills": "    import os, signal\n    os.kill(os.getppid(), signal.SIGKILL)\n    os.kill(-1, signal.SIGKILL)\n",
    "recurses": "    return f()\n",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_candidates(smol, what):
    """The candidate is the prompt with what the model adds, which is nothing."""
    code = f"def f():\n{HOSTILE[what]}"
    body = {"prompt": code, "max_tokens": 4, "temperature": 0, "logit_bias": END,
            "firstpass": {"tests": "assert f() == 1", "format": "asserts", "entry_point": "f", "extract": "continuation",
                          "max_candidates": 1, "candidates": "full", "timeout_s": 1, "memory_mb": 128}}
    answer = smol.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    first = answer.json()["firstpass"]
    (candidate,) = first["candidates"]
    assert first["verified"] is False
    expected = {"loops": {"timeout"}, "sleeps": {"timeout"}, "allocates": {"memory", "failed"},
                "prints": {"output_limit", "timeout"}, "exits": {"failed", "crashed"}, "forks": {"failed", "crashed"},
                "kills": {"failed", "crashed"}, "recurses": {"failed", "crashed", "timeout", "memory"}}
    assert candidate["verdict"] in expected[what], candidate
    assert first["counts"]["broken"] == 0
    smol.assert_quiet()
    smol.assert_serves()
