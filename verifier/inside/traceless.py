"""Whether tests can leave nothing behind in the process that runs them, told from their text alone.

Such tests run in one process for many candidates: each run has a namespace of its own, and nothing else could carry over.  Whatever
isn't known to be harmless here gets a fresh process for each candidate, which costs some milliseconds and needs no proof."""

import ast
import importlib
import types

# Modules without a state of their own that a user could change; random is seeded anew for each run.
MODULES = frozenset("bisect collections copy datetime fractions functools heapq itertools math random re string typing".split())
# What in them changes or evaluates what it is given.
EXCEPTED = frozenset("get_type_hints update_wrapper wraps".split())
# Builtins that reach beyond the namespace, or attributes by computed names.
BUILTINS = frozenset(
    "breakpoint compile copyright credits delattr dir eval exec exit getattr globals help input license locals memoryview object open "
    "quit setattr super type vars".split()
)
# Of generators, tracebacks, code and frames: the way to a frame's globals and builtins.
INNER = ("gi_", "cr_", "ag_", "tb_", "co_", "f_", "func_", "mro")
REACHING = (ast.ClassDef, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)


def leaves_nothing(*trees):
    return all(_is_harmless(tree) for tree in trees)


def _is_constant(module, name):
    """Whether this name of a module gives nothing that could be changed."""
    if name[:1] == "_" or name in EXCEPTED:
        return False
    value = getattr(importlib.import_module(module), name, None)
    return not isinstance(value, (types.ModuleType, list, dict, set))


def _is_harmless(tree):
    modules = {name: name for name in MODULES}  # also where the tests use them without an import
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MODULES:
                    return False
                modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module not in MODULES:
                return False
            if any(alias.name == "*" or not _is_constant(node.module, alias.name) for alias in node.names):
                return False
    return all(_is_harmless_node(node, modules) for node in ast.walk(tree))


def _is_harmless_node(node, modules):
    if isinstance(node, REACHING):
        return False
    if isinstance(node, ast.Name):
        return node.id[:2] != "__" and node.id not in BUILTINS
    if isinstance(node, ast.Attribute):
        if not isinstance(node.ctx, ast.Load) or node.attr[:1] == "_" or node.attr.startswith(INNER):
            return False
        if isinstance(node.value, ast.Name) and node.value.id in modules:
            return _is_constant(modules[node.value.id], node.attr)
    return True
