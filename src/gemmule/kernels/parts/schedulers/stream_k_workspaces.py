"""Workspaces of stream-K: the partial sums of CTAs, and the flags that publish them.

A flag is set where it holds `READY`. Whatever else is in the memory, it is not set: launches need no zeros before
them. Who waits for a flag resets it, and each has one that waits, so that no launch leaves a set flag behind: not for
the next launch, nor for another stream or a replayed graph that is given the same memory.
"""

from __future__ import annotations

from gemmule.core.launch import TensorParam, Workspace

#: A set flag: 64 bits that are no result of arithmetic. As float64 it is a signalling NaN, as a pair of float32 one of
#: them is, and as an integer it is drawn at random: other data holds it with a probability of 2**-64.
READY = 0x7FF4B5C3FFA5C3E1
#: Bytes of a flag.
FLAG_BYTES = 8


def stream_k_workspaces(
    ctas: int, tile_elements: int, itemsize: int, warpgroups: int
) -> tuple[tuple[Workspace, Workspace], tuple[TensorParam, TensorParam]]:
    """Return the workspaces, and the parameters that name them, in the order of `StreamKPartials`.

    Parameters
    ----------
    ctas, tile_elements : int
        CTAs of the grid, each of which has a slot, and elements of a CTA's tile.
    itemsize : int
        Bytes of an accumulator.
    warpgroups : int
        Warpgroups that share a tile: each has its own flag.
    """
    sums, flags = ctas * tile_elements, ctas * warpgroups
    workspaces = Workspace("stream-K partials", sums * itemsize), Workspace("flags", flags * FLAG_BYTES)
    return workspaces, (TensorParam(workspaces[0].name, (sums,), ()), TensorParam(workspaces[1].name, (flags,), ()))
