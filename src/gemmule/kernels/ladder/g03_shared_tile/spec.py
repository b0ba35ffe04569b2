"""Spec of the GEMM with square tiles in shared memory, a thread for each element."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.row_major_spec import row_major_spec

from .config import SharedTileConfig

SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT32,
    summary="float32, row-major: square tiles of A and B in shared memory, one thread an element",
    configs=(SharedTileConfig(), SharedTileConfig(16)),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
