"""What the epilogue of a warpgroup works on, beside its accumulators."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class EpilogueContext:
    """Operands and resources of a warpgroup's epilogue, the same for all of its tiles.

    Attributes
    ----------
    tma_c, c : CopyAtom, Tensor
        TMA load of C's epilogue tiles, and C (M, N, L). For a symmetric result the TMA store of D's transpose, and
        that transpose.
    tma_d, d : CopyAtom, Tensor
        TMA store of D's epilogue tiles, and D (M, N, L).
    smem : Tensor
        Epilogue tiles of all warpgroups in shared memory.
    c_full : Pointer
        A barrier for each of them: C's bytes have arrived.
    alpha, beta : scalar
        Factors of the accumulators and of C.
    warpgroup_idx, barrier_id : Int32
        Number of the warpgroup among the consumers, and its named barrier.
    extras : tuple or None
        What a fused epilogue reads; last, where it is wanted, the register of the absolute maximum.
    """

    tma_c: Any
    c: Any
    tma_d: Any
    d: Any
    smem: Any
    c_full: Any
    alpha: Any
    beta: Any
    warpgroup_idx: Any
    barrier_id: Any
    extras: Any = None
