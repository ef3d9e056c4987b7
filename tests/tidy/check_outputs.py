#!/usr/bin/env python3
"""What a page says that a program prints is what it prints.

A block of output follows a line that names its program:

`<!-- printed: examples/tutorial.cpp -->`: the block is a part of what the example prints.
`<!-- printed: kvarena -->`: lines that begin with `$ kvarena` or `$ ./run` are commands, and each is
followed by what it prints.

A line `...` in a block stands for any lines. A number such as 2.0e-06 is a rounding error, which differs
from machine to machine: any number of this form is right.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import check_pages
import tree

_BLOCK = re.compile(
    r"^<!-- printed: (?P<program>[^ ]+) -->\n+```(?:text|console)?\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ROUNDING_ERROR = re.compile(r"\d\\?\.\de\\-\d\d")
_COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)


def pattern_of(block):
    """A pattern that finds the lines of `block`."""
    lines = []
    for line in block.strip("\n").splitlines():
        literal = _ROUNDING_ERROR.sub(r"\\d\\.\\de-\\d\\d", re.escape(line.rstrip()))
        lines.append(r"(?:.*\n)*?" if line.strip() == "..." else literal + r" *\n")
    return re.compile("^" + "".join(lines), re.MULTILINE)


def printed_by(command, root, folders):
    """What a shell command prints, in the source tree, with the built programs on its path."""
    with tempfile.TemporaryDirectory() as home:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVARENA_")}
        environment.update(HOME=home, XDG_CONFIG_HOME=home, NO_COLOR="1")
        environment["PATH"] = os.pathsep.join([*map(str, folders), environment["PATH"]])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout + "\n" + done.stderr


def expectations(program, body):
    """(command, what it prints) of a block."""
    if program != "kvarena":
        return [(Path(program).stem, body)]
    return [
        (re.sub(r"^\./run\b", "kvarena", match.group("command")), match.group("output"))
        for match in _COMMAND.finditer(body)
    ]


def page_problems(root, page, folders):
    problems = []
    text = tree.read(root, page)
    for block in _BLOCK.finditer(text):
        where = f"{page}:{tree.line_of(text, block.start())}"
        expected = expectations(block.group("program"), block.group("body"))
        if not expected:
            problems.append(f"{where}: no line of the block begins with `$ `")
        for command, output in expected:
            seen = printed_by(command, root, folders)
            if not pattern_of(output).search(seen):
                problems.append(f"{where}: `{command}` prints something else:\n{seen.rstrip()}")
    return problems


def check(root, args):
    problems = []
    for page in check_pages.pages(root):
        problems += page_problems(root, page, args.folder)
    return problems


def add_arguments(parser):
    parser.add_argument("folder", type=Path, nargs="+", help="where built programs are")


if __name__ == "__main__":
    tree.main(check, __doc__, add_arguments)
