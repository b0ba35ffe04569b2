"""Mainloop of the float32 GEMM: copies into MN-major panels, fragments of 4 rows and 4 columns, FMAs."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.cp_async_mainloop import CpAsyncMainloop
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.stage_copies import MaskedCopies
from gemmule.kernels.simt.config import LANES_M, LANES_N, LARGEST, PANEL, SECTOR, VECTOR, VECTOR_BYTES, SimtConfig
from gemmule.kernels.simt.stage import KMajorCopies, KMajorStage, SimtStage, TransposingCopies, VectorCopies
from gemmule.kernels.simt.thread_tiles import multiply_fragments

from .blocks import BlockOrder, multiply_parts, parts, registers
from .interleaved import multiply_and_read

_ALIGNMENT = 1024


@dataclass(frozen=True)
class _Operand:
    """Copies of one operand of a tile.

    Attributes
    ----------
    copies : MaskedCopies
        The copies.
    gmem : Tensor
        The matrix.
    target : Int32
        Address of this thread's first piece in the first stage.
    stride : Int64
        Bytes from one k-tile to the next in device memory.
    inside, last : Int32
        Masks of the copies that are inside the matrix: of k-tiles that are inside it in K, and of the one that is not.
    loaded : Tensor or None
        Vectors of the next k-tile, of an operand that passes through registers.
    """

    copies: MaskedCopies
    gmem: Any
    target: Any
    stride: Any
    inside: Any
    last: Any
    loaded: Any


@dataclass(frozen=True)
class _Tile:
    """A tile's operands, and a thread's registers.

    Attributes
    ----------
    a, b : _Operand
        Copies of A and of B.
    full, k_tiles : Int32
        k-tiles of this CTA that are inside the matrices in K, and all of them.
    start_a, start_b : Int32
        Address of this thread's first vector in the first stage.
    fragments_a, fragments_b : Tensor
        Vectors of rows and of columns of two k: one is read while the other is multiplied.
    accumulators : Tensor
        Accumulators, (rows, columns).
    zero : Int32
        0, which the compiler does not know.
    """

    a: _Operand
    b: _Operand
    full: Any
    k_tiles: Any
    start_a: Any
    start_b: Any
    fragments_a: Any
    fragments_b: Any
    accumulators: Any
    zero: Any


class SimtGemmMainloop(CpAsyncMainloop):
    """The loop over K; a step is one k of each group of warps. It has no branches: masks say which copies are needed.

    Parameters
    ----------
    config : SimtConfig
        Tiles and stages.
    types : dict
        The signature.
    """

    guarded = False
    #: Whether it waits for the predecessor grid before it reads; else the kernel has.
    waits = True
    #: Whether all copies of whole tiles have one bit of the mask.
    one_bit = True
    #: Whether aligned K-major operands may be loaded by vectors.
    takes_vectors = True

    def __init__(self, config: SimtConfig, types: dict[str, str]) -> None:
        self.config, self.cluster_k = config, config.cluster_k
        self.warp_m, self.warp_n = config.tile_m // config.warps_m, config.tile_n // config.warps_n
        self.vector = config.vector
        k_major = types["a_major"] == "k", types["b_major"] == "k"
        allowed = int(types["a_copies"]), int(types["b_copies"])
        aligned = [one and size == VECTOR_BYTES for one, size in zip(k_major, allowed, strict=True)]
        by_vectors = config.by_vectors((aligned[0], aligned[1])) if self.takes_vectors else (False, False)
        sides = ((config.tile_m, LANES_M), (config.tile_n, LANES_N))
        by_four = [one and self.takes_vectors and config.by_four != 2 and config.itemsize == 4 for one in aligned]
        if config.by_four == 6:
            by_four, by_vectors = [by_four[0], by_four[1] and not by_four[0]], (False, by_vectors[1] and by_four[0])
        self.stageA, self.stageB = stages = [
            KMajorStage(extent, config.tile_k, True, config.itemsize, lanes)
            if four
            else SimtStage(extent, config.tile_k, along, config.itemsize, vectors)
            for (extent, lanes), four, along, vectors in zip(sides, by_four, k_major, by_vectors, strict=True)
        ]
        self.by_four = any(by_four) or (config.by_four == 5 and config.itemsize == 4 and min(allowed) == 16)
        self.blocks = self.by_four and config.by_four != 4
        #: Whether copies of an element each transpose an operand.
        self.transposes = any(self.transposed(one) for one in stages)
        self.bytes = self.stageA.stage_bytes + self.stageB.stage_bytes
        self.depth, steps = config.tile_k, config.tile_k // config.warps_k
        super().__init__(config.stages, self.bytes, steps, steps - 1)
        self.whole = types["tiles"] == "whole"
        short = [size < VECTOR_BYTES and not one for one, size in zip(k_major, allowed, strict=True)]
        by_element = any(short) or (self.transposes and types["d_vector"] == "1")
        groups, whole = self.groups(by_element), self.whole and self.one_bit
        sizes = [
            config.itemsize if self.transposed(one) else size for one, size in zip(stages, allowed, strict=True)
        ]
        self.copyA, self.copyB = (
            self.copies_type(one)(one, size, config.threads, groups, whole, isinstance(one, KMajorStage) and config.by_four != 3 and one.depth <= 32)
            for one, size in zip(stages, sizes, strict=True)
        )

    @staticmethod
    def transposed(stage: SimtStage | KMajorStage) -> bool:
        """Return whether copies of an element each transpose an operand."""
        return isinstance(stage, SimtStage) and stage.k_major and not stage.by_vectors

    @staticmethod
    def copies_type(stage: SimtStage | KMajorStage) -> type[MaskedCopies]:
        """Return the copies of an operand."""
        if isinstance(stage, KMajorStage):
            return KMajorCopies
        return VectorCopies if stage.by_vectors else TransposingCopies if stage.k_major else MaskedCopies

    @property
    def resident(self) -> int:
        """CTAs of an SM that the compiler leaves registers for."""
        sides = (self.stageA, self.config.thread_m), (self.stageB, self.config.thread_n)
        by_four = sum(count for stage, count in sides if isinstance(stage, KMajorStage))
        if self.by_four:
            m, n = self.config.thread_m, self.config.thread_n
            by_four = (16 * 2 + (4 * n if n > 4 else 16)) // 2 - m - n
        return self.config.resident(self.copyA.count + self.copyB.count, by_four)

    def groups(self, unaligned: bool) -> int:
        """Return how many steps of a k-tile issue asynchronous copies; `unaligned` says whether some operands are.

        The compiler puts three empty instructions before a copy that follows a read of shared memory.
        """
        config, steps = self.config, self.copy_steps
        if self.by_four or self.stageA.by_vectors or self.stageB.by_vectors:
            return 1
        if unaligned or (self.transposes and (config.tile_k == SECTOR or min(config.tile_m, config.tile_n) == PANEL)):
            return 2
        return 1 if config.tile_elements == LARGEST and config.tile_k > SECTOR and not self.transposes else steps

    @cute.jit
    def multiply_tile(self, gA: cute.Tensor, gB: cute.Tensor, m0, n0, alpha, rank):
        """Return a thread's accumulators, or in a cluster those of this CTA's part of K, and the stages' address.

        Where alpha is 0 the accumulators are zeros, and nothing is read.
        """
        smem = SmemAllocator().allocate(max(self.stages * self.bytes, self.config.staging_bytes), _ALIGNMENT)
        row, col = self.corner()
        rows, cols = cutlass.const_expr((self.config.thread_m, self.config.thread_n))
        rA, rB = self.stageA.fragments(rows), self.stageB.fragments(cols)
        rC = self.accumulators(rows, cols)
        rC.fill(Float32(0))
        if cutlass.const_expr(self.waits):
            wait_for_predecessor()

        stagesA = smem.toint()
        stagesB = stagesA + self.stageA.stage_bytes
        depth = gA.shape[1] if alpha != 0 else 0
        k_tiles, first = cute.ceil_div(depth, self.depth), Int32(0)
        if cutlass.const_expr(self.cluster_k > 1):
            # CTAs of a cluster take consecutive parts of K.
            first, k_tiles = k_tiles * rank // self.cluster_k, k_tiles * (rank + 1) // self.cluster_k
            k_tiles -= first
        a = self.operand(self.copyA, gA, m0, stagesA, depth)
        b = self.operand(self.copyB, gB, n0, stagesB, depth)
        sources = self.copyA.source(gA, m0) + first * a.stride, self.copyB.source(gB, n0) + first * b.stride
        full = k_tiles
        if cutlass.const_expr(not self.whole):
            full = cutlass.min(depth // self.depth - first, k_tiles)
        k0 = self.group() * self.steps
        startA, startB = stagesA + self.stageA.offset(row, k0), stagesB + self.stageB.offset(col, k0)
        zero = Int32(select_(depth < 0, Int32(1), Int32(0)))
        self.accumulate(_Tile(a, b, full, k_tiles, startA, startB, rA, rB, rC, zero), sources, k_tiles)
        return rC, stagesA

    @cute.jit
    def corner(self):
        """Return this thread's first row and column in the tile."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32 % (self.config.warps_m * self.config.warps_n), tid % 32
        row = warp // self.config.warps_n * self.warp_m + lane // LANES_N * self.vector
        col = warp % self.config.warps_n * self.warp_n + lane % LANES_N * self.vector
        return row, col

    def group(self) -> Any:
        """Return which group of warps this thread is in: the part of each k-tile that it multiplies."""
        if self.config.warps_k == 1:
            return 0
        tid, _, _ = cute.arch.thread_idx()
        return tid // (self.config.threads // self.config.warps_k)

    @cute.jit
    def accumulators(self, rows: cutlass.Constexpr[int], cols: cutlass.Constexpr[int]):
        """Return registers for a thread tile."""
        return cute.make_rmem_tensor(cute.make_layout((rows, cols), stride=(cols, 1)), Float32)

    @cute.jit
    def operand(self, copies: cutlass.Constexpr[MaskedCopies], gX: cute.Tensor, row0, stages, depth):
        """Return the copies of an operand whose tile begins with row `row0`."""
        inside, last = Int32(-1), Int32(-1)
        if cutlass.const_expr(not self.whole):
            inside = copies.mask(gX, row0, 0 - self.depth)
            last = copies.mask(gX, row0, depth // self.depth * self.depth)
        loaded = copies.registers() if isinstance(copies, VectorCopies) else None
        return _Operand(copies, gX, stages + copies.target(), copies.k_tile_stride(gX), inside, last, loaded)

    def fill(self, tile: _Tile, sources: Any, k_tiles: Any) -> tuple[Any, Any]:
        """Issue the copies of all stages but one; vectors of these k-tiles are stored, and those of the next loaded."""
        if tile.a.loaded is None and tile.b.loaded is None:
            return super().fill(tile, sources, k_tiles)
        places = list(sources)
        for number in range(self.stages - 1):
            for x, operand in enumerate((tile.a, tile.b)):
                if operand.loaded is None:
                    for group in range(operand.copies.parts):
                        self.copy(operand, tile, places[x], number * self.bytes, Int32(number), group)
                    places[x] += operand.stride
            cute.arch.cp_async_commit_group()
        # The loads of two k-tiles are in flight.
        before: list[tuple[_Operand, Any, int]] = []
        for number in range(self.stages):
            stored, before = before, []
            for x, operand in enumerate((tile.a, tile.b)):
                if operand.loaded is not None:
                    last = number == self.stages - 1
                    loaded = operand.loaded if last else operand.copies.registers()
                    mask = self.mask(operand, tile, Int32(number))
                    for p in range(operand.copies.count):
                        operand.copies.load(operand.gmem, loaded, places[x], mask, p)
                    places[x] += operand.stride
                    before.append((operand, loaded, number * self.bytes))
            for operand, loaded, stage in stored:
                for p in range(operand.copies.count):
                    operand.copies.store(loaded, operand.target + stage, p)
        return tuple(places), Int32((self.stages - 1) * self.stride)

    def issue(self, tile: _Tile, sources: Any, stage: Any, k_tile: Any, step: int) -> None:
        """Issue a step's copies of a k-tile; zeros for one after the last."""
        for operand, source in zip((tile.a, tile.b), sources, strict=True):
            if operand.loaded is not None:
                self.store_and_load(operand, tile, source, stage, k_tile, step)
                continue
            group, rest = divmod(step, self.copy_steps // operand.copies.parts)
            if rest == 0 and group < operand.copies.parts:
                self.copy(operand, tile, source, stage, k_tile, group)

    def copy(self, operand: _Operand, tile: _Tile, source: Any, stage: Any, k_tile: Any, group: int) -> None:
        """Issue a group of the asynchronous copies of a k-tile."""
        mask = self.mask(operand, tile, k_tile)
        operand.copies.issue_masked(operand.gmem, source, operand.target + stage, mask, group)

    def store_and_load(self, operand: _Operand, tile: _Tile, source: Any, stage: Any, k_tile: Any, step: int) -> None:
        """Store a step's vectors of a k-tile, and in the last step that copies load those of the next one.

        The compiler moves loads down to where their registers are needed, but not beyond a barrier: that of the next
        step leaves them a quarter of a k-tile at least.
        """
        copies, alone, last = operand.copies, self.config.tile_elements == LARGEST, self.copy_steps - 1
        first = self.steps // 4
        for p in range(copies.count):
            stored = first + p * (last - first) // copies.count
            if alone:
                # Few warps: what follows a store is loaded behind it, in the order that the compiler schedules best.
                stored = -(-(p + 1) * last // copies.count) - 1
            if step == stored:
                copies.store(operand.loaded, operand.target + stage, p)
            if step == (stored + 1 if alone else last):
                mask = self.mask(operand, tile, k_tile + 1)
                copies.load(operand.gmem, operand.loaded, source, mask, p)

    @cute.jit
    def mask(self, operand, tile, k_tile):
        """Return the mask of a k-tile's copies."""
        mask = operand.inside
        if cutlass.const_expr(not self.whole):
            mask = mask if k_tile < tile.full else operand.last
        return mask if k_tile < tile.k_tiles else 0

    def advance(self, tile: _Tile, sources: Any) -> Any:
        return sources[0] + tile.a.stride, sources[1] + tile.b.stride

    def multiply_filled(self, tile: Any, sources: Any, writing: Any, k_tiles: Any) -> None:
        if self.blocks:
            self.multiply_blocks(tile, sources, writing, k_tiles)
        else:
            super().multiply_filled(tile, sources, writing, k_tiles)

    @cute.jit
    def multiply_blocks(self, tile, sources, writing, k_tiles):
        """Multiply `k_tiles` k-tiles by parts of fragments."""
        order = cutlass.const_expr(self.order)
        slots = tuple(
            tuple(registers(part, isinstance(stage, KMajorStage)) for part in held)
            for stage, held in ((self.stageA, (order.a * 2)[:2]), (self.stageB, order.b))
        )
        self.wait()
        self.read_parts(tile, slots, order.first(), Int32(0))
        reading = Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=self.unroll):
            following = self.next_stage(reading)
            copies = (sources, writing, k_tile + self.stages - 1)
            self.multiply_k_tile(tile, slots, reading, following, copies)
            reading = following
            writing = self.next_stage(writing)
            sources = self.advance(tile, sources)
        cute.arch.cp_async_wait_group(0)

    def multiply_k_tile(
        self, tile: Any, slots: Any, reading: Any, following: Any, copies: tuple[Any, Any, Any]
    ) -> None:
        """Multiply a k-tile, and read the first fragments of the next one."""
        loads = any(isinstance(one.copies, VectorCopies) for one in (tile.a, tile.b))
        every, fours = self.order.steps(), self.order.fours
        last_one = next(x for x, one in enumerate(every) if any(y.four >= fours for y in one.reads))
        done = 0
        for x, one in enumerate(every):
            wanted = self.copy_steps if not loads or x == last_one else min(self.copy_steps, 1 + x * self.copy_steps // last_one)
            for step in range(done, wanted):
                self.issue(tile, *copies, step)
            if done < self.copy_steps == wanted:
                cute.arch.cp_async_commit_group()
            done = max(wanted, done)
            multiply_parts(slots[0][one.a.slot], slots[1][one.b.slot], tile.accumulators, one.a.part, one.b.part)
            self.read_parts(tile, slots, [y for y in one.reads if y.four < fours], reading)
            if x == last_one:
                self.wait()
            self.read_parts(tile, slots, [y for y in one.reads if y.four >= fours], following)

    @property
    def order(self) -> BlockOrder:
        """The order of products."""
        few = self.config.thread_n == VECTOR
        a = parts(self.config.thread_m, isinstance(self.stageA, KMajorStage), not few and self.config.by_four != 3)
        b = parts(self.config.thread_n, isinstance(self.stageB, KMajorStage), few)
        return BlockOrder(a, b, self.steps // 4)

    def read_parts(self, tile: Any, slots: Any, fragments: Any, stage: Any) -> None:
        """Read fragments of a stage."""
        for one in fragments:
            layout, start, lanes = (
                (self.stageA, tile.start_a, LANES_M) if one.operand == 0 else (self.stageB, tile.start_b, LANES_N)
            )
            rX = slots[one.operand][one.slot]
            layout.read_part(rX, start + stage, one.part, one.four % self.order.fours, lanes)

    def read_first(self, tile: _Tile) -> None:
        self.stageA.read(tile.fragments_a, tile.start_a, 0, LANES_M)
        self.stageB.read(tile.fragments_b, tile.start_b, 0, LANES_N)

    def read(self, tile: _Tile, stage: Any, step: int) -> None:
        """Read this thread's fragments of one k; those of K-major stages are read by `multiply`."""
        if isinstance(self.stageA, SimtStage):
            self.stageA.read(tile.fragments_a, tile.start_a + stage, step, LANES_M)
        if isinstance(self.stageB, SimtStage):
            self.stageB.read(tile.fragments_b, tile.start_b + stage, step, LANES_N)

    def multiply(self, tile: _Tile, stage: Any, step: int) -> None:
        """Add the products of one k."""
        if self.by_four:
            after = (step + 1) % self.steps
            multiply_and_read(tile, stage, (self.stageA, self.stageB), step, after)
        else:
            rA, rB = self.stageA.of_step(tile.fragments_a, step), self.stageB.of_step(tile.fragments_b, step)
            self.multiply_fragments(rA, rB, tile.accumulators)

    def multiply_fragments(self, rA: Any, rB: Any, rC: Any) -> None:
        """Add the products of one k."""
        multiply_fragments(rA, rB, rC)

