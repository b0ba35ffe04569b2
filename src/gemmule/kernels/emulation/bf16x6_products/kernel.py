"""BF16x6 products: float32, in three parts of bfloat16 each, on the tensor cores.

Idea
    A float32 has 24 bits, three times those of a bfloat16: a = a1 + a2 + a3. Of the nine products of parts three are
    less than the last bit of the result; the other six are bfloat16 products, whose rate is 16 times that of float32.
    The tensor cores truncate what they add: so the small products come first, and every 32 of K the accumulators are
    promoted to others that are rounded. These are saved every 1024 of K, so that long sums are sums of sums.
Change from the rung before
    A stage holds a k-tile of one part of A and one of B; three stages are six products. Twice the accumulators. Rows of
    float32 are written from registers, at any alignment.
Data movement
    128 x 192 of D: as a bfloat16 product with half of the reads, as each k-tile is used twice.
Limits
    The tensor cores, and how much power they may take.
Sources
    As of `hopper_gemm`; Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For
    Higher-Precision Computations".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.bf16x6_config import ASIDE, PARTS, SLICE, SixProductsConfig
from gemmule.kernels.emulation.guard_words import NEVER
from gemmule.kernels.hopper.epilogues.unaligned_rows import element_at
from gemmule.kernels.hopper.mainloops.operands import Fragments, OperandStages, flat
from gemmule.kernels.hopper.mainloops.pipeline import PipelineState
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, release_local
from gemmule.kernels.hopper.mainloops.wgmma import issue_group, tiled_mma, wait_group_and_release
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M, THREADS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d

# Registers of a thread: the producer warpgroup gives up what the consumers need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 24, 240
# Parts, from 0 on, of A and of B in each of three stages.
_STAGED = ((1, 1), (2, 0), (0, 2))
# The stages whose A and whose B are multiplied, small products first: 22, 31, 13, 21, 12, 11. No product after the
# fifth reads the first stage, which is released first.
_PRODUCTS = ((0, 0), (1, 1), (2, 2), (0, 1), (2, 0), (2, 1))
_OF_FIRST = 5
# K of a wgmma on 16-bit types.
_MMA_K = 16
# Accumulators that are saved in device memory at once.
_VECTOR = 4


class Bf16x6Products:
    """D = alpha * A @ B + beta * C for A (M, 3 K, L), B (N, 3 K, L) through TMA, row-major C and D (M, N, L)."""

    def __init__(self, config: SixProductsConfig, types: dict[str, str]) -> None:
        self.reads_c, self.guarded = types["adds"] == "yes", types.get("guarded") == "yes"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        elements, k_major = (cutlass.BFloat16, cutlass.BFloat16), (types["a_major"] == "k", types["b_major"] == "k")
        self.operands = OperandStages((self.tile_m, self.tile_n, SLICE), elements, k_major, config.stages)
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes)
        self.scheduler = PersistentScheduler(self.tile_m, self.tile_n, config.group)
        # Parts of a k-tile, each promoted, and the wgmma of each of its products, 16 of K at a time.
        self.promotions, self.steps = SLICE // config.depth, config.depth // _MMA_K

    @cute.jit
    def __call__(self, matrices, grid: Int32, scale, saved: cute.Tensor, shortfall=None):
        mA, mB, mC, mD = matrices
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        self.kernel((a, b), mC, mD, scale, saved, shortfall).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, operands, mC: cute.Tensor, mD: cute.Tensor, scale, saved: cute.Tensor, shortfall=None):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers = self.mainloop.barriers(smem)
        smem_ab = self.operands.allocate(smem)
        # The predecessor grid splits A and B.
        self.mainloop.prologue(warp, operands, barriers, CONSUMERS)
        if cutlass.const_expr(self.guarded):
            # No matrix where the native kernel computes.
            batch = Int32(0) if shortfall[0] == NEVER else mD.shape[2]
            mD = cute.make_tensor(mD.iterator, cute.make_layout((*mD.shape[:2], batch), stride=mD.stride))

        k_tiles = operands[0].tensor.shape[1] // (PARTS * SLICE)
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(operands, mD, smem_ab, barriers, k_tiles)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            self.consume((mC, mD, scale), saved, smem_ab, barriers, k_tiles, warp // 4 - 1)

    @cute.jit
    def produce(self, operands, mD, smem_ab, barriers, k_tiles):
        """Load three pairs of parts of every k-tile of every tile."""
        load_a, load_b = self.operands.load_a(operands[0], smem_ab[0]), self.operands.load_b(operands[1], smem_ab[1])
        state = self.mainloop.producer_state()
        start, stride, end = self.scheduler.work(mD, k_tiles)
        for tile_index in cutlass.range(start, end, stride):
            i, j, batch = self.scheduler.tile_coord(mD, tile_index)
            # One matrix may serve the whole batch.
            batch_a, batch_b = (cutlass.min(batch, x.tensor.shape[2] - 1) for x in operands)
            for k in cutlass.range(k_tiles):
                for pair in cutlass.range_constexpr(len(_STAGED)):
                    k_a, k_b = (part * k_tiles + k for part in _STAGED[pair])
                    loads = ((load_a, (i, k_a, batch_a)), (load_b, (j, k_b, batch_b)))
                    state = self.mainloop.load_stage(loads, barriers, state)

    @cute.jit
    def consume(self, result, saved, smem_ab, barriers, k_tiles, warpgroup_idx):
        """Multiply the k-tiles of this warpgroup's half of each tile as they arrive, and write it."""
        mC, mD, scale = result
        mma = tiled_mma(cutlass.BFloat16, self.operands.k_major, cutlass.Float32, CONSUMERS, (MMA_M, self.tile_n))
        fragments = self.operands.fragments(mma, smem_ab, warpgroup_idx, cutlass.Float32)
        promoted = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), cutlass.Float32)
        state = self.mainloop.consumer_state()
        start, stride, end = self.scheduler.work(mD, k_tiles)
        for tile_index in cutlass.range(start, end, stride):
            i, j, batch = self.scheduler.tile_coord(mD, tile_index)
            promoted.fill(0.0)
            for k in cutlass.range(k_tiles):
                state = self.multiply(fragments, promoted, barriers, state)
                done = k + 1
                if done % ASIDE == 0 and done < k_tiles:
                    if done > ASIDE:
                        self.add_saved(saved, warpgroup_idx, promoted)
                    self.save(saved, warpgroup_idx, promoted)
                    promoted.fill(0.0)
            if k_tiles > ASIDE:
                self.add_saved(saved, warpgroup_idx, promoted)
            matrices = (mC[None, None, batch], mD[None, None, batch])
            self.write(matrices, promoted, i * self.tile_m + warpgroup_idx * MMA_M, j * self.tile_n, scale)

    @cute.jit
    def multiply(self, fragments, promoted, barriers, state):
        """Multiply the six products of a k-tile, which is three stages, and promote them; return the next state."""
        # The k-tile's stages, and the state after them: each is added once its stage is full.
        states = [state]
        self.wait_for_stage(barriers.full, states)
        for part in cutlass.range_constexpr(self.promotions):
            last = cutlass.const_expr(part == self.promotions - 1)
            products = self.products(fragments, barriers.full, states, part)
            # The first product overwrites the accumulators.
            fragments.mma.set(warpgroup.Field.ACCUMULATE, False)
            if cutlass.const_expr(last):
                issue_group(itertools.islice(products, _OF_FIRST * self.steps), fragments.accumulators)
            issue_group(products, fragments.accumulators, fence=not last)
            if cutlass.const_expr(last):
                wait_group_and_release(1, release_local, barriers.empty, [states[0].stage])
            wait_group_and_release(
                0, release_local, barriers.empty, [one.stage for one in states[1:-1]] if last else ()
            )
            promoted.store(promoted.load() + fragments.accumulators.load())
        return states[-1]

    def products(self, fragments: Fragments, full: Any, states: list[PipelineState], part: int) -> Iterator[Any]:
        """Yield the six products of a part of a k-tile, as `issue_group` takes them, each once its stages are full."""
        mma, a, b, _ = fragments
        for of_a, of_b in _PRODUCTS:
            while len(states) - 1 <= max(of_a, of_b):
                self.wait_for_stage(full, states)
            for step_k in range(part * self.steps, (part + 1) * self.steps):
                yield mma, a[None, None, step_k, states[of_a].stage], b[None, None, step_k, states[of_b].stage]
                mma.set(warpgroup.Field.ACCUMULATE, True)

    def wait_for_stage(self, full: Any, states: list[PipelineState]) -> None:
        """Wait until the stage of the last state is full, and append the next state."""
        cute.arch.mbarrier_wait(full + states[-1].stage, states[-1].phase)
        states.append(self.mainloop.advance(states[-1]))

    @cute.jit
    def saved_vectors(self, saved: cute.Tensor, warpgroup_idx, count: cutlass.Constexpr[int]):
        """Return where a thread's accumulators are saved, as vectors; those of all threads are interleaved."""
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        first = (cta * CONSUMERS + warpgroup_idx) * (WARPGROUP * count) + tid % WARPGROUP * _VECTOR
        place = (saved.iterator + first).align(4 * _VECTOR)
        return cute.make_tensor(place, cute.make_layout((_VECTOR, count // _VECTOR), stride=(1, WARPGROUP * _VECTOR)))

    @cute.jit
    def add_saved(self, saved: cute.Tensor, warpgroup_idx, accumulators: cute.Tensor):
        """Add to a thread's accumulators those that are saved."""
        values = flat(accumulators)
        vectors = self.saved_vectors(saved, warpgroup_idx, cute.size(accumulators))
        for v in cutlass.range_constexpr(cute.size(accumulators) // _VECTOR):
            loaded = cute.make_rmem_tensor(cute.make_layout(_VECTOR), cutlass.Float32)
            cute.autovec_copy(vectors[None, v], loaded)
            for e in cutlass.range_constexpr(_VECTOR):
                values[v * _VECTOR + e] = values[v * _VECTOR + e] + loaded[e]

    @cute.jit
    def save(self, saved: cute.Tensor, warpgroup_idx, accumulators: cute.Tensor):
        """Save a thread's accumulators."""
        vectors = self.saved_vectors(saved, warpgroup_idx, cute.size(accumulators))
        for v in cutlass.range_constexpr(cute.size(accumulators) // _VECTOR):
            own = cute.make_tensor(accumulators.iterator + v * _VECTOR, cute.make_layout(_VECTOR))
            cute.autovec_copy(own, vectors[None, v])

    @cute.jit
    def write(self, matrices, accumulators, m0, n0, scale):
        """Write 64 rows of a tile: a thread has two contiguous elements of every 8 columns, in two rows."""
        (gC, gD), (alpha, beta) = matrices, scale
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        values = flat(accumulators)
        col = n0 + 2 * (lane % 4)
        for half in cutlass.range_constexpr(2):
            row = m0 + warp * 16 + lane // 4 + 8 * half
            if row < gD.shape[0]:
                whole = n0 + self.tile_n <= gD.shape[1] and element_at(gD, row, col).toint() % 8 == 0
                if cutlass.const_expr(self.reads_c):
                    whole = whole and element_at(gC, row, col).toint() % 8 == 0
                if whole:
                    for n in cutlass.range_constexpr(self.tile_n // 8):
                        self.write_pair(matrices, values, (row, col + 8 * n), 4 * n + 2 * half, scale)
                else:
                    for n in cutlass.range_constexpr(self.tile_n // 8):
                        for v in cutlass.range_constexpr(2):
                            at = col + 8 * n + v
                            if at < gD.shape[1]:
                                value = values[4 * n + 2 * half + v] * alpha
                                if cutlass.const_expr(self.reads_c):
                                    value = value + beta * gC[row, at]
                                gD[row, at] = value

    @cute.jit
    def write_pair(self, matrices, accumulators, place, first: cutlass.Constexpr[int], scale):
        """Write two contiguous elements at once."""
        (gC, gD), (alpha, beta) = matrices, scale
        values = cute.make_rmem_tensor(cute.make_layout(2), cutlass.Float32)
        if cutlass.const_expr(self.reads_c):
            cute.autovec_copy(pair_at(element_at(gC, *place)), values)
        for v in cutlass.range_constexpr(2):
            if cutlass.const_expr(self.reads_c):
                values[v] = accumulators[first + v] * alpha + beta * values[v]
            else:
                values[v] = accumulators[first + v] * alpha
        cute.autovec_copy(values, pair_at(element_at(gD, *place)))


@cute.jit
def pair_at(place: cute.Pointer):
    """Return two float32 at a place whose address is a multiple of 8."""
    return cute.make_tensor(
        cute.make_ptr(cutlass.Float32, place.toint(), place.memspace, assumed_align=8), cute.make_layout(2)
    )


def buildable(config: SixProductsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    a, b = (major_tensor("bfloat16", unit, batch=1, vector=8) for unit in units)
    c, d = (major_tensor("float32", 1, batch=1) for _ in range(2))
    scale = (cutlass.Float32(1), cutlass.Float32(0))
    kernel = Bf16x6Products(config, types)
    shortfall = (tensor_1d("int32"),) if kernel.guarded else ()
    return Buildable(kernel, ((a, b, c, d), Int32(1), scale, tensor_1d("float32"), *shortfall))
