#!/usr/bin/env python3
"""The crate finds libkvarena.so where build.rs says that it looks: KVARENA_LIB_DIR, the CMake builds of its source
tree, pkg-config. Copies of the crate are built in folders of their own, and their example must run."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = ("libkvarena.so", "libkvarena.so.0")
EXPECTED = "20 requests completed"


def copy_crate(source, target):
    for name in ("Cargo.toml", "build.rs", "src", "examples"):
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy
        target.mkdir(parents=True, exist_ok=True)
        copy(source / name, target / name)


def link_library(folder, library):
    folder.mkdir(parents=True)
    for name in LIBRARY:
        (folder / name).symlink_to((library / name).resolve())


def run_example(cargo, crate, extra):
    """(whether it ran, what it and cargo printed)"""
    ours = ("KVARENA_LIB_DIR", "KVARENA_INCLUDE_DIR", "PKG_CONFIG_PATH", "CARGO_TARGET_DIR", "LD_LIBRARY_PATH")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    environment.update({k: str(v) for k, v in extra.items()})
    done = subprocess.run(
        [cargo, "run", "--offline", "--jobs", "2", "--example", "engine_loop"],
        cwd=crate,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0 and EXPECTED in done.stdout, done.stdout + done.stderr


def problems(cargo, source, library, work):
    """One line for each place where the library was not found, or was found and should not have been."""
    lone = work / "lone"
    copy_crate(source, lone)
    empty = work / "empty"
    empty.mkdir()
    ran, printed = run_example(cargo, lone, {"KVARENA_LIB_DIR": empty})
    if ran or f"KVARENA_LIB_DIR is {empty}, which has no libkvarena.so" not in printed:
        yield f"a KVARENA_LIB_DIR without the library gave: {printed}"
    ran, printed = run_example(cargo, lone, {"KVARENA_LIB_DIR": library})
    if not ran:
        yield f"KVARENA_LIB_DIR gave: {printed}"

    packages = work / "packages"
    link_library(work / "prefix" / "lib", library)
    packages.mkdir()
    (packages / "kvarena-c.pc").write_text(
        f"libdir={work}/prefix/lib\nName: kvarena-c\nDescription: -\nVersion: 0\nLibs: -lkvarena\n",
        encoding="utf-8",
    )
    ran, printed = run_example(cargo, lone, {"PKG_CONFIG_PATH": packages})
    if not ran:
        yield f"pkg-config gave: {printed}"

    tree = work / "tree"
    copy_crate(source, tree / "rust" / "kvarena")
    link_library(tree / "build" / "release" / "src" / "capi", library)
    ran, printed = run_example(cargo, tree / "rust" / "kvarena", {})
    if not ran:
        yield f"a build of the source tree gave: {printed}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("crate", type=Path)
    parser.add_argument("library", type=Path, help="the folder of libkvarena.so")
    parser.add_argument("--cargo", default="cargo")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = list(problems(args.cargo, args.crate, args.library.resolve(), Path(work)))
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
