#!/usr/bin/env python3
"""No include goes up a room, and each header guards itself against a second inclusion.

The rooms and their numbers are those of docs/explanation/design.md.
"""

import re
from pathlib import Path

import tree

ROOMS = {
    "base": 0,
    "device": 1,
    "allocator": 2,
    "blocktable": 3,
    "kernels": 4,
    "attention": 5,
    "step": 6,
    "cache": 7,
    "health": 8,
    "capacity": 9,
    "trace": 10.0,
    "verify": 10.1,
    "replay": 10.2,
    "scenarios": 10.3,
    "capi": 11,
    "tools": 11,
    "python": 11,
    "rust": 11,
    "examples": 11,
}
# Edges that go down and are not wanted all the same.
FORBIDDEN = {
    ("attention", "allocator"): "they meet in the views of room 0 (kvarena/base/views.hpp)",
    ("attention", "blocktable"): "they meet in the views of room 0 (kvarena/base/views.hpp)",
    ("blocktable", "device"): "tables know ids only; bytes are moved by the cache",
}
PUBLIC_ONLY = {"examples", "capi", "python", "rust"}
UMBRELLA = (
    "umbrella"  # a header that lies directly in include/kvarena: for users, never for the library
)

# What a C header may include of C.
C_HEADERS = {"stdbool.h", "stddef.h", "stdint.h"}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def room_of(path):
    """The room that a file of the tree belongs to, or None for tests and benchmarks."""
    parts = Path(path).parts
    if parts[:2] == ("include", "kvarena"):
        return parts[2] if len(parts) > 3 else UMBRELLA
    if parts[0] == "src":
        return parts[1]
    return parts[0] if parts[0] in ROOMS else None


def resolve(root, path, target):
    """The file of the tree that `path` includes as `target`, or None when it is not of the tree."""
    for base in (
        path.parent,
        Path("include"),
        Path("src"),
        Path("."),
        Path("kernels"),
        Path("tests"),
    ):
        candidate = root / base / target
        if candidate.is_file() and candidate.resolve().is_relative_to(root):
            return candidate.resolve().relative_to(root)
    return None


def judge(path, target):
    """Why file `path` may not include file `target` of the tree, or None."""
    source_room, target_room = room_of(path), room_of(target)
    is_public = path.parts[0] == "include"
    if source_room is None:
        return None
    if target_room is None:
        return "product code may not include tests or benchmarks"
    if is_public and target.parts[0] != "include":
        return "a public header may include public headers only"
    if source_room == UMBRELLA:
        return None
    if target_room == UMBRELLA:
        return (
            None
            if source_room in PUBLIC_ONLY | {"tools"}
            else "include the one header that is needed"
        )
    if source_room in PUBLIC_ONLY and source_room != target_room and target.parts[0] != "include":
        return f"`{source_room}` uses public headers only"
    if (source_room, target_room) in FORBIDDEN:
        return (
            f"`{source_room}` never includes `{target_room}`: {FORBIDDEN[source_room, target_room]}"
        )
    if source_room != target_room and ROOMS[target_room] >= ROOMS[source_room]:
        return (
            f"goes up from room {ROOMS[source_room]} `{source_room}` to room {ROOMS[target_room]} "
            f"`{target_room}`: move the shared part down, or the caller up"
        )
    return None


def check(root, _args=None):
    problems = []
    for path in tree.files(root):
        room = room_of(path)
        if room is not None and room != UMBRELLA and room not in ROOMS:
            problems.append(f"{path}:1: `{room}` is no room; rooms are {', '.join(ROOMS)}")
            continue
        text = tree.read(root, path)
        is_header = path.suffix in (".hpp", ".h") and path.parts[0] in ("include", "src", "kernels")
        if is_header and "#pragma once" not in tree.code_only(text):
            problems.append(f"{path}:1: has no #pragma once: begin with it")
        for match in _INCLUDE.finditer(text):
            where = f"{path}:{tree.line_of(text, match.start(1))}"
            quote, target = match.groups()
            resolved = resolve(root, path, target)
            if resolved is None:
                if quote == '"' or target.startswith("kvarena/"):
                    problems.append(
                        f"{where}: {target} is no file of the tree; write <...> for a library"
                    )
                elif path.suffix == ".h" and target in C_HEADERS:
                    continue
                elif path.parts[0] == "include" and ("/" in target or target.endswith(".h")):
                    problems.append(
                        f"{where}: a public header may not include <{target}>; keep it in src/"
                    )
                continue
            reason = judge(path, resolved)
            if reason:
                problems.append(f"{where}: includes {resolved}: {reason}")
    return problems


if __name__ == "__main__":
    tree.main(check, __doc__)
