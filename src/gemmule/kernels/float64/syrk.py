"""SYRK in float64: `float64_gemm` with a CTA for each tile on and below the block diagonal."""

from __future__ import annotations

from gemmule.kernels.float64.gemm.spec import SPEC as WHOLE
from gemmule.kernels.parts.block_triangle import syrk_spec

SPEC = syrk_spec(
    WHOLE,
    name="float64_syrk",
    summary="float64 SYRK, for out-of-core GEMMs: the block lower triangle alone is computed and written",
    smallest=64,
)
