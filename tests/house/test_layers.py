"""tests/layers.sh finds each kind of breach, planted in a small tree, and passes the honest twin."""

import pathlib
import shutil
import subprocess
import sys

import pytest

LAYERS = pathlib.Path(__file__).resolve().parents[1] / "layers.py"

HONEST = {
    "base/list.h": "int list_n(void);\n",
    "base/list.c": '#include "base/list.h"\n\n/* getenv( and TODOs in prose are words. */\nint list_n(void) {\n    return 1;\n}\n',
    "config/config.c": "#include <stdlib.h>\n\nchar *config_home(void) {\n    return getenv(\"HOME\");\n}\n",
    "engine/engine.h": "int engine_n(void);\n",
    "engine/kv.h": "int kv_n(void);\n",
    "engine/kv_extra.c": '#include "base/list.h"\n#include "engine/kv.h"\n\nint kv_n(void) {\n    return list_n();\n}\n',
    "server/main.c": '#include "engine/engine.h"\n\nint main(void) {\n    return engine_n();\n}\n',
}


def look(tmp, changes, symbols=False):
    tree = {**HONEST, **changes}
    for name, text in tree.items():
        path = tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    build = tmp / "out"
    build.mkdir()
    for layer in {name.split("/")[0] for name in tree if name.endswith(".c")}:
        files = [tmp / n for n in tree if n.startswith(layer + "/") and n.endswith(".c")]
        if symbols:
            objects = []
            for f in files:
                objects.append(build / (f.name + ".o"))
                subprocess.run(["cc", "-c", "-I", tmp, f, "-o", objects[-1]], check=True)
            subprocess.run(["ar", "rc", build / f"lib{layer}.a", *objects], check=True)
        else:
            subprocess.run(["ar", "rc", build / f"lib{layer}.a"], check=True)
    done = subprocess.run([sys.executable, LAYERS, "out", tmp], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


needs_compiler = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("ar")), reason="no C compiler")


@needs_compiler
def test_honest_tree(tmp_path):
    done = look(tmp_path, {"server/main.c": "static int twice(int x) {\n    return 2 * x;\n}\n\n"
                                            "int main_n(void) {\n    return twice(1);\n}\n"}, symbols=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("5 passed, 0 failed, 0 skipped\n")


@needs_compiler
@pytest.mark.parametrize("change, breach", [
    ({"base/list.c": '#include "config/config.h"\n', "config/config.h": ""},
     "base/list.c:1: base must not include config/config.h"),
    ({"server/main.c": '\n#include "engine/kv.h"\n'}, "server/main.c:2: engine/kv.h is not a front door of engine"),
    ({"verifier/box.c": '#include "engine/engine.h"\n'}, "verifier/box.c:1: verifier must not include engine/engine.h"),
    ({"engine/step.c": '#include "kernels/cpu/pack.h"\n', "kernels/cpu/pack.h": ""}, "is not a front door of kernels"),
    ({"base/list.c": '#include "base/none.h"\n'}, "base/none.h is not there"),
    ({"base/list.c": "void f(char *s) {\n    strcpy(s, s);\n}\n"}, "base/list.c:2: strcpy is banned"),
    ({"base/list.c": "int f(void) {\n    return rand();\n}\n"}, "rand is banned"),
    ({"base/list.c": "char *f(void) {\n    return getenv(\"X\");\n}\n"}, "only config/config.c reads the environment"),
    ({"base/list.c": "int f(void) {\n" + "    g();\n" * 119 + "}\n"}, "base/list.c:1: f has 121 lines"),
    ({"base/list.c": "int x;\n" * 901}, "901 lines; the most is 900"),
    ({"base/list.c": "/* TO" "DO: later */\n"}, "base/list.c:1: TO" "DO"),
])
def test_breach(tmp_path, change, breach):
    done = look(tmp_path, change)
    assert done.returncode == 1
    assert breach in done.stdout
    assert done.stdout.endswith("4 passed, 1 failed, 0 skipped\n")


@needs_compiler
@pytest.mark.parametrize("text", ["int f(void) {\n" + "    g();\n" * 118 + "}\n", "int x;\n" * 900,
                                  "void f(void) {\n    my_system(1);\n    p->rand(2);\n}\n"])
def test_at_the_limit(tmp_path, text):
    assert look(tmp_path, {"base/list.c": text}).returncode == 0


@needs_compiler
def test_symbol_of_another_name(tmp_path):
    done = look(tmp_path, {"base/list.c": "int helper(void) {\n    return 1;\n}\n"}, symbols=True)
    assert done.returncode == 1
    assert "exports helper" in done.stdout


def test_not_built(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "list.c").write_text("int list_x;\n")
    done = subprocess.run([sys.executable, LAYERS, "out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "is not built" in done.stdout
