"""tests/tally.py counts what a run did: check's own totals, crashes after them, skips, binaries that are missing."""

import pathlib
import subprocess
import sys

import pytest

TALLY = pathlib.Path(__file__).resolve().parents[1] / "tally.py"
TOTALS = "Running suite(s): kv\n{}%: Checks: {}, Failures: {}, Errors: {}\n"


def tally(tmp_path, *cases):
    path = tmp_path / "run.xml"
    path.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    done = subprocess.run([sys.executable, TALLY, path], capture_output=True, text=True, check=True)
    first, *notes = done.stdout.splitlines()
    return tuple(map(int, first.split())), notes


def ctest(status, output, extra=""):
    return f'<testcase name="t" classname="t" status="{status}">{extra}<system-out>{output}</system-out></testcase>'


FAILURE = '<failure message=""/>'
SKIP = '<skipped message="SKIP_RETURN_CODE=77"/>'


@pytest.mark.parametrize("case, counts", [
    (ctest("run", TOTALS.format(100, 12, 0, 0)), (12, 0, 0)),
    (ctest("run", TOTALS.format(100, 12, 0, 0) + TOTALS.format(100, 3, 0, 0)), (15, 0, 0)),
    (ctest("fail", TOTALS.format(75, 12, 1, 2), FAILURE), (9, 3, 0)),
    (ctest("fail", TOTALS.format(100, 12, 0, 0) + "LeakSanitizer", FAILURE), (12, 1, 0)),
    (ctest("fail", "Segmentation fault", FAILURE), (0, 1, 0)),
    (ctest("run", "replayed 40 inputs"), (1, 0, 0)),
    (ctest("notrun", "no model here\n", SKIP), (0, 0, 1)),
    (ctest("notrun", "Unable to find executable", '<skipped message="Unable to find executable"/>'), (0, 1, 0)),
    ('<testcase name="t" classname="t"/>', (1, 0, 0)),
    (f'<testcase name="t" classname="t">{FAILURE}</testcase>', (0, 1, 0)),
    ('<testcase name="t" classname="t"><error message=""/></testcase>', (0, 1, 0)),
    ('<testcase name="t" classname="t"><skipped type="pytest.skip" message="why"/></testcase>', (0, 0, 1)),
])
def test_counts(tmp_path, case, counts):
    assert tally(tmp_path, case)[0] == counts


def test_sums_and_reasons(tmp_path):
    counts, notes = tally(tmp_path, ctest("run", TOTALS.format(100, 5, 0, 0)), ctest("notrun", "x\nno model here\n", SKIP),
                          ctest("fail", "", FAILURE))
    assert counts == (5, 1, 1)
    assert notes == ["skipped t.t: no model here", "failed t.t"]
