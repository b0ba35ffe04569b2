"""Spec of the GEMM with a thread for each element, consecutive threads along a row."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.row_major_config import ThreadBlockConfig
from gemmule.kernels.simt.row_major_spec import row_major_spec

SPEC = row_major_spec(
    package=__package__,
    dtype=FLOAT32,
    summary="float32, row-major: one thread an element, consecutive threads along a row of C",
    configs=(ThreadBlockConfig(), ThreadBlockConfig(16, 16)),
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
)
