"""LangChain: ChatOpenAI and OpenAI as its users build them, batches, streams, and the extra object."""

import importlib.metadata

import pytest

pytest.importorskip("langchain_openai", reason="langchain-openai is not installed here: tests/run clients installs it")
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

VERSION = importlib.metadata.version("langchain-openai")


def chat_of(server, **more):
    return ChatOpenAI(model=server.model, base_url=f"{server.url}/v1", api_key="any", max_retries=0, **more)


def test_invoke_and_usage(smol):
    answer = chat_of(smol, max_tokens=8, temperature=0).invoke([SystemMessage("Be short."), HumanMessage("Say hello.")])
    assert answer.content and answer.usage_metadata["total_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def test_content_parts_and_several_generations(smol):
    chat = chat_of(smol, max_tokens=6, n=3, seed=1)
    result = chat.generate([[HumanMessage([{"type": "text", "text": "Say hello."}])]])
    assert len(result.generations[0]) == 3 and all(g.text for g in result.generations[0])


def test_stream_with_usage(smol):
    pieces = list(chat_of(smol, max_tokens=8, temperature=0, stream_usage=True).stream("Say hello."))
    whole = chat_of(smol, max_tokens=8, temperature=0).invoke("Say hello.")
    assert "".join(p.content for p in pieces) == whole.content
    assert any(p.usage_metadata for p in pieces)


def test_batch(smol):
    answers = chat_of(smol, max_tokens=4).batch([f"Say {i}." for i in range(6)])
    assert len(answers) == 6 and all(a.content for a in answers)


def test_logprobs(smol):
    answer = chat_of(smol, max_tokens=4, logprobs=True, top_logprobs=2).invoke("Say hello.")
    assert len(answer.response_metadata["logprobs"]["content"]) >= 1


def test_the_legacy_class(smol):
    llm = OpenAI(model=smol.model, base_url=f"{smol.url}/v1", api_key="any", max_retries=0, max_tokens=4, n=2, best_of=2)
    result = llm.generate(["One,", "Two,"])
    assert [len(g) for g in result.generations] == [2, 2]
    assert "".join(llm.bind(stop=["."]).stream("Once upon"))


def test_responses_api(smol):
    answer = chat_of(smol, max_tokens=20, use_responses_api=True).invoke("Say hello.")
    assert answer.text if isinstance(answer.text, str) else answer.text()


def test_tests_in_extra_body(qwen):
    chat = chat_of(qwen, max_tokens=160, temperature=0.8,
                   extra_body={"firstpass": {"tests": "assert add(2, 3) == 5", "max_candidates": 16}})
    answer = chat.invoke("Write a Python function add(a, b) that returns their sum. Answer with one fenced block.")
    assert "def add" in answer.content, VERSION
