#!/usr/bin/env bash
# Everything that only a GPU can show, in at most 8 minutes, the build excepted.
#
#   tests/gpu.sh                  all checks; last line "N passed, N failed, N skipped"
#   tests/gpu.sh --json out.json  figures and verdicts as JSON, too
#   tests/gpu.sh --list           what it will check, and how long each may take
#   tests/gpu.sh --only decode    some checks: names, or beginnings of names, with commas
#   tests/gpu.sh --emulated       the same script at a tiny size on the emulated device: no GPU wanted
#   tests/gpu.sh --build FOLDER   binaries of this folder (build); they are built where they lack
#
# Wants nvcc of CUDA 13, libcublasLt where the loader finds it, and for two checks compute-sanitizer (PyPI:
# nvidia-cublas, nvidia-cuda-sanitizer-api, for the python3 on PATH, do as well).  Weights are random, at the shapes of
# real models, so nothing is fetched.  Ends with 77 where there is no GPU; FIRSTPASS_MUST=gpu makes that a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec python3 tests/cuda/gpu.py "$@"
