#!/usr/bin/env python3
"""libkvarena.so shows the functions of kvarena.h and nothing else, and needs only what every C++ program has."""

import re
import subprocess
import sys
from pathlib import Path

NEEDED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
VERSION = "KVARENA_0"


def lines_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def declared_in(header):
    text = header.read_text(encoding="utf-8")
    return set(re.findall(r"^KVARENA_API [^;(]*?(\w+)\(", text, re.MULTILINE))


def check(root, library):
    problems = []
    declared, shown = declared_in(root / "include/kvarena/kvarena.h"), set()
    for line in lines_of("nm", "-D", "--defined-only", library):
        _, kind, name = line.split()
        if name in (VERSION, f"{VERSION}@@{VERSION}"):
            continue
        name, _, version = name.partition("@@")
        shown.add(name)
        if kind != "T" or version != VERSION:
            problems.append(f"{name} ({kind}) has the version {version!r}, expected {VERSION}")
    problems += [f"{name} is shown, and kvarena.h does not declare it" for name in shown - declared]
    problems += [f"{name} of kvarena.h is not in the library" for name in declared - shown]
    dynamic = "\n".join(lines_of("readelf", "-dW", library))
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    problems += [f"needs {name}, which must be inside" for name in sorted(needed - NEEDED)]
    if re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) != ["libkvarena.so.0"]:
        problems.append("the name for the loader is not libkvarena.so.0")
    if re.search(r"\((TEXTREL|RPATH|RUNPATH)\)", dynamic):
        problems.append("there are relocations in the code, or a path of the build machine")
    return problems


if __name__ == "__main__":
    found = check(Path(sys.argv[1]), sys.argv[2])
    print("\n".join(found))
    sys.exit(1 if found else 0)
