"""Planted mistakes in the CUDA kernels and in what queues them: each must make the emulated tests fail.

    python3 tests/cuda/mutants.py [BUILD [FIRST [LAST]]]        FIRST, LAST: numbers of mutants, from 1

Each mutant is one replacement in one source file.  The kernel is compiled anew with the flags of BUILD, linked in
place of the sound one into the test that should see it, and the test must fail.  Prints a line for each and a last
line "N passed, N failed, N skipped".
"""

import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
FIRST, LAST = (int(sys.argv[i]) if len(sys.argv) > i else 10**6 * (i - 2) for i in (2, 3))
OBJECTS = "CMakeFiles/kernels_emulated.dir/kernels/cuda"

# (what, file compiled, file changed, from, to, test); a file with its folder is the engine's, others are kernels/cuda's
MUTANTS = [
    ("a minimum of another sub-block", "dequantize.cu", "dequantize.cu",
     "packed[j + 4] >> 4 | (packed[j] >> 6) << 4", "packed[j + 4] >> 4 | (packed[j - 4] >> 6) << 4", "test_cuda_weights"),
    ("a fifth bit of the other half", "dequantize.cu", "dequantize.cu",
     "(high[i / 8] >> (i % 8) & 1) << 4", "(high[i / 8 ^ 2] >> (i % 8) & 1) << 4", "test_cuda_weights"),
    ("fp8 weights of a largest magnitude that only a warp has seen", "dequantize.cu", "dequantize.cu",
     "top = block_max<ROW_WARPS>(top, scratch);", "top = warp_max(top);", "test_cuda_weights"),
    ("a piece of a file written over while it is copied", "weights.c", "weights.c",
     "if (s->waits[s->next] && !state_reach(dev, s->copied[s->next], e)) return NULL;", "", "test_cuda_weights"),
    ("a missing __syncthreads before the tile is read", "attention_tile.cu", "attention_tile.cu",
     "copy_wait<1>();\n        __syncthreads();", "copy_wait<1>();", "test_cuda_attention"),
    ("a missing __syncthreads before the tile is overwritten", "attention_tile.cu", "attention_tile.cu",
     "        }\n        __syncthreads();", "        }", "test_cuda_attention"),
    ("a missing __syncwarp before the tile is read", "attention_warp.cu", "attention_warp.cu",
     "copy_wait<STAGES - 1>();\n        __syncwarp();", "copy_wait<STAGES - 1>();", "test_cuda_attention"),
    ("a wait for one copy too few", "attention_warp.cu", "attention_warp.cu",
     "copy_wait<STAGES - 1>()", "copy_wait<STAGES>()", "test_cuda_attention"),
    ("the block table read one too far", "attention_warp.cu", "attention.cuh",
     "table[first_key / LAUNCH_BLOCK]", "table[first_key / LAUNCH_BLOCK + 1]", "test_cuda_attention"),
    ("the block table read one too far, for prompts", "attention_tile.cu", "attention.cuh",
     "table[first_key / LAUNCH_BLOCK]", "table[first_key / LAUNCH_BLOCK + 1]", "test_cuda_attention"),
    ("a wrong fragment of the keys", "attention_warp.cu", "attention.cuh",
     "multiply_add(score[1], s.q[k], b + 2)", "multiply_add(score[1], s.q[k], b + 1)", "test_cuda_attention"),
    ("two fragments of the weights swapped", "attention_tile.cu", "attention.cuh",
     "bf16_pair(score[0][2], score[0][3]),", "bf16_pair(score[1][0], score[1][1]),", "test_cuda_attention"),
    ("a mask that lets one key more through", "attention_tile.cu", "attention.cuh",
     "key < s.limit[h]", "key <= s.limit[h]", "test_cuda_attention"),
    ("fp8 keys scaled by another key's scale", "attention_warp.cu", "attention.cuh",
     "(value ? LAUNCH_BLOCK : 0) + 8 * n + 2", "(value ? LAUNCH_BLOCK : 0) + 8 * n + 1", "test_cuda_attention"),
    ("fp8 values of even dimensions as those of odd ones", "attention_tile.cu", "attention.cuh",
     "multiply_add(s.out[4 * n + 2 * i], weights, even)", "multiply_add(s.out[4 * n + 2 * i], weights, odd)",
     "test_cuda_attention"),
    ("fp8 queries in the order of bf16 ones", "attention_tile.cu", "attention.cuh",
     "fp8 ? 4 * t + 2 * i : 2 * t + 8 * i", "2 * t + 8 * i", "test_cuda_attention"),
    ("a scale of a value the query doesn't see", "attention_warp.cu", "attention.cuh",
     "seen ? w * scale_at<D>(page, true, n, i) : 0.0f", "w * scale_at<D>(page, true, n, i)", "test_cuda_attention"),
    ("an fp8 scale stored for the next position", "rope.cu", "rope.cu",
     "position] = scale", "(position ^ 1)] = scale", "test_cuda_attention"),
    ("keys stored one position late", "rope.cu", "rope.cu",
     "a.batch.positions[r] % LAUNCH_BLOCK * d", "(a.batch.positions[r] + 1) % LAUNCH_BLOCK * d", "test_cuda_attention"),
    ("a merge that forgets the last split", "merge.cu", "merge.cu",
     "a.positions[r] / a.split + 1", "max(a.positions[r] / a.split, 1)", "test_cuda_attention"),
    ("a missing __syncthreads in the block's sum", "norm.cu", "reduce.cuh",
     "scratch[warp_id()] = v;\n    __syncthreads();\n    float sum = 0;", "scratch[warp_id()] = v;\n    float sum = 0;",
     "test_cuda_rows"),
    ("a row count that isn't looked at", "rows.cu", "rows.cu",
     "a.tokens[row]", "a.tokens[row + 1]", "test_cuda_rows"),
    ("one tie too many", "sample.cu", "sample.cu", "rank < t.ties", "rank <= t.ties", "test_cuda_sample"),
    ("penalties that aren't undone", "sample.cu", "sample.cu",
     "if (changes) restore(a, job, logits);", "", "test_cuda_sample"),
    ("a draw keyed by its slot", "sample.cu", "sample.cu",
     "draw_bits(d.seed, d.position, d.candidate)",
     "draw_bits(d.seed, d.position, static_cast<uint32_t>(i))", "test_cuda_sample"),
    ("an fp8 scale of another row", "norm.cu", "reduce.cuh",
     "o.scales[row] = scale", "o.scales[row / 2] = scale", "test_cuda_fp8"),
    ("the fp8 side of a row over its bf16 side", "norm.cu", "reduce.cuh",
     "2 * static_cast<size_t>(o.width);\n    for", "static_cast<size_t>(o.width);\n    for", "test_cuda_fp8"),
    ("fp8 cut off instead of rounded", "norm.cu", "ptx.cuh",
     "bits += 0x7ffffu + (bits >> 20 & 1);", "", "test_cuda_fp8"),
    ("an fp8 merge without its scale", "merge.cu", "reduce.cuh",
     "value(i) * inverse", "value(i)", "test_cuda_fp8"),
    ("a product scaled by another output's scale", "rows.cu", "rows.cu",
     "a.w_scales[i] * x", "a.w_scales[i / 2] * x", "test_cuda_gemm"),
    ("a product that forgets what it adds to", "rows.cu", "rows.cu",
     "y[i] = a.add ? y[i] + v : v;", "y[i] = v;", "test_cuda_gemm"),
    ("a split that takes the last of a family for its founder", "split.cu", "split.cu",
     "while (a.token[at] != a.token[r])\n        at++;", "at = r;", "test_cuda_split"),
    ("a split that looks past the family's first row", "split.cu", "split.cu",
     "a.families[r] >= 0 ? a.families[r] : r;", "a.families[r] >= 0 ? max(a.families[r] - 1, 0) : r;",
     "test_cuda_split"),
    ("a missing __syncthreads before the ranks are read", "split.cu", "split.cu",
     "scratch[warp_id()] = __popc(set);\n    __syncthreads();", "scratch[warp_id()] = __popc(set);",
     "test_cuda_split"),
    ("a missing __syncthreads before the tokens are compared", "split.cu", "split.cu",
     ": a.tokens[r];\n    __syncthreads();", ": a.tokens[r];", "test_cuda_split"),
    ("work for rows that don't live", "split.cu", "split.cu",
     "bool keeps = item.first_query < item.n_rows * a.group;", "bool keeps = i < n;", "test_cuda_split"),
    ("a fork that begins with the wrong block", "split.cu", "split.cu",
     "a.tables[a.table_of_row[a.families[r]] + block]", "a.tables[a.table_of_row[r] + block]", "test_cuda_split"),
    ("copies of blocks for forks forgotten", "rows.cu", "rows.cu",
     "if (beyond(a.n_live, static_cast<int>(blockIdx.x))) return;", "if (a.n_live) return;", "test_cuda_split"),
    ("draws of other rows of the family made, too", "sample.cu", "sample.cu",
     "return !a.founders || a.founders[d.logit_row] == logit_row;", "return true;", "test_cuda_split"),
    ("logits of the second chunk read in the first", "sample.cu", "sample.cu",
     "if (at < 0 || at >= a.n_logits) return;", "at = at < 0 ? 0 : at % a.n_logits;", "test_cuda_split"),
    ("a batch used before it is copied", "forward.c", "forward.c",
     "    gpu_follow(dev->gpu, i->copied);\n", "", "test_cuda_split"),
    ("draws used before they are copied", "draws.c", "draws.c",
     "    gpu_follow(dev->gpu, gpu_mark_aside(dev->gpu));\n", "", "test_cuda_split"),
    ("results fetched before they are there", "draws.c", "draws.c",
     "    gpu_follow_aside(dev->gpu, gpu_mark(dev->gpu));\n", "", "test_cuda_split"),
    ("a batch written over while it is copied", "state.c", "state.c",
     "i->waits ? state_reach(dev, i->copied, e) : is_well(dev, e)", "is_well(dev, e)", "test_cuda_step"),
    ("rows of a family with the jobs of the first alone", "draws.c", "draws.c",
     "        row->n_jobs = row[1].n_jobs;\n", "", "test_cuda_split"),
    ("a host that waits for all that is queued", "draws.c", "draws.c",
     "if (!state_reach(dev, set->mark, e)) return false;\n    if (n_draws", "if (!state_wait(dev, e)) return false;\n    if (n_draws",
     "test_cuda_follow"),
    ("a fork whose first row doesn't count", "engine/decode.c", "engine/decode.c",
     "        b->cached++;\n        count_rows(b, 1);\n    }\n    return !over;", "        count_rows(b, 1);\n    }\n    return !over;",
     "test_cuda_follow"),
    ("a fork in another block than its row", "engine/branch.c", "engine/branch.c",
     "push_block(f, f->members[0].block);", "push_block(f, kv_alloc(pool));", "test_cuda_follow"),
    ("a step planned before its guesses are known", "engine/decode.c", "engine/decode.c",
     "job_has_penalties(b->job) || b->n_guesses", "job_has_penalties(b->job)", "test_cuda_follow"),
    ("blocks of members that stay, kept", "engine/decode.c", "engine/decode.c",
     "    branch_give_back(b, d->pool);\n    d->next", "    d->next", "test_cuda_follow"),
]


def object_of(compiled):
    return f"CMakeFiles/engine.dir/{compiled}.o" if "/" in compiled else f"{OBJECTS}/{compiled}.o"


def compile_command(compiled):
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        if object_of(compiled) in entry["command"]:
            return shlex.split(entry["command"]), entry["file"]
    raise SystemExit(f"error: {BUILD} doesn't build {object_of(compiled)}")


def link_command(test):
    commands = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", test], capture_output=True, text=True,
                              check=True).stdout
    last = commands.strip().splitlines()[-1]
    last = last.removeprefix(": && ").removesuffix(" && :")
    return shlex.split(last)


def replaced(words, old, new):
    return [new if w == old else w for w in words]


def run_mutant(folder, kernel, changed, before, after, test):
    path = changed if "/" in changed else f"kernels/cuda/{changed}"
    text = (ROOT / path).read_text()
    if text.count(before) != 1:
        return f"the text to change is {text.count(before)} times in {changed}"
    copy = folder / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text.replace(before, after))
    words, source = compile_command(kernel)
    if changed == kernel:
        words = replaced(words, source, str(copy))
    output = words[words.index("-o") + 1]
    words = replaced(words, output, str(folder / "mutant.o"))
    # Before all other folders: the changed header is found first.
    words.insert(next(i for i, w in enumerate(words) if w.startswith("-I")), f"-I{folder}")
    words.append("-w")  # a mistake may leave something unused
    done = subprocess.run(words, cwd=BUILD, capture_output=True, text=True)
    if done.returncode:
        return f"doesn't compile: {done.stderr[-500:]}"
    words = link_command(test)
    if "/" in kernel:  # before the archive that has the sound one
        words.insert(next(i for i, w in enumerate(words) if w.endswith(".a")), str(folder / "mutant.o"))
    words = replaced(words, object_of(kernel), str(folder / "mutant.o"))
    words = replaced(words, test, str(folder / "test"))
    done = subprocess.run(words, cwd=BUILD, capture_output=True, text=True)
    if done.returncode:
        return f"doesn't link: {done.stderr[-500:]}"
    try:
        test_run = subprocess.run([folder / "test"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return None  # it hangs: seen
    return None if test_run.returncode else "the tests pass all the same"


def main():
    failed = 0
    chosen = MUTANTS[max(FIRST - 1, 0):LAST]
    for what, kernel, changed, before, after, test in chosen:
        with tempfile.TemporaryDirectory() as folder:
            wrong = run_mutant(pathlib.Path(folder), kernel, changed, before, after, test)
        print(f"{'NOT CAUGHT' if wrong else 'caught'}: {what} ({changed}, {test}){': ' + wrong if wrong else ''}",
              flush=True)
        failed += wrong is not None
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
