#!/usr/bin/env python3
"""Soft sizes: a file or function past its limit asks for a second room.

allowed_sizes.txt lists the exceptions, each with its reason; an exception that is not needed any more is
a problem too.
"""

import re

import tree

MAX_COLUMNS = 100
ALLOWED = "tests/tidy/allowed_sizes.txt"

_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
_DEVICE_CODE = re.compile(r"\b__(global|device)__\b")
_INITIALIZER_LIST = re.compile(r"\)[^(){};]*(?<!:):(?!:)")
_NAME = re.compile(r"([~\w:]+|operator[^\w\s(]+)\s*\(")


def file_limit(path):
    if path.parts[0] == "tests":
        return 500
    return {".cuh": 500, ".hpp": 250, ".h": 250}.get(path.suffix, 350)


def function_limit(path, head):
    if _DEVICE_CODE.search(head):
        return 120
    return 80 if path.parts[0] == "tests" else 50


def _ends_with_word(head):
    return re.search(r"[\w>]\s*$", head) is not None


def functions(text):
    """(head, first line, number of lines) of each function defined at namespace or class scope."""
    code = re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        lambda m: re.sub(r"[^\n]", " ", m.group(0)),
        tree.code_only(text),
        flags=re.MULTILINE,
    )
    found, stack, head_start = [], [], 0
    for match in re.finditer(r"[{};]", code):
        offset, symbol = match.start(), match.group(0)
        in_scope = all(kind == "scope" for kind, _, _ in stack)
        head = code[head_start:offset]
        if symbol == "{":
            kind = "block"
            if in_scope and "(" in head and not head.rstrip().endswith("="):
                member = _INITIALIZER_LIST.search(head) and _ends_with_word(head)
                kind = "member" if member else "function"
            elif in_scope and _SCOPE.search(head):
                kind = "scope"
            stack.append((kind, offset, head))
            if kind != "member":
                head_start = offset + 1
        elif symbol == "}" and stack:
            kind, start, head = stack.pop()
            if kind == "function":
                first = tree.line_of(code, start)
                found.append(
                    (" ".join(head.split()), first, tree.line_of(code, offset) - first + 1)
                )
            if kind != "member":
                head_start = offset + 1
        elif symbol == ";" and not (stack and stack[-1][0] == "member"):
            head_start = offset + 1
    return found


def name_of(head):
    names = _NAME.findall(head)
    return names[0] if names else head[:40]


def read_allowed(root):
    """{subject: (limit, reason)}; a subject is `path` or `path:function`."""
    allowed = {}
    path = root / ALLOWED
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                subject, limit, reason = (line.split(None, 2) + ["", ""])[:3]
                allowed[subject] = (int(limit), reason)
    return allowed


def measured(root):
    """(subject, where, lines, limit, what) of every file and function."""
    for path in tree.files(root):
        text = tree.read(root, path)
        yield str(path), f"{path}:1", len(text.splitlines()), file_limit(path), "file"
        for head, line, lines in functions(text):
            name = name_of(head)
            yield f"{path}:{name}", f"{path}:{line}", lines, function_limit(
                path, head
            ), f"function {name}"


def check(root, _args=None):
    allowed, used, problems = read_allowed(root), set(), []
    for subject, where, lines, limit, what in measured(root):
        if lines <= limit:
            continue
        higher, reason = allowed.get(subject, (0, ""))
        if lines <= higher and reason:
            used.add(subject)
        else:
            problems.append(
                f"{where}: {what} has {lines} lines, the limit is {limit}: split it, or give "
                f"the reason in {ALLOWED}"
            )
    problems += [
        f"{ALLOWED}:1: `{subject}` needs no exception any more; remove the line"
        for subject in sorted(set(allowed) - used)
        if not any(problem.startswith(subject.split(":")[0]) for problem in problems)
    ]
    for path in tree.files(root):
        for number, line in enumerate(tree.read(root, path).splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                problems.append(f"{path}:{number}: {len(line)} columns, the limit is {MAX_COLUMNS}")
    return problems


if __name__ == "__main__":
    tree.main(check, __doc__)
