"""SYRK in float32: `simt_gemm` with a CTA for each tile on and below the block diagonal."""

from __future__ import annotations

from gemmule.kernels.parts.block_triangle import syrk_spec
from gemmule.kernels.simt.gemm.spec import SPEC as WHOLE

SPEC = syrk_spec(
    WHOLE,
    name="simt_syrk",
    summary="float32 SYRK, for out-of-core GEMMs: the block lower triangle alone is computed and written",
    smallest=64,
)
