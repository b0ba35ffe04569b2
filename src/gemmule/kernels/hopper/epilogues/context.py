"""Operands and resources of an epilogue, beside the accumulators."""

from __future__ import annotations

import dataclasses
from typing import Any

from gemmule.kernels.hopper.mainloops.operands import TmaTensor


@dataclasses.dataclass(frozen=True)
class EpilogueContext:
    """Operands and resources of a warpgroup's epilogue, the same for all of its tiles.

    Attributes
    ----------
    c : TmaTensor
        TMA load of C's subtiles, and C (M, N, L). For a symmetric result the TMA store of D's transpose, and that
        transpose.
    d : TmaTensor
        TMA store of D's subtiles, and D (M, N, L).
    smem : Tensor
        Subtiles of all warpgroups in shared memory.
    c_full : Pointer
        A barrier for each of them: C's bytes have arrived.
    scale : tuple
        Alpha and beta, the factors of the accumulators and of C.
    warpgroup_idx, barrier_id : Int32
        Number of the warpgroup among the consumers, and its named barrier.
    extras : tuple or None
        Inputs of a fused epilogue; last, where it is wanted, the register of the absolute maximum.
    """

    c: TmaTensor
    d: TmaTensor
    smem: Any
    c_full: Any
    scale: Any
    warpgroup_idx: Any
    barrier_id: Any
    extras: Any = None
