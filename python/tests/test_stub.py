"""The stub of the core names what the module has: classes, functions and their parameters.

stubtest cannot read the signatures of nanobind's functions, which is why they are compared here.
"""

import ast
import re
from pathlib import Path

import pytest

import kvarena
from kvarena import _core

STUB = ast.parse(Path(kvarena.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))


def parameters(function):
    """Of a parsed `def`: names by position, names by position only, names by keyword only."""
    arguments = function.args
    return (
        [a.arg for a in arguments.args],
        len(arguments.posonlyargs),
        [a.arg for a in arguments.kwonlyargs],
        len(arguments.defaults),
        [d is not None for d in arguments.kw_defaults],
    )


def parsed_signature(function):
    """The `def` that nanobind writes; `\\0` stands for the first default.

    A class has another __new__, for copies, in front of its own.
    """
    *others, (text, *_) = function.__nb_signature__
    assert not others or "__new__" in text, f"{text} is overloaded"
    return ast.parse(re.sub(r"\\\\?\d+", "None", text) + ": ...").body[0]


def is_compared(name):
    return not name.startswith("_") or name in {"__new__", "__enter__", "__exit__"}


def defined(body):
    """The names of a body that are compared."""
    names = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            names[node.target.id] = node
    return {name: node for name, node in names.items() if is_compared(name)}


def is_property(node):
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


MODULE = defined(STUB.body)
CLASSES = {name: node for name, node in MODULE.items() if isinstance(node, ast.ClassDef)}
FUNCTIONS = {name: node for name, node in MODULE.items() if isinstance(node, ast.FunctionDef)}
METHODS = [
    (of.name, method.name, method)
    for of in CLASSES.values()
    for method in defined(of.body).values()
    if isinstance(method, ast.FunctionDef) and not is_property(method)
]


def test_both_name_the_same_classes_and_functions():
    assert len(CLASSES) > 5 and len(FUNCTIONS) > 5
    assert {name for name in vars(_core) if not name.startswith("_")} == set(MODULE)


@pytest.mark.parametrize("name", CLASSES)
def test_both_name_the_same_members(name):
    members = {m for m in vars(getattr(_core, name)) if is_compared(m)}
    assert members | {"__new__"} == set(defined(CLASSES[name].body)) | {"__new__"}


@pytest.mark.parametrize(
    ("of", "name", "stub"), METHODS, ids=[f"{of}.{name}" for of, name, _ in METHODS]
)
def test_methods_have_the_parameters_of_the_stub(of, name, stub):
    signature = parsed_signature(getattr(getattr(_core, of), name))
    found, expected = parameters(signature), parameters(stub)
    assert found == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_parameters_of_the_stub(name):
    assert parameters(parsed_signature(getattr(_core, name))) == parameters(FUNCTIONS[name])


def test_a_renamed_parameter_is_found():
    renamed = ast.parse("def slot(self, place: int) -> int: ...").body[0]
    assert parameters(parsed_signature(_core.Sequence.slot)) != parameters(renamed)
