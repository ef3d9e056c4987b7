#!/usr/bin/env python3
"""Every header compiles alone: public ones with the public include path only."""

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tree

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]


def compile_alone(compiler, root, path):
    """A problem, or None. The header is included twice, so that a missing #pragma once shows."""
    include_paths = ["include"]
    if path.parts[0] != "include":
        include_paths += ["src", ".", "kernels"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "alone.cpp"
        source.write_text(f'#include "{root / path}"\n#include "{root / path}"\n', encoding="utf-8")
        command = [compiler, *FLAGS, *(f"-I{root / p}" for p in include_paths), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    first = next(
        (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()
    )
    return f"{path}:1: does not compile alone: {first}"


def check(root, args):
    headers = tree.files(root, ("include", "src", "kernels"), (".hpp", ".h"))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        results = pool.map(lambda path: compile_alone(args.compiler, root, path), headers)
    return [problem for problem in results if problem]


def add_arguments(parser):
    parser.add_argument("--compiler", default="c++", help="the C++ compiler")


if __name__ == "__main__":
    tree.main(check, __doc__, add_arguments)
