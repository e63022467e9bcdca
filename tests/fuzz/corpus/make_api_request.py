"""Writes the hand-made seeds of fuzz_api_request: tests/fuzz/corpus/make_api_request.py

The first byte of a seed chooses the route: '0' completions, '1' chat.  Random input rarely finds these:
deep nesting, numbers at the ends of their types, cut strings, lone surrogates, fences that never close."""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "fuzz_api_request"
chat = [{"role": "user", "content": "hi"}]
full = {
    "model": "m", "n": 2, "best_of": 3, "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
    "repetition_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": -1, "seed": -(2**63), "stop": ["a", "bc"],
    "logit_bias": {"5": 1.5}, "logprobs": 2, "min_tokens": 1, "stop_token_ids": [1, 2], "user": "u", "cache_salt": "s",
}
tests = {
    "tests": "def check(f):\n    assert f(2) == 4", "format": "humaneval", "entry_point": "f", "max_candidates": 100,
    "width": "auto", "return": "first", "on_fail": "best", "timeout_s": 3, "memory_mb": 256, "deadline_s": 120,
    "extract": "auto", "greedy_first": True, "progress": False, "candidates": "none", "score": False, "prompt": "p",
}
tool_call = {"id": "1", "type": "function", "function": {"name": "g", "arguments": '{"x": [1, {"y": null}]}'}}
seeds = {
    "text": ("0", {"prompt": "p", **full}),
    "texts": ("0", {"prompt": ["a", "b"], "echo": True, "stream": True, "stream_options": {"include_usage": True}}),
    "tokens": ("0", {"prompt": [[1, 2], [999], "x"]}),
    "tests": ("0", {"prompt": "def f(x):\n", "firstpass": tests}),
    "code": ("0", {"prompt": "a\n```python\ndef f(x):\n  '''\n```\n~~~ py\nclass f:\n~~~~\n ```\ndef f"}),
    "unclosed": ("0", {"prompt": "```\ndef f\n````python\nasync def f("}),
    "chat": ("1", {"messages": chat, "logprobs": True, "top_logprobs": 3, "firstpass": tests}),
    "parts": ("1", {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]},
                                 {"role": "assistant", "content": None, "tool_calls": [tool_call]},
                                 {"role": "tool", "tool_call_id": "1", "content": "r"}],
                    "tools": [{"type": "function", "function": {"name": "g"}}], "tool_choice": "auto",
                    "chat_template_kwargs": {"messages": 1, "deep": [[[{}]]]}}),
    "block": ("1", {"messages": [{"role": "user", "content": "```python\ndef f():\n```"}],
                    "firstpass": {"tests": "assert f()", "entry_point": "f"}}),
    "variants": ("1", {"messages": [{"role": "system", "content": "s"}, *chat[-1:]], "firstpass": {**tests, "diversity": {
        "temperatures": [0, 1.5], "prompts": ["", "b{question}", {"user": "<|x|>", "assistant": "```python\n"}, {}]}}}),
    "variants_text": ("0", {"prompt": "p", "firstpass": {"diversity": {"prompts": [{"user": "{question}"}, {"assistant": "\0"}]}}}),
    "nulls": ("1", {"messages": chat, "n": None, "stop": None, "firstpass": None, "tools": None}),
    "ends": ("0", {"prompt": [2**63 - 1, -(2**63)], "seed": 2**63 - 1}),
    "nul": ("0", {"prompt": "a\0b", "firstpass": {"tests": "a\0b", "entry_point": "\0"}}),
    "limits": ("0", {"prompt": ["x"] * 257, "stop": ["y"] * 17, "n": 10001}),
}
raw = {
    "empty": b"0",
    "deep": b"0" + b"[" * 70000,
    "deep_objects": b'1' + b'{"a":' * 5000,
    "depth_in_string": b'0{"prompt":"' + b"[{" * 5000 + b'"}',
    "too_big": b'0{"prompt":"p","seed":99999999999999999999999999}',
    "overflow": b'0{"prompt":"p","temperature":1e999}',
    "surrogate": b'1{"messages":[{"role":"user","content":"\\ud800"}]}',
    "not_utf8": b'0{"prompt":"\xff\xfe"}',
    "twice": b'0{"prompt":"a","prompt":"b"}',
    "cut": b'1{"messages":[{"role":"user","content":"a\\',
    "containers": b'0{"prompt":[' + b"[]," * 3000 + b"[]]}",
}
FOLDER.mkdir(exist_ok=True)
for name, (route, body) in seeds.items():
    (FOLDER / name).write_bytes(route.encode() + json.dumps(body, separators=(",", ":")).encode())
for name, data in raw.items():
    (FOLDER / name).write_bytes(data)
