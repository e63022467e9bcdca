"""The surface of the API line by line: every parameter that clients send, whether it is taken, ignored or refused, and what
else of the protocol they rely on."""

import concurrent.futures
import json
import socket
import time

import httpx
import pytest

from conftest import SMOL, error_of, events, need_model, serving

CHAT = [{"role": "user", "content": "Say hello."}]
TEXT = {"prompt": "Once upon a time", "max_tokens": 4}
TALK = {"messages": CHAT, "max_tokens": 4}
BASE = {"/v1/completions": TEXT, "/v1/chat/completions": TALK}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

BOTH = {  # taken on both
    "n": [1, 2], "temperature": [0, 0.7, 2], "top_p": [0.5, 1], "seed": [0, -1, 2**63 - 1], "stop": ["x", ["x", "y"], ["x"] * 16, "", []],
    "stream": [False], "presence_penalty": [-2, 2], "frequency_penalty": [-2, 2], "logit_bias": [{}, {"5": -100}, {"5": 100}],
    "top_k": [0, -1, 40], "min_p": [0, 0.1], "repetition_penalty": [1.1], "stop_token_ids": [[2], []], "ignore_eos": [True],
    "min_tokens": [0, 2], "include_stop_str_in_output": [True], "skip_special_tokens": [True, False], "add_special_tokens": [True, False],
    "return_token_ids": [True], "return_tokens_as_token_ids": [True], "prompt_logprobs": [0, 3, False], "cache_salt": ["mine"],
    "best_of": [1], "max_tokens": [1, 7],
}
IGNORED = {
    "user": ["me"], "metadata": [{"a": "b"}], "store": [True, False], "service_tier": ["auto"], "safety_identifier": ["s"],
    "prompt_cache_key": ["k"], "prompt_cache_retention": ["24h"], "prompt_cache_options": [{}], "verbosity": ["low"],
    "prediction": [{"type": "content", "content": "x"}], "parallel_tool_calls": [True], "reasoning_effort": ["low"],
    "modalities": [["text"]], "include_obfuscation": [False], "priority": [3], "request_id": ["r"], "session_id": ["s"],
    "something_nobody_knows": [{"deep": [1]}], "tools": [[]], "tool_choice": ["none", "auto"], "functions": [None], "audio": [None],
    "web_search_options": [None], "response_format": [{"type": "text"}],
}
COMPLETIONS = {
    "prompt": ["a", ["a", "b"], [1, 2], [[1, 2], [3]]], "best_of": [3], "echo": [True, False], "logprobs": [0, 5], "suffix": [None, ""],
}
TALKS = {
    "max_completion_tokens": [3], "logprobs": [True, False], "add_generation_prompt": [True], "continue_final_message": [False],
    "chat_template_kwargs": [{"enable_thinking": False}], "tools": [[FUNCTION]],
    "messages": [[{"role": "developer", "content": "Be short."}, *CHAT], [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
                 [*CHAT, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {
                     "name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "5"}]],
}
TAKEN = [(path, name, value) for path in BASE for table in (BOTH, IGNORED, COMPLETIONS if path == "/v1/completions" else TALKS)
         for name, values in table.items() for value in values]


@pytest.mark.parametrize("path, name, value", TAKEN, ids=lambda v: json.dumps(v)[:40] if not isinstance(v, str) else v)
def test_taken(smol, path, name, value):
    answer = smol.post(path, {**BASE[path], name: value})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"} <= set(body)
    assert [c["index"] for c in body["choices"]] == list(range(len(body["choices"]))) and body["choices"]
    assert all(c["finish_reason"] in ("stop", "length") for c in body["choices"])
    assert set(body["usage"]) >= {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}


REFUSED = {
    "temperature": [-0.1, 2.1, "hot"], "top_p": [-0.1, 1.1], "presence_penalty": [-2.1, 2.1], "frequency_penalty": [-2.1, 2.1],
    "n": [0, -1, 10_001, 1.5], "best_of": [0], "max_tokens": [0, -1], "stop": [["x"] * 17, 5], "logit_bias": [{"5": 101}, {"-1": 0}, []],
    "stream": ["yes"], "stream_options": [{"include_usage": True}], "seed": [1.5, "1"], "top_k": [-2], "min_p": [2],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}], "audio": [{"voice": "x"}],
    "web_search_options": [{}], "functions": [[{"name": "f"}]], "tool_choice": ["required", {"type": "function"}],
    "modalities": [["text", "audio"]], "guided_json": [{}], "use_beam_search": [True],
}
NOT_TAKEN = [(path, name, value) for path in BASE for name, values in REFUSED.items() for value in values]


@pytest.mark.parametrize("path, name, value", NOT_TAKEN, ids=lambda v: json.dumps(v)[:40] if not isinstance(v, str) else v)
def test_refused(smol, path, name, value):
    assert error_of(smol.post(path, {**BASE[path], name: value}), 400, param=name)


# ---- streams ----

def test_the_heads_of_streams(smol):
    with smol.http.stream("POST", "/v1/chat/completions", json={**TALK, "stream": True},
                          headers={"accept-encoding": "gzip, br", "x-request-id": "head-1"}) as answer:
        events(answer)
        heads = answer.headers
    assert heads["cache-control"] == "no-cache" and heads["x-accel-buffering"] == "no" and heads["x-request-id"] == "head-1"
    assert "content-encoding" not in heads and "content-length" not in heads


@pytest.mark.parametrize("path", BASE)
def test_usage_is_in_streams_as_it_was_asked_for(smol, path):
    def chunks(**options):
        with smol.http.stream("POST", path, json={**BASE[path], "n": 2, "stream": True, **options}) as answer:
            return events(answer)
    assert not any("usage" in c for c in chunks())
    assert not any("usage" in c for c in chunks(stream_options={"include_usage": False, "include_obfuscation": False}))
    *rest, last = chunks(stream_options={"include_usage": True})
    assert all(c["usage"] is None and c["choices"] for c in rest) and last["choices"] == [] and last["usage"]["total_tokens"]
    each = chunks(stream_options={"include_usage": True, "continuous_usage_stats": True})
    spent = [c["usage"]["completion_tokens"] for c in each]
    assert spent == sorted(spent) and spent[-1] == each[-1]["usage"]["completion_tokens"] > 0


def test_the_chunks_of_a_chat(smol):
    with smol.http.stream("POST", "/v1/chat/completions", json={**TALK, "n": 3, "stream": True}) as answer:
        chunks = events(answer)
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    for i in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == i]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert mine[-1]["delta"] == {} and mine[-1]["finish_reason"] in ("stop", "length")
        assert all(c["finish_reason"] is None for c in mine[:-1])
        assert all(set(c["delta"]) == {"content"} for c in mine[1:-1])


def test_a_silent_stream_pings(smol):
    """Tests that run for long: nothing is known yet, and the connection must not look dead."""
    end = smol.post("/tokenize", {"prompt": "<|im_end|>"}).json()["tokens"][0]
    body = {"prompt": "def f():\n    while True: pass\n", "max_tokens": 2, "logit_bias": {str(end): 100}, "stream": True,
            "firstpass": {"tests": "assert f() == 1", "entry_point": "f", "max_candidates": 1, "timeout_s": 17}}
    with smol.http.stream("POST", "/v1/completions", json=body) as answer:
        text = "".join(answer.iter_text())
    pings = [block for block in text.split("\n\n") if block.startswith(":")]
    assert pings and text.endswith("data: [DONE]\n\n")


# ---- answers ----

def test_tokens_as_ids(smol):
    body = {**TEXT, "temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True}
    (choice,) = smol.post("/v1/completions", body).json()["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]


def test_cached_tokens_are_counted_and_salted_apart(smol):
    body = {"prompt": f"{time.time()} " + "A tale of some length. " * 20, "max_tokens": 1}
    def usage(**more):
        return smol.post("/v1/completions", {**body, **more}).json()["usage"]
    first, second, salted = usage(), usage(n=5), usage(cache_salt="other")
    assert first["prompt_tokens"] == second["prompt_tokens"] == salted["prompt_tokens"] > 64
    assert first["prompt_tokens_details"]["cached_tokens"] == salted["prompt_tokens_details"]["cached_tokens"] == 0
    assert 64 <= second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]
    assert usage(cache_salt="other")["prompt_tokens_details"]["cached_tokens"] >= 64


def test_log_probabilities_are_of_the_unprocessed_distribution(smol):
    """Whatever temperature, penalties, bias and cuts do to the draw."""
    body = {"prompt": "The sky is", "max_tokens": 1, "logprobs": 5, "return_token_ids": True, "temperature": 0}
    plain = smol.post("/v1/completions", body).json()["choices"][0]
    token = plain["token_ids"][0]
    cooked = smol.post("/v1/completions", {**body, "temperature": 1.9, "top_k": 1, "presence_penalty": 1, "repetition_penalty": 1.3,
                                           "logit_bias": {str(token): 100}}).json()["choices"][0]
    assert cooked["logprobs"] == plain["logprobs"]


def test_sixteen_stop_strings(smol):
    free = smol.post("/v1/completions", {**TEXT, "temperature": 0, "max_tokens": 20}).json()["choices"][0]["text"]
    last = free.split()[4]
    stops = [f"never {i}" for i in range(15)] + [last]
    cut = smol.post("/v1/completions", {**TEXT, "temperature": 0, "max_tokens": 20, "stop": stops}).json()["choices"][0]
    assert cut["text"] == free[:free.index(last)] and cut["finish_reason"] == "stop"


def test_a_key_where_none_is_asked_for(smol):
    for value in (b"Bearer anything", b"Bearer ", b"Bearer", b"Basic x", b""):
        with socket.create_connection(("127.0.0.1", smol.port)) as s:
            s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: " + value + b"\r\nConnection: close\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 200"), value


def test_routes_with_and_without_v1(smol):
    for path in ("/models", "/v1/models", f"/v1/models/{smol.model}", "/health", "/v1/health", "/ping", "/version", "/metrics",
                 "/tokenizer_info", "/v1/models/"):
        answer = smol.http.get(path)
        assert answer.status_code == 200 and answer.headers["x-request-id"], path
    for path, body in (("/completions", TEXT), ("/chat/completions", TALK), ("/responses", {"input": "a", "max_output_tokens": 2}),
                       ("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]}),
                       ("/verify", {"tests": "assert f() == 1", "code": "def f(): return 1"})):
        assert smol.post(path, body).status_code == smol.post(f"/v1{path}", body).status_code == 200, path


# ---- settings ----

@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """Short patience, few connections and rows, a key that /metrics doesn't need, and prompts in the log."""
    need_model(SMOL)
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("alice alice-secret\n")
    keys.chmod(0o600)
    with serving("--engine.context", "1024", "--engine.max_rows", "1", "--server.read_s", "3", "--server.max_connections", "8",
                 "--api-key-file", str(keys), "--server.open_metrics", "--log-json", "--log.prompts", model=SMOL) as server:
        server.http.headers["authorization"] = "Bearer alice-secret"
        yield server


def test_metrics_may_be_open(strict):
    with httpx.Client(base_url=strict.url) as anyone:
        assert anyone.get("/metrics").status_code == 200
        error_of(anyone.get("/v1/models"), 401)


def test_prompts_are_logged_where_asked(strict):
    strict.post("/v1/completions", {"prompt": "what nobody must know", "max_tokens": 1}, headers={"x-request-id": "told-1"})
    strict.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "nor this"}], "max_tokens": 1})
    strict.wait_until(lambda: "what nobody must know" in strict.log and "nor this" in strict.log, "prompts")
    line = json.loads(next(line for line in strict.lines if "what nobody" in line))
    assert next(iter(line)) == "request" and line["request"] == "told-1"


@pytest.mark.parametrize("begin, more", [
    (b"GET /health HTTP/1.1\r\nHost: h\r\n", b"x-a: b\r\n"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer alice-secret\r\nContent-Length: 1000\r\n\r\n", b" "),
], ids=["head", "body"])
def test_who_trickles_is_cut(strict, begin, more):
    before = strict.metrics()["firstpass_http_clients_cut_total"]
    with socket.create_connection(("127.0.0.1", strict.port)) as s:
        s.sendall(begin)
        with pytest.raises(ConnectionError):
            for _ in range(600):
                s.sendall(more)
                time.sleep(0.1)
    strict.wait_metrics(lambda m: m["firstpass_http_clients_cut_total"] > before, "count")


def test_connections_are_limited(strict):
    """Those beyond the limit wait until one of the others goes, and are served then."""
    request = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
    sockets = [socket.create_connection(("127.0.0.1", strict.port)) for _ in range(20)]
    try:
        for s in sockets:
            s.settimeout(60)
            s.sendall(request)
        served = 0
        for s in sockets:
            try:
                served += s.recv(100).startswith(b"HTTP/1.1 200")
            except ConnectionError:
                pass
            s.close()
        assert served >= 8, served
    finally:
        for s in sockets:
            s.close()
    strict.assert_serves()


def test_a_deadline_counts_while_waiting_for_a_turn(strict):
    """Two prompts keep an engine of one row busy; the third's time is over before its turn."""
    long = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(strict.post, "/v1/completions", long, headers={"x-request-id": f"first-{i}"}) for i in range(2)]
        strict.wait_metrics(lambda m: m["firstpass_races_live"] == 2, "two races")
        late = strict.post("/v1/completions", {**long, "firstpass": {"deadline_s": 0.5}})
        assert "waited for its turn" in error_of(late, 504, "deadline_exceeded")
        assert late.headers["x-should-retry"] == "false"
        for i in range(2):
            strict.http.delete(f"/v1/races/first-{i}")
        assert [job.result(60).status_code for job in jobs] == [499, 499]
    strict.assert_quiet()


# ---- what routers and dashboards read ----

NAMES = """ready uptime_seconds candidates_waiting candidates_running request_seconds_bucket time_to_pass_seconds_bucket
candidates_to_pass_bucket http_connections http_requests_waiting http_streams http_body_bytes http_requests_total http_responses_total
http_clients_gone_total http_clients_cut_total races_live races_total races_ended_total candidates_started_total
candidates_finished_total candidates_stopped_total candidates_cancelled_total candidates_passed_total candidates_duplicate_total
cancel_seconds_sum cancel_seconds_count cancel_seconds_longest tokens_total verifier_queued verifier_running verifier_workers
verdicts_total verifier_cpu_seconds_total verifier_wall_seconds_total sandbox_level sandbox_layer jobs_waiting jobs_running kv_blocks
kv_blocks_free kv_blocks_cached kv_use engine_steps_total engine_rows_total engine_step_seconds_total prompt_tokens_total
prompt_tokens_cached_total generated_tokens_total rows_per_token memory_bytes op_seconds_total op_bytes_total op_macs_total""".split()


def test_the_names_of_metrics(smol):
    text = smol.http.get("/metrics").text
    given = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and line[0] != "#"}
    assert {f"firstpass_{name}" for name in NAMES} <= given
    assert {f"vllm:{name}" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info")} <= given
    told = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert all(name in told or name.rsplit("_", 1)[0] in told for name in given)
    # The machine's roof is measured once the server has been idle for a while.  A model that the processor's cache holds can be
    # above it: it is that of memory.
    assert smol.post("/v1/completions", {"prompt": "Once", "max_tokens": 8}).status_code == 200
    smol.wait_metrics(lambda m: m.get("firstpass_roofline_share", 0) > 0, "share of the roofline", 60)


def test_routers_see_candidates_not_requests(strict):
    """One request of 200 candidates, of which an engine with one row runs few at a time."""
    name = f'{{model_name="{strict.model}"}}'
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(strict.post, "/v1/completions", {"prompt": "Once", "n": 200, "max_tokens": 900, "ignore_eos": True},
                          headers={"x-request-id": "crowd"})
        m = strict.wait_metrics(lambda m: m[f"vllm:num_requests_running{name}"] > 0, "candidates in flight")
        assert m[f"vllm:num_requests_waiting{name}"] >= 150 and m["firstpass_races_live"] == 1
        assert m[f"vllm:kv_cache_usage_perc{name}"] > 0
        strict.http.delete("/v1/races/crowd")
        assert job.result(60).status_code == 499
    strict.assert_quiet()


def test_a_refused_body_leaves_the_connection_whole(strict):
    """Who sends no key may send the rest of its request, and ask again over the same connection."""
    with httpx.Client(base_url=strict.url, limits=httpx.Limits(max_connections=1)) as client:
        for _ in range(3):
            error_of(client.post("/v1/completions", content=b'{"prompt": "' + b"a" * 3_000_000 + b'"}'), 401)
        assert client.get("/ping").status_code == 200
