"""No function has more than eight parameters: what belongs together is one object."""

import ast
import functools
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parents[3] / "src" / "gemmule"
MOST = 8

#: Public functions, whose options are their documentation.
PUBLIC = {
    "api/__init__.py:gemm",
    "api/grouped.py:grouped_gemm",
    "api/planning/functions.py:gemm",
    "api/planning/functions.py:matmul",
    "api/scaled.py:scaled_gemm",
    "outofcore/calls/matmul.py:matmul",
}


def functions(node, name=""):
    """Yield the dotted name and the node of every function within a node, functions within functions included."""
    for child in ast.iter_child_nodes(node):
        # Expressions define none.
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}" if name else child.name
            if not isinstance(child, ast.ClassDef):
                yield inner, child
        yield from functions(child, inner)


def count(function):
    """Return the number of parameters; self and cls, *args and **kwargs do not count."""
    positional = [*function.args.posonlyargs, *function.args.args]
    bound = bool(positional) and positional[0].arg in {"self", "cls"}
    return len(positional) + len(function.args.kwonlyargs) - bound


@functools.cache
def long_ones(source):
    """Return the file and name of every function with too many parameters, and how many they are."""
    return {
        f"{path.relative_to(source).as_posix()}:{name}": count(function)
        for path in sorted(source.rglob("*.py"))
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8"), str(path)))
        if count(function) > MOST
    }


def test_no_function_has_more_than_eight_parameters():
    assert any(SOURCE.rglob("*.py")), f"no files under {SOURCE}"
    found = {name: count for name, count in long_ones(SOURCE).items() if name not in PUBLIC}
    assert not found, f"more than {MOST} parameters; make one object of those that belong together: {found}"


def test_exempt_functions_are_long():
    """What is exempt and need not be would let a parameter in that nobody looks at."""
    short = PUBLIC - long_ones(SOURCE).keys()
    assert not short, f"no longer exempt: strike {sorted(short)}"


@pytest.mark.parametrize(
    ("text", "long"),
    [
        ("def f(a, b, c, d, e, f, g, h): ...", False),
        ("def f(a, b, c, d, e, f, g, h, i): ...", True),
        ("def f(a, b, /, c, d, e, *, f, g, h, i): ...", True),
        ("def f(a, b, c, d, *args, e, f, g, h, **kwargs): ...", False),
        ("class C:\n    def f(self, a, b, c, d, e, f, g, h): ...", False),
        ("class C:\n    def f(self, a, b, c, d, e, f, g, h, i): ...", True),
        ("class C:\n    @classmethod\n    async def f(cls, a, b, c, d, e, f, g, h, i): ...", True),
        ("def f():\n    if f:\n        def g(a, b, c, d, e, f, g, h, i): ...", True),
    ],
)
def test_parameters_are_counted(tmp_path, text, long):
    (tmp_path / "x.py").write_text(text, encoding="utf-8")
    assert bool(long_ones(tmp_path)) == long
