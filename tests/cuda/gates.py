"""What nvcc makes of the CUDA kernels, read without a device.

    python3 tests/cuda/gates.py [FOLDER]

For sm_80 and sm_90a each kernel is compiled to machine code and compared with tests/cuda/kernels.json: no spills, no
stack, registers and shared memory within the table, tensor-core and asynchronous-copy instructions there, as many
blocks on a multiprocessor as the table says (cuda_occupancy.h).  Machine code is kept in FOLDER (build/cuda-gates).
Wants nvcc, and for the instructions cuobjdump and nvdisasm (on PATH, or from the PyPI wheels nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm).  Last line: "N passed, N failed, N skipped".
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCHITECTURES = ("sm_80", "sm_90a")


def tool(name):
    found = shutil.which(name)
    if found:
        return found
    for folder in sys.path:
        for path in pathlib.Path(folder).glob(f"nvidia/**/bin/{name}") if folder else []:
            path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    return None


def find_nvcc():
    return shutil.which("nvcc") or next((p for p in ("/usr/local/cuda/bin/nvcc",) if os.access(p, os.X_OK)), None)


def short(mangled):
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    name = re.sub(r"^void ", "", name).split("(")[0]
    return re.sub(r"\(int\)", "", name)


def compile_kernel(nvcc, source, arch, out):
    """{kernel: {registers, shared, stack, spills}} as ptxas reports them."""
    done = subprocess.run([nvcc, "-std=c++17", "-O3", f"-arch={arch}", f"-I{ROOT}", "-Xptxas=-v,--warn-on-spills",
                           "--Werror=all-warnings", "-cubin", source, "-o", out], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {source.name} for {arch}: {done.stderr[-2000:]}")
    found, name = {}, None
    for line in done.stderr.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            name = short(m[1])
            found[name] = {"registers": 0, "shared": 0, "stack": 0, "spills": 0}
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if name:
                found[name].update(stack=int(m[1]), spills=int(m[2]) + int(m[3]))
        elif m := re.search(r"Used (\d+) registers", line):
            found[name]["registers"] = int(m[1])
            if s := re.search(r"(\d+) bytes smem", line):
                found[name]["shared"] = int(s[1])
    return found


def instructions(cuobjdump, nvdisasm, cubin):
    """{kernel: text of its machine code}"""
    environment = dict(os.environ, PATH=f"{pathlib.Path(nvdisasm).parent}:{os.environ['PATH']}")
    text = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True, env=environment).stdout
    parts = re.split(r"\n\s*Function : (\w+)", text)
    return {short(parts[i]): parts[i + 1] for i in range(1, len(parts), 2)}


def occupancy_tool(nvcc, folder):
    include = pathlib.Path(nvcc).resolve().parents[1] / "include"
    out = folder / "occupancy"
    subprocess.run(["g++", "-std=c++17", "-O1", f"-isystem{include}", ROOT / "tests/cuda/occupancy.cpp", "-o", out],
                   check=True)
    return out


def wrongs(arch, want, is_, code, occupancy):
    if is_["stack"] or is_["spills"]:
        yield f"{is_['stack']} bytes of stack, {is_['spills']} of spills"
    for what in ("registers", "shared"):
        if is_[what] > want[what]:
            yield f"{what} {is_[what]}, the table says {want[what]}"
    major = 90 if arch == "sm_90a" else 80
    blocks = int(subprocess.run([occupancy, str(major), str(is_["registers"]), str(want["threads"]), str(is_["shared"]),
                                 str(want["dynamic"])], capture_output=True, text=True, check=True).stdout)
    least = want["blocks"][major == 90]
    if blocks < least:
        yield f"{blocks} blocks on a multiprocessor, the table says {least}"
    if code is None:
        return
    if re.search(r"\b(LDL|STL)\b", code):
        yield "it uses local memory"
    for opcode in want["opcodes"]:
        if opcode not in code:
            yield f"it has no {opcode}"
    for opcode in want.get("never", ()):
        if opcode in code:
            yield f"it has {opcode}"


def main():
    nvcc = find_nvcc()
    if not nvcc:
        print("skipped: there is no nvcc here")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    table = json.loads((ROOT / "tests/cuda/kernels.json").read_text())["kernels"]
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/cuda-gates")
    folder.mkdir(parents=True, exist_ok=True)
    cuobjdump, nvdisasm = tool("cuobjdump"), tool("nvdisasm")
    occupancy = occupancy_tool(nvcc, folder)
    sources = sorted((ROOT / "kernels/cuda").glob("*.cu"))

    def made(arch_source):
        arch, source = arch_source
        cubin = folder / f"{source.stem}.{arch}.cubin"
        found = compile_kernel(nvcc, source, arch, cubin)
        return found, instructions(cuobjdump, nvdisasm, cubin) if cuobjdump and nvdisasm else {}

    passed = failed = 0
    pairs = [(arch, source) for arch in ARCHITECTURES for source in sources]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        all_made = dict(zip(pairs, pool.map(made, pairs)))
    for arch in ARCHITECTURES:
        seen = set()
        for source in sources:
            found, code = all_made[arch, source]
            for name, is_ in found.items():
                seen.add(name)
                bad = list(wrongs(arch, table[name], is_, code.get(name), occupancy)) if name in table else ["not in the table"]
                print(f"{arch} {name}: {is_['registers']} registers, {is_['shared']} bytes shared: {'; '.join(bad) or 'ok'}",
                      flush=True)
                failed, passed = failed + bool(bad), passed + (not bad)
        for name in table.keys() - seen:
            print(f"{arch} {name}: in the table, but no such kernel")
            failed += 1
    skipped = 0
    if not (cuobjdump and nvdisasm):
        print("skipped: instructions: there is no cuobjdump or nvdisasm (PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm)")
        skipped = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
