"""The zygote: an interpreter that loads everything once and then forks a fresh child for each piece of work.

It runs no code of a client or a model.  Children get theirs over their own socket, after the fork, in serve.c.
`files` (name -> bytes) is the payload that the supervisor handed over; argv[1] is the flavour."""

import gc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types

CONTROL = 3
REHEARSALS = 16  # the interpreter specialises what has run a few times
# In the order in which they need each other.
HARNESS = """channel candidate remote results source traceless cases unittests doctests pytest_module pytests suite template""".split()
STANDARD = """abc array ast base64 bisect builtins calendar cmath collections collections.abc contextlib copy csv
dataclasses datetime decimal difflib enum fractions functools hashlib heapq io itertools json keyword linecache locale math
numbers operator os pprint queue random re select signal socket statistics string struct sys textwrap threading time timeit tokenize
traceback types typing unicodedata uuid warnings weakref zlib resource""".split()

config = json.loads(files["config.json"])  # noqa: F821, given by the loader
flavour = sys.argv[1]
sys.path[:] = config["sys_path"]


def load_module(path):
    loader = importlib.machinery.ExtensionFileLoader("firstpass_inside", path)
    spec = importlib.util.spec_from_file_location("firstpass_inside", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load_harness(inside):
    """The harness's own modules, importable only while they load: nothing later finds them by name."""
    package = types.ModuleType("firstpass")
    package.inside = inside
    sys.modules["firstpass"] = package
    for name in HARNESS:
        module = types.ModuleType("firstpass." + name)
        setattr(package, name, module)
        exec(compile(files[name + ".py"], "<firstpass>/" + name + ".py", "exec"), module.__dict__)  # noqa: F821
    del sys.modules["firstpass"]
    return package


def preload(names):
    """What modules would do in each child after the fork is left out: it costs more than the fork.  random is seeded by those who
    run code, and threading finds its one thread as it was."""
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    for name in names:
        try:
            __import__(name)
        except ImportError:
            pass  # a cut-down Python; the candidate's own import will say so
    os.register_at_fork = register


def main():
    os.environ.pop("LD_BIND_NOW", None)  # it was for the zygote's own start
    inside = load_module(config["module"])
    sys.modules.pop("firstpass_inside", None)
    preload(STANDARD)
    package = load_harness(inside)
    if flavour == "template":
        preload(["jinja2", "jinja2.sandbox", "jinja2.ext"])
    package.candidate.open_streams()
    for _ in range(REHEARSALS):
        package.candidate.rehearse()
        package.suite.rehearse()
    inside.setup(
        config["landlock_abi"],
        [path.encode() for path in config["read"]],
        config["work"].encode(),
        files["filter"],  # noqa: F821
        files["server_filter"],  # noqa: F821
        config["own_uid"],
        config["limits"],
    )
    report = inside.selftest()
    handlers = {
        ord("A"): package.candidate.run,
        ord("N"): package.candidate.serve_flavour,
        ord("T"): package.suite.run,
        ord("R"): package.template.run,
    }

    def handle(kind, given):
        return handlers[kind](kind, given)

    sys.argv[:] = ["solution.py"]
    files.clear()  # noqa: F821
    gc.collect()
    gc.freeze()
    inside.ready(CONTROL, report)
    inside.serve(CONTROL, handle)


main()
