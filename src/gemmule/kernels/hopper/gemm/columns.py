"""Columns that the tiles of hopper_gemm may have, by the type and layout of the operands."""

from __future__ import annotations

from gemmule.core.dtype import FLOAT32, INT8, DType
from gemmule.kernels.hopper.tile_config import CONSUMERS

from .config import SIDE_BY_SIDE_BYTES, HopperGemmConfig

#: Most columns of which wgmma on 8-bit integers takes any multiple of 8.
_INT8_COLUMNS = 24
#: What the columns of three consumers are a multiple of if both operands are MN-major: threads that have 128 registers
#: spill what they need for narrow rows of both.
_MN_MAJOR_COLUMNS = 32
#: With A in registers: most columns of a warpgroup's wgmma tiles, and accumulators of a CTA tile.
_MAX_COLUMNS_RS, _MAX_ACCUMULATORS_RS = 256, 128 * 256


def why_not_columns(dtype: DType, k_major: tuple[bool, bool], config: HopperGemmConfig) -> str | None:
    """Say why the kernel's A and B, K-major or not, have no tiles of so many columns, or None where they have."""
    if config.side_by_side and dtype.itemsize != SIDE_BY_SIDE_BYTES:
        return f"config {config}: warpgroups are side by side only if B is of 16 bits"
    if config.consumers > CONSUMERS and dtype.itemsize != SIDE_BY_SIDE_BYTES:
        return f"config {config}: three consumers multiply elements of 16 bits only"
    if config.consumers > CONSUMERS and not any(k_major) and config.tile_n % _MN_MAJOR_COLUMNS:
        columns = f"a multiple of {_MN_MAJOR_COLUMNS} columns"
        return f"config {config}: three consumers have {columns} if both operands are MN-major"
    if dtype == FLOAT32 and config.tile_n > 32 and config.tile_n % 32:
        return f"config {config}: k-tiles of 32-bit elements must have a multiple of 32 columns of B"
    if dtype == INT8 and config.tile_n > _INT8_COLUMNS and config.tile_n % 16:
        return f"config {config}: wgmma on int8 takes a multiple of 16 columns where they are more than {_INT8_COLUMNS}"
    return _why_not_registers(config, k_major) if dtype == FLOAT32 else None


def _why_not_registers(config: HopperGemmConfig, k_major: tuple[bool, bool]) -> str | None:
    """Say why a config cannot multiply 32-bit operands that are K-major or not, or None where it can."""
    if all(k_major):
        return None
    if not k_major[1]:
        return f"config {config}: swap_ab must be {1 - config.swap_ab}, for wgmma to take 32-bit B K-major"
    if config.mma_tiles_m * config.tile_n > _MAX_COLUMNS_RS or config.tile_elements > _MAX_ACCUMULATORS_RS:
        return f"config {config}: registers hold no more than 128 x 256 accumulators with an MN-major A of 32 bits"
    return None
