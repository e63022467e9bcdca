"""The `openai` library on both endpoints, whole and streamed; and the shapes underneath."""

import httpx
import openai
import pytest

from conftest import error_of, events

CHAT = [{"role": "user", "content": "Say hello."}]


def test_models(smol):
    client = smol.openai()
    listed = client.models.list().data
    assert [m.id for m in listed] == [smol.model]
    assert client.models.retrieve(smol.model).id == smol.model
    assert smol.http.get(f"/v1/models/{smol.model}").json()["max_model_len"] == 2048
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("org/other")
    assert e.value.code == "model_not_found"


def test_chat(smol):
    answer = smol.openai().chat.completions.create(model=smol.model, messages=CHAT, max_tokens=8, seed=1)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.index == 0 and choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens <= 8
    assert answer.system_fingerprint


def test_completion(smol):
    answer = smol.openai().completions.create(model=smol.model, prompt="Once upon a time", max_tokens=5, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].text and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_same_seed_same_text_streamed_or_not(smol):
    client = smol.openai()
    ask = dict(model=smol.model, messages=CHAT, max_tokens=24, seed=7, n=3)
    whole = client.chat.completions.create(**ask)
    texts, reasons, roles = {}, {}, {}
    for chunk in client.chat.completions.create(**ask, stream=True):
        assert chunk.object == "chat.completion.chunk" and chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.delta.role:
                roles[choice.index] = choice.delta.role
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert [texts[i] for i in range(3)] == [c.message.content for c in whole.choices]
    assert [reasons[i] for i in range(3)] == [c.finish_reason for c in whole.choices]
    assert roles == {0: "assistant", 1: "assistant", 2: "assistant"}
    assert len({*texts.values()}) > 1, "three samples of one seed are all equal"


def test_stream_helper_accumulates(smol):
    with smol.openai().chat.completions.stream(model=smol.model, messages=CHAT, max_tokens=12, n=2, seed=3) as stream:
        stream.until_done()
        final = stream.current_completion_snapshot
    assert [c.index for c in final.choices] == [0, 1]
    assert all(c.message.content for c in final.choices)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_frames(smol, path):
    body = {"max_tokens": 6, "stream": True, "n": 2, "temperature": 1, "seed": 5,
            "stream_options": {"include_usage": True}}
    body |= {"messages": CHAT} if "chat" in path else {"prompt": "Once"}
    with smol.http.stream("POST", path, json=body) as response:
        assert response.headers["cache-control"] == "no-cache"
        chunks = events(response)
    *rest, last = chunks
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
    seen = []
    for chunk in rest:
        assert {chunk[k] for k in ("id", "model", "created")} == {last[k] for k in ("id", "model", "created")}
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        assert "finish_reason" in choice
        if choice["index"] not in seen:
            seen.append(choice["index"])
    if "chat" in path:
        assert seen == [0, 1]


def test_prompts_in_every_shape(smol):
    client = smol.openai()
    texts = client.completions.create(model=smol.model, prompt=["One", "Two"], n=2, max_tokens=3)
    assert [c.index for c in texts.choices] == [0, 1, 2, 3]
    tokens = client.completions.create(model=smol.model, prompt=[1, 2, 3], max_tokens=3)
    assert tokens.usage.prompt_tokens == 3
    lists = client.completions.create(model=smol.model, prompt=[[1, 2], [3]], max_tokens=3)
    assert lists.usage.prompt_tokens == 3 and len(lists.choices) == 2
    echo = client.completions.create(model=smol.model, prompt="Once upon", echo=True, max_tokens=3)
    assert echo.choices[0].text.startswith("Once upon") and len(echo.choices[0].text) > len("Once upon")


def test_content_as_parts_and_developer_role(smol):
    parts = [{"role": "developer", "content": "Be short."},
             {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]}]
    plain = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say hello."}]
    client = smol.openai()
    a, b = (client.chat.completions.create(model=smol.model, messages=m, max_completion_tokens=8, temperature=0)
            for m in (parts, plain))
    assert a.choices[0].message.content == b.choices[0].message.content
    assert a.usage.prompt_tokens == b.usage.prompt_tokens


def test_logprobs(smol):
    client = smol.openai()
    chat = client.chat.completions.create(model=smol.model, messages=CHAT, max_tokens=4, temperature=0, logprobs=True,
                                          top_logprobs=3)
    content = chat.choices[0].logprobs.content
    assert len(content) == chat.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)  # greedy: the best is the sampled one
        assert bytes(token.bytes).decode(errors="replace") == token.token
    legacy = client.completions.create(model=smol.model, prompt="Once upon", max_tokens=4, temperature=0, logprobs=2)
    p = legacy.choices[0].logprobs
    assert len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset) == 4
    assert "".join(p.tokens) == legacy.choices[0].text
    assert p.text_offset[0] == 0


def test_stop_strings(smol):
    client = smol.openai()
    ask = dict(model=smol.model, prompt="one two three four five six", max_tokens=30, temperature=0)
    free = client.completions.create(**ask).choices[0].text
    words = free.split()
    stop = words[2]
    cut = client.completions.create(**ask, stop=[stop]).choices[0]
    assert cut.text == free[:free.index(stop)] and cut.finish_reason == "stop"
    kept = client.completions.create(**ask, stop=[stop], extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == cut.text + stop


def test_user_text_never_becomes_control_tokens(smol):
    """A message that spells the template's own marks has more tokens than the marks would."""
    client = smol.openai()
    def size(text):
        return client.chat.completions.create(model=smol.model, messages=[{"role": "user", "content": text}],
                                              max_tokens=1).usage.prompt_tokens
    assert size("<|im_end|>" * 10) - size("") >= 40


def test_usage_with_n_counts_the_prompt_once(smol):
    client = smol.openai()
    one = client.chat.completions.create(model=smol.model, messages=CHAT, max_tokens=4, seed=1)
    four = client.chat.completions.create(model=smol.model, messages=CHAT, max_tokens=4, seed=1, n=4)
    assert four.usage.prompt_tokens == one.usage.prompt_tokens
    assert four.usage.completion_tokens > one.usage.completion_tokens
    assert len(four.choices) == 4


def test_best_of_takes_the_likelier(smol):
    ask = {"prompt": "The sky is", "max_tokens": 8, "seed": 4, "logprobs": 0}
    def mean(choice):
        return sum(choice["logprobs"]["token_logprobs"]) / len(choice["logprobs"]["token_logprobs"])
    all_ = smol.post("/v1/completions", ask | {"n": 6}).json()["choices"]
    best = smol.post("/v1/completions", ask | {"n": 2, "best_of": 6}).json()["choices"]
    assert [mean(c) for c in best] == pytest.approx(sorted(map(mean, all_), reverse=True)[:2], abs=1e-4)


def test_temperature_0_with_n(smol):
    answer = smol.openai().chat.completions.create(model=smol.model, messages=CHAT, max_tokens=6, temperature=0, n=3)
    assert len({c.message.content for c in answer.choices}) == 1 and len(answer.choices) == 3


def test_errors_are_the_librarys_classes(smol):
    client = smol.openai()
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=smol.model, messages=CHAT, temperature=5)
    assert e.value.param == "temperature" and e.value.request_id
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-9", messages=CHAT)
    assert e.value.code == "model_not_found" and e.value.param == "model"
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=smol.model, messages=CHAT, extra_body={"firstpass": {"test": "x"}})
    assert "firstpass.test" in e.value.message


def test_request_ids(smol):
    assert smol.http.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    first, second = (smol.http.get("/health").headers["x-request-id"] for _ in range(2))
    assert first != second


def test_pages(smol):
    assert smol.http.get("/health").json() == {"status": "ok"}
    assert smol.http.get("/v1/health").status_code == smol.http.get("/ping").status_code == 200
    ready = smol.http.get("/ready").json()
    assert ready["ready"] is True and ready["sandbox"]["level"] >= 2
    assert {"name", "active", "detail"} == set(ready["sandbox"]["layers"][0])
    assert smol.http.get("/version").json()["version"]
    assert smol.http.head("/health").status_code == 200
    assert smol.http.options("/v1/completions").headers["allow"] == "POST, OPTIONS"
    m = smol.metrics()
    assert m["firstpass_ready"] == 1
    assert m[f'vllm:num_requests_running{{model_name="{smol.model}"}}'] == 0
    buckets = [m[f'firstpass_memory_bytes{{bucket="{b}"}}']
               for b in ("weights", "kv", "activations", "runtime", "reserve")]
    assert min(buckets) >= 0 and buckets[0] > 50e6


def test_without_v1(smol):
    assert smol.post("/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_unknown_routes_and_methods(smol):
    error_of(smol.http.get("/v2/nothing"), 404, "not_found")
    error_of(smol.http.get("/v1/completions"), 405, "method_not_allowed")
    response = smol.http.delete("/v1/models")
    error_of(response, 405)
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


def test_pipelined_keep_alive(smol):
    """Many requests over one connection, whatever their outcome."""
    with httpx.Client(base_url=smol.url, limits=httpx.Limits(max_connections=1)) as client:
        for _ in range(5):
            assert client.get("/health").status_code == 200
            assert client.post("/v1/completions", content=b"{").status_code == 400
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_echo_with_logprobs(smol):
    """What evaluation harnesses score texts with: the prompt's own log-probabilities, the first one null."""
    client = smol.openai()
    ask = dict(model=smol.model, prompt="The sky is blue and", max_tokens=2, temperature=0, logprobs=2, echo=True)
    choice = client.completions.create(**ask).choices[0]
    p = choice.logprobs
    assert "".join(p.tokens) == choice.text and choice.text.startswith("The sky is blue and")
    assert p.token_logprobs[0] is None and p.top_logprobs[0] is None
    assert all(v < 0 for v in p.token_logprobs[1:])
    assert [choice.text[at:at + len(t)] for at, t in zip(p.text_offset, p.tokens)] == p.tokens
    # Drawn or read, a token is as likely as it is.
    again = client.completions.create(**ask | dict(prompt=choice.text, max_tokens=1)).choices[0].logprobs
    assert again.token_logprobs[:len(p.tokens)] == p.token_logprobs
    pieces = list(client.completions.create(**ask, stream=True))
    assert "".join(c.choices[0].text for c in pieces) == choice.text
    streamed = [v for c in pieces if c.choices[0].logprobs for v in c.choices[0].logprobs.token_logprobs]
    assert streamed == p.token_logprobs


def test_prompt_logprobs(smol):
    body = {"prompt": "The sky is blue", "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2, "return_token_ids": True}
    answer = smol.post("/v1/completions", body).json()
    rows, ids = answer["choices"][0]["prompt_logprobs"], answer["prompt_token_ids"]
    assert rows[0] is None and len(rows) == len(ids)
    for row, token in zip(rows[1:], ids[1:]):
        assert str(token) in row and 2 <= len(row) <= 3
        assert sorted(v["rank"] for v in row.values() if v["rank"]) == [1, 2]
    chat = smol.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, "prompt_logprobs": 0}).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_a_gap_is_filled(qwen):
    answer = qwen.openai().completions.create(
        model=qwen.model, prompt="def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))\n", max_tokens=16,
        temperature=0)
    assert answer.choices[0].text.strip().startswith("a + b"), answer.choices[0].text


def test_the_last_message_is_continued(smol):
    messages = [*CHAT, {"role": "assistant", "content": "Hello, my name"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 6,
            "temperature": 0}
    answer = smol.post("/v1/chat/completions", body).json()
    assert answer["choices"][0]["message"]["content"].startswith(" is"), answer["choices"]
    error_of(smol.post("/v1/chat/completions", body | {"add_generation_prompt": True}), 400,
             param="continue_final_message")


def test_each_choice_can_be_had_again_alone(smol):
    body = {"prompt": "Once upon a time", "max_tokens": 12, "n": 7, "best_of": 9, "return_token_ids": True}
    answer = smol.post("/v1/completions", body).json()
    seed = answer["firstpass"]["seed"]
    assert len({c["candidate"] for c in answer["choices"]}) == 7
    for choice in answer["choices"]:
        alone = smol.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12, "seed": seed,
                                              "return_token_ids": True,
                                              "firstpass": {"first_index": choice["candidate"]}}).json()["choices"][0]
        assert alone["token_ids"] == choice["token_ids"] and alone["text"] == choice["text"]
        assert alone["candidate"] == choice["candidate"]


def test_return_token_ids_and_logit_bias(smol):
    body = {"prompt": "Once upon a", "max_tokens": 3, "temperature": 0, "return_token_ids": True}
    plain = smol.post("/v1/completions", body).json()["choices"][0]
    first = plain["token_ids"][0]
    other = smol.post("/v1/completions", body | {"logit_bias": {str(first): -100}}).json()["choices"][0]
    assert len(plain["token_ids"]) == 3 and other["token_ids"][0] != first
    forced = smol.post("/v1/completions", body | {"logit_bias": {"100": 100}, "ignore_eos": True, "min_tokens": 3})
    assert forced.json()["choices"][0]["token_ids"] == [100] * 3


def test_control_tokens_are_shown_on_request(smol):
    """Forced by a bias: <|im_start|> is token 1 of this model."""
    body = {"prompt": "Once upon a", "max_tokens": 2, "temperature": 0, "logit_bias": {"1": 100}, "return_token_ids": True}
    for skip, text in ((None, ""), (True, ""), (False, "<|im_start|>" * 2)):
        choice = smol.post("/v1/completions", body | {"skip_special_tokens": skip}).json()["choices"][0]
        assert choice["token_ids"] == [1, 1] and choice["text"] == text
    stopped = smol.post("/v1/completions", body | {"skip_special_tokens": False, "stop": "_start|>"}).json()["choices"][0]
    assert stopped["text"] == "<|im" and stopped["finish_reason"] == "stop" and stopped["token_ids"] == [1]


NULLS = ["n", "best_of", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "logprobs",
         "echo", "presence_penalty", "frequency_penalty", "logit_bias", "user", "suffix", "top_k", "min_p",
         "repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "prompt_logprobs", "cache_salt", "firstpass"]


def test_null_is_absent_and_the_rest_is_ignored(smol):
    answer = smol.post("/v1/completions", {"prompt": "a", **dict.fromkeys(NULLS)})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] <= 16
    ignored = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s",
               "prompt_cache_key": "k", "prompt_cache_retention": "24h", "verbosity": "low", "prediction": {},
               "parallel_tool_calls": True, "reasoning_effort": "low", "modalities": ["text"], "tools": [],
               "tool_choice": "auto", "stream_options": None, "priority": 3, "request_id": "r", "session_id": "s",
               "stream": False, "something_new": [1]}
    assert smol.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1, **ignored}).status_code == 200
