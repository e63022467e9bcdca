"""What clients do, well or badly, one of each kind: a coroutine that ends once it has its answer or has left, checks what it
got, and returns a word for what came of it, or nothing.

`act` does many of them side by side.  What a server can't help answering differently while it stops is for the caller:
the kinds fail as they would anywhere."""

import asyncio
import contextlib
import json
import time

from conftest import stream

TESTS = {"tests": "assert f() == 1", "entry_point": "f"}


# ---- what clients do: each returns a word for what came of it ----

async def whole(session, path, body, *statuses, request_id=None):
    headers = {"x-request-id": request_id} if request_id else {}
    async with session.post(path, json=body, headers=headers) as answer:
        text = await answer.text()
        assert answer.status in statuses, text
        return str(answer.status), json.loads(text)


async def lines(session, path, body, last):
    """Any stream, to its end."""
    async with session.post(path, json={**body, "stream": True}) as answer:
        text = await answer.text()
        assert answer.status == 200 and last in text[-len(last) - 4000:], text[-400:]


async def bias_to_the_end(session):
    """A logit_bias that makes this server's model end at once."""
    async with session.get("/tokenizer_info") as answer:
        text = await answer.text()
        assert answer.status == 200, text
        mark = json.loads(text)["eos_token"]
    _, answer = await whole(session, "/tokenize", {"prompt": mark, "add_special_tokens": False}, 200)
    return {str(answer["tokens"][0]): 100}


async def some_stream(session, dice):
    assert await stream(session, {"prompt": "One", "max_tokens": 8, "n": 3}) is not None


async def deserter(session, dice):
    text = await stream(session, {"prompt": "Two", "max_tokens": 40, "ignore_eos": True, "n": dice.choice([1, 5])}, dice.uniform(0, .5))
    return "left" if text is None else None


async def probabilities(session, dice):
    body = {"prompt": "Three", "max_tokens": 6, "n": 4, "logprobs": 2, "echo": True, "return_token_ids": True}
    _, answer = await whole(session, "/v1/completions", body, 200)
    assert len(answer["choices"]) == 4


async def mistake(session, dice):
    path, body, status = dice.choice([
        ("/v1/completions", {"prompt": "Four", "temperature": 9}, 400), ("/v1/completions", {"prompt": "x" * 4_300_000}, 413),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 3000}]}, 400), ("/v1/nothing", {}, 404),
        ("/v1/completions", {"prompt": "a", "firstpass": {**TESTS, "tests": "assert f( == 1"}}, 400)])
    return (await whole(session, path, body, status))[0]


async def lost_race(session, dice):
    body = {"prompt": f"def f():\n    # {dice.random()}\n", "max_tokens": 8,
            "firstpass": {**TESTS, "max_candidates": 3, "on_fail": "error"}}
    return (await whole(session, "/v1/completions", body, 200, 422))[0]


async def won_race(session, dice):
    body = {"prompt": f"def f():\n    return {dice.randrange(10**9)} and 1\n", "max_tokens": 3, "logit_bias": await bias_to_the_end(session),
            "firstpass": {**TESTS, "max_candidates": 8, "return": "all", "progress": "candidates"}}
    await lines(session, "/v1/completions", body, "[DONE]")


async def bad_code(session, dice):
    code = dice.choice(["while True: pass", "x = []\nwhile True: x.append(bytearray(10**7))", "import os\nos._exit(0)",
                        "while True: print('x' * 10000)", "import os\nos.abort()", "def f(): return 1"])
    body = {**TESTS, "codes": [f"{code}  # {dice.random()}", f"def f(): return {dice.randrange(3)}"], "timeout_s": 0.3, "memory_mb": 64}
    _, answer = await whole(session, "/v1/verify", body, 200)
    return answer["results"][0]["verdict"]


async def prompts(session, dice):
    _, answer = await whole(session, "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2}, 200)
    assert len(answer["choices"]) == 2


async def crowd(session, dice):
    _, answer = await whole(session, "/v1/completions", {"prompt": "Five", "max_tokens": 1, "n": 300}, 200)
    assert len(answer["choices"]) == 300


async def chat(session, dice):
    body = {"messages": [{"role": "user", "content": f"Say {dice.random()}."}], "max_tokens": 6}
    if dice.randrange(2):
        await lines(session, "/v1/chat/completions", body, "[DONE]")
    else:
        await whole(session, "/v1/chat/completions", body, 200)


async def response(session, dice):
    await lines(session, "/v1/responses", {"input": f"Say {dice.random()}.", "max_output_tokens": 6}, '"type":"response.')


async def tokens(session, dice):
    text = f"naïve {dice.random()} 日本"
    _, answer = await whole(session, "/tokenize", {"prompt": text}, 200)
    _, answer = await whole(session, "/detokenize", {"tokens": answer["tokens"]}, 200)
    assert answer["prompt"] == text


async def late(session, dice):
    body = {"prompt": "Six", "max_tokens": 300, "ignore_eos": True, "firstpass": {"deadline_s": dice.uniform(0.001, 0.3)}}
    return (await whole(session, "/v1/completions", body, 200, 504))[0]


async def cancelled(session, dice):
    name = f"cancel-{dice.random()}"
    job = asyncio.ensure_future(whole(session, "/v1/completions", {"prompt": "Seven", "max_tokens": 100, "n": 8}, 200, 499, request_id=name))
    await asyncio.sleep(dice.uniform(0, .3))
    async with session.delete(f"/v1/races/{name}") as answer:
        assert answer.status in (200, 404)
    return (await job)[0]


async def broken_off(session, dice):
    """Leaves in the middle of its request, or says what is none."""
    async with session.get("/ping") as answer:
        port = answer.url.port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(dice.choice([b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{\"prompt\"",
                              b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02", b"POST /v1/completions HTTP/1.1\r\nContent-Le"]))
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    await asyncio.sleep(dice.uniform(0, .1))
    writer.close()


async def looking(session, dice):
    for path in ("/metrics", "/ready", "/v1/models", "/"):
        async with session.get(path) as answer:
            text = await answer.text()
            assert answer.status == 200, text


KINDS = [some_stream, deserter, probabilities, mistake, lost_race, won_race, bad_code, prompts, crowd, chat, response, tokens, late,
         cancelled, broken_off, looking]


async def act(session, seconds, workers, dice, counts):
    """So many clients at a time for so long; counts what came of them."""
    until = time.monotonic() + seconds
    async def worker():
        while time.monotonic() < until:
            kind = dice.choice(KINDS)
            outcome = await kind(session, dice)
            counts[f"{kind.__name__} {outcome}" if outcome else kind.__name__] += 1
    await asyncio.gather(*[worker() for _ in range(workers)])
