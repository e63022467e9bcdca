#!/usr/bin/env python3
"""One verified completion, shown: config/demonstration.py [http://127.0.0.1:8000]

Asks the server for a function with tests, prints the code that won and what it took.
Ends with 0 if the answer was verified, 1 if not, 2 if the server could not be asked."""

import json
import sys
import urllib.error
import urllib.request

TASK = """Write a Python function `rotate(items, k)` that returns a new list with the items rotated to the \
right by k places. k may be larger than the list, and the list may be empty. Answer with the function only: no docstring, \
no examples."""

TESTS = """
def check(candidate):
    assert candidate([1, 2, 3, 4], 1) == [4, 1, 2, 3]
    assert candidate([1, 2, 3, 4], 6) == [3, 4, 1, 2]
    assert candidate(["a", "b"], 0) == ["a", "b"]
    assert candidate([], 3) == []
"""


def ask(url, body=None):
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as answer:
        return json.load(answer)


def demonstrate(base):
    model = ask(base + "/v1/models")["data"][0]["id"]
    print(f"\n{TASK}\n\nThe tests:\n{TESTS}", flush=True)
    answer = ask(base + "/v1/chat/completions", {
        "model": model,
        "messages": [{"role": "user", "content": TASK}],
        "max_tokens": 300,
        "temperature": 0.8,
        "seed": 1,
        "firstpass": {"tests": TESTS, "format": "humaneval", "entry_point": "rotate",
                      "max_candidates": 64, "candidates": "verdicts"},
    })
    result = answer["firstpass"]
    show(result, model)
    return result["verified"]


def show(result, model):
    winner, counts, tokens = result["winner"], result["counts"], result["tokens"]
    title = "The code that won" if result["verified"] else "No candidate passed; the best of them"
    print(f"{title} (candidate {winner['candidate']} of {model}):\n")
    print("\n".join("    " + line for line in winner["code"].strip().splitlines()))
    for candidate in result["candidates"]:
        if candidate["verdict"] not in (None, "passed"):
            print(f"\n  candidate {candidate['candidate']}: {candidate['verdict']}, {candidate['error']}", end="")
    print(f"""

  verified    {"yes" if result["verified"] else "no"}, sandbox level {result["sandbox"]["level"]}
  candidates  {counts["started"]} started, {counts["verified"]} verified, {counts["passed"]} passed, \
{counts["cancelled"]} cancelled ({counts["duplicates"]} duplicates; at most {counts["max_candidates"]})
  tokens      {tokens["prompt"]} of the prompt, {tokens["winner"]} of the winner, {tokens["losers"]} of the others
  seconds     {result["timings"]["total_s"]:.1f}
""", flush=True)


def main():
    base = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000").rstrip("/")
    try:
        verified = demonstrate(base)
    except urllib.error.HTTPError as e:
        print(f"the server answered {e.code}: {e.read().decode(errors='replace')}", file=sys.stderr)
        return 2
    except (OSError, ValueError, KeyError, TypeError) as e:
        print(f"{base} could not be asked: {e}", file=sys.stderr)
        return 2
    return 0 if verified else 1


if __name__ == "__main__":
    sys.exit(main())
