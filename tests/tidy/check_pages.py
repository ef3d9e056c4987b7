#!/usr/bin/env python3
"""The Markdown pages tell the truth: error codes, log lines, formulas, links, sums, and code that is said to compile.

A code block is tied to a file by the line before it: `<!-- compiled: examples/quickstart.cpp -->`. The
block must then stand in that file word for word.
"""

import re
from pathlib import Path

import log_lines
import tree

STATUS_HEADER = "include/kvarena/base/status.hpp"
ERRORS_PAGE = "docs/reference/errors.md"
FORMULAS_SOURCE = "src/capacity/parameters.cpp"
FORMULAS_PAGE = "docs/reference/capacity.md"

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```[^\n]*$", re.MULTILINE | re.DOTALL)
_SUM = re.compile(r"^\|.*\| ([\d, *+]*[*+][\d, *+]*) \| ([\d,]+) \|$", re.MULTILINE)
_COMPILED = re.compile(
    r"<!-- compiled: (?P<file>[^ ]+) -->\n+```(?:cpp|c\+\+|c|rust)?\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def status_codes(header):
    """Enumerators of StatusCode, in order."""
    body = re.search(
        r"enum class StatusCode[^{]*\{(.*?)\};", tree.code_only(header), re.DOTALL
    ).group(1)
    return re.findall(r"\b([a-z]\w*)\b(?=\s*(?:=[^,]*)?(?:,|\s*$))", body)


def error_problems(root):
    if not (root / STATUS_HEADER).is_file():
        return []
    if not (root / ERRORS_PAGE).is_file():
        return [f"{ERRORS_PAGE}:1: is missing; every code of {STATUS_HEADER} needs a row"]
    codes = status_codes(tree.read(root, STATUS_HEADER))
    rows = re.findall(r"^\| `([a-z_]+)` \|(.*)\|$", tree.read(root, ERRORS_PAGE), re.MULTILINE)
    documented = [code for code, _ in rows]
    problems = [
        f"{ERRORS_PAGE}:1: no row for StatusCode::{code}"
        for code in codes
        if code not in documented
    ]
    problems += [
        f"{ERRORS_PAGE}:1: `{code}` has a row but is no StatusCode"
        for code in documented
        if code not in codes
    ]
    for code, cells in rows:
        if documented.count(code) > 1 or any(not cell.strip() for cell in cells.split("|")):
            problems.append(f"{ERRORS_PAGE}:1: the row of `{code}` is doubled or has an empty cell")
    return problems


def formula_problems(root):
    """Architectures whose parameters are counted are those that the page lists."""
    if not (root / FORMULAS_SOURCE).is_file():
        return []
    counted = set(re.findall(r'\{\.architecture = "(\w+)"', tree.read(root, FORMULAS_SOURCE)))
    text = tree.read(root, FORMULAS_PAGE) if (root / FORMULAS_PAGE).is_file() else ""
    listed = re.search(r"a formula for these architectures: ([\w\s,]+)\.", text)
    names = set(re.findall(r"\w+", listed.group(1))) if listed else set()
    return [
        f"{FORMULAS_PAGE}:1: `{name}` is listed or has a formula in {FORMULAS_SOURCE}, but not both"
        for name in sorted(counted ^ names)
    ]


def pages(root):
    found = [
        *root.glob("*.md"),
        *(root / "docs").rglob("*.md"),
        *(root / "examples").rglob("*.md"),
        *(root / ".github").rglob("*.md"),
    ]
    return sorted(page.relative_to(root) for page in found)


def anchor_of(title):
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def anchors(text):
    return {
        anchor_of(re.sub(r"[`*]", "", title))
        for title in re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    }


def link_problems(root, page, text):
    problems = []
    prose = _FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    for match in _LINK.finditer(prose):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (root / page.parent / name) if name else root / page
        where = f"{page}:{tree.line_of(prose, match.start())}"
        if not file.exists():
            problems.append(f"{where}: the link {target} leads to no file")
        elif (
            anchor
            and file.suffix == ".md"
            and anchor not in anchors(file.read_text(encoding="utf-8"))
        ):
            problems.append(f"{where}: {name or page} has no heading for #{anchor}")
    return problems


def block_problems(root, page, text):
    problems = []
    for match in _COMPILED.finditer(text):
        file = root / match.group("file")
        where = f"{page}:{tree.line_of(text, match.start())}"
        if not file.is_file():
            problems.append(f"{where}: {match.group('file')} is no file")
        elif match.group("body").strip("\n") not in file.read_text(encoding="utf-8"):
            problems.append(
                f"{where}: the code block differs from {match.group('file')}; copy it again"
            )
    blocks = len(re.findall(r"^```(?:cpp|c\+\+|c|rust)$", text, re.MULTILINE))
    if str(page) == "README.md" and blocks != len(_COMPILED.findall(text)):
        problems.append(f"{page}:1: each ```cpp block needs its `<!-- compiled: FILE -->` line")
    if len(_COMPILED.findall(text)) != len(re.findall(r"^<!-- compiled:", text, re.MULTILINE)):
        problems.append(f"{page}:1: a `<!-- compiled: FILE -->` line has no ```cpp block after it")
    for match in re.finditer(r"^<!-- printed: ([^ ]+) -->\n+(```)?", text, re.MULTILINE):
        where = f"{page}:{tree.line_of(text, match.start())}"
        program = match.group(1)
        if program != "kvarena" and not (root / program).is_file():
            problems.append(f"{where}: {program} is no file")
        if not match.group(2):
            problems.append(f"{where}: a `<!-- printed: PROGRAM -->` line has no block after it")
    return problems


def sum_problems(page, text):
    """Table rows that end in `| 2 * 3 | 6 |`."""
    problems = []
    for match in _SUM.finditer(text):
        expression, shown = (cell.replace(",", "") for cell in match.groups())
        value = eval(expression, {"__builtins__": {}})  # digits, * and + only, says the pattern
        if value != int(shown):
            where = f"{page}:{tree.line_of(text, match.start())}"
            problems.append(f"{where}: {match.group(1)} is {value:,}, not {match.group(2)}")
    return problems


def check(root, _args=None):
    problems = error_problems(root) + formula_problems(root) + log_lines.problems(root)
    for page in pages(root):
        text = tree.read(root, Path(page))
        problems += link_problems(root, page, text) + sum_problems(page, text)
        problems += block_problems(root, page, text)
    return problems


if __name__ == "__main__":
    tree.main(check, __doc__)
