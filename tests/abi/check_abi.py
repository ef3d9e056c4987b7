#!/usr/bin/env python3
"""The form of kvarena.h is that of tests/abi/kvarena.abi, by libabigail's abidiff.

A program that was compiled with an older header must run with the library of today. So functions and structs
stay as they are; what may be added are functions, enumerators at the end of an enumeration, and members at the
end of a struct that begins with `struct_size`. The test makes such changes in copies of the header, and changes
that are not allowed, and asks abidiff about each.

--update writes kvarena.abi anew: after an addition, in the commit that makes it. It demands that KVARENA_ABI has
risen; the last line of kvarena.abi has the number.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIP_EXIT_CODE = 77
HEADER = Path("include/kvarena/kvarena.h")
ABI = Path("tests/abi/kvarena.abi")

_FUNCTION = re.compile(r"^KVARENA_API ([^;(]*\([^;]*\));", re.MULTILINE)
_ENUM = re.compile(r"^typedef enum (\w+)", re.MULTILINE)
_NUMBER = re.compile(r"^#define KVARENA_ABI (\d+)$", re.MULTILINE)
_RECORDED = re.compile(r"^<!-- KVARENA_ABI (\d+) -->\n\Z", re.MULTILINE)
_GROWING = re.compile(r"^typedef struct (\w+) \{\n  uint64_t struct_size;", re.MULTILINE)

# (what, pattern, replacement, whether it is allowed)
CHANGES = [
    ("nothing", r"\A", "", True),
    (
        "a member at the end of kvarena_stats",
        r"\n\} kvarena_stats;",
        "\n  int64_t new_member;\n} kvarena_stats;",
        True,
    ),
    (
        "two members at the end of kvarena_cache_options",
        r"\n\} kvarena_cache_options;",
        "\n  int32_t new_member, new_reserved;\n} kvarena_cache_options;",
        True,
    ),
    (
        "a new function",
        r"KVARENA_API uint32_t kvarena_abi\(void\);",
        r"\g<0>\nKVARENA_API int32_t kvarena_new(kvarena_cache* cache);",
        True,
    ),
    (
        "two members of kvarena_cache_options in another order",
        r"(  int64_t watermark_blocks;[^\n]*\n)(  int64_t max_fence_entries;[^\n]*\n)",
        r"\2\1",
        False,
    ),
    (
        "a member in the middle of kvarena_attend_args",
        r"\n  float\* lse;",
        "\n  int64_t new_member;\n  float* lse;",
        False,
    ),
    (
        "a longer kvarena_demand, which stands in arrays",
        r"\n\} kvarena_demand;",
        "\n  int64_t new_member;\n} kvarena_demand;",
        False,
    ),
    (
        "a member of another size",
        r"int64_t num_copies;",
        "int32_t num_copies, reserved;",
        False,
    ),
    ("a function less", r"KVARENA_API uint32_t kvarena_abi\(void\);", "", False),
    (
        "a parameter of another type",
        r"kvarena_step_failed_demand\(kvarena_cache\* cache, int64_t\* index\)",
        "kvarena_step_failed_demand(kvarena_cache* cache, int32_t* index)",
        False,
    ),
    ("a code of another number", r"KVARENA_EXHAUSTED = 6", "KVARENA_EXHAUSTED = 60", False),
]


def compile_header(folder, header):
    """A shared library whose functions are those of the header, with debug information. Functions of the test's
    own take the enumerations, which the header's functions take as numbers."""
    folder.mkdir(parents=True)
    (folder / "kvarena.h").write_text(header, encoding="utf-8")
    bodies = "".join(f"{f} {{ __builtin_trap(); }}\n" for f in _FUNCTION.findall(header))
    takers = "".join(f"void take_{e}({e} value) {{}}\n" for e in _ENUM.findall(header))
    (folder / "stubs.c").write_text(f'#include "kvarena.h"\n{bodies}{takers}', encoding="utf-8")
    command = ["cc", "-std=c11", "-w", "-g", "-shared", "-fPIC", "-o", "libkvarena.so.0", "stubs.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "libkvarena.so.0"


def is_growth(entry, growing):
    """Whether an entry of abidiff's report is a struct with struct_size that grew at its end. (libabigail 2.2 has
    a rule for that, has_data_member_inserted_at, which lets members change their places as well.)"""
    first, *lines = entry.splitlines()
    name = re.match(r"'struct (\w+)", first)
    size = re.match(r"  type size changed from (\d+) to (\d+)", lines[0] if lines else "")
    if name is None or name.group(1) not in growing or size is None:
        return False
    before, after = map(int, size.groups())
    offsets = [re.search(r"^    '.*', at offset (\d+)", line) for line in lines[2:]]
    return (
        after > before
        and re.match(r"  \d+ data member insertions?:", lines[1]) is not None
        and all(offset is not None and int(offset.group(1)) >= before for offset in offsets)
    )


def differences(growing, before, after):
    """abidiff's report without allowed changes; empty when programs compiled for `before` run with `after`."""
    command = ["abidiff", "--no-added-syms", "--leaf-changes-only", str(before), str(after)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode & 3:
        return f"abidiff failed: {done.stderr}"
    report = re.sub(r"^[A-Z][\w/ ]* summary: .*\n", "", done.stdout, flags=re.MULTILINE)
    entries = [e.strip("\n") for e in re.split(r"\n\s*\n|\n(?=')", report) if e.strip()]
    if done.returncode & 12 and not entries:
        return f"abidiff reports what this test cannot read:\n{done.stdout}"
    return "\n".join(e for e in entries if not is_growth(e, growing))


def number_problem(header, recorded, has_grown):
    """What is wrong with the header's KVARENA_ABI, beside the number in kvarena.abi; None: nothing."""
    number = int(_NUMBER.search(header).group(1))
    if has_grown and number <= recorded:
        places = "here and in rust/kvarena/src/sys.rs"
        return f"{HEADER}: the interface has grown: raise KVARENA_ABI to {recorded + 1}, {places}"
    if number < recorded:
        return f"{HEADER}: KVARENA_ABI is {number}; programs have seen {recorded}"
    return None


def has_grown(before, after):
    """Whether the two libraries differ in anything."""
    command = ["abidiff", str(before), str(after)]
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


def update(root, folder):
    """Writes kvarena.abi anew, or says why not."""
    header = (root / HEADER).read_text(encoding="utf-8")
    number = _NUMBER.search(header).group(1)
    library = compile_header(folder / "today", header)
    recorded = _RECORDED.search((root / ABI).read_text(encoding="utf-8"))
    known = int(recorded.group(1)) if recorded else 0
    problem = number_problem(header, known, has_grown(root / ABI, library))
    if problem:
        return problem
    options = ["--no-comp-dir-path", "--no-corpus-path", "--no-show-locs"]
    made = subprocess.run(["abidw", *options, str(library)], check=True, capture_output=True, text=True)
    (root / ABI).write_text(f"{made.stdout}<!-- KVARENA_ABI {number} -->\n", encoding="utf-8")
    return None


def judge_number(root, header):
    """Problems of the number, and whether this test finds them."""
    recorded = int(_RECORDED.search((root / ABI).read_text(encoding="utf-8")).group(1))
    problem = number_problem(header, recorded, False)
    raised = _NUMBER.sub(f"#define KVARENA_ABI {recorded + 1}", header)
    judged = [
        number_problem(header, recorded, True),
        number_problem(_NUMBER.sub(f"#define KVARENA_ABI {recorded - 1}", header), recorded, False),
        None if number_problem(raised, recorded, True) else "fine",
    ]
    found = all(judged) or int(_NUMBER.search(header).group(1)) > recorded
    return [problem] if problem else [] if found else ["a number that did not rise is not found"]


def judge(root, folder):
    """Problems, in lines."""
    header = (root / HEADER).read_text(encoding="utf-8")
    growing = set(_GROWING.findall(header))
    problems = judge_number(root, header)
    of_today = compile_header(folder / "today", header)
    report = differences(growing, root / ABI, of_today)
    if report:
        return [f"{HEADER}: programs compiled before do not run any more:\n{report}"]
    for number, (what, pattern, replacement, is_allowed) in enumerate(CHANGES):
        changed, count = re.subn(pattern, replacement, header, count=1)
        if count != 1:
            problems.append(f"{what}: the header has no {pattern}; mend the test")
            continue
        library = compile_header(folder / str(number), changed)
        if bool(differences(growing, of_today, library)) == is_allowed:
            problems.append(f"{what}: abidiff {'refuses' if is_allowed else 'does not see'} it")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    root = args.root.resolve()
    if shutil.which("abidiff") is None:
        print("Skipped: abidiff is not installed (apt-get install abigail-tools)")
        sys.exit(SKIP_EXIT_CODE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.update:
            problem = update(root, folder)
            sys.exit(problem)
        problems = judge(root, folder)
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
