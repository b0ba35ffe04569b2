"""gemmule: matrix multiplication and transpose on NVIDIA GPUs, from Python."""

from gemmule.api import Plan, gemm, load_pack, matmul, matrix_transpose, multiply, plan, transpose
from gemmule.core.errors import (
    ArgumentError,
    CompileError,
    DeviceMemoryError,
    DriverError,
    DTypeError,
    FileFormatError,
    GemmuleError,
    MemoryLimitError,
    OverlapError,
    ShapeError,
    UnsupportedError,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "ArgumentError",
    "CompileError",
    "DTypeError",
    "DeviceMemoryError",
    "DriverError",
    "FileFormatError",
    "GemmuleError",
    "MemoryLimitError",
    "OverlapError",
    "Plan",
    "ShapeError",
    "UnsupportedError",
    "__version__",
    "gemm",
    "load_pack",
    "matmul",
    "matrix_transpose",
    "multiply",
    "plan",
    "transpose",
]
