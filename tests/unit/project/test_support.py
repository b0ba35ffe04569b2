"""The order of imports among tests: what two of them use stands in tests/support, and no test imports a test."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parents[2]
#: Beside tests and their fixtures: a program that compute-sanitizer runs.
PROGRAMS = {"gpu/memcheck.py"}


def imported(text):
    """Return the modules that a text imports, at its beginning or later."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (name.name for name in node.names if (node.module or "").startswith("support"))


def imported_tests(text):
    return [name for name in imported(text) if name.rpartition(".")[2].startswith("test_")]


def test_no_test_imports_a_test():
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 200
    found = {path.relative_to(TESTS).as_posix(): imported_tests(path.read_text()) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_shared_helpers_stand_in_support():
    outside = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py") if "support" not in path.parts}
    assert {name for name in outside if not name.rpartition("/")[2].startswith(("test_", "conftest."))} == PROGRAMS


def test_tests_on_the_host_lie_in_the_folder_of_a_room():
    folders = {path.relative_to(TESTS / "unit").parts[0] for path in (TESTS / "unit").rglob("test_*.py")}
    rooms = {path.name for path in (TESTS.parent / "src" / "gemmule").iterdir() if path.is_dir()}
    assert folders <= rooms | {"tools", "benchmarks", "project"}


#: How tests take JAX, which starts threads: no test after one of them could fork.
JAX = re.compile(r"""^\s*import jax|importorskip\(["'](gemmule\.)?jax["']""", re.MULTILINE)


def test_tests_with_jax_lie_where_they_come_last():
    with_jax = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py") if JAX.search(path.read_text())}
    # Those in `WITH_JAX` of conftest.py, and those on a GPU, which fork nothing.
    assert {"interop"} <= with_jax <= {"docs", "examples", "interop", "gpu"}


LATE = "def f():\n    from test_a import x"


@pytest.mark.parametrize("text", ["import test_a", LATE, "from unit.test_a import x", "from support import test_a"])
def test_an_import_of_a_test_is_found(text):
    assert imported_tests(text)
