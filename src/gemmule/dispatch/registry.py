"""Every kernel, in the order in which they are tried: the reference kernels, which take everything, stand last."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.gemm.d01_shared_ab.spec import SPEC as D01
from gemmule.kernels.gemm.d02_b_in_registers.spec import SPEC as D02
from gemmule.kernels.gemm.g01_naive_uncoalesced.spec import SPEC as G01
from gemmule.kernels.gemm.g02_naive_coalesced.spec import SPEC as G02
from gemmule.kernels.gemm.g03_shared_tile.spec import SPEC as G03
from gemmule.kernels.gemm.g04_register_tile.spec import SPEC as G04
from gemmule.kernels.gemm.g05_conflict_free.spec import SPEC as G05
from gemmule.kernels.gemm.g06_double_buffer.spec import SPEC as G06
from gemmule.kernels.gemm.g07_cp_async.spec import SPEC as G07
from gemmule.kernels.gemm.reference.spec import SPEC as GEMM_REFERENCE
from gemmule.kernels.transpose.reference.spec import SPEC as TRANSPOSE_REFERENCE

REGISTRY: tuple[KernelSpec, ...] = (
    G07,
    G06,
    G05,
    G04,
    G03,
    G02,
    G01,
    D02,
    D01,
    GEMM_REFERENCE,
    TRANSPOSE_REFERENCE,
)

#: The rungs of the ladder in teaching order: single precision, then double.
LADDER: tuple[str, ...] = tuple(spec.name for spec in (G01, G02, G03, G04, G05, G06, G07, D01, D02))
