"""What tests/gpu.sh does: runs the checks that want a device one after the other, each within its time, and reports.

A check is a function from a `Machine` to figures; it raises `Failed` or `Skipped` with a sentence.  With --emulated the
same functions run the binaries of the host emulation, at a tiny size.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUDGET_S = 480
ROWS = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096"
# The goal (README): this share of the roofline at 1,024 rows, and of memory bandwidth at one row.
GOAL_MANY, GOAL_ONE = 0.60, 0.75


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def find_tool(name):
    found = shutil.which(name)
    if found:
        return found
    for folder in ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"):
        if os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    for folder in filter(None, sys.path):
        for path in pathlib.Path(folder).glob(f"nvidia/**/{name}"):
            if path.is_file():
                path.chmod(path.stat().st_mode | 0o111)
                return str(path)
    return None


def library_folders():
    """Folders of PyPI packages with CUDA libraries, for LD_LIBRARY_PATH."""
    found = []
    for folder in filter(None, sys.path):
        found += sorted({str(p.parent) for p in pathlib.Path(folder).glob("nvidia/**/lib/lib*.so.*")})
    return found


class Machine:
    def __init__(self, build, emulated, deadline):
        self.build, self.emulated, self.deadline = build, emulated, deadline
        self.benches = {}
        # A process that has used CUDA can't be forked.
        self.environment = dict(os.environ, CK_FORK="yes" if emulated else "no")
        folders = library_folders()
        if folders:
            self.environment["LD_LIBRARY_PATH"] = ":".join(folders + [os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")

    def binary(self, name):
        path = self.build / ((f"test_cuda_{name}" if name != "bench" else "emulated_cuda_bench") if self.emulated
                             else f"gpu_cuda_{name}")
        if not path.exists():
            raise Failed(f"there is no {path}")
        return str(path)

    def run(self, command, limit):
        limit = min(limit, self.deadline - time.monotonic())
        if limit <= 1:
            raise Skipped("no time left")
        try:
            done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True,
                                  timeout=limit)
        except subprocess.TimeoutExpired as late:
            tail = (late.stdout or b"")[-500:] if isinstance(late.stdout, bytes) else (late.stdout or "")[-500:]
            raise Failed(f"{pathlib.Path(command[0]).name} ran past {limit:.0f} s: {tail}") from None
        text = (done.stdout + done.stderr).strip()
        if done.returncode == 77:
            raise Skipped(text.splitlines()[-1].removeprefix("skipped: ") if text else "it says so")
        if done.returncode:
            raise Failed(f"{pathlib.Path(command[0]).name} ended with {done.returncode}: {text[-1500:]}")
        return done.stdout

    def check_tests(self, name, limit):
        """Runs a binary of the `check` library; how many of its tests passed."""
        out = self.run([self.binary(name)], limit)
        totals = re.search(r"Checks: (\d+), Failures: 0, Errors: 0", out)
        if not totals or not int(totals[1]):
            raise Failed(f"{name}: no tests ran: {out[-500:]}")
        return int(totals[1])

    def bench(self, limit, model, **options):
        """The report of a run of tests/cuda/gpu_bench.c; the same run is made once."""
        if self.emulated:
            tiny = {"model": "tiny", "rows": "1,2,5", "steps": 2, "prompt": 40, "own": 20}
            options = dict(options, **tiny)
        else:
            options = dict(options, model=model)
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        key = " ".join(words)
        if key not in self.benches:
            self.benches[key] = json.loads(self.run([self.binary("bench"), *words], limit))
        return self.benches[key]


# ---- the checks ----

def device(machine, limit):
    """what device there is, opened by the backend; libraries it finds"""
    report = machine.bench(limit, "tiny", rows="1,2,5", steps=2, prompt=40, own=20)
    figures = {"device": report["device"], "bytes_per_s": report["bytes_per_s"], "macs_per_s": report["macs_per_s"]}
    smi = shutil.which("nvidia-smi")
    if smi and not machine.emulated:
        query = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit,memory.total"
        done = subprocess.run([smi, query, "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
        figures["nvidia_smi"] = done.stdout.strip()
    return figures


def kernels_rows(machine, limit):
    """norms, SwiGLU, embeddings, products of every shape against the CPU definition"""
    return {"tests": machine.check_tests("rows", limit)}


def kernels_weights(machine, limit):
    """GGUF blocks of every type to bf16 and fp8, bit by bit as the CPU decodes them"""
    return {"tests": machine.check_tests("weights", limit)}


def kernels_attention(machine, limit):
    """prefix, suffix and prompt attention, rope, merge against the CPU definition in double"""
    return {"tests": machine.check_tests("attention", limit)}


def kernels_sample(machine, limit):
    """distributions of 100,000 draws for each filter, penalties, log-probabilities"""
    return {"tests": machine.check_tests("sample", limit)}


def kernels_fp8(machine, limit):
    """fp8 rounding, products with scales of rows and outputs, models in fp8 against bf16 and the CPU"""
    return {"tests": machine.check_tests("fp8", limit)}


def kernels_split(machine, limit):
    """the trie's split against its definition; steps whose tokens the host doesn't know against those it does"""
    return {"tests": machine.check_tests("split", limit)}


def follow(machine, limit):
    """the step loop while steps follow steps whose draws aren't known: stops, cancels, parking; no draw changes"""
    return {"tests": machine.check_tests("follow", limit)}


def sanitizer(tool):
    def check(machine, limit):
        found = find_tool("compute-sanitizer")
        if not found:
            raise Skipped("there is no compute-sanitizer here (CUDA toolkit, or PyPI: nvidia-cuda-sanitizer-api)")
        tests = 0
        for name in ("rows", "attention", "split"):
            out = machine.run([found, "--tool", tool, "--error-exitcode", "9", machine.binary(name)], limit / 3)
            totals = re.search(r"Checks: (\d+)", out)
            tests += int(totals[1]) if totals else 0
        return {"tests": tests}
    check.__doc__ = f"compute-sanitizer {tool} over the kernels of rows, attention and the trie's split"
    return check


def small_model(machine, limit):
    """whole forward passes of small models: logits like the CPU's, graphs bit for bit, a row alone and in company"""
    return {"tests": machine.check_tests("step", limit)}


def engine(machine, limit):
    """the whole engine: the same tokens with sharing and without, recorded and plain, alone and in company"""
    return {"tests": machine.check_tests("engine", limit)}


def directories(machine, limit):
    """Hugging Face directories, qwen3, fp8 and YaRN among them, against the log-probabilities of transformers"""
    return {"tests": machine.check_tests("hf", limit)}


def table(report):
    return {str(s["rows"]): s["tokens_per_s"] for s in report["steps"]}


def decode(model, weights, kv="bf16"):
    def check(machine, limit):
        report = machine.bench(limit, model, weights=weights, rows=ROWS, steps=8, kv=kv)
        if report["memory"]["allocations"]:
            raise Failed(f"device memory was taken {report['memory']['allocations']} times while steps ran")
        by_rows = {s["rows"]: s for s in report["steps"]}
        figures = {"tokens_per_s": table(report), "load_s": report["load_s"],
                   "share": {str(n): s["share"] for n, s in by_rows.items()}}
        goals = {1: GOAL_ONE, 1024: GOAL_MANY}
        figures["goals"] = {str(n): by_rows[n]["share"] >= goal for n, goal in goals.items() if n in by_rows}
        return figures
    check.__doc__ = (f"decode at the shape of {model} in {weights}{', keys and values too' if kv == 'fp8' else ''}: "
                     "tokens/s for 1 … 4,096 rows against the roofline")
    return check


def times_as_fast(fast, slow):
    """{rows: how many times}, of the row counts that both measured"""
    slow = {s["rows"]: s["ms"] for s in slow["steps"]}
    return {str(s["rows"]): slow[s["rows"]] / s["ms"] for s in fast["steps"] if s["rows"] in slow}


def fp8_faster(machine, limit):
    """the 8B shape in fp8 is faster than in bf16 at every row count"""
    del limit
    gains = times_as_fast(*(machine.bench(1, "8b", weights=w, rows=ROWS, steps=8, kv="bf16") for w in ("fp8", "bf16")))
    if not gains:
        raise Failed("no row count was measured in both")
    if not machine.emulated and min(gains.values()) < 1:
        raise Failed(f"not everywhere: {gains}")
    return {"times_as_fast": gains}


def switched(option, rows, complaint, doc):
    """0.5B with an option of the steps on and off: on must be faster at this many rows."""
    def check(machine, limit):
        gains = times_as_fast(*(machine.bench(limit / 2, "0.5b", weights="bf16", rows="1,16,256", steps=20, **{option: value})
                                for value in ("on", "off")))
        if len(gains) < 3:
            raise Failed(f"not all row counts were measured in both: {gains}")
        if not machine.emulated and gains[rows] < 1:
            raise Failed(f"{complaint}: {gains}")
        return {"times_as_fast": gains}
    check.__doc__ = doc
    return check


def load(machine, limit):
    """the 8B shape from Q4_0 blocks, dequantised on the device: bytes sent, and how fast"""
    report = machine.bench(limit, "8b", weights="bf16", file="q4_0", rows="1", steps=1)
    figures = {"seconds": report["load_s"], "bytes": report["load_bytes"],
               "bytes_per_s": report["load_bytes"] / report["load_s"]}
    # About what one core of the host decodes, which is what the device is to spare it.
    if not machine.emulated and figures["bytes_per_s"] < 1e9:
        raise Failed(f"the host would be as fast: {figures}")
    return figures


def memory(machine, limit):
    """98 % of the memory planned, taken, and held while steps run"""
    report = machine.bench(limit, "1.5b", weights="bf16", rows="64", steps=8, fill_percent=98)
    m = report["memory"]
    if m["planned"] < 0.95 * m["loaded"]:
        raise Failed(f"the plan is of {m['planned']} bytes, not of 98 % of {m['loaded']}")
    if m["allocations"] or m["ended"] < m["begun"]:
        raise Failed(f"memory was taken while steps ran: {m}")
    taken = m["loaded"] - m["begun"]
    # What libraries and modules take for themselves at their first use isn't the plan's.
    if taken > m["planned"] + (512 << 20) or taken < 0.99 * m["planned"]:
        raise Failed(f"{taken} bytes were taken, {m['planned']} planned")
    return m


CHECKS = [  # name, seconds at most, function
    ("device", 15, device),
    ("kernels-rows", 10, kernels_rows),
    ("kernels-weights", 10, kernels_weights),
    ("kernels-attention", 10, kernels_attention),
    ("kernels-sample", 10, kernels_sample),
    ("kernels-fp8", 15, kernels_fp8),
    ("kernels-split", 10, kernels_split),
    ("small-model", 15, small_model),
    ("follow", 10, follow),
    ("engine", 10, engine),
    ("directories", 10, directories),
    ("memcheck", 30, sanitizer("memcheck")),
    ("racecheck", 35, sanitizer("racecheck")),
    ("graphs", 20, switched("graphs", "1", "graphs are slower at one row",
                            "recorded steps against plain ones, 0.5B: how much they save")),
    ("overlap", 20, switched("overlap", "256", "waiting is faster at 256 rows",
                             "steps queued before the draws of those before are fetched, against steps that wait for them, 0.5B")),
    ("decode-0.5b-bf16", 25, decode("0.5b", "bf16")),
    ("decode-0.5b-fp8", 25, decode("0.5b", "fp8")),
    ("decode-1.5b-bf16", 30, decode("1.5b", "bf16")),
    ("decode-8b-bf16", 50, decode("8b", "bf16")),
    ("decode-8b-fp8", 45, decode("8b", "fp8")),
    ("decode-8b-fp8-kv", 30, decode("8b", "fp8", "fp8")),
    ("fp8-faster", 5, fp8_faster),
    ("load", 15, load),
    ("memory", 25, memory),
]
# Not with --emulated: the part `cuda` of tests/run runs these tests anyway, and compute-sanitizer wants a device.
NOT_EMULATED = {"kernels-weights", "kernels-attention", "kernels-sample", "kernels-fp8", "kernels-split", "small-model", "follow", "engine",
                "directories", "memcheck", "racecheck"}


def has_gpu():
    return pathlib.Path("/dev/nvidiactl").exists() or (
        shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0)


def build(folder, emulated):
    if emulated:
        targets = ["test_cuda_rows", "emulated_cuda_bench"]
    else:
        targets = [f"gpu_cuda_{n}" for n in ("rows", "weights", "attention", "sample", "fp8", "split", "step", "follow", "engine",
                                              "hf", "bench")]
    if not (folder / "build.ninja").exists():
        subprocess.run(["cmake", "--preset", "dev", "-B", folder, "-DBUILD_TESTING=ON",
                        *([] if emulated else ["-DFIRSTPASS_CUDA=ON"])], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", *targets], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def run_checks(machine, wanted):
    results = []
    for name, limit, function in wanted:
        begun, result = time.monotonic(), {"name": name}
        try:
            result.update(status="passed", figures=function(machine, 10 * limit if machine.emulated else limit))
        except Skipped as why:
            result.update(status="skipped", reason=str(why))
        except Failed as why:
            result.update(status="failed", reason=str(why))
        result["seconds"] = round(time.monotonic() - begun, 2)
        results.append(result)
        said = result.get("reason") or json.dumps(result["figures"])
        print(f"{result['status']} {name} ({result['seconds']} s): {said}", flush=True)
    return results


def parse():
    parser = argparse.ArgumentParser(prog="tests/gpu.sh", description="everything that only a GPU can show")
    parser.add_argument("--list", action="store_true", help="what will be checked")
    parser.add_argument("--json", metavar="FILE", help="figures and verdicts")
    parser.add_argument("--only", metavar="NAMES", help="checks, or beginnings of their names, with commas")
    parser.add_argument("--emulated", action="store_true", help="on the emulated device, tiny")
    parser.add_argument("--build", metavar="FOLDER", default="build", help="where binaries are (build)")
    return parser.parse_args()


def main():
    args = parse()
    only = tuple(args.only.split(",")) if args.only else ("",)
    wanted = [c for c in CHECKS if c[0].startswith(only) and not (args.emulated and c[0] in NOT_EMULATED)]
    if not wanted:
        print(f"error: no check is called {args.only}; tests/gpu.sh --list", file=sys.stderr)
        return 2
    if args.list:
        for name, limit, function in wanted:
            print(f"{name:20} {limit:3} s  {function.__doc__}")
        print(f"{len(wanted)} checks, {BUDGET_S} s at most in all")
        return 0
    if not args.emulated and not has_gpu():
        print("skipped: there is no GPU here (no NVIDIA driver): nothing was checked; --emulated runs the same script on "
              "the emulated device", file=sys.stderr)
        return 1 if "gpu" in os.environ.get("FIRSTPASS_MUST", "").split(",") else 77
    folder = (ROOT / args.build).resolve()
    build(folder, args.emulated)
    begun = time.monotonic()
    machine = Machine(folder, args.emulated, begun + (5 if args.emulated else 1) * BUDGET_S)
    results = run_checks(machine, wanted)
    counts = {s: sum(r["status"] == s for r in results) for s in ("passed", "failed", "skipped")}
    if args.json:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        report = {"emulated": args.emulated, "commit": commit.stdout.strip(), "seconds": round(time.monotonic() - begun, 1),
                  **counts, "checks": results, "runs": machine.benches}
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
