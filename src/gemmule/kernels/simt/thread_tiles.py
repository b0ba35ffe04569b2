"""A thread's square of sums: where its rows and columns lie in the tile of its CTA, and how it is written."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from .stages import RUN
from .vectors import write_run


@cute.jit
def spread(place, index: cutlass.Constexpr[int], places: cutlass.Constexpr[int]):
    """Return row (or column) `index` of the thread at `place` of `places`: its runs of 4 lie `places` runs apart."""
    return (index // RUN * places + place) * RUN + index % RUN


@cute.jit
def write_square(mD: cute.Tensor, mC: cute.Tensor, rC: cute.Tensor, m0, n0, scalars, kernel: cutlass.Constexpr[Any]):
    """Write a square of the tile at (m0, n0), run by run, with scalars (alpha, beta).

    `kernel` says where: ``row(i)`` and ``col(j)`` of the calling thread, and whether tiles are ``whole``.
    """
    for i in cutlass.range_constexpr(cute.size(rC, mode=[0])):
        for j in cutlass.range_constexpr(0, cute.size(rC, mode=[1]), RUN):
            run = cute.make_rmem_tensor(cute.make_layout(RUN), rC.element_type)
            for v in cutlass.range_constexpr(RUN):
                run[v] = rC[i, j + v]
            write_run(mD, mC, m0 + kernel.row(i), n0 + kernel.col(j), run, *scalars, kernel.whole)
