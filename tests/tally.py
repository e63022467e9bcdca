"""Counts what a test run did, from its JUnit file: tests/tally.py FILE [FILE ...]

Prints "PASSED FAILED SKIPPED", then a line for each failure and each reason of a skip.  One test of ctest
is a binary with many `check` tests in it: where it printed check's own totals, those count."""

import re
import sys
import xml.etree.ElementTree

CHECKS = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)$", re.M)


def one(case):
    """(passed, failed, skipped, notes) of one testcase element."""
    name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
    skip = case.find("skipped")
    output = case.findtext("system-out") or ""
    status = case.get("status")  # only ctest writes it
    # A binary that is not there is "notrun" to ctest, as a skipped one is: only the latter says SKIP_...
    reason = (skip.get("message") or "") if skip is not None else ""
    bad = (case.find("failure") is not None or case.find("error") is not None or status == "fail"
           or (status == "notrun" and not reason.startswith("SKIP_")))
    if skip is not None and not bad:
        if status:
            reason = (output.strip().splitlines() or [reason])[-1]
        return 0, 0, 1, [f"skipped {name}: {reason or 'no reason given'}"]
    totals = [tuple(map(int, found)) for found in CHECKS.findall(output)]
    passed = sum(n - f - e for n, f, e in totals)
    failed = sum(f + e for _, f, e in totals)
    if not totals:
        passed, failed = (0, 1) if bad else (1, 0)
    elif bad and not failed:  # all of its tests held, and still it did not end well
        failed = 1
    return passed, failed, 0, [f"failed {name}"] if failed else []


def main():
    total, notes = [0, 0, 0], []
    for path in sys.argv[1:]:
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
            *counts, more = one(case)
            total = [a + b for a, b in zip(total, counts)]
            notes += more
    print(*total)
    print("\n".join(notes))


if __name__ == "__main__":
    main()
