"""Special registers: the position of a thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.types import Array

from .batch import Batch

_AXES = "xyz"
#: SMs for %smid and %nsmid.
_MULTIPROCESSORS = 132
#: Registers that change while the thread runs; `mov` reads them from the batch.
CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


def fill_specials(batch: Batch) -> None:
    """Fill the rows of the special registers that the kernel reads."""
    binder = batch.binder
    for name, register in binder.specials.items():
        if name not in CLOCKS:
            width, row = binder.row(register)
            batch.register_file.rows[width][row] = value_of(batch, name)


def value_of(batch: Batch, name: str) -> Array:
    """Return a special register's value in every lane."""
    geometry = batch.geometry
    thread = batch.thread_of_lane
    cta = np.array(batch.ctas)[batch.cta_of_lane]
    stem, _, axis = name.removeprefix("%").partition(".")
    lane = thread % 32
    constants = {
        "nwarpid": geometry.warps,
        "nsmid": _MULTIPROCESSORS,
        "gridid": 1,
        "cluster_nctarank": geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2],
        "is_explicit_cluster": int(geometry.cluster != (1, 1, 1)),
        "dynamic_smem_size": batch.launch_state.shared_bytes,
        "total_smem_size": batch.shared_end,
        "WARP_SZ": 32,
    }
    if stem in constants:
        return np.full(len(thread), constants[stem])
    if axis:
        number = _AXES.index(axis)
        cluster_of = _along(cta, geometry.grid, number)
        along: dict[str, Any] = {
            "ntid": geometry.block[number],
            "nctaid": geometry.grid[number],
            "cluster_nctaid": geometry.cluster[number],
            "nclusterid": -(-geometry.grid[number] // geometry.cluster[number]),
            "tid": _along(thread, geometry.block, number),
            "ctaid": cluster_of,
            "cluster_ctaid": cluster_of % geometry.cluster[number],
            "clusterid": cluster_of // geometry.cluster[number],
        }
        return np.full(thread.shape, along[stem])
    if stem == "cluster_ctarank":
        rank = np.zeros_like(cta)
        for number in (2, 1, 0):
            rank = rank * geometry.cluster[number] + _along(cta, geometry.grid, number) % geometry.cluster[number]
        return rank
    one = np.left_shift(1, lane)
    by_lane: dict[str, Array] = {
        "laneid": lane,
        "warpid": thread // 32,
        "smid": cta % _MULTIPROCESSORS,
        "lanemask_eq": one,
        "lanemask_lt": one - 1,
        "lanemask_le": 2 * one - 1,
        "lanemask_gt": 2**32 - 2 * one,
        "lanemask_ge": 2**32 - one,
    }
    return by_lane[stem]


def _along(linear: Array, extents: tuple[int, int, int], number: int) -> Array:
    """Return a coordinate of linear numbers, x fastest."""
    if number == 0:
        return linear % extents[0]
    if number == 1:
        return linear // extents[0] % extents[1]
    return linear // (extents[0] * extents[1])
