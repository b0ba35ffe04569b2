"""Rates of the float32 GEMMs' cost model, and factors of their configs: all numbers that were fitted to times."""

from __future__ import annotations

from typing import NamedTuple

from gemmule.core.dtype import FLOAT32

from .config import SimtConfig


class SimtRates(NamedTuple):
    """Rates of the predicted times of `simt_gemm`, fitted by benchmarks/experiments/fit_simt_cost.py.

    Attributes
    ----------
    launch, exchange, peer : float
        Microseconds of a launch, and of the exchange of partial sums in a cluster: for itself and for each other CTA.
    cycles : float
        Cycles a microsecond; others are in cycles of a scheduler.
    copy, transposing, read, k_tile : float
        Cycles of a warp's copy of 4 bytes, of an MN-major operand and of a K-major one, of its 16-byte read a lane from
        shared memory, and of a k-tile's synchronisation.
    latency, alone : float
        The least of a k-tile, and the part of a CTA's own that it cannot hide alone.
    start, epilogue : float
        Cycles of a CTA's start, and of an element of a thread tile.
    memory : float
        Bytes a microsecond.
    vector : float
        Cycles of a vector of a K-major operand, which a warp loads and stores transposed.
    loading : float
        Addition to the least time of a k-tile where vectors are loaded, except in largest tiles.
    """

    launch: float
    exchange: float
    peer: float
    cycles: float
    copy: float
    transposing: float
    read: float
    k_tile: float
    latency: float
    alone: float
    start: float
    epilogue: float
    memory: float
    vector: float = 0.0
    loading: float = 0.0


#: By `benchmarks/experiments/fit_simt_cost.py`, of 524 products on an H100 and an H200: records 20261124T022030,
#: 20261125T031731, 20261125T121740, 20261125T131340 and 20261125T141418, and of 20261128T142551 odd products and those
#: of MN-major operands.
RATES = SimtRates(
    launch=2.15,
    exchange=1.321,
    peer=0.04497,
    cycles=3167.0,
    copy=9.659,
    transposing=18.76,
    read=9.007,
    k_tile=300.8,
    latency=318.1,
    alone=0.8152,
    start=559.5,
    epilogue=57.78,
    memory=3.5e6,
    vector=25.0,
    loading=400.0,
)
#: Measured times by predicted ones, of aligned operands and of others: by rows, columns, k-tile, groups of warps and
#: CTAs of a cluster. Fitted like the rates, then by `benchmarks/experiments/fit_simt_choices.py`, so that choices lose
#: least, those of clusters of three and of 32 x 64 once more by hand (notebook).
FACTORS = {
    (64, 64, 16, 1, 1): (0.907, 0.933),
    (64, 64, 16, 1, 2): (0.922, 0.936),
    (64, 64, 16, 1, 3): (1.000, 0.920),
    (64, 64, 16, 1, 4): (0.912, 0.926),
    (64, 64, 16, 1, 8): (0.908, 0.909),
    (64, 128, 16, 1, 1): (0.994, 1.094),
    (64, 128, 16, 1, 2): (1.021, 1.078),
    (64, 128, 16, 1, 3): (1.037, 1.023),
    (64, 128, 16, 1, 4): (1.017, 1.048),
    (64, 128, 16, 1, 8): (1.016, 1.035),
    (128, 64, 8, 1, 1): (0.907, 1.011),
    (128, 64, 16, 1, 1): (1.031, 1.105),
    (128, 64, 16, 1, 2): (1.012, 1.065),
    (128, 64, 16, 1, 3): (1.100, 1.021),
    (128, 64, 16, 1, 4): (1.025, 1.033),
    (128, 64, 16, 1, 6): (1.037, 1.030),
    (128, 256, 8, 1, 1): (1.015, 1.146),
    (128, 256, 16, 1, 1): (1.108, 1.169),
    (256, 128, 16, 1, 1): (1.108, 1.169),
    (128, 128, 16, 1, 1): (1.080, 1.167),
    (32, 32, 16, 1, 1): (0.999, 1.035),
    (32, 32, 16, 1, 4): (0.955, 0.993),
    (32, 32, 16, 1, 8): (0.970, 0.996),
    (32, 32, 16, 1, 16): (1.049, 1.068),
    (64, 32, 16, 1, 6): (1.05, 1.058),
    (128, 32, 16, 1, 1): (0.950, 0.995),
    (128, 32, 16, 1, 8): (0.923, 0.971),
    (32, 128, 16, 1, 1): (0.952, 0.989),
    (32, 128, 16, 1, 8): (0.932, 0.989),
    (32, 32, 32, 4, 1): (0.870, 0.906),
    (32, 32, 32, 4, 2): (0.837, 0.890),
    (32, 32, 32, 4, 3): (0.834, 0.890),
    (32, 32, 32, 4, 4): (0.853, 0.905),
    (32, 32, 32, 4, 6): (1.000, 0.881),
    (32, 32, 64, 4, 1): (1.033, 1.059),
    (32, 32, 64, 4, 8): (1.066, 1.035),
    (32, 64, 32, 4, 1): (0.952, 1.010),
    (32, 64, 32, 4, 2): (0.915, 0.990),
    (64, 32, 32, 2, 1): (0.979, 1.033),
    (64, 32, 32, 4, 1): (0.952, 1.010),
    (64, 32, 32, 4, 2): (0.915, 0.990),
    (64, 32, 64, 4, 1): (1.000, 1.400),
    (64, 64, 32, 2, 1): (1.028, 1.036),
    (64, 64, 32, 2, 2): (1.019, 1.013),
    (64, 64, 32, 2, 3): (1.004, 1.012),
    (64, 64, 32, 2, 4): (1.000, 1.008),
    (64, 64, 32, 2, 8): (1.030, 1.039),
    (64, 128, 32, 2, 1): (0.978, 1.080),
    (128, 64, 32, 2, 1): (0.968, 1.080),
    (96, 96, 32, 4, 1): (0.965, 1.080),
    (96, 96, 32, 4, 2): (0.980, 1.090),
    (96, 96, 64, 4, 2): (1.060, 1.200),
    (96, 192, 32, 2, 1): (1.080, 1.250),
    (192, 96, 32, 2, 1): (1.085, 1.130),
}
#: Further factors of the largest tiles, one CTA an SM, where operands are aligned and the result is written by element:
#: 4095 cubed with prepared operands.
_BY_ELEMENT = {128 * 256: 1.08}


class _InGroups(NamedTuple):
    """Further factors of tiles in groups of warps, with operands of a kind; 1 with others."""

    mn_major: float = 1.0
    mn_major_by_element: float = 1.0  #: As the one before, where the result is written by element.


#: By the elements of a tile; in the notebook are the products that they were fitted to, and those that judged them.
_IN_GROUPS = {
    64 * 64: _InGroups(mn_major_by_element=1.06),
    128 * 64: _InGroups(mn_major_by_element=1.06),
    32 * 32: _InGroups(mn_major=0.985),
}
#: Further factors where operands are aligned: by rows, columns, k-tile, groups of warps, and how K-major operands are
#: copied: by elements, as vectors through registers or through slots, or by `wide_copies`, of both or of one; or
#: whether none is K-major, and the result is not written by element.
_COPIED = {
    (32, 128, 16, 1, "mn_major"): 1.03,
    (128, 32, 16, 1, "mn_major"): 1.03,
    (64, 128, 16, 1, "mn_major"): 1.06,
    (64, 128, 16, 1, "elements"): 1.03,
    (64, 128, 16, 1, "vectors"): 1.075,
    (128, 64, 16, 1, "vectors"): 1.045,
    (128, 256, 8, 1, "mn_major"): 1.04,
    (128, 256, 16, 1, "vectors"): 1.013,
    (256, 128, 16, 1, "vectors"): 1.013,
    (128, 64, 8, 1, "elements"): 0.96,
    (64, 64, 32, 2, "elements"): 0.96,
    (32, 32, 32, 4, "elements"): 0.975,
    (32, 32, 32, 4, "wide"): 0.97,
    (32, 32, 32, 4, "wide of one"): 1.04,
    (32, 32, 64, 4, "mn_major"): 0.97,
    (32, 64, 32, 4, "mn_major"): 0.98,
    (64, 32, 32, 4, "mn_major"): 0.985,
    (64, 32, 64, 4, "mn_major"): 1.2,
    (64, 32, 64, 4, "elements"): 1.2,
    (32, 64, 32, 4, "elements"): 0.925,
    (64, 32, 32, 4, "elements"): 0.925,
    (64, 128, 32, 2, "elements"): 0.97,
    (64, 128, 32, 2, "vectors"): 0.96,
    (128, 64, 32, 2, "vectors"): 0.975,
    (32, 64, 32, 4, "slots"): 0.96,
    (64, 32, 32, 4, "slots"): 0.975,
    (32, 32, 32, 4, "slots"): 0.99,
    (32, 32, 64, 4, "slots"): 0.977,
    (64, 32, 32, 2, "slots"): 0.975,
    (64, 64, 16, 1, "slots"): 0.96,
    (64, 64, 32, 2, "slots"): 0.99,
    (64, 128, 16, 1, "slots"): 1.03,
    (128, 64, 16, 1, "slots"): 0.972,
    (128, 128, 16, 1, "slots"): 0.983,
    (96, 96, 32, 4, "slots"): 1.01,
    (96, 96, 64, 4, "mn_major"): 1.01,
    (96, 96, 64, 4, "slots"): 0.99,
    (96, 192, 32, 2, "elements"): 0.975,
    (192, 96, 32, 2, "elements"): 0.98,
    (96, 192, 32, 2, "slots"): 0.975,
    (192, 96, 32, 2, "slots"): 1.0,
    (64, 128, 32, 2, "slots"): 1.015,
    (128, 64, 32, 2, "slots"): 1.03,
}

#: Further ones of the same in clusters.
_CLUSTERED = {
    (64, 64, 16, 1, "slots"): 1.1,
    (64, 64, 32, 2, "slots"): 1.06,
    (128, 64, 16, 1, "slots"): 1.06,
}

#: Further factors where rows of an operand begin anywhere: of clusters, of others with a K-major operand, and of groups
#: of warps with stages of their own.
_UNALIGNED_CLUSTER, _UNALIGNED_K_MAJOR, _UNALIGNED_OWN = 0.94, 0.95, 0.88


def factor_of(
    config: SimtConfig,
    k_major: tuple[bool, bool],
    unaligned: tuple[bool, bool],
    copied: str,
    by_element: bool,
) -> float:
    """Return the measured time of a config by that of the model's limits.

    Parameters
    ----------
    config : SimtConfig
        The config; of complex types only the further factor of the largest tiles is known.
    k_major, unaligned : tuple of bool
        Of A and of B: whether it is K-major, and is copied by element.
    copied : str
        Copies of aligned K-major operands: "elements", "vectors", "slots", "wide" or "wide of one".
    by_element : bool
        Whether the result is written by element.
    """
    complete = config.itemsize == FLOAT32.itemsize
    name = config.tile_m, config.tile_n, config.tile_k, config.warps_k, config.cluster_k
    factor = FACTORS.get(name, (1.0, 1.0))[any(unaligned)] if complete else 1.0
    if by_element and not any(unaligned):
        factor *= _BY_ELEMENT.get(config.tile_elements, 1.0)
    if not complete or (any(k_major) and any(unaligned)):
        return factor
    if any(k_major) or not (by_element or any(unaligned)):
        kind = config.tile_m, config.tile_n, config.tile_k, config.warps_k, copied if any(k_major) else "mn_major"
        factor *= _COPIED.get(kind, 1.0) * (_CLUSTERED.get(kind, 1.0) if config.cluster_k > 1 else 1.0)
    if not any(k_major) and config.warps_k > 1:
        further = _IN_GROUPS.get(config.tile_elements, _InGroups())
        factor *= further.mn_major_by_element if by_element else further.mn_major
    return factor


def unaligned_factor(config: SimtConfig, k_major: tuple[bool, bool], unaligned: tuple[bool, bool]) -> float:
    """Return the further factor of float32 operands of which some are copied by element."""
    if config.itemsize != FLOAT32.itemsize or not any(unaligned):
        return 1.0
    vectors = k_major[0] and not unaligned[0], k_major[1] and not unaligned[1]
    factor = _UNALIGNED_OWN if config.own_stages(vectors, unaligned=True) else 1.0
    if config.cluster_k > 1:
        return factor * _UNALIGNED_CLUSTER
    return factor * (_UNALIGNED_K_MAJOR if any(k_major) else 1.0)
