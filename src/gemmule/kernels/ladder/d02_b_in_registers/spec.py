"""Spec of the float64 GEMM with B in registers."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT64
from gemmule.kernels.simt.row_major_spec import row_major_spec

from .config import BInRegistersConfig

SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT64,
    summary="float64, row-major: a thread owns columns of C and keeps its part of B in registers",
    configs=(BInRegistersConfig(), BInRegistersConfig(64, 128, 16, 16, 4, 32, 2, 16)),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
