"""Split-K epilogue of a skinny GEMM: partial sums of the transposed tile are exchanged, added, and written by threads.

A warpgroup has partial sums of the transposed tile, weights by tokens. Of all vectors of four contiguous elements of D
each CTA has a share: it receives every CTA's part of it in its shared memory, adds them in the order of K, and writes
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, cute, select_

from gemmule.kernels.parts.words import words_at

#: Contiguous elements that a thread writes at once, and words between rows, so that a warp's accesses meet all banks.
VECTOR, _PAD = 4, 4


class Received(NamedTuple):
    """Where a CTA receives partial sums.

    Attributes
    ----------
    start : Int32
        Where they lie in shared memory, the same in every CTA.
    full : Pointer
        The barrier that counts them; of no use where there is one CTA.
    rank : Int32
        This CTA's number in its cluster.
    rows : Int32
        Rows of the tile that are rows of D.
    """

    start: Any
    full: Any
    rank: Any
    rows: Any


@cute.jit
def transposed(accumulators: cute.Tensor, first: cutlass.Constexpr[int]):
    """Return, of the four accumulators from `first` on of four lanes with contiguous elements, this lane's row."""
    lane = cute.arch.lane_idx()
    vector = cute.make_rmem_tensor(cute.make_layout(VECTOR), Float32)
    for v in cutlass.range_constexpr(VECTOR):
        vector[v] = accumulators[first + v]
    for bit in cutlass.range_constexpr(2):
        # Pairs of lanes exchange halves of pairs of accumulators.
        distance = cutlass.const_expr(1 << bit)
        upper = lane // (8 * distance) % 2 == 1
        for pair in cutlass.range_constexpr(2):
            low = cutlass.const_expr(pair * (2 - bit))
            sent = select_(upper, vector[low], vector[low + distance])
            got = cute.arch.shuffle_sync_bfly(sent, 8 * distance)
            vector[low] = select_(upper, got, vector[low])
            vector[low + distance] = select_(upper, vector[low + distance], got)
    return vector


class SplitKTile:
    """A tile of `cols` weights by `rows` tokens.

    Parameters
    ----------
    rows, cols : int
        Its extents in D.
    ctas, threads : int
        CTAs of the cluster that split its K, and threads of each that write it.
    epilogue : VectorEpilogue or None
        The fused epilogue.
    reads_c : bool
        Whether there is a C.
    """

    def __init__(self, rows: int, cols: int, ctas: int, threads: int, epilogue: Any, reads_c: bool) -> None:
        self.rows, self.cols, self.ctas, self.threads = rows, cols, ctas, threads
        self.epilogue, self.reads_c = epilogue, reads_c
        self.row_words = cols + _PAD

    @property
    def share(self) -> int:
        """Vectors that a CTA has of a whole tile."""
        return -(-self.rows * self.cols // VECTOR // self.ctas)

    @property
    def nbytes(self) -> int:
        """Shared memory for the partial sums of a share."""
        return self.rows * self.row_words * 4 if self.ctas == 1 else self.ctas * self.share * VECTOR * 4

    @cute.jit
    def vectors_of(self, rank, rows):
        """Return the vectors that a CTA has of a tile of so many rows."""
        return cutlass.max(cutlass.min(rows * (self.cols // VECTOR) - rank * self.share, self.share), 0)

    @cute.jit
    def expect(self, full, rank, rows):
        """Expect the bytes of all partial sums at a barrier, by one thread."""
        cute.arch.mbarrier_arrive_and_expect_tx(full, self.vectors_of(rank, rows) * (self.ctas * VECTOR * 4))

    @cute.jit
    def send(self, received, accumulators: cute.Tensor, first_col):
        """Send the CTAs that add them a warp's partial sums of 16 weights from `first_col` on, as wgmma leaves them."""
        start, full, rank, rows = received
        lane = cute.arch.lane_idx()
        # Of the four accumulators of a block that a lane has, it and the adjacent lanes exchange one each.
        own = lane // 8
        row, col = lane % 4 * 2 + own % 2, first_col + lane // 4 % 2 * 4 + own // 2 * 8
        for block in cutlass.range_constexpr(self.rows // 8):
            at = block * 8 + row
            vector = transposed(accumulators, 4 * block)
            if cutlass.const_expr(self.ctas == 1):
                cute.arch.inline_ptx(
                    "st.shared.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                    read_only_args=[start + (at * self.row_words + col) * 4, *(vector[v] for v in range(VECTOR))],
                )
            elif at < rows:
                number = at * (self.cols // VECTOR) + col // VECTOR
                owner = number // self.share
                place = start + (rank * self.share + number - owner * self.share) * (VECTOR * 4)
                cute.arch.inline_ptx(
                    "{\n.reg .b32 place, told;\nmapa.shared::cluster.u32 place, {$r0}, {$r2};\n"
                    "mapa.shared::cluster.u32 told, {$r1}, {$r2};\n"
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                    "[place], {{$r3}, {$r4}, {$r5}, {$r6}}, [told];\n}",
                    read_only_args=[place, full.toint(), Int32(owner), *(vector[v] for v in range(VECTOR))],
                )

    @cute.jit
    def write(self, received, thread, result, first_row, first_col):
        """Write this CTA's share of the tile whose corner is given, a linear combination or a fused epilogue.

        Parameters
        ----------
        received : Received
            The partial sums.
        thread : Int32
            This thread's number among those that write.
        result : tuple
            C and D (M, N), alpha and beta, and the inputs of a fused epilogue.
        first_row, first_col : Int32
            The corner.
        """
        _, mD, _, extras = result
        across = cutlass.const_expr(self.cols // VECTOR)
        vectors = self.vectors_of(received.rank, cutlass.min(self.rows, mD.shape[0] - first_row))
        for number in cutlass.range(thread, vectors, self.threads):
            vector = received.rank * self.share + number
            row, col = vector // across, vector % across * VECTOR
            if cutlass.const_expr(self.ctas == 1):
                sums = self.added(received.start + (row * self.row_words + col) * 4)
            else:
                sums = self.added(received.start + number * (VECTOR * 4))
            if first_col + col < mD.shape[1]:
                self.write_vector(result, (first_row + row, first_col + col), sums)
        if cutlass.const_expr(self.epilogue is not None):
            self.epilogue.end(extras)

    @cute.jit
    def added(self, place):
        """Return four elements, the partial sums of all parts of K added in their order."""
        parts = [
            cute.arch.inline_ptx(
                "ld.shared.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                write_only_types=[Float32] * VECTOR,
                read_only_args=[place + cta * (self.share * VECTOR * 4)],
            )
            for cta in range(self.ctas)
        ]
        sums = cute.make_rmem_tensor(cute.make_layout(VECTOR), Float32)
        for v in cutlass.range_constexpr(VECTOR):
            total = parts[0][v]
            for cta in cutlass.range_constexpr(1, self.ctas):
                total = total + parts[cta][v]
            sums[v] = total
        return sums

    @cute.jit
    def write_vector(self, result, at, sums: cute.Tensor):
        """Write four contiguous elements, of which the first is inside of D: at once where they are aligned."""
        (mC, mD, (alpha, beta), extras), (row, col) = result, at
        out = mD.element_type
        start = mD.iterator + cute.crd2idx((row, col), mD.layout)
        inside = cutlass.min(mD.shape[1] - col, VECTOR)
        addend = cute.make_rmem_tensor(cute.make_layout(VECTOR), out)
        addend.fill(out(0))
        if cutlass.const_expr(self.reads_c):
            for v in cutlass.range_constexpr(VECTOR):
                if v < inside:
                    addend[v] = mC[row, col + v]
        if cutlass.const_expr(self.epilogue is not None):
            values = self.epilogue.values(sums, None, addend, extras, at, mD, alpha, beta)
        else:
            values = cute.make_rmem_tensor(cute.make_layout(VECTOR), Float32)
            for v in cutlass.range_constexpr(VECTOR):
                values[v] = alpha * sums[v]
                if cutlass.const_expr(self.reads_c):
                    values[v] = values[v] + beta * addend[v].to(Float32)
        vector = cute.make_rmem_tensor(cute.make_layout(VECTOR), out)
        vector.store(values.load().to(out))
        size = cutlass.const_expr(VECTOR * out.width // 8)
        if inside == VECTOR and start.toint() % size == 0:
            packed = cute.recast_tensor(vector, cutlass.Uint32)
            cute.autovec_copy(packed, words_at(start, size // 4))
        else:
            for v in cutlass.range_constexpr(VECTOR):
                if v < inside:
                    mD[row, col + v] = vector[v]
