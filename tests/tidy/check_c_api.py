#!/usr/bin/env python3
"""Everything of the C++ interface that an engine needs is in kvarena.h.

tests/tidy/c_api.txt has a line for each public C++ function: the C functions that do it, or why an engine in
another language does not need it. A C++ function or a C function that the table does not name is a problem, and so
is a line about something that does not exist. `Type::*` stands for all functions of a type; it needs a reason.
Each C function is called in tests/capi, and each struct with `struct_size` has its row of wrong sizes there.
"""

import fnmatch
import re
from pathlib import Path

import tree

HEADER = Path("include/kvarena/kvarena.h")
TABLE = Path("tests/tidy/c_api.txt")

_SCOPE = re.compile(r"\b(class|struct)\s+(?:KVARENA_EXPORT\s+)?(\w+)[^;{}()]*$")
_NAME = re.compile(r"([~\w]+)\s*\($")
_NOT_FUNCTIONS = {"static_assert", "operator", "alignas", "decltype", "noexcept", "sizeof"}


def _declared(head):
    """The name of the function that `head`, the text before a `;` or `{`, declares, or None."""
    depth, start = 0, None
    for place, character in enumerate(head):
        if character == "(":
            if depth == 0 and start is None:
                start = place
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "=" and depth == 0 and start is None:
            return None  # a variable
    if start is None:
        return None
    name = _NAME.search(head[: start + 1])
    if name is None or name.group(1) in _NOT_FUNCTIONS or "operator" in head[:start]:
        return None
    return name.group(1) if re.search(r"[\w>&*]\s+[&*]?~?\w+\s*\($", head[: start + 1]) else None


def functions(text):
    """The public functions that a header declares: `Type::name` or `name`."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", tree.code_only(text), flags=re.MULTILINE)
    code = re.sub(r"\[\[\w+\]\]", "", code)
    found, stack, start = [], [], 0
    for match in re.finditer(r"[{};]|\b(?:public|private|protected):", code):
        symbol, head = match.group(0), code[start : match.start()]
        inner = stack[-1] if stack else ("namespace", "", True)
        if symbol.endswith(":"):
            stack[-1] = (inner[0], inner[1], symbol == "public:")
        elif symbol in ";{":
            if inner[0] != "body" and inner[2]:
                name = _declared(head)
                is_inside = inner[0] == "type"
                # A private type's functions are nobody's; a free function must be exported.
                is_shown = is_inside or "KVARENA_EXPORT" in head or "constexpr" in head
                if name and name != inner[1] and not name.startswith("~") and is_shown:
                    found.append(f"{inner[1]}::{name}" if is_inside else name)
            if symbol == "{":
                scope = _SCOPE.search(re.sub(r"template\s*<[^{}]*?>", "", head))
                if re.search(r"\bnamespace\b", head) and "(" not in head:
                    stack.append(("namespace", "", True))
                elif scope and not re.search(r"\benum\b", head):
                    stack.append(("type", scope.group(2), scope.group(1) == "struct" and inner[2]))
                else:
                    stack.append(("body", "", False))
        elif stack:
            stack.pop()
        start = match.end()
    return found


def c_functions(text):
    return re.findall(r"^KVARENA_API [^;(]*?(\w+)\(", text, re.MULTILINE)


def sized_structs(text):
    """The structs whose size the program tells. Those that functions of the program receive have the library's."""
    return re.findall(r"^typedef struct (\w+) \{\n  uint64_t struct_size; +///< sizeof\(", text, re.MULTILINE)


def read_table(text):
    """{C++ function: (line, [C functions], reason)}"""
    table = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        names, _, reason = rest.partition("--")
        table.setdefault(name, (number, names.split(), reason.strip()))
    return table


def check(root, _args=None):
    problems, known = [], {}
    for path in tree.files(root, ("include",), (".hpp",)):
        for name in functions(tree.read(root, path)):
            known.setdefault(name, path)
    c_names = set(c_functions(tree.read(root, HEADER)))
    table = read_table(tree.read(root, TABLE))
    patterns = [name for name, (_, names, reason) in table.items() if "*" in name and reason]
    for name, path in sorted(known.items()):
        if name not in table and not any(fnmatch.fnmatchcase(name, p) for p in patterns):
            problems.append(
                f"{path}:1: `{name}` is not in {TABLE}: name the C functions that do it, or why "
                "no engine needs it (`-- reason`)"
            )
    named = set()
    for name, (number, names, reason) in table.items():
        named.update(names)
        if not name.startswith("C:") and not fnmatch.filter(known, name):
            problems.append(f"{TABLE}:{number}: there is no public `{name}` any more")
        if not names and not reason:
            problems.append(f"{TABLE}:{number}: `{name}` has neither a C function nor a reason")
        problems += [
            f"{TABLE}:{number}: {HEADER} has no `{c_name}`" for c_name in names if c_name not in c_names
        ]
    problems += [
        f"{HEADER}:1: `{c_name}` is not in {TABLE}: say what it does of C++, or `C:{c_name} -- reason`"
        for c_name in sorted(c_names - named)
        if f"C:{c_name}" not in table
    ]
    calls = "".join(tree.code_only(tree.read(root, p)) for p in tree.files(root, ("tests/capi",), (".c",)))
    problems += [
        f"{HEADER}:1: no test in tests/capi calls `{c_name}`"
        for c_name in sorted(c_names)
        if not re.search(rf"\b{c_name}\(", calls)
    ]
    problems += [
        f"{HEADER}:1: no test in tests/capi passes wrong sizes of `{name}`: SIZES_OF({name}, ...)"
        for name in sized_structs(tree.read(root, HEADER))
        if f"SIZES_OF({name}," not in calls
    ]
    return problems


if __name__ == "__main__":
    tree.main(check, __doc__)
