"""Layouts of kernels as plain functions, from the kernels' own source: no compiler is needed to evaluate them."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gemmule.dispatch.registry import REGISTRY

_SOURCE = Path(__file__).parents[2] / "src"


def parsed(module: str) -> ast.Module:
    """Return the syntax tree of a module, e.g. ``gemmule.kernels.parts.raster``."""
    return ast.parse(Path(*_SOURCE.parts, *module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))


def kernel_module(kernel: str) -> str:
    """Return the module of a kernel's code."""
    return f"{next(spec.package for spec in REGISTRY if spec.name == kernel)}.kernel"


def function(module: str, name: str, names: dict[str, Any], thread: int = 0) -> Any:
    """Return a function or method of a module that only computes with integers, as plain Python.

    Parameters
    ----------
    module : str
        Where it is.
    name : str
        What it is called.
    names : dict
        What it refers to, such as constants of its module.
    thread : int
        The thread that calls it.
    """
    found = next(node for node in ast.walk(parsed(module)) if isinstance(node, ast.FunctionDef) and node.name == name)
    # Decorators compile, and annotations are the compiler's.
    found.decorator_list = []
    for argument in found.args.args:
        argument.annotation = None
    arch = SimpleNamespace(thread_idx=lambda: (thread, 0, 0))
    scope: dict[str, Any] = {
        "cute": SimpleNamespace(arch=arch),
        "cutlass": SimpleNamespace(min=min, const_expr=lambda value: value),
        **names,
    }
    exec(compile(ast.Module([found], []), module, "exec"), scope)  # noqa: S102 - the project's own source
    return scope[name]


def strides(kernel: str, **names: int) -> tuple[int, ...]:
    """Return the strides of the first layout that a kernel makes in shared memory, its variables given."""
    calls = (node for node in ast.walk(parsed(kernel_module(kernel))) if isinstance(node, ast.Call))
    made = next(call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "make_layout")
    stride = next(keyword.value for keyword in made.keywords if keyword.arg == "stride")
    found: tuple[int, ...] = eval(compile(ast.Expression(stride), kernel, "eval"), dict(names))  # noqa: S307
    return found


def assigned(kernel: str, names: dict[str, Any], targets: str) -> Any:
    """Return what a kernel's code assigns to variables, e.g. ``"m, n"``, first of those that it names so.

    Parameters
    ----------
    kernel : str
        The kernel.
    names : dict
        What the expression refers to.
    targets : str
        The left side of the assignment.
    """
    lines = (node for node in ast.walk(parsed(kernel_module(kernel))) if isinstance(node, ast.Assign))
    found = next(line.value for line in lines if ast.unparse(line.targets[0]).strip("()") == targets)
    return eval(compile(ast.Expression(found), kernel, "eval"), dict(names))  # noqa: S307 - the project's own source
