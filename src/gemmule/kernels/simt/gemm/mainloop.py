"""Mainloop of the float32 and int32 GEMM: copies into MN-major panels, fragments of 4 rows and 4 columns, FMAs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.dtype import INT32
from gemmule.kernels.parts.cp_async_mainloop import CpAsyncMainloop
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.stage_copies import MaskedCopies
from gemmule.kernels.simt.config import LARGEST, MOST_COPIES, PANEL, SECTOR, VECTOR, VECTOR_BYTES, SimtConfig
from gemmule.kernels.simt.stage import SimtStage, SlotCopies, VectorCopies, copies_of
from gemmule.kernels.simt.thread_tiles import lane_column, lane_row, multiply_fragments

from .tile import Operand, Tile

_ALIGNMENT = 1024


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
    #: Whether lanes may be interleaved.
    interleaves = True
    #: Whether A and B may share a mask.
    shares_mask = True

    def __init__(self, config: SimtConfig, types: dict[str, str]) -> None:
        self.config, self.cluster_k = config, config.cluster_k
        #: Type of what is multiplied and added.
        self.number: Any = Int32 if types["element"] == INT32.name else Float32
        self.warp_m, self.warp_n = config.tile_m // config.warps_m, config.tile_n // config.warps_n
        self.vector = config.vector
        k_major = types["a_major"] == "k", types["b_major"] == "k"
        allowed = int(types["a_copies"]), int(types["b_copies"])
        aligned = [one and size == VECTOR_BYTES for one, size in zip(k_major, allowed, strict=True)]
        by_vectors = config.by_vectors((aligned[0], aligned[1])) if self.takes_vectors else (False, False)
        by_slots = config.by_slots((aligned[0], aligned[1])) if self.takes_vectors else (False, False)
        own = self.takes_vectors and self.number is Float32
        own = own and config.own_stages((aligned[0], aligned[1]), min(allowed) < VECTOR_BYTES)
        #: Groups of warps that have stages of their own, and threads of each.
        self.pipelines = config.warps_k if own else 1
        self.copying = config.threads // self.pipelines
        self.stageA, self.stageB = stages = [
            SimtStage(extent, config.tile_k // self.pipelines, along, config.itemsize, vectors, slots)
            for extent, along, vectors, slots in zip(
                (config.tile_m, config.tile_n), k_major, by_vectors, by_slots, strict=True
            )
        ]
        #: Whether A and B pass through slots; then a k-tile is a stage before its slots', and there is a stage more.
        self.by_slots, self.spare = by_slots, int(any(by_slots))
        #: Whether copies of an element each transpose an operand.
        self.transposes = any(one.k_major and not (one.by_vectors or one.by_slots) for one in stages)
        self.interleaved = self.interleaves and config.interleaved(self.transposes, any(by_slots))
        self.bytes = self.stageA.stage_bytes + self.stageB.stage_bytes
        self.depth, steps = config.tile_k, config.tile_k // config.warps_k
        super().__init__(config.stages, self.bytes, steps, steps - 1)
        self.whole = types["tiles"] == "whole"
        short = [size < VECTOR_BYTES and not one for one, size in zip(k_major, allowed, strict=True)]
        by_element = any(short) or (self.transposes and types["d_vector"] == "1")
        parts, whole = self.groups(by_element), self.whole and self.one_bit
        sizes = [
            config.itemsize if one.k_major and not (one.by_vectors or one.by_slots) else size
            for one, size in zip(stages, allowed, strict=True)
        ]
        # Stored as matrices one operand alone is faster, in whole tiles.
        by_matrices = self.whole and config.tile_elements == LARGEST and sum(by_vectors) == 1
        self.copyA, self.copyB = (
            copies_of(one, self.copying, by_matrices)(one, size, self.copying, parts, whole, groups=self.pipelines)
            for one, size in zip(stages, sizes, strict=True)
        )
        copies = self.copyA.count + self.copyB.count
        #: Whether A and B share a mask, and so registers.
        self.one_mask = self.shares_mask and not whole and config.shares_mask(any(k_major)) and copies < MOST_COPIES
        if self.one_mask:
            self.copyB = replace(self.copyB, first_bit=self.copyA.count)

    def groups(self, unaligned: bool) -> int:
        """Return the steps of a k-tile that issue asynchronous copies; `unaligned` is whether some operands are.

        The compiler puts three empty instructions before a copy that follows a read of shared memory.
        """
        config, steps = self.config, self.copy_steps
        if self.spare or self.stageA.by_vectors or self.stageB.by_vectors:
            return config.slot_parts if self.spare else 1
        if unaligned or (self.transposes and (config.tile_k == SECTOR or min(config.tile_m, config.tile_n) == PANEL)):
            return 2
        return 1 if config.tile_elements == LARGEST and config.tile_k > SECTOR and not self.transposes else steps

    @cute.jit
    def multiply_tile(self, gA: cute.Tensor, gB: cute.Tensor, m0, n0, alpha, rank):
        """Return a thread's accumulators, or in a cluster those of this CTA's part of K, and the stages' address.

        With alpha = 0 the accumulators are zeros, and nothing is read.
        """
        nbytes = cutlass.const_expr((self.stages + self.spare) * self.bytes)
        smem = SmemAllocator().allocate(max(nbytes * self.pipelines, self.config.staging_bytes), _ALIGNMENT)
        row, col = self.corner()
        rows, cols = cutlass.const_expr((self.config.thread_m, self.config.thread_n))
        rA = cute.make_rmem_tensor(cute.make_layout((VECTOR, rows // self.vector, 2)), self.number)
        rB = cute.make_rmem_tensor(cute.make_layout((VECTOR, cols // self.vector, 2)), self.number)
        rC = self.accumulators(rows, cols)
        rC.fill(self.number(0))
        if cutlass.const_expr(self.waits):
            wait_for_predecessor()

        stagesA = smem.toint()
        if cutlass.const_expr(self.pipelines > 1):
            stagesA += self.group() * nbytes
        stagesB = stagesA + self.stageA.stage_bytes
        depth = gA.shape[1] if alpha != 0 else 0
        k_tiles, first = cute.ceil_div(depth, self.depth), Int32(0)
        if cutlass.const_expr(self.cluster_k > 1):
            # CTAs of a cluster take consecutive parts of K.
            first, k_tiles = k_tiles * rank // self.cluster_k, k_tiles * (rank + 1) // self.cluster_k
            k_tiles -= first
        a = self.operand(self.copyA, gA, m0, stagesA, depth)
        b = self.operand(self.copyB, gB, n0, stagesB, depth)
        if cutlass.const_expr(self.one_mask):
            inside, last = a.inside | b.inside, a.last | b.last
            a, b = replace(a, inside=inside, last=last), replace(b, inside=inside, last=last)
        sources = self.copyA.source(gA, m0) + first * a.stride, self.copyB.source(gB, n0) + first * b.stride
        full = k_tiles
        if cutlass.const_expr(not self.whole):
            full = cutlass.min(depth // self.depth - first, k_tiles)
        k0 = self.group() * self.steps if cutlass.const_expr(self.pipelines == 1) else 0
        startA, startB = stagesA + self.stageA.offset(row, k0), stagesB + self.stageB.offset(col, k0)
        self.accumulate(Tile(a, b, full, k_tiles, startA, startB, rA, rB, rC), sources, k_tiles)
        return rC, smem.toint()

    @cute.jit
    def corner(self):
        """Return this thread's first row and column in the tile."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32 % (self.config.warps_m * self.config.warps_n), tid % 32
        lanes = self.config.lanes
        row = warp // self.config.warps_n * self.warp_m + lane_row(lane, lanes, self.interleaved) * self.vector
        col = warp % self.config.warps_n * self.warp_n + lane_column(lane, lanes, self.interleaved) * self.vector
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
        return cute.make_rmem_tensor(cute.make_layout((rows, cols), stride=(cols, 1)), self.number)

    @cute.jit
    def operand(self, copies: cutlass.Constexpr[MaskedCopies], gX: cute.Tensor, row0, stages, depth):
        """Return the copies of an operand whose tile begins with row `row0`."""
        inside, last = Int32(-1), Int32(-1)
        if cutlass.const_expr(not self.whole):
            inside = copies.mask(gX, row0, 0 - self.depth)
            k0 = self.group() * self.steps if cutlass.const_expr(self.pipelines > 1) else 0
            last = copies.mask(gX, row0, depth // self.depth * self.depth + k0)
        address, stride, loaded, slots, matrices = stages + copies.target(), copies.k_tile_stride(gX), None, None, None
        if cutlass.const_expr(self.pipelines > 1):
            stride *= self.pipelines
        if cutlass.const_expr(isinstance(copies, (VectorCopies, SlotCopies))):
            loaded = copies.registers()
        if cutlass.const_expr(isinstance(copies, SlotCopies)):
            slots, matrices = stages + copies.slots(), stages + copies.matrices()
        return Operand(copies, gX, address, stride, inside, last, loaded, slots, matrices)

    def fill(self, tile: Tile, sources: Any, k_tiles: Any) -> tuple[Any, Any]:
        """Issue the copies of all stages but one; vectors of these k-tiles are stored, and those of the next loaded."""
        if tile.a.loaded is None and tile.b.loaded is None:
            return super().fill(tile, sources, k_tiles)
        if self.spare:
            return self.fill_slots(tile, sources)
        places = list(sources)
        for number in range(self.stages - 1):
            for x, operand in enumerate((tile.a, tile.b)):
                if operand.loaded is None:
                    for group in range(operand.copies.parts):
                        self.copy(operand, tile, places[x], number * self.bytes, Int32(number), group)
                    places[x] += operand.stride
            cute.arch.cp_async_commit_group()
        # The loads of two k-tiles are in flight.
        before: list[tuple[Operand, Any, int]] = []
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

    def fill_slots(self, tile: Tile, sources: Any) -> tuple[Any, Any]:
        """Issue the copies of all stages but one, and store the first k-tile transposed, in the last stage."""
        places = list(sources)
        for number in range(self.stages - 1):
            for x, operand in enumerate((tile.a, tile.b)):
                for group in range(operand.copies.parts):
                    self.copy(operand, tile, places[x], number * self.bytes, Int32(number), group)
                places[x] += operand.stride
            cute.arch.cp_async_commit_group()
        # A warp loads what others have copied.
        cute.arch.cp_async_wait_group(self.stages - 2)
        cute.arch.sync_threads()
        waiting: list[Any] = [operand for operand in (tile.a, tile.b) if operand.slots is not None]
        for operand in waiting:
            for p in range(operand.copies.count):
                operand.copies.take(operand.loaded, operand.matrices, p)
        for operand in waiting:
            for p in range(operand.copies.count):
                operand.copies.store(operand.loaded, operand.target + self.stages * self.bytes, p)
        return tuple(places), Int32((self.stages - 1) * self.bytes)

    @cute.jit
    def wait(self):
        """Wait for the next k-tile, and for the slots of the one after it, which are stored meanwhile."""
        cute.arch.cp_async_wait_group(self.stages - 2 - self.spare)
        if cutlass.const_expr(self.pipelines > 1):
            cute.arch.sync_warp()
        else:
            cute.arch.sync_threads()

    def multiply_filled(self, tile: Tile, sources: Any, writing: Any, k_tiles: Any) -> None:
        if self.spare:
            self.multiply_slots(tile, sources, writing, k_tiles)
        else:
            super().multiply_filled(tile, sources, writing, k_tiles)

    @cute.jit
    def multiply_slots(self, tile, sources, writing, k_tiles):
        """Multiply `k_tiles` k-tiles that pass through slots: each stage is computed once for all that it is for."""
        self.wait()
        # The panels of the next k-tile replace this one's, and so do its slots.
        panels, stored, slots = Int32(self.stages * self.bytes), Int32(0), Int32(self.bytes)
        self.read(tile, (panels, stored), 0)
        for k_tile in cutlass.range(k_tiles, unroll=self.unroll):
            for step in cutlass.range_constexpr(self.steps):
                if cutlass.const_expr(step < self.copy_steps):
                    self.read(tile, (panels, stored), step + 1)
                    self.issue(tile, sources, (writing, stored, slots), k_tile + self.stages - 1, step)
                else:
                    self.wait()
                    self.read(tile, (stored, slots), 0)
                if cutlass.const_expr(step == self.copy_steps - 1):
                    cute.arch.cp_async_commit_group()
                self.multiply(tile, panels, step)
            writing, panels, stored, slots = panels, stored, slots, self.next_stage(slots)
            sources = self.advance(tile, sources)
        cute.arch.cp_async_wait_group(0)

    def store_slots(self, operand: Any, stored: Any, slots: Any, step: int) -> None:
        """Store a step's vectors of the next k-tile, given its stage and that of its slots."""
        for p in range(operand.copies.count):
            taken = p * (self.copy_steps - 1) // operand.copies.count
            if step == taken:
                operand.copies.take(operand.loaded, operand.matrices + slots, p)
            if step == taken + 1:
                operand.copies.store(operand.loaded, operand.target + stored, p)

    def issue(self, tile: Tile, sources: Any, stage: Any, k_tile: Any, step: int) -> None:
        """Issue a step's copies of a k-tile; zeros for one after the last."""
        stored = slots = None
        if self.spare:
            stage, stored, slots = stage
        pairs = list(zip((tile.a, tile.b), sources, strict=True))
        if self.config.wide_copies:
            self.take_turns([x for x in pairs if x[0].loaded is not None], tile, stage, k_tile, step)
            pairs = [x for x in pairs if x[0].loaded is None]
        for operand, source in pairs:
            if operand.loaded is not None and operand.slots is None:
                self.store_and_load(operand, tile, source, stage, k_tile, step)
                continue
            group, rest = divmod(step, self.copy_steps // operand.copies.parts)
            if rest == 0 and group < operand.copies.parts:
                self.copy(operand, tile, source, stage, k_tile, group)
        for operand in (tile.a, tile.b):
            if operand.slots is not None:
                self.store_slots(operand, stored, slots, step)

    def copy(self, operand: Operand, tile: Tile, source: Any, stage: Any, k_tile: Any, group: int) -> None:
        """Issue a group of the asynchronous copies of a k-tile."""
        mask = self.mask(operand, tile, k_tile)
        if operand.slots is None:
            operand.copies.issue_masked(operand.gmem, source, operand.target + stage, mask, group)
            return
        copies: Any = operand.copies
        for p in range(*copies.pieces(group)):
            copies.copy(operand.gmem, operand.slots + stage, source, mask, p)

    def take_turns(self, operands: Any, tile: Tile, stage: Any, k_tile: Any, step: int) -> None:
        """Store a vector of one operand in each step from the second on; load from their places in the last."""
        most = max((x.copies.count for x, _ in operands), default=0)
        turns = [(*one, p) for p in range(most) for one in operands if p < one[0].copies.count]
        few = len(turns) < self.copy_steps
        for turn, (operand, source, p) in enumerate(turns):
            if step == (turn + 1 if few else turn * self.copy_steps // len(turns)):
                operand.copies.store(operand.loaded, operand.target + stage, p)
            if step == self.copy_steps - 1:
                mask = self.mask(operand, tile, k_tile + 1)
                operand.copies.load(operand.gmem, operand.loaded, source, mask, p)

    def store_and_load(self, operand: Operand, tile: Tile, source: Any, stage: Any, k_tile: Any, step: int) -> None:
        """Store a step's vectors of a k-tile, and load those of the next one.

        The compiler moves loads down to where their registers are needed, but not beyond a barrier: that of the next
        step leaves them a quarter of a k-tile at least.
        """
        copies, both = operand.copies, tile.a.loaded is not None and tile.b.loaded is not None
        for p, (stored, loaded) in enumerate(self.config.vector_steps(copies.count, operand is tile.b, both)):
            if step == stored:
                copies.store(operand.loaded, operand.target + stage, p)
            if step == loaded:
                mask = self.mask(operand, tile, k_tile + 1)
                copies.load(operand.gmem, operand.loaded, source, mask, p)

    @cute.jit
    def mask(self, operand, tile, k_tile):
        """Return the mask of a k-tile's copies."""
        mask = operand.inside
        if cutlass.const_expr(not self.whole):
            mask = mask if k_tile < tile.full else operand.last
        return mask if k_tile < tile.k_tiles else 0

    def advance(self, tile: Tile, sources: Any) -> Any:
        return sources[0] + tile.a.stride, sources[1] + tile.b.stride

    @cute.jit
    def read(self, tile, stage, step: cutlass.Constexpr[int]):
        """Read this thread's vectors of one k into the registers of its parity."""
        parity = cutlass.const_expr(step % 2)
        lanes_m, lanes_n = self.config.lanes
        stage_a = stage_b = stage
        if cutlass.const_expr(self.spare > 0):
            stage_a, stage_b = (stage[0] if slots else stage[1] for slots in self.by_slots)
        for f in cutlass.range_constexpr(cute.size(tile.fragments_a, mode=[1])):
            offset = cutlass.const_expr(self.stageA.offset(f * lanes_m * self.vector, step))
            _read_vector(tile.fragments_a[None, f, parity], tile.start_a + stage_a + offset)
        for f in cutlass.range_constexpr(cute.size(tile.fragments_b, mode=[1])):
            offset = cutlass.const_expr(self.stageB.offset(f * lanes_n * self.vector, step))
            _read_vector(tile.fragments_b[None, f, parity], tile.start_b + stage_b + offset)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Add the products of one k."""
        del stage
        parity = cutlass.const_expr(step % 2)
        self.multiply_fragments(
            tile.fragments_a[None, None, parity], tile.fragments_b[None, None, parity], tile.accumulators
        )

    def multiply_fragments(self, rA: Any, rB: Any, rC: Any) -> None:
        """Add the products of one k."""
        if self.config.holds_columns(any(self.by_slots)):
            rows, cols = rC.shape
            mirrored = cute.make_tensor(rC.iterator, cute.make_layout((cols, rows), stride=(1, cols)))
            multiply_fragments(rB, rA, mirrored)
        else:
            multiply_fragments(rA, rB, rC)


@cute.jit
def _read_vector(vector: cute.Tensor, address):
    place = cute.make_ptr(vector.element_type, address, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
    cute.autovec_copy(cute.make_tensor(place, cute.make_layout(VECTOR)), vector)
