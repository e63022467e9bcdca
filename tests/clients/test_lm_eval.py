"""lm-eval's own request code: what `lm_eval --model local-completions` sends, and how it reads the answer."""

import importlib.metadata
import math

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed here: tests/run clients makes an environment with it")
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

VERSION = importlib.metadata.version("lm_eval")


def model_of(server, **more):
    return LocalCompletionsAPI(model=server.model, base_url=f"{server.url}/v1/completions", tokenizer_backend="remote",
                               batch_size=3, **more)


def instances(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]


def test_the_remote_tokenizer_is_found(smol):
    """`tokenizer_backend: auto` asks /tokenizer_info and, from then on, /tokenize and /detokenize."""
    lm = LocalCompletionsAPI(model=smol.model, base_url=f"{smol.url}/v1/completions")
    assert lm.tokenizer_backend == "remote", VERSION
    tokens = lm.tok_encode("Once upon a time")
    flat = tokens[0] if isinstance(tokens[0], list) else tokens
    assert len(flat) >= 4 and all(isinstance(t, int) for t in flat)


def test_loglikelihood(smol):
    """echo with logprobs of prompts given as token ids; likelier continuations score higher, and a greedy one is known."""
    lm = model_of(smol)
    pairs = [("The capital of France is", " Paris"), ("The capital of France is", " potato"),
             ("One, two, three,", " four")]
    scores = lm.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    assert len(scores) == 3
    assert all(math.isfinite(s) and s < 0 for s, _ in scores)
    assert scores[0][0] > scores[1][0]
    assert scores[2][1] is True and scores[1][1] is False


def test_loglikelihood_rolling(smol):
    lm = model_of(smol)
    text = "Once upon a time there was a little girl who lived in a house near the forest."
    (score,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,)]), disable_tqdm=True)
    assert math.isfinite(score) and score < -5


@pytest.mark.parametrize("concurrent", [1, 4])
def test_generate_until(smol, concurrent):
    lm = model_of(smol, num_concurrent=concurrent)
    asked = [(f"Count: {i}, {i + 1},", {"until": ["\n", "."], "max_gen_toks": 12, "temperature": 0}) for i in range(6)]
    texts = lm.generate_until(instances("generate_until", asked), disable_tqdm=True)
    assert len(texts) == 6 and all(texts) and not any("\n" in t for t in texts)
    again = lm.generate_until(instances("generate_until", asked), disable_tqdm=True)
    assert again == texts


def test_chat(smol):
    lm = LocalChatCompletion(model=smol.model, base_url=f"{smol.url}/v1/chat/completions", tokenizer_backend=None)
    from lm_eval.models.api_models import JsonChatStr
    import json
    asked = [(JsonChatStr(json.dumps([{"role": "user", "content": "Say hello."}])),
              {"until": ["\n"], "max_gen_toks": 8})]
    (text,) = lm.generate_until(instances("generate_until", asked), disable_tqdm=True)
    assert text
