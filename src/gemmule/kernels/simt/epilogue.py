"""Epilogue of the float32 and int32 GEMM: D = alpha * AB + beta * C, or a function of it, written from thread tiles.

Where rows of D are multiples of 16 bytes, eight lanes write 128 contiguous bytes of one: whole sectors, without a pass
through shared memory. Where rows begin anywhere, elements are written one by one: those of a thread tile would be 8 of
the 32 bytes of 16 or more sectors a store, so that warps exchange them in shared memory, and write 32 contiguous
elements of a row, which are in 5 sectors.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
from cutlass import Float32, Int64, cute

from gemmule.core.dataclass import dataclass

from .config import LANES_M, LANES_N, VECTOR, SimtConfig
from .thread_tiles import lane_column, lane_row

_ITEM = Float32.width // 8
_LANES = LANES_M * LANES_N
#: Vectors of a line of shared memory.
_LINE = 8


@dataclass(frozen=True)
class SimtEpilogue:
    """Writes of a thread tile.

    Attributes
    ----------
    config : SimtConfig
        The tile.
    vector : int
        Elements of D (and C) that are read and written at once, 1 or 4: they divide its rows.
    whole : bool
        Whether all of the tile is inside the matrix.
    fused : VectorEpilogue or None
        Function of each element.
    rotated : bool
        Whether each four columns of a thread tile are rotated by one. Shared memory takes them by vectors, of four
        consecutive registers. Unrotated these are in the banks of the columns' fragments, and up to 12 of 100 FMAs wait
        for a register.
    interleaved : bool
        Whether lanes are interleaved (`lane_row`).
    number : type
        Type of the accumulators.
    """

    config: SimtConfig
    vector: int
    whole: bool
    fused: Any = None
    rotated: bool = False
    interleaved: bool = False
    number: Any = Float32

    def place(self, column: Any) -> Any:
        """Return the place of a column of the accumulators."""
        return column // VECTOR * VECTOR + (column + VECTOR - 1) % VECTOR if self.rotated else column

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, corner, first, scalars, extras=None):
        """Write D = alpha * rC + beta * C, or a fused epilogue of it, for rows of a thread tile.

        Parameters
        ----------
        gD, gC : Tensor
            Row-major matrices; C is read only where beta is not 0.
        rC : Tensor
            Accumulators, (rows, columns), each column in its place (`place`).
        corner : tuple of Int32
            First row and column of the thread tile.
        first : int or Int32
            Row of the thread tile that `rC` begins with.
        scalars : tuple
            Alpha and beta.
        extras : tuple or None
            Inputs of the fused epilogue.
        """
        alpha, beta = scalars
        rows, cols = cutlass.const_expr((cute.size(rC, mode=[0]), cute.size(rC, mode=[1])))
        lanes_m, lanes_n = self.config.lanes
        for i in cutlass.range_constexpr(rows):
            number = first + i
            row = corner[0] + number // VECTOR * (lanes_m * VECTOR) + number % VECTOR
            # All loads of C that a row needs are issued before its stores.
            addends = cute.make_rmem_tensor(cute.make_layout(cols), gC.element_type)
            addends.fill(gC.element_type(0))
            if beta != 0:
                for j in cutlass.range_constexpr(0, cols, self.vector):
                    at = row, corner[1] + (j // VECTOR * (lanes_n * VECTOR) + j % VECTOR)
                    if self.inside(gC, at):
                        vector = cute.make_tensor(addends.iterator + j, cute.make_layout(self.vector))
                        cute.autovec_copy(self.vector_at(gC, at), vector)
            values = cute.make_rmem_tensor(cute.make_layout(cols), self.number)
            if cutlass.const_expr(self.fused is not None):
                # So are those of inputs.
                for j in cutlass.range_constexpr(0, cols, self.vector):
                    at = row, corner[1] + (j // VECTOR * (lanes_n * VECTOR) + j % VECTOR)
                    products = cute.make_rmem_tensor(cute.make_layout(self.vector), self.number)
                    for v in cutlass.range_constexpr(self.vector):
                        products[v] = rC[i, self.place(j + v)]
                    addend = cute.make_tensor(addends.iterator + j, cute.make_layout(self.vector))
                    found = self.fused.values(products, None, addend, extras, at, gD, alpha, beta)
                    for v in cutlass.range_constexpr(self.vector):
                        values[j + v] = found[v]
            for j in cutlass.range_constexpr(0, cols, self.vector):
                at = row, corner[1] + (j // VECTOR * (lanes_n * VECTOR) + j % VECTOR)
                if self.inside(gD, at):
                    written = cute.make_rmem_tensor(cute.make_layout(self.vector), self.number)
                    for v in cutlass.range_constexpr(self.vector):
                        if cutlass.const_expr(self.fused is None):
                            written[v] = alpha * rC[i, self.place(j + v)] + beta * addends[j + v].to(self.number)
                        else:
                            written[v] = values[j + v]
                    self.store(gD, at, written)

    @cute.jit
    def write_rows(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, tile, first, staging, scalars, extras=None):
        """Do as `write`, by elements, through shared memory: consecutive lanes write consecutive elements of a row.

        Parameters
        ----------
        gD, gC, rC, first, scalars, extras
            As of `write`.
        tile : tuple of Int32
            First row and column of the CTA's tile.
        staging : Int32
            Address of `SimtConfig.staging_bytes` in shared memory, which no thread of the CTA reads or writes any more.
        """
        alpha, beta = scalars
        config, (rows, cols) = self.config, cutlass.const_expr((cute.size(rC, mode=[0]), cute.size(rC, mode=[1])))
        warp_n = cutlass.const_expr(config.tile_n // config.warps_n)
        together = cutlass.const_expr(math.gcd(rows, VECTOR))
        lanes_m, lanes_n = config.lanes
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // _LANES, tid % _LANES
        buffer = staging + warp * (lanes_m * together * warp_n * _ITEM)
        warp = warp % (config.warps_m * config.warps_n)
        own = buffer + (self.own_row(lane) * (together * warp_n) + self.own_column(lane) * VECTOR) * _ITEM
        row_0 = tile[0] + warp // config.warps_n * (config.tile_m // config.warps_m)
        col_0 = tile[1] + warp % config.warps_n * warp_n + lane
        pieces = cutlass.const_expr(warp_n // _LANES)
        stride = Int64(gD.stride[0]) * (gD.element_type.width // 8)
        for begin in cutlass.range_constexpr(0, rows, together):
            for i in cutlass.range_constexpr(together):
                for j in cutlass.range_constexpr(0, cols, VECTOR):
                    vector = cute.make_tensor(rC.iterator + (begin + i) * cols + j, cute.make_layout(VECTOR))
                    # The vectors of a thread are whole lines apart, or in one line, where rows are swizzled.
                    column = cutlass.const_expr(j * lanes_n * _ITEM)
                    address = (own + column if lanes_n == _LINE else own ^ column) + i * (warp_n * _ITEM)
                    cute.autovec_copy(vector, _shared(self.number, address, VECTOR))
            number = first + begin
            row_1 = row_0 + (number // VECTOR * (lanes_m * VECTOR) + number % VECTOR)
            # Rows that are left from here on: of columns that are inside, else none.
            left = [gD.shape[0] - row_1 if col_0 + p * _LANES < gD.shape[1] else 0 for p in range(pieces)]
            place = (gD.iterator + cute.crd2idx((row_1, col_0), gD.layout)).toint()
            cute.arch.sync_warp()
            for lane_m in cutlass.range_constexpr(lanes_m):
                # All reads of shared memory and of C come before the stores of a few rows.
                products = cute.make_rmem_tensor(cute.make_layout((pieces, together)), self.number)
                addends = cute.make_rmem_tensor(cute.make_layout((pieces, together)), gC.element_type)
                addends.fill(gC.element_type(0))
                for i in cutlass.range_constexpr(together):
                    for p in cutlass.range_constexpr(pieces):
                        column = p * _LANES + self.staged(self.place(lane), lane_m)
                        address = buffer + ((lane_m * together + i) * warp_n + column) * _ITEM
                        products[p, i] = _shared(self.number, address, 1)[0]
                if beta != 0:
                    for i in cutlass.range_constexpr(together):
                        for p in cutlass.range_constexpr(pieces):
                            at = row_1 + (lane_m * VECTOR + i), col_0 + p * _LANES
                            if self.inside(gC, at):
                                addends[p, i] = gC[at]
                if cutlass.const_expr(self.fused is not None):
                    for i in cutlass.range_constexpr(together):
                        for p in cutlass.range_constexpr(pieces):
                            at = row_1 + (lane_m * VECTOR + i), col_0 + p * _LANES
                            number = cutlass.const_expr(i * pieces + p)
                            product = cute.make_tensor(products.iterator + number, cute.make_layout(1))
                            addend = cute.make_tensor(addends.iterator + number, cute.make_layout(1))
                            found = self.fused.values(product, None, addend, extras, at, gD, alpha, beta)
                            products[p, i] = found[0]
                for i in cutlass.range_constexpr(together):
                    row = cutlass.const_expr(lane_m * VECTOR + i)
                    for p in cutlass.range_constexpr(pieces):
                        at = row_1 + row, col_0 + p * _LANES
                        value = cute.make_tensor(products.iterator + (i * pieces + p), cute.make_layout(1))
                        if cutlass.const_expr(self.fused is None):
                            value[0] = alpha * value[0] + beta * addends[p, i].to(self.number)
                        if cutlass.const_expr(gD.element_type is Float32):
                            _store_if_left(place, p * _LANES * _ITEM, value[0], left[p], row)
                        elif row < left[p]:
                            self.store(gD, at, value)
                    place += stride
                place += stride * (VECTOR - together)
            cute.arch.sync_warp()

    def own_row(self, lane: Any) -> Any:
        """Return the row of a lane in shared memory."""
        return lane_row(lane, self.config.lanes, self.interleaved)

    def own_column(self, lane: Any) -> Any:
        """Return the column of a lane's vectors in shared memory."""
        column = lane_column(lane, self.config.lanes, self.interleaved)
        return column ^ self.swizzle(self.own_row(lane)) if self.interleaved else column

    def staged(self, column: Any, row: int) -> Any:
        """Return where in shared memory a column of a lane's row is."""
        return column ^ self.swizzle(row) * VECTOR if self.interleaved else column

    def swizzle(self, row: Any) -> Any:
        """Return what the row of an interleaved lane changes (xor) in the places of its vectors.

        Eight interleaved lanes store vectors of two rows and four columns, or of four rows and two columns: each row
        to other banks.
        """
        lanes_m, lanes_n = self.config.lanes
        return row % 2 * (lanes_n // 2) if lanes_m < lanes_n else row % 4 * 2

    @cute.jit
    def store(self, gD: cute.Tensor, at, vector: cute.Tensor):
        """Store a vector of accumulators in D's type."""
        if cutlass.const_expr(gD.element_type is self.number):
            cute.autovec_copy(vector, self.vector_at(gD, at))
        else:
            self.vector_at(gD, at).store(vector.load().to(gD.element_type))

    @cute.jit
    def inside(self, gX: cute.Tensor, at):
        """Return whether the vector at a place is inside the matrix."""
        return self.whole or (at[0] < gX.shape[0] and at[1] < gX.shape[1])

    @cute.jit
    def vector_at(self, gX: cute.Tensor, at):
        """Return a vector in memory, its address assumed to be aligned for one access."""
        start = gX.iterator + cute.crd2idx(at, gX.layout)
        size = self.vector * gX.element_type.width // 8
        known = cute.make_ptr(gX.element_type, start.toint(), gX.memspace, assumed_align=size)
        return cute.make_tensor(known, cute.make_layout(self.vector))


@cute.jit
def _store_if_left(place, offset: cutlass.Constexpr[int], value, left, row: cutlass.Constexpr[int]):
    """Store a float32 `offset` bytes from a place in device memory, without a branch, if more than `row` are left."""
    cute.arch.inline_ptx(
        f"{{ .reg .pred inside; setp.gt.s32 inside, {{$r2}}, {row}; "
        f"@inside st.global.f32 [{{$r0}}+{offset}], {{$r1}}; }}",
        read_only_args=[place, value, left],
    )


@cute.jit
def _shared(number: cutlass.Constexpr[Any], address, length: cutlass.Constexpr[int]):
    """Return accumulators in shared memory."""
    place = cute.make_ptr(number, address, cute.AddressSpace.smem, assumed_align=length * _ITEM)
    return cute.make_tensor(place, cute.make_layout(length))
