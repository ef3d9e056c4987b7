"""The source tree as the tidy checks see it: files, text without comments, and one way to report."""

import argparse
import re
import sys
from pathlib import Path

PRODUCT = ("include", "src", "kernels", "tools", "examples", "python/src")
CODE = PRODUCT + ("bench", "tests")
CODE_SUFFIXES = (".hpp", ".h", ".cuh", ".cpp", ".cu", ".c")
HEADER_SUFFIXES = (".hpp", ".h", ".cuh")
SKIP_EXIT_CODE = 77

_COMMENT_OR_LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s\\]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)


def files(root, folders=CODE, suffixes=CODE_SUFFIXES):
    """Files below `folders` of `root`, sorted, as paths relative to `root`."""
    found = []
    for folder in folders:
        for path in (root / folder).rglob("*"):
            if path.is_file() and path.suffix in suffixes:
                found.append(path.relative_to(root))
    return sorted(found)


def read(root, path):
    return (root / path).read_text(encoding="utf-8")


def _blank(match):
    text = match.group(0)
    kept = re.sub(r"[^\n]", " ", text)
    return kept if text.startswith(("//", "/*")) else '"' + kept[1:-1] + '"'


def code_only(text):
    """`text` with comments and the inside of literals blanked; lines and columns stay."""
    return _COMMENT_OR_LITERAL.sub(_blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def main(check, description, add_arguments=None):
    """Runs `check(root, args)`, prints each problem as `path:line: what, and what to do`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", type=Path, help="the top of the source tree")
    if add_arguments:
        add_arguments(parser)
    args = parser.parse_args()
    problems = check(args.root.resolve(), args)
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} problem(s).", file=sys.stderr)
    sys.exit(1 if problems else 0)


def skip(reason):
    """Ends the program as a skipped test, with one clear line."""
    print(f"Skipped: {reason}")
    sys.exit(SKIP_EXIT_CODE)
