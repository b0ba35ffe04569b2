"""Every kernel, in the order in which they are tried: the reference kernels, which take everything, stand last."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.gemm.reference.spec import SPEC as GEMM_REFERENCE
from gemmule.kernels.transpose.reference.spec import SPEC as TRANSPOSE_REFERENCE

REGISTRY: tuple[KernelSpec, ...] = (
    GEMM_REFERENCE,
    TRANSPOSE_REFERENCE,
)
