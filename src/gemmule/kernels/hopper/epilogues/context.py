"""Operands and resources of an epilogue, without the accumulators."""

from __future__ import annotations

from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.mainloops.operands import TmaTensor


@dataclass(frozen=True)
class EpilogueContext:
    """Operands and resources of a warpgroup's epilogue, the same for all of its tiles."""

    c: TmaTensor  #: TMA load of C's epilogue tiles, and C (M, N, L).
    d: TmaTensor  #: TMA store of D's epilogue tiles, and D (M, N, L).
    smem: Any  #: Tensor. Epilogue tiles of all warpgroups in shared memory.
    c_full: Any  #: Pointer. A full barrier for each of them: C's bytes have arrived.
    scale: Any  #: Tuple. Alpha and beta, the factors of the accumulators and of C.
    #: warpgroup_idx, barrier_id: Int32. Index of the warpgroup among the consumers, and its named barrier.
    warpgroup_idx: Any
    barrier_id: Any
    #: Tuple or None. Launch arguments of a fused epilogue: matrices, numbers, and last, where it is wanted, the
    #: absolute maximum in device memory.
    aux_args: Any = None
    absmax: Any = None  #: Tensor or None. This thread's register of the absolute maximum, where it is wanted.
    maxima: Any = None  #: Pointer or None. Those of all warps in shared memory.
    #: TmaTensor or None. SYRK only: TMA store of the epilogue tiles of D's transpose, and that transpose.
    d_transposed: Any = None
