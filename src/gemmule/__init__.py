"""gemmule: matrix multiplication and transpose on NVIDIA GPUs, from Python.

`matmul` multiplies by the rules of the array API standard, `gemm` by those of BLAS, with a bias and a function of each
element; `transpose` and `matrix_transpose` give transposes; `multiply` computes products of files and arrays that do
not fit into memory; `plan` says what a call would run, and why. Errors are `GemmuleError` and its kinds.
`gemmule.torch` and `gemmule.jax`, which are imported by name, have the product as an operator of the framework.
"""

# First, for `python -m gemmule`: Ctrl-C while the rest is loaded.
import gemmule_command  # noqa: F401

# isort: split
import importlib
from typing import TYPE_CHECKING

from gemmule.core.errors import (
    ArgumentError,
    CompileError,
    DeviceMemoryError,
    DriverError,
    DTypeError,
    FileAccessError,
    FileFormatError,
    GemmuleError,
    HostMemoryError,
    MemoryLimitError,
    OverlapError,
    ShapeError,
    UnsupportedError,
    WrongResultError,
)

if TYPE_CHECKING:
    from gemmule.api import Plan, gemm, load_pack, matmul, matrix_transpose, multiply, plan, transpose
    from gemmule.core.activations import erf, exp, gelu, log, maximum, minimum, relu, sigmoid, silu, sqrt, tanh, where
    from gemmule.outofcore.tiles.engine import Report

__version__ = "0.1.0.dev0"

__all__ = [
    "ArgumentError",
    "CompileError",
    "DTypeError",
    "DeviceMemoryError",
    "DriverError",
    "FileAccessError",
    "FileFormatError",
    "GemmuleError",
    "HostMemoryError",
    "MemoryLimitError",
    "OverlapError",
    "Plan",
    "Report",
    "ShapeError",
    "UnsupportedError",
    "WrongResultError",
    "__version__",
    "erf",
    "exp",
    "gelu",
    "gemm",
    "load_pack",
    "log",
    "matmul",
    "matrix_transpose",
    "maximum",
    "minimum",
    "multiply",
    "plan",
    "relu",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
    "transpose",
    "where",
]


#: Names by the module that has them. It is imported when one is first used: the package itself imports in milliseconds.
_LAZY = {
    "gemmule.api": ("Plan", "gemm", "load_pack", "matmul", "matrix_transpose", "multiply", "plan", "transpose"),
    "gemmule.core.activations": (
        *("erf", "exp", "gelu", "log", "maximum", "minimum"),
        *("relu", "sigmoid", "silu", "sqrt", "tanh", "where"),
    ),
    "gemmule.outofcore.tiles.engine": ("Report",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name's module, and bind the name."""
    if name not in _MODULES:
        raise AttributeError(f"module 'gemmule' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
