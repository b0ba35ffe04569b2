"""The kernels of grouped products in order of preference."""

from __future__ import annotations

from gemmule.core.spec import KernelSpec
from gemmule.kernels.hopper.grouped.spec import SPEC as HOPPER_GROUPED
from gemmule.kernels.mma_sync.grouped_gemv.spec import SPEC as GROUPED_GEMV
from gemmule.kernels.simt.grouped.spec import SPEC as SIMT_GROUPED

GROUPED_KERNELS: tuple[KernelSpec, ...] = (HOPPER_GROUPED, GROUPED_GEMV, SIMT_GROUPED)
