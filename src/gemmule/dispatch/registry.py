"""The registry: every kernel, those of an operation in order of preference.

`REGISTRY` holds those of products and transposes; `EVERY_KERNEL` has those of grouped products too, whose problems are
of another kind.

The specs of an operation are imported when they are first used, those of emulation and of complex numbers when such a
product is: a call that runs on the host loads none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64, COMPLEX128, Precision
from gemmule.core.problem import GemmProblem, OperandTypes, Problem
from gemmule.core.spec import KernelSpec, Reason

if TYPE_CHECKING:
    from .plain_gemm_kernels import LADDER
    from .transpose_kernels import TRANSPOSE_LADDER

    REGISTRY: tuple[KernelSpec, ...]
    EVERY_KERNEL: tuple[KernelSpec, ...]

__all__ = ["EVERY_KERNEL", "LADDER", "REGISTRY", "TRANSPOSE_LADDER", "kernels_for", "kernels_of", "reasons_of_others"]

#: Precisions of products that are not emulated.
_PLAIN_PRECISIONS = frozenset({Precision.IEEE, Precision.TF32, Precision.FLOAT8})
_COMPLEX_TYPES = frozenset({COMPLEX64, COMPLEX128})


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


def kernels_for(problem: Problem) -> tuple[KernelSpec, ...]:
    """Return the kernels to choose from for a problem: of products, those for its types and precision."""
    if not isinstance(problem, GemmProblem):
        return kernels_of("transpose")
    types = problem.types
    if types.precision in _PLAIN_PRECISIONS and not {types.a, types.b, types.d} & _COMPLEX_TYPES:
        return _plain_kernels()
    return kernels_of("gemm")


@functools.cache
def _plain_kernels() -> tuple[KernelSpec, ...]:
    from .plain_gemm_kernels import PLAIN_GEMM_KERNELS

    return PLAIN_GEMM_KERNELS


def reasons_of_others(found: KernelSpec, problem: Problem, arch: Arch) -> tuple[tuple[str, Reason], ...]:
    """Return the kernels before the one that was found that are not in `kernels_for`, with their reasons, unread."""
    if not (names := _others_before(found.name)) or not isinstance(problem, GemmProblem):
        return ()
    if kernels_for(problem) is not _plain_kernels():
        return ()
    types = problem.types
    return tuple((name, functools.partial(_reason, name, types, arch)) for name in names)


@functools.cache
def _others_before(name: str) -> tuple[str, ...]:
    from .plain_gemm_kernels import OTHERS_BEFORE

    return OTHERS_BEFORE.get(name, ())


def _reason(name: str, types: OperandTypes, arch: Arch) -> str | None:
    (spec,) = (one for one in kernels_of("gemm") if one.name == name)
    return spec.refuses_types(types, arch) if spec.refuses_types is not None else None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Make a tuple of both operations, or import a ladder, and bind the name."""
        if name == "REGISTRY":
            found: object = (*kernels_of("gemm"), *kernels_of("transpose"))
        elif name == "EVERY_KERNEL":
            found = (*kernels_of("gemm"), *kernels_of("grouped"), *kernels_of("transpose"))
        elif name in ("LADDER", "TRANSPOSE_LADDER"):
            from . import plain_gemm_kernels, transpose_kernels

            found = plain_gemm_kernels.LADDER if name == "LADDER" else transpose_kernels.TRANSPOSE_LADDER
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found
