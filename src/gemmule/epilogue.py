"""Functions for the epilogues of `gemmule.gemm`: a function of each element of a product, compiled into the kernel.

They take the values that `gemm` passes to the function given as `epilogue`, and numbers.
"""

from gemmule.core.activations import (
    erf,
    exp,
    gelu,
    gelu_tanh,
    log,
    maximum,
    minimum,
    relu,
    sigmoid,
    silu,
    sqrt,
    tanh,
    where,
)
from gemmule.core.tracing import Traced

__all__ = [
    "Traced",
    "erf",
    "exp",
    "gelu",
    "gelu_tanh",
    "log",
    "maximum",
    "minimum",
    "relu",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
    "where",
]
