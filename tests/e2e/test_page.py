"""The page's files as HTTP serves them, and the feed that it lives on.  What a browser makes of them: tests/page."""

import json
import re

import pytest

from conftest import QWEN, SMOL, error_of, events, need_model, serving

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
          "form-action 'none'; frame-ancestors 'none'")
TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
         "svg": "image/svg+xml"}


def files_of(server):
    """Every file that the page names, and those that these import."""
    found, new = {}, ["/"]
    while new:
        path = new.pop()
        if path in found:
            continue
        answer = server.http.get(path)
        assert answer.status_code == 200, path
        found[path] = answer
        names = re.findall(r'(?:href|src)="(web/[^"]+)"|from "\./([^"]+)"', answer.text)
        new += ["/" + (linked or f"web/{imported}") for linked, imported in names]
    return found


def test_files(smol):
    files = files_of(smol)
    assert {path.rsplit(".")[-1] for path in files} == {"/", "css", "js", "svg"}
    for path, answer in files.items():
        kind = "html" if path == "/" else path.rsplit(".")[-1]
        assert answer.headers["content-type"] == TYPES[kind], path
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-cache"
        tag = answer.headers["etag"]
        again = smol.http.get(path, headers={"If-None-Match": f'"other", W/{tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert smol.http.get(path, headers={"If-None-Match": '"other"'}).content == answer.content
        head = smol.http.head(path)
        assert head.status_code == 200 and int(head.headers["content-length"]) == len(answer.content)
    assert len({answer.headers["etag"] for answer in files.values()}) == len(files)


def test_nothing_from_elsewhere_and_nothing_inline(smol):
    for path, answer in files_of(smol).items():
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage)", text), path
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=\"", text), path


@pytest.mark.parametrize("path", ["/web/", "/web/nothing.js", "/web/../page.js", "/web/page.js/", "/v1/web/page.js", "/index.html"])
def test_nothing_else(smol, path):
    error_of(smol.http.get(path), 404)


def test_other_methods(smol):
    error_of(smol.http.post("/"), 405)
    assert smol.http.post("/").headers["allow"] == "GET, HEAD, OPTIONS"


def test_off_and_keys(tmp_path):
    need_model(SMOL)
    keys = tmp_path / "keys"
    keys.write_text("ann secret-of-ann\n")
    with serving("--api-key-file", str(keys), model=SMOL) as server:
        assert server.http.get("/").status_code == server.http.get("/web/page.js").status_code == 200
        error_of(server.http.get("/v1/models"), 401)
    with serving("--page=false", model=SMOL) as server:
        for path in ("/", "/web/page.js"):
            error_of(server.http.get(path), 404, "not_found")


# ---- the feed ----

ROTATE = "Write a Python function rotate(items, k) that returns the list rotated to the right by k places."
TESTS = "assert rotate([1, 2, 3], 1) == [3, 1, 2]\nassert rotate([], 4) == []"


def stream(server, **firstpass):
    body = {"messages": [{"role": "user", "content": ROTATE}], "max_tokens": 160, "temperature": 0.9, "seed": 3, "stream": True,
            "firstpass": {"tests": TESTS, "entry_point": "rotate", "max_candidates": 6, "progress": "candidates", **firstpass}}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        return events(response)


def play(found):
    """Candidates as somebody sees them who follows the stream."""
    states, judged, last = {}, {}, None
    order = ["decoding", "verifying", "passed", "failed", "timeout", "memory", "crashed", "output_limit", "forged", "broken", "cancelled"]
    for event in found:
        news = event.get("firstpass") or {}
        numbers = [number for number, _, _ in news.get("candidates", [])]
        assert len(numbers) == len(set(numbers))
        for number, state, tokens in news.get("candidates", []):
            before, had = states.get(number, ("decoding", 0))
            assert order.index(state) >= order.index(before) and tokens >= had
            states[number] = (state, tokens)
        for one in news.get("judged", []):
            assert one["candidate"] not in judged
            judged[one["candidate"]] = one
        last = news if "timings" in news else last
    return states, judged, last


def test_every_candidate_is_followed(qwen):
    states, judged, last = play(stream(qwen, candidates="full", **{"return": "best"}))
    assert sorted(states) == sorted(judged) == list(range(6))
    assert "candidates" not in last, "told on the way, and not again"
    for number, (state, tokens) in states.items():
        assert state == judged[number]["verdict"] and tokens == judged[number]["tokens"] > 0
        assert {"text", "code", "error"} <= set(judged[number])
    assert last["counts"]["verified"] == 6
    assert sum(tokens for _, tokens in states.values()) == last["tokens"]["winner"] + last["tokens"]["losers"]
    assert 0 < last["tokens"]["rows"] <= last["tokens"]["winner"] + last["tokens"]["losers"]


def test_a_pass_stops_the_others(qwen):
    states, judged, last = play(stream(qwen, max_candidates=32, width=8))
    assert last["verified"] and states[last["winner"]["candidate"]][0] == "passed"
    assert not judged, "candidates: none"
    assert {state for state, _ in states.values()} <= {"passed", "failed", "timeout", "crashed", "cancelled"}
    assert len(states) == last["counts"]["started"]


def test_hidden_values_stay_hidden(qwen):
    secret = "assert rotate([1, 2, 3], 1) == ['hidden-value-7']"
    found = stream(qwen, tests=secret, candidates="full", feedback="names", max_candidates=3, on_fail="error")
    assert "hidden-value-7" not in json.dumps(found)
    states, judged, _ = play(found)
    assert len(judged) == 3 and {state for state, _ in states.values()} <= {"failed", "crashed", "timeout"}
    assert found[-1]["error"]["code"] == "no_candidate_passed"
    assert any(one.get("tests") for one in judged.values())  # one that doesn't even load has none
    found = stream(qwen, tests=secret, candidates="full", feedback="none", max_candidates=3, on_fail="error")
    assert not any(one.get("tests") for one in play(found)[1].values())


def test_responses_have_the_same_feed(qwen):
    body = {"input": ROTATE, "max_output_tokens": 160, "stream": True, "seed": 3,
            "firstpass": {"tests": TESTS, "entry_point": "rotate", "max_candidates": 4, "progress": "candidates"}}
    with qwen.http.stream("POST", "/v1/responses", json=body) as response:
        text = "".join(response.iter_text())
    news = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ") and '"firstpass.progress"' in line]
    assert news and any(one["candidates"] for one in news) and all("counts" in one for one in news)


def test_the_words_of_progress(smol):
    body = {"prompt": "x", "stream": True, "firstpass": {"tests": "assert f()", "progress": "often"}}
    assert "progress" in error_of(smol.post("/v1/completions", body), 400, param="firstpass.progress")
