"""What kernels take less than those that former records timed, for the fits that read these."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.kernels.hopper.cost.times import limits, rates_of
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig

#: Microseconds that a batch of epilogue tiles saves for each tile but the first, by columns where one stage held them,
#: and where several did; and the quantity of the limits that is one over the waves.
_SAVED_US, _SAVED_SEVERAL_US, _RECIPROCAL_WAVES = {8: 0.11, 16: 0.06}, 0.04, 6


def saved_us(one: Any, configs: tuple[HopperGemmConfig, ...], gpu: GpuRates) -> Any:
    """Return the microseconds that configs take less since narrow epilogue tiles are written in batches.

    Of ping-pong only the last tile counts, as another is multiplied meanwhile. Records before lack what it saves.
    """
    item = one.result_item
    waves = np.ceil(1 / limits(one, rates_of(configs, gpu))[1][_RECIPROCAL_WAVES])
    found = np.zeros(len(configs))
    for place, config in enumerate(configs):
        width, before, batches = config.epi_tile_n(item), config.epi_stages(item), config.epi_batches(item)[1]
        count = config.mma_tiles_m * config.mma_n // (config.cluster_k * width)
        each = _SAVED_US[width] if before == 1 and width in _SAVED_US else _SAVED_SEVERAL_US
        found[place] = (count - batches) * each * (1 if config.pingpong else waves[place])
    return found
