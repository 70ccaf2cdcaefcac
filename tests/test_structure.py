"""Rules that the tree as a whole keeps: sizes, words at the top of files, documentation, imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import symgrad as sg
from symgrad.family import COMPOSITES
from symgrad.interface import public_names
from symgrad.op import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for folder in ("symgrad", "tests", "examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
PACKAGE = [path for path in SOURCES if path.is_relative_to(ROOT / "symgrad")]
LONGEST = 700
DECLARED = {**{k: v for k, v in REGISTRY.items() if v.family != "leaf"}, **COMPOSITES}


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_is_not_too_long(path):
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_says_what_it_is(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "the file opens with no docstring"


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_module_has_a_telling_name(path):
    assert path.stem not in {"utils", "util", "helpers", "misc", "common"}


def undocumented(tree):
    """Public classes and functions, at top level and in public classes, without a docstring."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    pending = [(node, "") for node in tree.body if isinstance(node, kinds)]
    for node, prefix in pending:
        if node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not exempt(node):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef) and not declares_an_op(node):
            pending += [(n, f"{node.name}.") for n in node.body if isinstance(n, kinds)]


def exempt(node):
    """Properties and setters are documented by their class, overloads by their implementation."""
    names = {ast.unparse(d) for d in node.decorator_list}
    return bool(names & {"property", "overload"}) or any(
        n.endswith((".setter", ".deleter")) for n in names
    )


def declares_an_op(node):
    """The functions in an op's class are the fields of a declaration."""
    return any(ast.unparse(d) == "op" for d in node.decorator_list)


@pytest.mark.parametrize(
    "path", [p for p in PACKAGE if "ops" not in p.parts and "codegen" not in p.parts], ids=name_of
)
def test_public_names_are_documented(path):
    assert list(undocumented(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("name", sorted(set(public_names()) | set(sg.creation.__all__)))
def test_public_function_is_documented(name):
    lines = (getattr(sg, name, None) or public_names()[name]).__doc__.strip().splitlines()
    assert len(lines[0]) >= 10


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_op_is_documented_and_has_samples(name):
    declared = DECLARED[name]
    assert declared.__doc__
    assert declared.__doc__.strip()
    assert declared.samples


def test_import_loads_neither_sympy_nor_scipy_nor_the_compiler():
    program = (
        "import sys, symgrad\n"
        "heavy = {'sympy', 'scipy', 'matplotlib', 'llvmlite', 'opt_einsum', 'mpmath', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_a_value_needs_neither_sympy_nor_scipy():
    program = (
        "import sys, symgrad as sg\n"
        "x = sg.tensor([1., 2.], requires_grad=True)\n"
        "(sg.exp(x) * x).sum().backward()\n"
        "x.grad.numpy()\n"
        "print(sorted({'sympy', 'scipy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_every_room_is_a_package():
    for path in PACKAGE:
        assert (path.parent / "__init__.py").is_file(), f"{path.parent.name} has no __init__.py"


def test_nothing_is_left_to_do():
    marks = ("TO" + "DO", "FIX" + "ME")
    found = [name_of(p) for p in SOURCES for mark in marks if mark in p.read_text()]
    assert found == []
