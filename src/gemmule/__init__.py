"""gemmule: matrix multiplication and transpose on NVIDIA GPUs, from Python."""

from gemmule.api import Plan, gemm, matmul, matrix_transpose, plan, transpose

__version__ = "0.1.0.dev0"

__all__ = ["Plan", "__version__", "gemm", "matmul", "matrix_transpose", "plan", "transpose"]
