#!/usr/bin/env bash
# The rules of the house that a compiler doesn't check:
#
#   includes     a layer includes only what lies under it, other layers by their front doors
#   symbols      every non-static symbol starts with the name of the file that declares it (nm on BUILD/lib*.a)
#   banned       functions that are not to be used, and the environment read outside config/config.c
#   lengths      files of at most 900 lines, functions of at most 120
#   marks        no TODO and the like
#
#   tests/layers.sh [BUILD]     default build/; without libraries there the symbols are a failure
#
# Prints each breach as FILE:LINE: what, and a last line "N passed, N failed, N skipped" (one a rule).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec python3 tests/layers.py "${1:-build}"
