"""The routes beside completions: tokens, races, responses; and who may ask at all: keys, TLS, other origins."""

import concurrent.futures
import json
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import httpx
import openai
import pytest

from conftest import QWEN, SMOL, Process, error_of, need_model, serving

CHAT = [{"role": "user", "content": "Say hello."}]
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}


# ---- tokens ----

def test_tokens_there_and_back(smol):
    info = smol.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and info["chat_template"] and info["model_max_length"] == 2048
    for text in ("Hello, world", "", "naïve 日本語 \n\t", "<|im_end|>", "a" * 10_000):
        answer = smol.post("/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True}).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert smol.post("/detokenize", {"tokens": answer["tokens"]}).json()["prompt"] == text
    assert len(smol.post("/v1/tokenize", {"prompt": "<|im_end|>"}).json()["tokens"]) == 1
    tokens = smol.post("/tokenize", {"prompt": "Once upon"}).json()["tokens"]
    answer = smol.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 1, "return_token_ids": True}).json()
    assert answer["prompt_token_ids"] == tokens
    error_of(smol.post("/tokenize", {}), 400, param="prompt")
    error_of(smol.post("/tokenize", {"prompt": ["a"]}), 400, param="prompt")
    for wrong in ({}, {"tokens": "a"}, {"tokens": [-1]}, {"tokens": [1.5]}, {"tokens": [10**6]}, {"tokens": [10**12]}):
        error_of(smol.post("/detokenize", wrong), 400, param="tokens")


def test_tokens_of_messages_are_those_of_the_chat(smol):
    messages = [{"role": "system", "content": "Be <|im_end|> short."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    answer = smol.post("/tokenize", {"messages": messages, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    chat = smol.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "return_token_ids": True}).json()
    assert answer["tokens"] == chat["prompt_token_ids"]
    assert answer["token_strs"].count("<|im_end|>") == 2  # the client's own is text
    bare = smol.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert answer["tokens"][:len(bare)] == bare and len(bare) < answer["count"]
    begun = [*messages, {"role": "assistant", "content": "Well, I"}]
    continued = smol.post("/tokenize", {"messages": begun, "add_generation_prompt": False, "continue_final_message": True}).json()
    assert smol.post("/detokenize", {"tokens": continued["tokens"]}).json()["prompt"].endswith("Well, I")
    for wrong in ({"messages": []}, {"messages": "a"}, {"messages": messages, "prompt": "a"}, {"messages": [{"role": "king"}]}):
        assert error_of(smol.post("/tokenize", wrong), 400).startswith("messages")


# ---- races ----

def test_a_race_is_seen_and_cancelled(smol):
    answers = []
    def ask():
        answers.append(smol.post("/v1/completions", {**LONG, "n": 20}, headers={"x-request-id": "mine-1"}))
    thread = threading.Thread(target=ask)
    thread.start()
    seen = smol.wait_until(lambda: (r := smol.http.get("/v1/races/mine-1")).status_code == 200
                           and r.json()["status"] == "running" and r.json()["counts"]["started"] and r.json(), "race")
    assert seen["object"] == "race" and seen["counts"]["max_candidates"] == 20 and seen["verified"] is None
    gone = smol.http.delete(f"/v1/races/{seen['id']}").json()
    assert gone["deleted"] is True and gone["status"] == "cancelled"
    thread.join(20)
    assert answers[0].status_code == 499 and answers[0].json()["error"]["code"] == "cancelled"
    after = smol.http.get("/v1/races/mine-1").json()
    assert after["status"] == "cancelled" and after["deleted"] is False
    smol.assert_quiet()
    error_of(smol.http.get("/v1/races/nobody"), 404, "race_not_found")
    error_of(smol.http.delete("/v1/races/nobody"), 404, "race_not_found")


def test_a_race_that_ended_is_remembered(smol):
    smol.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "n": 3}, headers={"x-request-id": "mine-2"})
    race = smol.http.get("/v1/races/mine-2").json()
    assert race["status"] == "ended" and race["counts"]["finished"] == 3
    assert smol.http.delete("/v1/races/mine-2").json()["deleted"] is False


# ---- /v1/responses ----

def test_responses(smol):
    client = smol.openai()
    answer = client.responses.create(model=smol.model, input="Say hello.", instructions="Be short.", temperature=0,
                                     max_output_tokens=200)
    assert answer.status == "completed" and answer.output_text and answer.id.startswith("resp_")
    assert answer.output[0].role == "assistant" and answer.instructions == "Be short."
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    same = client.chat.completions.create(model=smol.model, temperature=0, max_tokens=200, messages=[
        {"role": "system", "content": "Be short."}, *CHAT])
    assert answer.output_text == same.choices[0].message.content
    cut = client.responses.create(model=smol.model, input=CHAT, max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(model=smol.model, input="a", previous_response_id="resp_1")
    assert e.value.param == "previous_response_id"


def test_responses_streamed(smol):
    client = smol.openai()
    ask = dict(model=smol.model, input=CHAT, temperature=0, max_output_tokens=24)
    found = list(client.responses.create(**ask, stream=True))
    kinds = [e.type for e in found]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert [e.sequence_number for e in found] == list(range(len(found)))
    text = "".join(e.delta for e in found if e.type == "response.output_text.delta")
    assert text == found[-1].response.output_text == client.responses.create(**ask).output_text
    assert found[-1].response.usage.output_tokens > 0
    with client.responses.stream(**ask) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == text


def test_responses_with_logprobs(smol):
    client = smol.openai()
    ask = dict(model=smol.model, input=CHAT, temperature=0, max_output_tokens=6, top_logprobs=2,
               include=["message.output_text.logprobs"])
    said = client.responses.create(**ask).output[0].content[0]
    same = client.chat.completions.create(model=smol.model, messages=CHAT, temperature=0, max_tokens=6, logprobs=True,
                                          top_logprobs=2).choices[0].logprobs.content
    assert [t.model_dump() for t in said.logprobs] == [t.model_dump() for t in same]
    found = list(client.responses.create(**ask, stream=True))
    pieces = [t for e in found if e.type == "response.output_text.delta" for t in e.logprobs]
    done = next(e for e in found if e.type == "response.output_text.done")
    whole = found[-1].response.output[0].content[0].logprobs
    for got in (pieces, done.logprobs, whole):
        assert [(t.token, t.logprob, len(t.top_logprobs)) for t in got] == [(t.token, t.logprob, 2) for t in same]
    without = client.responses.create(model=smol.model, input=CHAT, max_output_tokens=2, include=["reasoning.encrypted_content"])
    assert without.output[0].content[0].logprobs == []
    error_of(smol.post("/v1/responses", {"input": "a", "include": "all"}), 400, param="include")
    error_of(smol.post("/v1/responses", {"input": "a", "top_logprobs": 21}), 400, param="top_logprobs")


def test_responses_with_tests(qwen):
    answer = qwen.openai().responses.create(
        model=qwen.model, temperature=0.8, max_output_tokens=200,
        input="Write a Python function add(a, b) that returns their sum. Answer with one fenced block.",
        extra_body={"firstpass": {"tests": "assert add(2, 3) == 5\nassert add(-1, 1) == 0", "max_candidates": 16}})
    assert answer.model_extra["firstpass"]["verified"] is True
    assert "def add" in answer.output_text


# ---- clients that can't add fields ----

def test_inline_tests():
    need_model(QWEN)
    with serving("--engine.context", "2048", "--inline-tests", model=QWEN) as server:
        question = ("Write a Python function add(a, b) that returns their sum. Answer with one fenced block.\n"
                    "```python test\nassert add(2, 3) == 5\n```\n")
        answer = server.openai().chat.completions.create(
            model=f"{server.model}:best-of-8", messages=[{"role": "user", "content": question}], max_tokens=200)
        first = answer.model_extra["firstpass"]
        assert first["verified"] is True and first["counts"]["max_candidates"] == 8
        plain = server.openai().completions.create(model=f"{server.model}:best-of-4", prompt="Once", max_tokens=4)
        assert len(plain.choices) == 1 and plain.model_extra["firstpass"]["counts"]["finished"] == 4
        error_of(server.post("/v1/completions", {"model": f"{server.model}:best-of-x", "prompt": "a"}), 404)


# ---- keys, origins, TLS ----

@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    need_model(SMOL)
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("# who may\nalice alice-secret\nbob bob-secret\n")
    path.chmod(0o600)
    server = None
    try:
        with serving("--engine.context", "1024", "--api-key-file", str(path), "--server.cors_origin",
                     "https://pages.example", "--log-json", "--server.max_races", "8", model=SMOL) as server:
            server.keys = path
            server.http.headers["authorization"] = "Bearer alice-secret"
            yield server
    finally:
        assert server is None or server.process.returncode == 0, server.log


def test_keys(guarded):
    anyone = httpx.Client(base_url=guarded.url)
    for path in ("/health", "/ready", "/ping"):
        assert anyone.get(path).status_code == 200
    for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/v1/completions"), ("GET", "/nothing"),
                         ("POST", "/tokenize"), ("GET", "/v1/races/x"), ("POST", "/v1/responses")):
        error_of(anyone.request(method, path), 401, "invalid_api_key")
    for wrong in ("alice-secret", "Bearer alice-secre", "Bearer alice-secret1", "Basic alice-secret", "Bearer"):
        error_of(anyone.get("/v1/models", headers={"authorization": wrong}), 401)
    assert anyone.get("/v1/models", headers={"api-key": "bob-secret"}).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="nobody", max_retries=0).models.list()
    assert openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="bob-secret").models.list().data


def test_races_belong_to_their_key(guarded):
    body = {"prompt": "a", "max_tokens": 1}
    guarded.post("/v1/completions", body, headers={"x-request-id": "of-alice"})
    assert guarded.http.get("/v1/races/of-alice").status_code == 200
    other = {"authorization": "Bearer bob-secret"}
    error_of(guarded.http.get("/v1/races/of-alice", headers=other), 404)


def test_one_key_leaves_room_for_another(guarded):
    """Of eight places one key gets six; the other's request is started before those that wait."""
    body = {**LONG, "max_tokens": 300, "n": 40}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(guarded.post, "/v1/completions", body, headers={"x-request-id": f"crowd-{i}"})
                for i in range(8)]
        deadline = time.monotonic() + 30
        while sum(j.done() for j in jobs) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        done = [j.result() for j in jobs if j.done()]
        assert len(done) == 2
        for answer in done:
            assert "share" in error_of(answer, 429, "rate_limit_exceeded")
            assert int(answer.headers["retry-after"]) >= 1
        small = guarded.post("/v1/completions", {"prompt": "a", "max_tokens": 2},
                             headers={"authorization": "Bearer bob-secret"})
        assert small.status_code == 200
        assert not all(j.done() for j in jobs)
        for i in range(8):
            guarded.http.delete(f"/v1/races/crowd-{i}")
        assert sorted(j.result(60).status_code for j in jobs) == [429] * 2 + [499] * 6
    guarded.assert_quiet()


def test_sighup_reads_the_keys_again(guarded):
    def status(key):
        return guarded.http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code
    guarded.keys.write_text("alice alice-secret\nalice another-secret\n")
    guarded.process.send_signal(signal.SIGHUP)
    guarded.wait_until(lambda: status("another-secret") == 200, "new key")
    assert status("alice-secret") == 200 and status("bob-secret") == 401
    guarded.keys.write_text("broken line here\n")
    guarded.process.send_signal(signal.SIGHUP)
    guarded.wait_until(lambda: "the keys stay as they are" in guarded.log, "log line")
    assert status("another-secret") == 200
    guarded.keys.write_text("alice alice-secret\nbob bob-secret\n")
    guarded.process.send_signal(signal.SIGHUP)
    guarded.wait_until(lambda: status("bob-secret") == 200, "old key")


def test_log_lines_are_json_with_the_request_first(guarded):
    guarded.post("/v1/completions", {"prompt": "a very secret question", "max_tokens": 1},
                 headers={"x-request-id": "logged-1"})
    guarded.wait_until(lambda: "logged-1" in guarded.log, "log line")
    lines = [line for line in guarded.lines if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    assert all({"time", "level", "event"} <= set(e) for e in events)
    (mine,) = [line for line in lines if "logged-1" in line]
    assert mine.startswith('{"request":"logged-1"')
    assert "very secret" not in guarded.log and "alice-secret" not in guarded.log


def test_other_origins(guarded, smol):
    answer = guarded.http.options("/v1/chat/completions", headers={"origin": "https://pages.example"})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "https://pages.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-origin" in guarded.http.get("/v1/models").headers
    assert "access-control-allow-origin" not in smol.http.get("/v1/models").headers


def test_tls(tmp_path):
    need_model(SMOL)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True,
                   capture_output=True)
    with pytest.raises(AssertionError):
        with serving("--tls-cert", str(key), "--tls-key", str(cert)):
            pass
    process = Process("--engine.context", "1024", "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        found = process.wait_until(lambda: re.search(r"listening on (https://\S+:(\d+))", process.log), "address")
        client = httpx.Client(base_url=found[1], verify=ssl.create_default_context(cafile=cert), timeout=60)
        process.wait_until(lambda: client.get("/ready").status_code == 200, "readiness")
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
        with client.stream("POST", "/v1/chat/completions", json={"messages": CHAT, "max_tokens": 8, "stream": True}) as s:
            assert "".join(s.iter_text()).endswith("data: [DONE]\n\n")
        # Who leaves is noticed through TLS too.
        with client.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 900, "n": 8, "stream": True}) as s:
            next(s.iter_text())
        process.wait_until(lambda: "client left" in process.log, "notice")
        with socket.create_connection(("127.0.0.1", int(found[2]))) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            plain.settimeout(10)
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
        assert client.get("/health").status_code == 200
    finally:
        process.process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, process.log


# ---- limits ----

def test_the_queue_is_counted_in_candidates():
    need_model(SMOL)
    with serving("--engine.context", "1024", "--server.max_queued_candidates", "100", model=SMOL) as server:
        big = {**LONG, "n": 2000}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = pool.submit(server.post, "/v1/completions", big, headers={"x-request-id": "big"})
            server.wait_until(lambda: server.http.get("/v1/races/big").status_code == 200, "race")
            message = error_of(server.post("/v1/completions", {"prompt": "a", "n": 200}), 429, "rate_limit_exceeded")
            assert "server.max_queued_candidates" in message
            server.http.delete("/v1/races/big")
            assert running.result(30).status_code == 499
        server.assert_quiet()
        server.assert_serves()
