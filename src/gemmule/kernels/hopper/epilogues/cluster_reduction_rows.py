"""The end of a tile that a cluster has sums of: parts are sent to each other, added up, and written in runs.

A warpgroup has sums of the transposed tile, weights by tokens. Of all runs of four neighbours of the result each CTA
has a share: it gets every CTA's part of it in its shared memory, adds them up in the order of K, and writes them.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, select_

from gemmule.kernels.parts.words import words_at

#: Neighbours that a thread writes at once, and words between lines, so that lanes of a fragment meet all banks.
RUN, _PAD = 4, 4


@cute.jit
def turned(sums: cute.Tensor, first: cutlass.Constexpr[int]):
    """Return, of the four sums from `first` on of four lanes that have neighbours, the one of this lane's number."""
    lane = cute.arch.lane_idx()
    run = cute.make_rmem_tensor(cute.make_layout(RUN), Float32)
    for v in cutlass.range_constexpr(RUN):
        run[v] = sums[first + v]
    for bit in cutlass.range_constexpr(2):
        # Pairs of lanes exchange what the other one wants of pairs of sums.
        apart = cutlass.const_expr(1 << bit)
        upper = lane // (8 * apart) % 2 == 1
        for pair in cutlass.range_constexpr(2):
            low = cutlass.const_expr(pair * (2 - bit))
            sent = select_(upper, run[low], run[low + apart])
            got = cute.arch.shuffle_sync_bfly(sent, 8 * apart)
            run[low] = select_(upper, got, run[low])
            run[low + apart] = select_(upper, run[low + apart], got)
    return run


class SharedTile:
    """A tile of `cols` weights by `rows` tokens.

    Parameters
    ----------
    rows, cols : int
        Its extents in the result.
    ctas, threads : int
        CTAs of the cluster that have parts of it, and threads of each that write it.
    epilogue : VectorEpilogue or None
        What is computed of it.
    reads_c : bool
        Whether there is a C.
    """

    def __init__(self, rows: int, cols: int, ctas: int, threads: int, epilogue: Any, reads_c: bool) -> None:
        self.rows, self.cols, self.ctas, self.threads = rows, cols, ctas, threads
        self.epilogue, self.reads_c = epilogue, reads_c
        self.pitch = cols + _PAD

    @property
    def share(self) -> int:
        """Runs that a CTA has of a whole tile."""
        return -(-self.rows * self.cols // RUN // self.ctas)

    @property
    def nbytes(self) -> int:
        """Shared memory for the parts of a share."""
        return self.rows * self.pitch * 4 if self.ctas == 1 else self.ctas * self.share * RUN * 4

    @cute.jit
    def runs_of(self, rank, rows):
        """Return the runs that a CTA has of a tile of so many rows."""
        return cutlass.max(cutlass.min(rows * (self.cols // RUN) - rank * self.share, self.share), 0)

    @cute.jit
    def expect(self, came, rank, rows):
        """Let a barrier count what will come; by one thread."""
        cute.arch.mbarrier_arrive_and_expect_tx(came, self.runs_of(rank, rows) * (self.ctas * RUN * 4))

    @cute.jit
    def give(self, start, sums: cute.Tensor, first_col, came, rank, rows):
        """Bring a warp's sums of 16 weights from `first_col` on, flat as wgmma has them, to where they are added up.

        Parameters
        ----------
        start : Int32
            Where parts lie in shared memory, the same in every CTA.
        sums : Tensor
            This lane's sums.
        came : Pointer
            The barrier that counts them; of no use where there is one CTA.
        rank, rows
            This CTA's number in its cluster, and the rows of the tile that are rows of the result.
        """
        lane = cute.arch.lane_idx()
        # Of the four sums of a block that a lane has, it gets one with its neighbours.
        mine = lane // 8
        row, col = lane % 4 * 2 + mine % 2, first_col + lane // 4 % 2 * 4 + mine // 2 * 8
        for block in cutlass.range_constexpr(self.rows // 8):
            at = block * 8 + row
            run = turned(sums, 4 * block)
            if cutlass.const_expr(self.ctas == 1):
                cute.arch.inline_ptx(
                    "st.shared.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                    read_only_args=[start + (at * self.pitch + col) * 4, *(run[v] for v in range(RUN))],
                )
            elif at < rows:
                number = at * (self.cols // RUN) + col // RUN
                owner = number // self.share
                place = start + (rank * self.share + number - owner * self.share) * (RUN * 4)
                cute.arch.inline_ptx(
                    "{\n.reg .b32 place, told;\nmapa.shared::cluster.u32 place, {$r0}, {$r2};\n"
                    "mapa.shared::cluster.u32 told, {$r1}, {$r2};\n"
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                    "[place], {{$r3}, {$r4}, {$r5}, {$r6}}, [told];\n}",
                    read_only_args=[place, came.toint(), Int32(owner), *(run[v] for v in range(RUN))],
                )

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
        runs = self.runs_of(rank, cutlass.min(self.rows, mD.shape[0] - first_row))
        for number in cutlass.range(me, runs, self.threads):
            run = rank * self.share + number
            row, col = run // across, run % across * RUN
            if cutlass.const_expr(self.ctas == 1):
                sums = self.added(start + (row * self.pitch + col) * 4)
            else:
                sums = self.added(start + number * (RUN * 4))
            if first_col + col < mD.shape[1]:
                self.write_run(mD, mC, (first_row + row, first_col + col), sums, extras, alpha, beta)
        if cutlass.const_expr(self.epilogue is not None):
            self.epilogue.end(extras)

    @cute.jit
    def added(self, place):
        """Return four sums, parts of K in their order."""
        parts = [
            cute.arch.inline_ptx(
                "ld.shared.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                write_only_types=[Float32] * RUN,
                read_only_args=[place + cta * (self.share * RUN * 4)],
            )
            for cta in range(self.ctas)
        ]
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
