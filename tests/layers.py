"""The rules behind tests/layers.sh, which says what they are."""

import pathlib
import re
import subprocess
import sys

# The tree that is looked at: this one, or (for the test of these rules) another.
ROOT = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else __file__).resolve()
if ROOT.is_file():
    ROOT = ROOT.parents[1]

# What each layer may include of itself and of those under it.
UNDER = {
    "base": {"base"},
    "config": {"base", "config"},
    "kernels": {"base", "config", "kernels"},
    "engine": {"base", "config", "kernels", "engine"},
    "verifier": {"base", "verifier"},
    "server": {"base", "config", "kernels", "engine", "verifier", "server"},
}
FRONT_DOORS = {
    "kernels": {"kernels/kernels.h", "kernels/quant.h"},
    "engine": {"engine/engine.h", "engine/gguf.h", "engine/hf.h"},  # what `inspect` shows of any model
    "verifier": {"verifier/verifier.h"},
    "server": set(),
}
# Hard caps are constants that both branches of the tree share.
EVERYWHERE = {"config/limits.h"}

BANNED = re.compile(r"(?<![\w.>])(v?sprintf|strcpy|strcat|gets|strtok|ato[ifl]l?|alloca|s?rand|system|popen"
                    r"|__builtin_alloca)\s*\(")
ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv)\b")
MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
FUNCTION_LINES, FILE_LINES = 120, 900


def sources(*suffixes):
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        names = [n for n in listed.stdout.split("\0") if n]
    else:  # a tree without git
        names = [str(p.relative_to(ROOT)) for top in [*UNDER, "tests"] for p in (ROOT / top).rglob("*")]
    return [ROOT / n for n in sorted(names) if n.endswith(suffixes) and (ROOT / n).is_file()]


def layer_of(path):
    top = path.relative_to(ROOT).parts[0]
    return top if top in UNDER else None


def without_comments(text):
    """The text with comments and the contents of strings blanked out, line numbers kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def check_includes():
    for path in sources(".c", ".h", ".cu", ".cuh"):
        layer = layer_of(path)
        if not layer:
            continue
        for i, line in enumerate(path.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if not found or found[1] in EVERYWHERE:
                continue
            name = found[1]
            other = name.split("/")[0] if "/" in name else layer
            if "/" in name and not (ROOT / name).is_file():
                if other in UNDER:
                    yield path, i, f"{name} is not there"
            elif other not in UNDER[layer]:
                yield path, i, f"{layer} must not include {name}"
            elif other != layer and other in FRONT_DOORS and name not in FRONT_DOORS[other]:
                yield path, i, f"{name} is not a front door of {other}"


def declared_in(symbol, layer):
    """Stems of the headers of this layer that name the symbol."""
    word = re.compile(rf"\b{re.escape(symbol)}\b")
    return [h.stem for h in sources(".h", ".cuh") if layer_of(h) == layer and word.search(h.read_text())]


def fits(symbol, stem):
    return symbol == stem or symbol.startswith(stem + "_")


def check_symbols(build):
    with_code = {layer_of(p) for p in sources(".c")} - {None}
    for archive in (build / f"lib{layer}.a" for layer in UNDER if layer in with_code):
        if not archive.is_file():
            yield archive, 0, "is not built: build everything, then run this again"
            continue
        layer = archive.stem[3:]
        listing = subprocess.run(["nm", "-A", "--defined-only", "--extern-only", archive],
                                 capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            where, kind, symbol = line.rsplit(maxsplit=2)
            member = where.split(":")[1]
            # Sanitizers and compilers add symbols of their own, with a leading underscore or a dot.
            if kind not in "TDBRCVWGS" or symbol.startswith("_") or "." in symbol:
                continue
            stem = member.split(".")[0]
            if not fits(symbol, stem) and not any(fits(symbol, s) for s in declared_in(symbol, layer)):
                yield archive, 0, f"{member} exports {symbol}, which starts with the name of no header that declares it"


def check_banned():
    for path in sources(".c", ".h", ".cu", ".cuh"):
        if not layer_of(path):
            continue
        for i, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            if found := BANNED.search(line):
                yield path, i, f"{found[1]} is banned"
            if (found := ENVIRONMENT.search(line)) and path != ROOT / "config" / "config.c":
                yield path, i, f"{found[1]}: only config/config.c reads the environment"


def functions(text):
    """(name, first line, lines) of each function: clang-format puts its braces in column 0 or at a line's end."""
    lines = without_comments(text).splitlines()
    start = None
    for i, line in enumerate(lines, 1):
        if line[:1] not in ("", " ", "#", "}", "/", "\t") and start is None:
            start = i
        if start and (line.startswith(("};", "} ")) or (line.rstrip().endswith(";") and not line[:1].isspace())):
            start = None
        elif start and line == "}":
            name = re.search(r"(\w+)\s*\(", "".join(lines[start - 1:i]))
            if name:
                yield name[1], start, i - start + 1
            start = None


def check_lengths():
    for path in sources(".c", ".h", ".cu", ".cuh", ".py", ".sh"):
        n = len(path.read_text().splitlines())
        if n > FILE_LINES:
            yield path, n, f"{n} lines; the most is {FILE_LINES}"
        if path.suffix in (".c", ".cu") and layer_of(path):
            for name, line, length in functions(path.read_text()):
                if length > FUNCTION_LINES:
                    yield path, line, f"{name} has {length} lines; the most is {FUNCTION_LINES}"


def check_marks():
    for path in sources(".c", ".h", ".cu", ".cuh", ".py", ".sh"):
        if path == pathlib.Path(__file__).resolve() or path.name == "layers.sh":
            continue
        for i, line in enumerate(path.read_text().splitlines(), 1):
            if found := MARK.search(line):
                yield path, i, f"{found[1]}: mend it, or write an issue"


def main():
    build = ROOT / (sys.argv[1] if len(sys.argv) > 1 else "build")
    rules = {"includes": check_includes(), "symbols": check_symbols(build), "banned": check_banned(),
             "lengths": check_lengths(), "marks": check_marks()}
    failed = 0
    for name, breaches in rules.items():
        breaches = list(breaches)
        for path, line, what in breaches:
            print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {what}")
        print(f"{name}: {'ok' if not breaches else f'{len(breaches)} breaches'}")
        failed += bool(breaches)
    print(f"{len(rules) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
