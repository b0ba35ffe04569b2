"""The registry: every kernel, those of an operation in order of preference.

`REGISTRY` holds those of products and transposes; `EVERY_KERNEL` has those of grouped products too, whose problems are
of another kind.

The specs of an operation are imported when they are first used: a call that runs on the host loads none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gemmule.core.spec import KernelSpec

if TYPE_CHECKING:
    from .gemm_kernels import LADDER
    from .transpose_kernels import TRANSPOSE_LADDER

    REGISTRY: tuple[KernelSpec, ...]
    EVERY_KERNEL: tuple[KernelSpec, ...]

__all__ = ["EVERY_KERNEL", "LADDER", "REGISTRY", "TRANSPOSE_LADDER", "kernels_of"]


@functools.cache
def kernels_of(operation: str) -> tuple[KernelSpec, ...]:
    """Return the kernels of ``gemm``, ``transpose`` or ``grouped``: the same tuple at every call."""
    if operation == "gemm":
        from .gemm_kernels import GEMM_KERNELS

        return GEMM_KERNELS
    if operation == "grouped":
        from .grouped_kernels import GROUPED_KERNELS

        return GROUPED_KERNELS
    from .transpose_kernels import TRANSPOSE_KERNELS

    return TRANSPOSE_KERNELS


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Make a tuple of both operations, or import a ladder, and bind the name."""
        if name == "REGISTRY":
            found: object = (*kernels_of("gemm"), *kernels_of("transpose"))
        elif name == "EVERY_KERNEL":
            found = (*kernels_of("gemm"), *kernels_of("grouped"), *kernels_of("transpose"))
        elif name in ("LADDER", "TRANSPOSE_LADDER"):
            from . import gemm_kernels, transpose_kernels

            found = gemm_kernels.LADDER if name == "LADDER" else transpose_kernels.TRANSPOSE_LADDER
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found
