"""The peer: llama.cpp, as the PyPI package llama-cpp-python carries it: built once, found again, run."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
TOOLS = ["llama-batched-bench", "llama-server", "llama-perplexity"]
COMMON = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON",
          "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_UI=OFF"]
# CMake's names of what /proc/cpuinfo calls by these.
FLAGS = {"avx2": ["GGML_AVX2"], "fma": ["GGML_FMA"], "f16c": ["GGML_F16C"], "bmi2": ["GGML_BMI2"], "avx_vnni": ["GGML_AVX_VNNI"],
         "avx512f": ["GGML_AVX512"], "avx512_vbmi": ["GGML_AVX512_VBMI"], "avx512vbmi": ["GGML_AVX512_VBMI"],
         "avx512_vnni": ["GGML_AVX512_VNNI"], "avx512_bf16": ["GGML_AVX512_BF16"]}
AVX2_ONLY = {"avx2", "fma", "f16c", "bmi2"}


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, **kwargs):
    return subprocess.run([str(c) for c in command], check=True, **kwargs)


def cpu_flags():
    line = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), ":")
    return set(line.split(":", 1)[1].split())


class Peer:
    """Its tools, ready to run.  `how` says how they were built."""

    def __init__(self, folder, how):
        self.folder, self.how = Path(folder), how

    def tool(self, name):
        return self.folder / name

    def environment(self):
        """Its shared libraries lie beside its tools."""
        known = os.environ.get("LD_LIBRARY_PATH")
        return {**os.environ, "LD_LIBRARY_PATH": f"{self.folder}:{known}" if known else str(self.folder)}

    def runs(self, model):
        """Whether its decoder works on this machine: one token of each candidate."""
        done = subprocess.run([self.tool("llama-batched-bench"), "-m", model, "-c", "512", "-npp", "32", "-ntg", "1", "-npl", "4",
                               "-pps"], env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def output(self, name, *arguments, errors=False):
        return run([self.tool(name), *arguments], env=self.environment(), text=True, stdout=subprocess.PIPE,
                   stderr=subprocess.STDOUT if errors else subprocess.DEVNULL).stdout


def fetch(folder):
    """The source's folder."""
    if not list(folder.glob("llama_cpp_python*/vendor/llama.cpp")):
        folder.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "venv", folder / "venv"])
        run([folder / "venv/bin/pip", "-q", "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", folder / "sdist",
             PACKAGE])
        run(["tar", "xzf", next((folder / "sdist").glob("*.tar.gz")), "-C", folder])
    return next(folder.glob("llama_cpp_python*/vendor/llama.cpp"))


def build(folder, name, options):
    """folder/build-NAME/bin, built if it isn't there."""
    target = folder / f"build-{name}"
    if not all((target / "bin" / tool).exists() for tool in TOOLS):
        say(f"building the peer ({name}) in {target}: about ten minutes on two cores")
        source = fetch(folder)
        run(["cmake", "-S", source, "-B", target, "-G", "Ninja", *COMMON, *options], stdout=subprocess.DEVNULL)
        run(["ninja", "-C", target, *TOOLS], stdout=subprocess.DEVNULL)
    return target / "bin"


def flag_options(flags):
    """Not native: exactly these of the machine's instruction sets."""
    names = sorted({name for flag, names in FLAGS.items() for name in names})
    on = {name for flag in flags for name in FLAGS.get(flag, [])}
    return ["-DGGML_NATIVE=OFF", *(f"-D{name}={'ON' if name in on else 'OFF'}" for name in names)]


def get(folder, isa, model):
    """The peer from `folder`: a ready one (its tools in it or in bin/), or the place to build it in.  Where a native build dies
    on this machine (its AMX code does on some), one with all of the machine's other instruction sets takes its place; for the
    isa avx2 it gets AVX2 only, so that like is compared with like."""
    for ready in (folder, folder / "bin"):
        if (ready / TOOLS[0]).exists():
            peer = Peer(ready.resolve(), f"ready-made: {ready.name}")
            if not peer.runs(model):
                raise SystemExit(f"bench/peers: the peer in {ready} doesn't run on this machine")
            return peer
    if isa == "avx2":
        return Peer(build(folder, "avx2", flag_options(AVX2_ONLY)), "built for AVX2 only")
    native = Peer(build(folder, "native", ["-DGGML_NATIVE=ON"]), "built for this machine (GGML_NATIVE)")
    if native.runs(model):
        return native
    say("the peer's native build dies on this machine; building it with all instruction sets but AMX")
    return Peer(build(folder, "flags", flag_options(cpu_flags())),
                "built for this machine's instruction sets but AMX: its native build dies here")


def batched_bench(peer, model, n, args):
    """{n: (decode tokens/s, prefill tokens/s)}, the prompt shared."""
    out = peer.output("llama-batched-bench", "-m", model, "-c", 16384, "-npp", args.prompt, "-ntg", args.gen, "-npl",
                      ",".join(map(str, n)), "-pps", "-t", args.threads, "-tb", args.threads, "--output-format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {row["pl"]: (row["speed_tg"], row["speed_pp"]) for row in rows}


def perplexity(peer, model, text, args):
    out = peer.output("llama-perplexity", "-m", model, "-f", text, "-c", 512, "-t", args.threads, "-tb", args.threads, "--no-escape",
                      errors=True)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", out)
    if not found:
        raise SystemExit(f"bench/peers: llama-perplexity told no estimate:\n{out[-2000:]}")
    return float(found[1])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def serving(command, port, ready, environment=None, seconds=180):
    """Runs a server until the block ends; gives its base URL."""
    process = subprocess.Popen([str(c) for c in command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                if urllib.request.urlopen(url + ready, timeout=5).status == 200:
                    break
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"bench/peers: {command[0]} doesn't serve (status {process.poll()})")
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def server(peer, model, slots, args):
    port = free_port()
    return serving([peer.tool("llama-server"), "-m", model, "-c", 16384, "-np", slots, "--kv-unified", "-t", args.threads, "-tb",
                    args.threads, "--port", port], port, "/health", peer.environment())


def own_server(binary, model, args):
    port = free_port()
    return serving([binary, "serve", "--model", model, "--port", port, "--threads", args.threads, "--isa", args.isa,
                    "--model-name", "m"], port, "/ready")
