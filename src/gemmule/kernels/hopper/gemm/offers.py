"""Configs of hopper_gemm that the cost model offers to a product, by its type, its operands and the chip."""

from __future__ import annotations

from gemmule.core.dtype import FLOAT32, DType
from gemmule.kernels.hopper.tile_config import CONSUMERS

from .config import HopperGemmConfig
from .config_lists import (
    FOR_16_BIT,
    FOR_ANY_ROWS,
    FOR_FLOAT8,
    FOR_H200,
    FOR_LONG_K,
    FOR_MN_MAJOR_A,
    FOR_SHARED_ROWS,
    FOR_SHORT_K,
    FOR_SIDE_BY_SIDE,
    FOR_THREE_CONSUMERS,
)
from .layer_configs import FOR_LAYERS
from .width_configs import FOR_WIDTHS

#: Columns of tiles that took longer than the next where K is short; and of which a warpgroup beside others multiplies a
#: multiple where B is MN-major: rows of 32 bytes take longer.
_NARROW, _WHOLE = 40, 32
#: Every config is looked up in these at the first call of a process.
SHARED_ROWS = frozenset((*FOR_SHARED_ROWS, *FOR_SIDE_BY_SIDE))
LAYERS = frozenset(FOR_LAYERS)
SHORT_K = frozenset(FOR_SHORT_K)
_WIDTHS = frozenset(FOR_WIDTHS)
_H200 = frozenset((*FOR_H200, *FOR_MN_MAJOR_A, *FOR_WIDTHS))
#: Configs that products of a very short K are not offered.
FOR_8_K_TILES = SHARED_ROWS.union(one for one in FOR_16_BIT if one.tile_n == _NARROW)
_FLOAT8, _LONG_K = frozenset(FOR_FLOAT8), frozenset(FOR_LONG_K)
_16_BIT = frozenset((*FOR_16_BIT, *FOR_ANY_ROWS, *SHARED_ROWS, *LAYERS, *_H200, *SHORT_K, *FOR_THREE_CONSUMERS))


def offered_to(dtype: DType, config: HopperGemmConfig) -> bool:
    """Return whether the cost model offers a config, for the SMs of an H100, to elements of a type."""
    if config in _FLOAT8:
        return dtype.is_float8
    if config in _LONG_K:
        return dtype.itemsize == 2 or dtype == FLOAT32
    return dtype.itemsize == 2 or config not in _16_BIT


def is_offered(config: HopperGemmConfig, k_major: tuple[bool, bool], *, layer: bool, further: bool) -> bool:
    """Return whether a config is offered to a product, by the kernel's A and B.

    `layer` and `further`: whether the product is a layer of a model, and one that further configs are offered to.
    """
    if config in _WIDTHS:
        return further and (k_major[1] or config.mma_n % _WHOLE == 0)
    if config.consumers > CONSUMERS:
        return (layer or further) and (k_major[1] or config.tile_n % _WHOLE == 0)
    if not is_further(config, k_major):
        return True
    if config.side_by_side and not any(k_major):
        return further and config.mma_n % _WHOLE == 0
    if config in LAYERS:
        return layer or (further and k_major[1] and not config.split_k)
    if config in SHARED_ROWS:
        return further and k_major[1]
    return further and (k_major[1] if config.side_by_side else not k_major[0])


def is_further(config: HopperGemmConfig, k_major: tuple[bool, bool]) -> bool:
    """Return whether a config is none that all chips' products with such A and B are offered."""
    return config in LAYERS or config in _H200 or (config in SHARED_ROWS and not all(k_major))
