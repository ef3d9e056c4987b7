#!/usr/bin/env python3
"""Names and calls that have no place in the product's code."""

import re

import tree

# (pattern, why and what instead). Matched against code without comments and literals; a name that
# belongs to somebody else's type (after . -> ::) is not ours to choose.
NAMES = [
    (r"(?<![.>:\w])get_\w+", "a property is named for what it is: `size()`, not `get_size()`"),
    (
        r"(?<![.>:\w])(do|process|handle)_\w+\s*\(",
        "say what is done: allocate, append, launch, retire",
    ),
    (
        r"\b\w*(_utils?|_helpers?|_misc)\b|\b\w*(Utils?|Helpers?)\b",
        "name the one subject it serves",
    ),
    (r"\b(?!BlockManager\b)[A-Z]\w*Manager\b", "only BlockManager manages; name what the type is"),
]
FILE_NAMES = (r"(^|_)(utils?|helpers?|misc|stuff)(_|$)", "name the file after its one subject")

LIBRARY = ("include", "src", "kernels")
# (pattern, folders where it is refused, folders inside them where it is at home, why)
CALLS = [
    (
        r"\bcuda(Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemPool|DeviceGetDefaultMemPool"
        r"|DeviceSetMemPool|GraphAddMem(Alloc|Free)Node|ImportExternalMemory"
        r"|DestroyExternalMemory|Ipc(Open|Close)MemHandle)\w*",
        tree.PRODUCT + ("bench",),
        ("src/device",),
        "only src/device allocates and frees device memory; ask Device::allocate, Device::free",
    ),
    (
        r"\bcu(Mem(Alloc|Free|Host(Alloc|Register|Unregister|GetDevicePointer)|Create|Release|Map"
        r"|Unmap|SetAccess|Address(Reserve|Free)|Pool|ImportFromShareableHandle)|Array3?D?(Create"
        r"|Destroy)|MipmappedArray(Create|Destroy)|DeviceSetMemPool|GraphAddMem(Alloc|Free)Node"
        r"|ImportExternalMemory|DestroyExternalMemory|Ipc(Open|Close)MemHandle)\w*",
        tree.PRODUCT + ("bench",),
        ("src/device",),
        "only src/device allocates and frees device memory; ask Device::allocate, Device::free",
    ),
    (
        r"(?<![.>\w])(std::)?(exit|_Exit|quick_exit|abort|terminate)\s*\(",
        LIBRARY,
        (),
        "the library never ends the process; return a Status",
    ),
    (
        r"(?<![.>\w])(std::)?(printf|fprintf|puts|fputs|putchar|perror)\s*\(|\bstd::(cout|cerr|clog)\b",
        LIBRARY,
        (),
        "the library never prints; use log_line of src/base/log_internal.hpp",
    ),
    (
        r"\bstd::chrono\b|\brandom_device\b|(?<![.>\w])(std::)?(rand|time|clock)\s*\(",
        ("src/allocator", "src/blocktable"),
        (),
        "ids never depend on clocks or chance; inject a Clock for reports",
    ),
    (
        r"\busing\s+namespace\b",
        ("include",),
        (),
        "a header must not empty a namespace into its users",
    ),
]
# Where a refused call is right, with the reason.
ALLOWED_CALLS = {
    (
        "include/kvarena/base/result.hpp",
        "abort",
    ): "taking the value of a failed Result has no other answer",
}
_OVERRIDES = re.compile(r"[^;{}]*\)[^;{}]*\boverride\b")
COMMENT_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def _is_below(path, folders):
    return any(str(path).startswith(folder + "/") for folder in folders)


def _name_problems(path, code):
    if _is_below(path, tree.PRODUCT):
        for pattern, why in NAMES:
            for match in re.finditer(pattern, code):
                if _OVERRIDES.match(code, match.end()):
                    continue  # the name is the base class's
                yield match.start(), f"the name `{match.group(0).strip(' (')}`: {why}"


def _call_problems(path, code):
    for pattern, folders, home, why in CALLS:
        if not _is_below(path, folders) or _is_below(path, home):
            continue
        for match in re.finditer(pattern, code):
            found = match.group(0).strip(" (")
            if not any(str(path) == allowed and word in found for allowed, word in ALLOWED_CALLS):
                yield match.start(), f"`{found}`: {why}"


def check(root, _args=None):
    problems = []
    for path in tree.files(root):
        text = tree.read(root, path)
        code = tree.code_only(text)
        pattern, why = FILE_NAMES
        if re.search(pattern, path.stem):
            problems.append(f"{path}:1: the file name: {why}")
        found = [*_name_problems(path, code), *_call_problems(path, code)]
        found += [
            (m.start(), f"`{m.group(0)}`: finish it, or write an issue")
            for m in COMMENT_WORDS.finditer(text)
        ]
        problems += [
            f"{path}:{tree.line_of(text, offset)}: {what}" for offset, what in sorted(found)
        ]
    return problems


if __name__ == "__main__":
    tree.main(check, __doc__)
