#!/usr/bin/env python3
"""Every header compiles alone: public ones with the public include path only.

A header that a source of the library includes before everything else is compiled alone by the build
(and check_layers keeps private headers out of public ones), so only the others are compiled here.
"""

import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tree

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]


def compile_alone(compiler, root, path):
    """A problem, or None."""
    include_paths = ["include"]
    if path.parts[0] != "include":
        include_paths += ["src", ".", "kernels"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "alone.cpp"
        source.write_text(f'#include "{root / path}"\n', encoding="utf-8")
        command = [compiler, *FLAGS, *(f"-I{root / p}" for p in include_paths), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    first = next(
        (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()
    )
    return f"{path}:1: does not compile alone: {first}"


FIRST_INCLUDE = re.compile(r'^#include "([^"]+)"|^#include <', re.MULTILINE)


def first_of_a_source(root):
    """The headers that a source includes first, as paths relative to `root`."""
    found = set()
    for source in tree.files(root, ("src", "kernels"), (".cpp",)):
        first = FIRST_INCLUDE.search(tree.read(root, source))
        if first and first.group(1):
            found.update(Path(folder) / first.group(1) for folder in ("include", "src", "."))
    return found


def check(root, args):
    headers = tree.files(root, ("include", "src", "kernels"), (".hpp", ".h"))
    problems = [
        f"{path}:1: has no #pragma once: begin with it"
        for path in headers
        if "#pragma once" not in tree.code_only(tree.read(root, path))
    ]
    proven = first_of_a_source(root)
    headers = [path for path in headers if path not in proven]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        results = pool.map(lambda path: compile_alone(args.compiler, root, path), headers)
    return problems + [problem for problem in results if problem]


def add_arguments(parser):
    parser.add_argument("--compiler", default="c++", help="the C++ compiler")


if __name__ == "__main__":
    tree.main(check, __doc__, add_arguments)
