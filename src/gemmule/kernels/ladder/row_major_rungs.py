"""Specs of the ladder's kernels for row-major matrices: g01 to g06 in float32, d01 and d02 in float64."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, FLOAT64
from gemmule.core.spec import KernelSpec
from gemmule.kernels.simt.row_major_config import RowMajorConfig, ThreadBlockConfig
from gemmule.kernels.simt.row_major_spec import row_major_spec

from .row_major_rung_config import (
    BInRegistersConfig,
    ConflictFreeConfig,
    DoubleBufferConfig,
    NaiveUncoalescedConfig,
    SharedABConfig,
    SharedTileConfig,
    VectorTileConfig,
)


def _rung(name: str, summary: str, *configs: RowMajorConfig) -> KernelSpec:
    dtype = FLOAT64 if name.startswith("d") else FLOAT32
    return row_major_spec(
        package=f"{__package__}.{name}",
        dtype=dtype,
        summary=f"{dtype}, row-major: {summary}",
        configs=configs,
        archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    )


G01 = _rung(
    "g01_naive_uncoalesced", "one thread an element, consecutive threads in different rows", NaiveUncoalescedConfig()
)
G02 = _rung(
    "g02_naive_coalesced",
    "one thread an element, consecutive threads along a row of C",
    ThreadBlockConfig(),
    ThreadBlockConfig(16, 16),
)
G03 = _rung(
    "g03_shared_tile",
    "square tiles of A and B in shared memory, one thread an element",
    SharedTileConfig(),
    SharedTileConfig(16),
)
G04 = _rung("g04_register_tile", "128 x 128 tiles, 8 x 8 elements a thread, 16-byte copies", VectorTileConfig())
G05 = _rung(
    "g05_conflict_free",
    "A stored transposed, the thread tile split in halves",
    ConflictFreeConfig(),
    ConflictFreeConfig(tile_k=16),
)
G06 = _rung("g06_double_buffer", "two buffers in shared memory, one barrier a k-tile", DoubleBufferConfig())
D01 = _rung(
    "d01_shared_ab",
    "k-tiles of A and B in shared memory, accumulators in registers",
    SharedABConfig(),
    SharedABConfig(64, 128, 16, 8, 8),
)
D02 = _rung(
    "d02_b_in_registers",
    "a thread owns columns of C and keeps its part of B in registers",
    BInRegistersConfig(),
    BInRegistersConfig(64, 128, 16, 16, 4, 32, 2, 16),
)
