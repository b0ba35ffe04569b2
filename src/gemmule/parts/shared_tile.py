"""The end of a tile whose parts along K lie in the shared memory of a cluster's CTAs: added up, and written in runs.

A warpgroup leaves its sums of the transposed tile, weights by tokens, in lines of tokens. Then every CTA of the cluster
takes a share of all runs of four neighbours, reads them from each CTA in the order of K, and writes them.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from .narrow_slices import line_of
from .words import words_at

#: Neighbours that a thread writes at once, and words between lines, so that lanes of a fragment meet all banks.
RUN, _PAD = 4, 4


class SharedTile:
    """A tile of `cols` weights by `rows` tokens.

    Parameters
    ----------
    rows, cols : int
        Its extents in the result.
    ctas, threads : int
        CTAs of the cluster that have parts of it, and threads of each that write it.
    epilogue : RunEpilogue or None
        What is computed of it.
    reads_c : bool
        Whether there is a C.
    """

    def __init__(self, rows: int, cols: int, ctas: int, threads: int, epilogue: Any, reads_c: bool) -> None:
        self.rows, self.cols, self.ctas, self.threads = rows, cols, ctas, threads
        self.epilogue, self.reads_c = epilogue, reads_c
        self.pitch = cols + _PAD

    @cute.jit
    def leave(self, start, sums: cute.Tensor, first_col):
        """Leave a warp's sums of 16 weights from `first_col` on, flat as wgmma has them, at an address."""
        lane = cute.arch.lane_idx()
        place = start + (lane % 4 * 2 * self.pitch + first_col + line_of(lane // 4)) * 4
        for block in cutlass.range_constexpr(self.rows // 8):
            for v in cutlass.range_constexpr(4):
                to = ((block * 8 + v % 2) * self.pitch + v // 2 * 8) * 4
                cute.arch.inline_ptx("st.shared.f32 [{$r0}], {$r1};", read_only_args=[place + to, sums[4 * block + v]])

    @cute.jit
    def write(self, start, rank, me, mD: cute.Tensor, mC: cute.Tensor, first_row, first_col, extras, alpha, beta):
        """Write this CTA's share of the tile whose corner is given, D = alpha * sums + beta * C or what else is asked.

        Parameters
        ----------
        start : Int32
            Where the sums lie in shared memory, the same in every CTA.
        rank, me : Int32
            The numbers of this CTA in its cluster and of this thread among those that write.
        """
        across = cutlass.const_expr(self.cols // RUN)
        runs = cutlass.min(self.rows, mD.shape[0] - first_row) * across
        share = cute.ceil_div(runs, self.ctas)
        for number in cutlass.range(rank * share + me, cutlass.min((rank + 1) * share, runs), self.threads):
            row, col = number // across, number % across * RUN
            sums = self.added(start + (row * self.pitch + col) * 4)
            if first_col + col < mD.shape[1]:
                self.write_run(mD, mC, (first_row + row, first_col + col), sums, extras, alpha, beta)
        if cutlass.const_expr(self.epilogue is not None):
            self.epilogue.end(extras)

    @cute.jit
    def added(self, place):
        """Return four sums, parts of K in their order."""
        parts = []
        for cta in cutlass.range_constexpr(self.ctas):
            where = place
            if cutlass.const_expr(self.ctas > 1):
                where = cute.arch.inline_ptx(
                    "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
                    write_only_types=[Int32],
                    read_only_args=[place, Int32(cta)],
                )
            space = cutlass.const_expr("shared::cluster" if self.ctas > 1 else "shared")
            parts.append(
                cute.arch.inline_ptx(
                    f"ld.{space}.v4.f32 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}}];",
                    write_only_types=[Float32] * RUN,
                    read_only_args=[where],
                )
            )
        sums = cute.make_rmem_tensor(cute.make_layout(RUN), Float32)
        for v in cutlass.range_constexpr(RUN):
            total = parts[0][v]
            for cta in cutlass.range_constexpr(1, self.ctas):
                total = total + parts[cta][v]
            sums[v] = total
        return sums

    @cute.jit
    def write_run(self, mD, mC, at, sums: cute.Tensor, extras, alpha, beta):
        """Write four neighbours, of which the first is inside of the result: at once where that may be."""
        row, col = at
        out = mD.element_type
        start = mD.iterator + cute.crd2idx((row, col), mD.layout)
        inside = cutlass.min(mD.shape[1] - col, RUN)
        addend = cute.make_rmem_tensor(cute.make_layout(RUN), out)
        addend.fill(out(0))
        if cutlass.const_expr(self.reads_c):
            for v in cutlass.range_constexpr(RUN):
                if v < inside:
                    addend[v] = mC[row, col + v]
        if cutlass.const_expr(self.epilogue is not None):
            values = self.epilogue.values(sums, None, addend, extras, at, mD, alpha, beta)
        else:
            values = cute.make_rmem_tensor(cute.make_layout(RUN), Float32)
            for v in cutlass.range_constexpr(RUN):
                values[v] = alpha * sums[v]
                if cutlass.const_expr(self.reads_c):
                    values[v] = values[v] + beta * addend[v].to(Float32)
        run = cute.make_rmem_tensor(cute.make_layout(RUN), out)
        run.store(values.load().to(out))
        size = cutlass.const_expr(RUN * out.width // 8)
        if inside == RUN and start.toint() % size == 0:
            packed = cute.recast_tensor(run, cutlass.Uint32)
            cute.autovec_copy(packed, words_at(start, size // 4))
        else:
            for v in cutlass.range_constexpr(RUN):
                if v < inside:
                    mD[row, col + v] = run[v]
