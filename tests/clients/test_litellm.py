"""LiteLLM, as aider and others use it: openai/NAME and hosted_vllm/NAME."""

import importlib.metadata

import pytest

litellm = pytest.importorskip("litellm", reason="litellm is not installed here: tests/run clients installs it")
VERSION = importlib.metadata.version("litellm")
CHAT = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(params=["openai", "hosted_vllm"])
def ask(request, smol):
    def completion(**more):
        return litellm.completion(model=f"{request.param}/{smol.model}", api_base=f"{smol.url}/v1", api_key="any",
                                  messages=CHAT, num_retries=0, **more)
    return completion


def test_completion(ask):
    answer = ask(max_tokens=8, temperature=0)
    assert answer.choices[0].message.content and answer.usage.total_tokens > 0, VERSION


def test_several_choices(ask):
    answer = ask(max_tokens=6, n=3, seed=2)
    assert [c.index for c in answer.choices] == [0, 1, 2]


def test_stream(ask):
    whole = ask(max_tokens=8, temperature=0).choices[0].message.content
    pieces = list(ask(max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == whole
    assert any(getattr(p, "usage", None) for p in pieces)


def test_errors(ask):
    with pytest.raises(litellm.BadRequestError):
        ask(max_tokens=8, temperature=7)
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(max_tokens=10**5)


def test_text_completion(smol):
    answer = litellm.text_completion(model=f"text-completion-openai/{smol.model}", api_base=f"{smol.url}/v1",
                                     api_key="any", prompt="Once upon", max_tokens=4)
    assert answer.choices[0].text


def test_tests_in_extra_body(qwen):
    answer = litellm.completion(
        model=f"openai/{qwen.model}", api_base=f"{qwen.url}/v1", api_key="any", max_tokens=160, temperature=0.8,
        messages=[{"role": "user", "content": "Write a Python function add(a, b) that returns their sum. Answer with "
                                              "one fenced block."}],
        extra_body={"firstpass": {"tests": "assert add(2, 3) == 5", "max_candidates": 16}})
    assert "def add" in answer.choices[0].message.content
