"""The log lines of `src` and the table that says what each means, compared by their shapes.

A row is ``| `arena of N bytes not freed: ...` | error | ... |``: a word in capitals stands for what a
line fills in, `...` for anything. A line without a row, with another level, and a row that no line has
are problems. Lines whose text is made elsewhere, and levels that are computed, are left to the writer.
"""

import re

import tree

PAGE = "docs/reference/metrics.md"

_CALL = re.compile(r'\blog_(?:line|text)\(\s*([^",]+(?:\([^)]*\))?),\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
_FILLED_IN = re.compile(r"\.\.\.|\b[A-Z][A-Z_]*\b")


def lines(root):
    """(place, level or None, text with `x` for what is filled in) of each call with a literal."""
    found = []
    for path in tree.files(root, ("src",)):
        text = tree.read(root, path)
        code = tree.code_only(text)
        for call in _CALL.finditer(text):
            if code[call.start()] == " ":  # a comment
                continue
            level, literals = call.groups()
            line = "".join(_LITERAL.findall(literals)).replace('\\"', '"')
            named = re.fullmatch(r"LogLevel::(\w+)", level.strip())
            where = f"{path}:{tree.line_of(text, call.start())}"
            found.append((where, named and named.group(1), re.sub(r"\{[^{}]*\}", "x", line)))
    return found


def pattern_of(shape):
    literals = [re.escape(literal) for literal in _FILLED_IN.split(shape)]
    return re.compile(".*".join(literals))


def rows(page):
    """(shape, levels) of the table under the heading Log lines."""
    section = re.search(r"^#+ Log lines\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    return _ROW.findall(section.group(1)) if section else []


def problems(root):
    if not (root / PAGE).is_file():
        return []
    table = [(shape, levels, pattern_of(shape)) for shape, levels in rows(tree.read(root, PAGE))]
    found = []
    used = set()
    for where, level, text in lines(root):
        matching = [(shape, levels) for shape, levels, pattern in table if pattern.fullmatch(text)]
        used.update(shape for shape, _ in matching)
        if not matching:
            found.append(f"{where}: {PAGE} has no row for the log line \"{text}\"")
        elif level and not any(level in levels.split() for _, levels in matching):
            found.append(f"{where}: \"{text}\" is {level}, says {PAGE} otherwise")
    code = "".join(tree.read(root, path) for path in tree.files(root, ("src",)))
    for shape, _, _ in table:
        longest = max(_FILLED_IN.split(shape), key=len).strip()
        if shape not in used and longest not in code:
            found.append(f"{PAGE}:1: no log line has the shape `{shape}`")
    return found
