"""What clients get wrong: each has its status and its words, and the server goes on."""

import pytest

from conftest import error_of

BODY_LIMIT = 4 * 1024 * 1024
CHAT = [{"role": "user", "content": "hi"}]


def padded(size):
    """A valid request of exactly this many bytes: the padding is a field that nobody reads."""
    head, tail = b'{"prompt":"a","max_tokens":1,"user":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize("body, words", [
    (b"", "no body"),
    (b"{", "isn't valid JSON"),
    (b"[1]", "must be a JSON object"),
    (b'{"prompt":"a","prompt":"b"}', "isn't valid JSON"),
    (b'{"prompt":"\xff"}', "isn't valid JSON"),
    (b'{"prompt":"a","temperature":NaN}', "isn't valid JSON"),
    (b'{"prompt":"a","seed":1e400}', "isn't valid JSON"),
    (b"[" * 100_000, "nested deeper"),
    (b'{"prompt":"a","x":' + b"[]," * 10, "isn't valid JSON"),
])
def test_json(smol, body, words):
    response = smol.http.post("/v1/completions", content=body)
    assert words in error_of(response, 400)
    smol.assert_serves()


@pytest.mark.parametrize("members, param", [
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 10_001}, "n"),
    ({"n": "many"}, "n"),
    ({"stop": [1]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"logprobs": 100}, "logprobs"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"stream": 1}, "stream"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"firstpass": []}, "firstpass"),
    ({"firstpass": {"tests": "assert 1", "max_candidates": 0}}, "firstpass.max_candidates"),
    ({"firstpass": {"tests": "assert 1", "max_candidates": 10_001}}, "firstpass.max_candidates"),
    ({"firstpass": {"tests": "assert 1", "format": "nose"}}, "firstpass.format"),
    ({"firstpass": {"tests": "assert 1", "timeout_s": 0}}, "firstpass.timeout_s"),
    ({"firstpass": {"tests": "assert 1", "surprise": 1}}, "firstpass.surprise"),
    ({"firstpass": {"max_candidates": 5}}, "firstpass.max_candidates"),
])
def test_fields(smol, members, param):
    error_of(smol.post("/v1/completions", {"prompt": "a", "max_tokens": 1} | members), 400, param=param)


def test_limits_are_named(smol):
    message = error_of(smol.post("/v1/completions", {"prompt": "a", "n": 10_001}), 400)
    assert "10000" in message and "10001" in message


@pytest.mark.parametrize("messages, param", [
    ("hi", "messages"), ([], "messages"), ([1], "messages[0]"), ([{"role": "king", "content": "x"}], "messages[0]"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content"),
])
def test_messages(smol, messages, param):
    error_of(smol.post("/v1/chat/completions", {"messages": messages}), 400, param=param)


def test_a_prompt_longer_than_the_context(smol):
    message = error_of(smol.post("/v1/completions", {"prompt": "word " * 5000, "max_tokens": 1}), 400,
                       "context_length_exceeded")
    assert "2048" in message
    error_of(smol.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 5000}]}), 400,
             "context_length_exceeded")
    error_of(smol.post("/v1/completions", {"prompt": "a", "max_tokens": 5000}), 400, "context_length_exceeded")
    smol.assert_serves()


def test_a_prompt_of_megabytes(smol):
    error_of(smol.post("/v1/completions", {"prompt": "ab" * 2_000_000, "max_tokens": 1}), 400,
             "context_length_exceeded")
    error_of(smol.post("/v1/completions", {"prompt": "é \n" * 400_000, "max_tokens": 1}), 400,
             "context_length_exceeded")
    smol.assert_serves()


def test_a_body_of_the_limit_and_one_byte_more(smol):
    assert smol.http.post("/v1/completions", content=padded(BODY_LIMIT)).status_code == 200
    message = error_of(smol.http.post("/v1/completions", content=padded(BODY_LIMIT + 1)), 413, "request_too_large")
    assert str(BODY_LIMIT) in message

    def chunks(size):
        whole = padded(size)
        for at in range(0, size, 65536):
            yield whole[at:at + 65536]
    assert smol.http.post("/v1/completions", content=chunks(BODY_LIMIT)).status_code == 200
    error_of(smol.http.post("/v1/completions", content=chunks(BODY_LIMIT + 1)), 413, "request_too_large")
    smol.assert_serves()


def test_encoded_bodies(smol):
    import gzip
    body = gzip.compress(b'{"prompt":"a"}')
    error_of(smol.http.post("/v1/completions", content=body, headers={"content-encoding": "gzip"}), 415)


@pytest.mark.parametrize("tests", ["def broken(:", "assert f() ==", "x = '", "\tassert f()\n  assert g()", "return 5",
                                   "a\x01b"])
def test_tests_that_do_not_compile(smol, tests):
    body = {"messages": CHAT, "max_tokens": 4, "firstpass": {"tests": tests, "format": "script"}}
    message = error_of(smol.post("/v1/chat/completions", body), 400, param="firstpass.tests")
    assert "test" in message
    smol.assert_quiet()


def test_tests_that_do_not_compile_streamed(smol):
    body = {"messages": CHAT, "max_tokens": 4, "stream": True, "firstpass": {"tests": "def broken(:"}}
    error_of(smol.post("/v1/chat/completions", body), 400)


def test_humaneval_without_check(smol):
    body = {"prompt": "def f():\n", "max_tokens": 4,
            "firstpass": {"tests": "assert f()", "format": "humaneval", "entry_point": "f"}}
    error_of(smol.post("/v1/completions", body), 400)
