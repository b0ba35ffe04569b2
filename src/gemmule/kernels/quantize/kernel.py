"""Quantisation: 16- or 32-bit floats become 8-bit floats with scales, in one reading where the parts are small.

Idea
    The scale of a part is its largest magnitude over the largest 8-bit float. A part stays in registers between the
    maximum and the rounding: 128 elements in those of 16 lanes, a row in those of a CTA. A scale of everything needs
    two launches: the maximum of all, by atomics, then the rounding.
Data movement
    Each element is read once, twice for a scale of everything and for rows that registers do not hold, and one byte is
    written of it. Lanes read vectors of 8 elements, all of a thread's in flight at once.
Limits
    Memory.
Sources
    NVIDIA, PTX ISA: cvt, redux; OCP Microscaling Formats (MX) v1.0: E8M0.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint8, Uint32, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.block_scales import BLOCK
from gemmule.core.quantize_problem import LEAST_SCALE
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.absolute_maximum import fake_absmax
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.parts.words import words_at

from .config import LANES, ROWS, VECTOR, QuantizeConfig

_WARP, _MAGNITUDE, _MANTISSA_BITS, _LARGEST_EXPONENT = 32, 0x7FFFFFFF, 23, 255


class Quantize:
    """Q[i, j] = X[i, j] / S[part] for a matrix.

    Parameters
    ----------
    config : QuantizeConfig
        Threads of a CTA, and vectors that each of them has at once.
    types : dict
        The signature: ``by``, the parts, or ``absmax`` for the maximum of all alone; the types of X, Q and the scales;
        and ``vectors``, whether rows are read and written in whole vectors.
    largest : float
        The largest 8-bit float.
    """

    def __init__(self, config: QuantizeConfig, types: dict[str, str], largest: float) -> None:
        self.by, self.element, self.narrow = types["by"], cute_type(types["x"]), cute_type(types["q"])
        self.exponents, self.in_vectors = types["scales"] == "uint8", types["vectors"] == "yes"
        self.threads, self.vectors, self.largest = config.threads, config.vectors, largest

    @cute.jit
    def __call__(self, mX: cute.Tensor, mQ, mS, absmax, grid: Int32):
        self.kernel(mX, mQ, mS, absmax).launch(grid=(grid, 1, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mQ, mS, absmax):
        overlap_predecessor()
        shared = None
        if cutlass.const_expr(self.by in ("row", "absmax")):
            shared = SmemAllocator().allocate_tensor(Int32, cute.make_layout(self.threads // _WARP), 16)
        if cutlass.const_expr(self.by == "row"):
            self.row(mX, mQ, mS, shared)
        else:
            self.parts(mX, mQ, mS, absmax, shared)

    @cute.jit
    def parts(self, mX: cute.Tensor, mQ, mS, absmax, shared):
        """Quantise a tile: of each of `ROWS` rows as many blocks as a thread has vectors, by 16 lanes a row."""
        tid, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        # One, of a matrix without elements.
        tiles = cutlass.max(cute.ceil_div(mX.shape[1], BLOCK * self.vectors), 1)
        row = index // tiles * ROWS + tid // LANES
        col = index % tiles * (BLOCK * self.vectors) + tid % LANES * VECTOR
        cols = mX.shape[1] if row < mX.shape[0] else Int32(0)
        values = self.load(mX, row, col, cols, BLOCK)
        if cutlass.const_expr(self.by == "block"):
            for v in cutlass.range_constexpr(self.vectors):
                most = self.most(values, v)
                for step in cutlass.range_constexpr(4):
                    other = cute.arch.shuffle_sync_bfly(most, offset=LANES >> (step + 1))
                    most = Int32(select_(other > most, other, most))
                scale = self.scale(most)
                self.write(values, v, scale, mQ, row, col + v * BLOCK, cols)
                if tid % LANES == 0 and col + v * BLOCK < cols:
                    self.write_scale(mS, scale, row, (col + v * BLOCK) // BLOCK)
        elif cutlass.const_expr(self.by == "absmax"):
            most = self.most_of_cta(values, shared)
            if tid == 0:
                cute.arch.atomic_max(absmax.iterator, most, sem="relaxed", scope="gpu")
        else:
            scale = self.scale(absmax[0])
            for v in cutlass.range_constexpr(self.vectors):
                self.write(values, v, scale, mQ, row, col + v * BLOCK, cols)
            if index == 0 and tid == 0:
                self.write_scale(mS, scale, Int32(0), Int32(0))

    @cute.jit
    def row(self, mX: cute.Tensor, mQ, mS, shared: cute.Tensor):
        """Quantise a row; one that registers do not hold is read again."""
        tid, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        cols, step = mX.shape[1], cutlass.const_expr(self.threads * VECTOR * self.vectors)
        first = tid * VECTOR
        values = self.load(mX, row, first, cols, self.threads * VECTOR)
        most = self.most_of_thread(values)
        for start in cutlass.range(step, cols, step, unroll=1):
            further = self.load(mX, row, start + first, cols, self.threads * VECTOR)
            most = self.larger(most, self.most_of_thread(further))
        scale = self.scale(self.of_cta(most, shared))
        for v in cutlass.range_constexpr(self.vectors):
            self.write(values, v, scale, mQ, row, first + v * self.threads * VECTOR, cols)
        for start in cutlass.range(step, cols, step, unroll=1):
            values_again = self.load(mX, row, start + first, cols, self.threads * VECTOR)
            for v in cutlass.range_constexpr(self.vectors):
                self.write(values_again, v, scale, mQ, row, start + first + v * self.threads * VECTOR, cols)
        if tid == 0:
            self.write_scale(mS, scale, row, Int32(0))

    @cute.jit
    def load(self, mX: cute.Tensor, row, col, cols, step: cutlass.Constexpr[int]):
        """Load this thread's vectors, with a stride of `step` columns; elements past the edge are zero."""
        values = cute.make_rmem_tensor(cute.make_layout((VECTOR, self.vectors)), self.element)
        words = cutlass.const_expr(VECTOR * self.element.width // 32)
        values.fill(self.element(0))
        for v in cutlass.range_constexpr(self.vectors):
            at = col + v * step
            if cutlass.const_expr(self.in_vectors):
                if at < cols:
                    start = mX.iterator + cute.crd2idx((row, at), mX.layout)
                    for part in cutlass.range_constexpr(words // 4):
                        target = cute.recast_tensor(values[None, v], Uint32)
                        loaded = cute.make_tensor(target.iterator + 4 * part, cute.make_layout(4))
                        cute.autovec_copy(words_at(start + part * VECTOR // (words // 4), 4), loaded)
            else:
                for e in cutlass.range_constexpr(VECTOR):
                    if at + e < cols:
                        values[e, v] = mX[row, at + e]
        return values

    def most(self, values: Any, v: int) -> Any:
        """Return the largest magnitude of a vector, as the integer of its bits: NaN is above infinity."""
        wide = [values[e, v].to(Float32).bitcast(Int32) & _MAGNITUDE for e in range(VECTOR)]
        while len(wide) > 1:
            wide = [self.larger(*wide[i : i + 2]) for i in range(0, len(wide), 2)]
        return wide[0]

    @staticmethod
    def larger(first: Any, second: Any) -> Any:
        """Return the larger of two integers."""
        return Int32(select_(first > second, first, second))

    def most_of_thread(self, values: Any) -> Any:
        """Return the largest magnitude of a thread's vectors."""
        found = self.most(values, 0)
        for v in range(1, self.vectors):
            found = self.larger(found, self.most(values, v))
        return found

    def most_of_cta(self, values: Any, shared: Any) -> Any:
        """Return the largest magnitude of a CTA's vectors."""
        return self.of_cta(self.most_of_thread(values), shared)

    @cute.jit
    def of_cta(self, most, shared: cute.Tensor):
        """Return the largest of all threads' integers."""
        tid, _, _ = cute.arch.thread_idx()
        most = cute.arch.warp_redux_sync(most, "max")
        if tid % _WARP == 0:
            shared[tid // _WARP] = most
        cute.arch.sync_threads()
        for warp in cutlass.range_constexpr(self.threads // _WARP):
            other = shared[warp]
            most = Int32(select_(other > most, other, most))
        return most

    def scale(self, most: Any) -> Any:
        """Return the scale for a largest magnitude, given by its bits; where exponents are stored, rounded up."""
        found = Int32(most).bitcast(Float32) / Float32(self.largest)
        # NaN stays, as the comparison is false.
        found = Float32(select_(found < LEAST_SCALE, Float32(LEAST_SCALE), found))
        if not self.exponents:
            return found
        exponent = found.bitcast(Uint32) + Uint32((1 << _MANTISSA_BITS) - 1) >> _MANTISSA_BITS
        # For NaN the addition carries into the sign.
        exponent = Uint32(select_(exponent > _LARGEST_EXPONENT, Uint32(_LARGEST_EXPONENT), exponent))
        return (exponent << _MANTISSA_BITS).bitcast(Float32)

    @cute.jit
    def write_scale(self, mS: cute.Tensor, scale, row, col):
        """Write a scale, by its exponent where it is a power of two."""
        if cutlass.const_expr(self.exponents):
            mS[row, col] = Uint8(Float32(scale).bitcast(Uint32) >> _MANTISSA_BITS)
        else:
            mS[row, col] = scale

    @cute.jit
    def write(self, values: cute.Tensor, v: cutlass.Constexpr[int], scale, mQ: cute.Tensor, row, col, cols):
        """Round a vector over the scale, and write what is inside."""
        inverse = Float32(1) / scale
        found = cute.make_rmem_tensor(cute.make_layout(VECTOR), self.narrow)
        found.store((values[None, v].load().to(Float32) * inverse).to(self.narrow))
        if cutlass.const_expr(self.in_vectors):
            if col < cols:
                words = cutlass.const_expr(VECTOR // 4)
                start = mQ.iterator + cute.crd2idx((row, col), mQ.layout)
                cute.autovec_copy(cute.recast_tensor(found, Uint32), words_at(start, words))
        else:
            for e in cutlass.range_constexpr(VECTOR):
                if col + e < cols:
                    mQ[row, col + e] = found[e]


def _fake_tensor(name: str, vector: int, unit: bool) -> Any:
    element = cute_type(name)
    extents, last = tuple(cute.sym_int32() for _ in range(2)), 1 if unit else cute.sym_int64()
    strides = (cute.sym_int64(divisibility=vector), last)
    return cute.runtime.make_fake_tensor(element, extents, strides, assumed_align=vector * element.width // 8)


def buildable(config: QuantizeConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those types, with fake arguments."""
    in_vectors, absmax = types["vectors"] == "yes", types["by"] in ("absmax", "tensor")
    wide = cute_type(types["x"])
    x = _fake_tensor(types["x"], 128 // wide.width if in_vectors else 1, in_vectors)
    q, scales = None, None
    if types["by"] != "absmax":
        q = _fake_tensor(types["q"], VECTOR if in_vectors else 1, True)
        scales = _fake_tensor(types["scales"], 1, False)
    kernel = Quantize(config, types, float(types["largest"]))
    return Buildable(kernel, (x, q, scales, fake_absmax() if absmax else None, Int32(1)))
