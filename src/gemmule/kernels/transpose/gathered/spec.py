"""The transpose of small matrices with unaligned rows, gathered from device memory: its limits."""

from __future__ import annotations

import functools

from gemmule.kernels.transpose.cost import measured_cost
from gemmule.kernels.transpose.refusals import why_not_small_unaligned
from gemmule.kernels.transpose.spec import transpose_spec
from gemmule.kernels.transpose.word_tile_config import GatheredConfig

# Bytes of the largest matrices by those of an element: beyond, a tile in shared memory was measured to be faster.
_LARGEST = {1: 100 << 10, 2: 400 << 10}

SPEC = transpose_spec(
    name="transpose_gathered",
    summary="small matrices, elements of 1 or 2 bytes, unaligned rows, batch: a thread gathers 4 destination bytes",
    package=__package__,
    configs=(
        GatheredConfig(),
        GatheredConfig(16, 4, 2),
        GatheredConfig(4, 8),
        GatheredConfig(4, 4, 2),
        GatheredConfig(4, 8, 2),
    ),
    itemsizes=tuple(_LARGEST),
    refuses=functools.partial(why_not_small_unaligned, largest=_LARGEST),
    cost=functools.partial(measured_cost, dict.fromkeys(_LARGEST, GatheredConfig())),
)
