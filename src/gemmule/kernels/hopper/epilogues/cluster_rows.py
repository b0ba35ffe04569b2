"""Split-K epilogue of a skinny GEMM: threads reduce-scatter the transposed tile's partial sums and write D.

A warpgroup has partial sums of the transposed tile, weights by tokens. The tile's vectors of four contiguous elements
of D are divided among the CTAs of the cluster. Each receives all partial sums of its vectors in its shared memory, adds
them in the order of K, and writes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, cute, select_

from gemmule.kernels.parts.words import words_at

#: Contiguous elements that a thread writes at once, and words between rows, so that a warp's accesses meet all banks.
VECTOR, _PAD = 4, 4


class Received(NamedTuple):
    """The partial sums that a CTA receives."""

    address: Any  #: Int32. Their address in shared memory, the same in every CTA.
    full: Any  #: Pointer. The full barrier, which counts their bytes; not used where there is one CTA.
    cta_k: Any  #: Int32. This CTA's index among those of its cluster, which split K.
    rows: Any  #: Int32. Rows of the tile that are rows of D.


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
    cluster_k, threads : int
        CTAs of the cluster that split its K, and threads of each that write it.
    epilogue : VectorEpilogue or None
        The fused epilogue.
    reads_c : bool
        Whether there is a C.
    """

    def __init__(self, rows: int, cols: int, cluster_k: int, threads: int, epilogue: Any, reads_c: bool) -> None:
        self.rows, self.cols, self.cluster_k, self.threads = rows, cols, cluster_k, threads
        self.epilogue, self.reads_c = epilogue, reads_c
        self.row_words = cols + _PAD

    @property
    def vectors_per_cta(self) -> int:
        """Vectors that a CTA adds and writes of a whole tile."""
        return -(-self.rows * self.cols // VECTOR // self.cluster_k)

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory for the partial sums that a CTA receives."""
        return (
            self.rows * self.row_words * 4
            if self.cluster_k == 1
            else self.cluster_k * self.vectors_per_cta * VECTOR * 4
        )

    @cute.jit
    def vectors_of(self, cta_k, rows):
        """Return the vectors that a CTA adds and writes of a tile of so many rows."""
        return cutlass.max(
            cutlass.min(rows * (self.cols // VECTOR) - cta_k * self.vectors_per_cta, self.vectors_per_cta), 0
        )

    @cute.jit
    def expect(self, full, cta_k, rows):
        """Expect the bytes of all partial sums at a barrier, by one thread."""
        cute.arch.mbarrier_arrive_and_expect_tx(full, self.vectors_of(cta_k, rows) * (self.cluster_k * VECTOR * 4))

    @cute.jit
    def send(self, received, accumulators: cute.Tensor, first_col):
        """Send the CTAs that add them a warp's partial sums of 16 weights from `first_col` on, as wgmma leaves them."""
        address, full, cta_k, rows = received
        lane = cute.arch.lane_idx()
        # Four lanes transpose their four accumulators of a block of 8 rows: each then has a vector of one row.
        vector_in_block = lane // 8
        block_row = lane % 4 * 2 + vector_in_block % 2
        col = first_col + lane // 4 % 2 * 4 + vector_in_block // 2 * 8
        for block in cutlass.range_constexpr(self.rows // 8):
            row = block * 8 + block_row
            vector = transposed(accumulators, 4 * block)
            if cutlass.const_expr(self.cluster_k == 1):
                cute.arch.inline_ptx(
                    "st.shared.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                    read_only_args=[address + (row * self.row_words + col) * 4, *(vector[v] for v in range(VECTOR))],
                )
            elif row < rows:
                index = row * (self.cols // VECTOR) + col // VECTOR
                owner = index // self.vectors_per_cta
                index_in_cta = index - owner * self.vectors_per_cta
                target = address + (cta_k * self.vectors_per_cta + index_in_cta) * (VECTOR * 4)
                cute.arch.inline_ptx(
                    "{\n.reg .b32 remote_addr, remote_mbar;\nmapa.shared::cluster.u32 remote_addr, {$r0}, {$r2};\n"
                    "mapa.shared::cluster.u32 remote_mbar, {$r1}, {$r2};\n"
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                    "[remote_addr], {{$r3}, {$r4}, {$r5}, {$r6}}, [remote_mbar];\n}",
                    read_only_args=[target, full.toint(), Int32(owner), *(vector[v] for v in range(VECTOR))],
                )

    @cute.jit
    def write(self, received, thread, result, first_row, first_col):
        """Write this CTA's vectors of a tile, a linear combination or a fused epilogue.

        Parameters
        ----------
        received : Received
            The partial sums.
        thread : Int32
            This thread's index among those that write.
        result : tuple
            C and D (M, N), alpha and beta, and the launch arguments of a fused epilogue.
        first_row, first_col : Int32
            The first row and column of the tile.
        """
        _, mD, _, aux_args = result
        vectors_per_row = cutlass.const_expr(self.cols // VECTOR)
        vectors = self.vectors_of(received.cta_k, cutlass.min(self.rows, mD.shape[0] - first_row))
        for index in cutlass.range(thread, vectors, self.threads):
            vector = received.cta_k * self.vectors_per_cta + index
            row, col = vector // vectors_per_row, vector % vectors_per_row * VECTOR
            if cutlass.const_expr(self.cluster_k == 1):
                sums = self.added(received.address + (row * self.row_words + col) * 4)
            else:
                sums = self.added(received.address + index * (VECTOR * 4))
            if first_col + col < mD.shape[1]:
                self.write_vector(result, (first_row + row, first_col + col), sums)
        if cutlass.const_expr(self.epilogue is not None):
            self.epilogue.end(aux_args)

    @cute.jit
    def added(self, address):
        """Return four elements, the partial sums of all parts of K added in their order."""
        parts = [
            cute.arch.inline_ptx(
                "ld.shared.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                write_only_types=[Float32] * VECTOR,
                read_only_args=[address + cta_k * (self.vectors_per_cta * VECTOR * 4)],
            )
            for cta_k in range(self.cluster_k)
        ]
        sums = cute.make_rmem_tensor(cute.make_layout(VECTOR), Float32)
        for v in cutlass.range_constexpr(VECTOR):
            total = parts[0][v]
            for cta_k in cutlass.range_constexpr(1, self.cluster_k):
                total = total + parts[cta_k][v]
            sums[v] = total
        return sums

    @cute.jit
    def write_vector(self, result, coord, sums: cute.Tensor):
        """Write four contiguous elements, of which the first is inside of D: at once where they are aligned."""
        (mC, mD, (alpha, beta), aux_args), (row, col) = result, coord
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
            values = self.epilogue.values(sums, None, addend, aux_args, coord, mD, alpha, beta)
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
