"""The order of imports among tests: what two of them use stands in tests/support, and no test imports a test."""

from __future__ import annotations

import ast
import pathlib

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


LATE = "def f():\n    from test_a import x"


@pytest.mark.parametrize("text", ["import test_a", LATE, "from unit.test_a import x", "from support import test_a"])
def test_an_import_of_a_test_is_found(text):
    assert imported_tests(text)
