#!/usr/bin/env python3
"""Sums what ctest wrote for each preset and ends with `N passed, N failed, N skipped`.

Reads FOLDER/*.junit.xml and FOLDER/failed_steps.txt (one line for each step outside ctest that failed).
Exit status 1 when anything failed or nothing ran.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# GoogleTest: "file:line: Skipped" and the reason on the next line. Scripts: "Skipped: reason".
_REASON = re.compile(r"(?:^|: )Skipped(?:\n|: )([^\n]+)", re.MULTILINE)


def outcome(case):
    """(passed | failed | skipped, the reason of a skip) of one <testcase>."""
    status = case.get("status")
    if status == "run":
        return "passed", ""
    if status == "disabled":
        return "skipped", "disabled in its source"
    mark = case.find("skipped")
    # A test that could not run (no program, no fixture) is not a skip.
    if status == "notrun" and mark is not None and "SKIP_" in mark.get("message", ""):
        reason = _REASON.search(case.findtext("system-out") or "")
        return "skipped", reason.group(1).strip() if reason else "no reason given"
    return "failed", ""


def summarise(folder):
    """Prints a line for each preset, skip reason and failure; returns the totals."""
    totals = collections.Counter()
    reasons = collections.Counter()
    failures = []
    for path in sorted(folder.glob("*.junit.xml")):
        preset = path.name.removesuffix(".junit.xml")
        counts = collections.Counter()
        try:
            cases = ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            failures.append(f"{preset}: {path.name} cannot be read: {error}")
            continue
        for case in cases.iter("testcase"):
            what, reason = outcome(case)
            counts[what] += 1
            if what == "skipped":
                reasons[reason] += 1
            if what == "failed":
                failures.append(f"{preset}: {case.get('name')}")
        totals += counts
        print(
            f"{preset}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
        )
    steps = folder / "failed_steps.txt"
    if steps.is_file():
        failures += steps.read_text(encoding="utf-8").splitlines()
    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}")
    for failure in failures:
        print(f"FAILED {failure}")
    totals["failed"] = len(failures)
    return totals


def main():
    totals = summarise(Path(sys.argv[1]))
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    sys.exit(1 if totals["failed"] or not totals["passed"] else 0)


if __name__ == "__main__":
    main()
