"""The openai library on everything it offers that this server has; current, and the last 1.x in an environment of its own."""

import concurrent.futures
import importlib.metadata
import threading

import openai
import pytest

from e2e_conftest import serving, need_model, SMOL

VERSION = importlib.metadata.version("openai")
CHAT = [{"role": "user", "content": "Say hello."}]
TESTS = {"tests": "assert add(2, 3) == 5\nassert add(-1, 1) == 0", "entry_point": "add", "max_candidates": 16}
QUESTION = [{"role": "user", "content": "Write a Python function add(a, b) that returns their sum. Answer with one "
                                        "fenced block."}]


@pytest.fixture(scope="module")
def client(smol):
    return openai.OpenAI(base_url=f"{smol.url}/v1", api_key="any", max_retries=0, timeout=120)


def test_the_library_is_the_one_asked_for():
    import os
    wanted = os.environ.get("FIRSTPASS_OPENAI")
    if not wanted:
        pytest.skip("FIRSTPASS_OPENAI doesn't say which; tests/run clients does")
    assert VERSION.startswith(wanted), VERSION


def test_chat_whole_and_streamed_in_any_number(client, smol):
    for n in (1, 2, 7):
        ask = dict(model=smol.model, messages=CHAT, n=n, seed=3, max_tokens=12)
        whole = client.chat.completions.create(**ask)
        assert [c.index for c in whole.choices] == list(range(n))
        texts = [""] * n
        for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
            for c in chunk.choices:
                texts[c.index] += c.delta.content or ""
            usage = chunk.usage
        assert texts == [c.message.content for c in whole.choices]
        assert usage.completion_tokens == whole.usage.completion_tokens
        assert usage.prompt_tokens_details.cached_tokens is not None


def test_the_stream_helper(client, smol):
    """Accumulates by index: it breaks on indices that aren't dense and ascending."""
    create = getattr(client.chat.completions, "stream", None) or client.beta.chat.completions.stream
    with create(model=smol.model, messages=CHAT, n=3, seed=1, max_tokens=200, stop=[" "]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert [c.index for c in final.choices] == [0, 1, 2]
    assert all(c.finish_reason == "stop" for c in final.choices)


def test_parse(client, smol):
    parse = getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse
    answer = parse(model=smol.model, messages=CHAT, max_tokens=200, temperature=0, stop=["!"])
    assert answer.choices[0].message.content


def test_legacy_completions(client, smol):
    answer = client.completions.create(model=smol.model, prompt=["One,", "Two,"], n=2, best_of=3, logprobs=1,
                                       max_tokens=3, echo=True)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text.startswith("One,") and answer.choices[2].text.startswith("Two,")
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def test_embedded_object_and_extras(qwen):
    client = qwen.openai()
    raw = client.chat.completions.with_raw_response.create(model=qwen.model, messages=QUESTION, max_tokens=160,
                                                           temperature=0.8, extra_body={"firstpass": TESTS})
    assert raw.headers["x-firstpass-verified"] == "true"
    answer = raw.parse()
    assert answer.model_extra["firstpass"]["verified"] is True and answer.choices[0].index == 0


def test_streamed_race_with_progress(qwen):
    client = qwen.openai()
    counts, text, last = [], "", None
    for chunk in client.chat.completions.create(model=qwen.model, messages=QUESTION, max_tokens=160, temperature=0.8,
                                                stream=True, extra_body={"firstpass": {**TESTS, "progress": True}}):
        if not chunk.choices:
            counts.append(chunk.model_extra["firstpass"]["counts"])
            continue
        text += chunk.choices[0].delta.content or ""
        last = chunk
    assert counts and counts[-1]["started"] >= 1 and "def add" in text
    assert last.choices[0].finish_reason == "stop" and last.model_extra["firstpass"]["verified"] is True


def test_each_error_is_its_class(client, smol):
    def error(kind, **more):
        with pytest.raises(kind) as e:
            client.chat.completions.create(**{"model": smol.model, "messages": CHAT, "max_tokens": 2, **more})
        assert e.value.request_id
        return e.value
    assert error(openai.BadRequestError, temperature=9).param == "temperature"
    assert error(openai.BadRequestError, max_tokens=10**5).code == "context_length_exceeded"
    assert error(openai.BadRequestError, response_format={"type": "json_object"}).param == "response_format"
    assert error(openai.BadRequestError, tools=[{"type": "function", "function": {"name": "f"}}],
                 tool_choice="required").param == "tool_choice"
    assert error(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    none = error(openai.UnprocessableEntityError, extra_body={"firstpass": {
        "tests": "assert nothing() == 1", "max_candidates": 2, "on_fail": "error"}})
    assert none.code == "no_candidate_passed" and len(none.response.json()["firstpass"]["candidates"]) == 2
    with pytest.raises(openai.NotFoundError):
        client.get("/nothing", cast_to=object)


def test_busy_is_a_rate_limit_and_is_retried():
    need_model(SMOL)
    with serving("--engine.context", "1024", "--server.max_races", "1", model=SMOL) as server:
        patient = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=100, timeout=120)
        hasty = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=120)
        ask = dict(model=server.model, prompt="Once", max_tokens=200, n=8, extra_body={"ignore_eos": True})
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(hasty.completions.create, **ask, extra_headers={"x-request-id": "long"})
            server.wait_until(lambda: server.http.get("/v1/races/long").status_code == 200, "race")
            with pytest.raises(openai.RateLimitError) as e:
                hasty.completions.create(model=server.model, prompt="a", max_tokens=1)
            assert int(e.value.response.headers["retry-after"]) >= 1
            assert patient.completions.create(model=server.model, prompt="a", max_tokens=1).choices
            assert len(job.result(60).choices) == 8


def test_leaving_a_stream_cancels_the_race(client, smol):
    stream = client.completions.create(model=smol.model, prompt="Once", max_tokens=1000, n=8, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    smol.assert_quiet()


def test_responses(client, smol):
    if not hasattr(client, "responses"):
        pytest.skip(f"openai {VERSION} has no responses")
    whole = client.responses.create(model=smol.model, input="Say hello.", temperature=0, max_output_tokens=12)
    pieces = [e.delta for e in client.responses.create(model=smol.model, input="Say hello.", temperature=0,
                                                       max_output_tokens=12, stream=True)
              if e.type == "response.output_text.delta"]
    assert "".join(pieces) == whole.output_text


def test_the_asynchronous_client(smol):
    import asyncio

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{smol.url}/v1", api_key="any", max_retries=0) as client:
            jobs = [client.chat.completions.create(model=smol.model, messages=CHAT, seed=i, max_tokens=6)
                    for i in range(20)]
            return await asyncio.gather(*jobs)
    answers = asyncio.run(ask())
    assert len(answers) == 20 and all(a.choices[0].message.content for a in answers)
