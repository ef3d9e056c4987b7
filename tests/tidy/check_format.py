#!/usr/bin/env python3
"""Sources are formatted as .clang-format says, and it tore no comment. --fix formats them."""

import re
import shutil
import subprocess

import tree


# What clang-format leaves of a comment that did not fit its line: a ruler in a line of its own, or
# words of a list's item that are no longer indented.
TORN = [
    (re.compile(r"^ *//+ -{5,}( .*)?$", re.MULTILINE), "a ruler was broken; make it end at column 100"),
    (re.compile(r"(?<=\n)/// (?![ -])\S+\n///   ", re.MULTILINE), "a list's line was broken; wrap it"),
]


def torn(root):
    """Comments that clang-format broke because they were too long for a line."""
    problems = []
    for path in tree.files(root):
        text = tree.read(root, path)
        for pattern, what in TORN:
            for match in pattern.finditer(text):
                problems.append(f"{path}:{tree.line_of(text, match.start())}: {what}")
    return problems


def check(root, args):
    problems = torn(root)
    if problems:
        return problems
    if shutil.which(args.clang_format) is None:
        tree.skip("clang-format is not installed (apt-get install clang-format)")
    paths = [str(root / path) for path in tree.files(root)]
    if not paths:
        return []
    if args.fix:
        subprocess.run([args.clang_format, "-i", *paths], check=True)
        return []
    done = subprocess.run(
        [args.clang_format, "--dry-run", *paths], capture_output=True, text=True, check=False
    )
    files = sorted(
        {
            line.split(":")[0].replace(f"{root}/", "")
            for line in done.stderr.splitlines()
            if "warning: code should be clang-formatted" in line
        }
    )
    problems = [
        f"{file}:1: is not formatted; run `cmake --build build/dev --target format`"
        for file in files
    ]
    if done.returncode != 0 and not problems:
        problems.append(f".clang-format:1: {done.stderr.strip()}")
    return problems


def add_arguments(parser):
    parser.add_argument("--clang-format", default="clang-format", help="the program")
    parser.add_argument("--fix", action="store_true", help="rewrite the files")


if __name__ == "__main__":
    tree.main(check, __doc__, add_arguments)
