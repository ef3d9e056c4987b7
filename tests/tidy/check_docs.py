#!/usr/bin/env python3
"""Public declarations are documented: Doxygen builds the reference without one warning."""

import re
import shutil
import subprocess
import tempfile

import tree


def run_doxygen(root, output):
    """Doxygen's warnings, paths relative to `root`."""
    settings = (root / "Doxyfile").read_text(encoding="utf-8")
    settings += (
        f'\nOUTPUT_DIRECTORY = "{output}"\nQUIET = YES\nWARN_LOGFILE =\nWARN_AS_ERROR = NO\n'
    )
    done = subprocess.run(
        ["doxygen", "-"], input=settings, cwd=root, capture_output=True, text=True, check=False
    )
    lines = [line.replace(f"{root}/", "") for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0 and not lines:
        lines = [f"Doxyfile:1: doxygen ended with exit status {done.returncode}"]
    return [line for line in lines if re.search(r"\b(warning|error)\b", line)] or (
        lines if done.returncode else []
    )


def check(root, args):
    if shutil.which("doxygen") is None:
        tree.skip("doxygen is not installed (apt-get install doxygen)")
    if args.output:
        return run_doxygen(root, args.output)
    with tempfile.TemporaryDirectory() as folder:
        return run_doxygen(root, folder)


def add_arguments(parser):
    parser.add_argument("--output", help="keep the pages here; default: a folder that is deleted")


if __name__ == "__main__":
    tree.main(check, __doc__, add_arguments)
