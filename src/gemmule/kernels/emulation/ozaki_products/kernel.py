"""Ozaki scheme II, products: int8 GEMMs of residues in one launch, each reduced by its own modulus, a byte an element.

Idea
    Tensor cores multiply int8 at twice the rate of bfloat16 and accumulate in int32, exactly. Only the residues of the
    accumulators are needed: a byte is written instead of four.
Change from the rung before
    The batch are the moduli, and the planes of complex elements; accumulators are reduced in registers, and added to
    the residues of an earlier part of a long K. A thread's bytes of a row are contiguous, in their own order within 64
    columns: the reconstruction reads them so.
Data movement
    The tile of 128 x 256: 171 operations a byte from L2, 256 where two CTAs share their loads of B.
Limits
    Power: at full rate an H100 lowers its clock. Then the reduction, in which the tensor cores wait.
Sources
    As of `hopper_gemm` and `ozaki_gemm`; Granlund and Montgomery 1994, "Division by Invariant Integers using
    Multiplication".
"""

from __future__ import annotations

import functools

import cutlass
from cutlass import Int32, Uint32, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.decision_word import decision, wait_for_emulation
from gemmule.kernels.emulation.instruction import instruction
from gemmule.kernels.emulation.ozaki_config import GROUP, SLICE, ProductsConfig
from gemmule.kernels.emulation.residues import MODULI, SHIFT, middle, quotient
from gemmule.kernels.hopper.mainloops.operands import OperandStages, flat
from gemmule.kernels.hopper.mainloops.tma_wgmma import Mainloop, multicast_ctas_a, multicast_ctas_b, release_cluster
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M, REGISTERS, THREADS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d
from gemmule.kernels.parts.words import packed, words_at


class ResidueProducts:
    """D[l] = A[l] @ B[l] (+ D[l]) modulo the l-th modulus: A (M, K, L), B (N, K, L), both int8 by TMA, D (M, N, L)."""

    element, accumulator = cutlass.Int8, Int32

    def __init__(self, config: ProductsConfig, types: dict[str, str]) -> None:
        self.adds, self.guarded = types.get("adds") == "yes", types.get("guarded") == "yes"
        # Products for each modulus.
        self.planes = int(types.get("planes", "1"))
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.pingpong = bool(config.pingpong)
        self.warpgroups_per_tile, self.mma_tiles_m = config.warpgroups_per_tile, config.mma_tiles_m
        cluster = (config.cluster_m, config.cluster_n)
        self.scheduler = PersistentScheduler(self.tile_m, self.tile_n, config.group, *cluster)
        self.operands = OperandStages(
            (self.tile_m, self.tile_n, SLICE), (self.element, self.element), (True, True), config.stages,
            multicast_size_a=config.cluster_n, multicast_size_b=config.cluster_m,
        )  # fmt: skip
        self.mainloop = Mainloop(config.stages, self.operands.stage_bytes, pingpong=self.pingpong)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor, grid: Int32, guard=None):
        a, b = self.operands.tma_a(mA), self.operands.tma_b(mB)
        self.kernel((a, b), mD, guard).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), cluster=(self.scheduler.cluster_size, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, operands, mD: cute.Tensor, guard=None):
        if cutlass.const_expr(self.guarded):
            count = cute.arch.make_warp_uniform(decision(guard, mD.shape[2] // self.planes))
            if count > 0:
                # As many as the guard decided.
                self.multiply(operands, first_matrices(mD, count * self.planes), None)
            else:
                cta, _, _ = cute.arch.block_idx()
                cute.arch.griddepcontrol_launch_dependents()
                wait_for_emulation(count, cta)
        else:
            self.multiply(operands, mD, guard)

    @cute.jit
    def multiply(self, operands, mD: cute.Tensor, scales):
        """Multiply the matrices of this CTA's tiles; `scales` are of lines of A and B where tiles need them."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        barriers = self.mainloop.barriers(smem)
        smem_ab = self.operands.allocate(smem)
        consumer_arrivals = self.warpgroups_per_tile * self.scheduler.empty_arrival_ctas
        self.mainloop.prologue(warp, operands, barriers, consumer_arrivals, self.scheduler.cluster_size)
        mD = self.needed(mD)
        k_tiles = operands[0].tensor.shape[1] // SLICE
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(REGISTERS.producer)
            if warp == 0:
                self.produce(operands, mD, smem_ab, barriers, k_tiles)
        else:
            cute.arch.setmaxregister_increase(REGISTERS.consumer)
            self.consume(mD, smem_ab, barriers, k_tiles, warp // 4 - 1, scales)

    def needed(self, mD):
        """Return the matrices that are needed."""
        return mD

    @cute.jit
    def produce(self, operands, mD, smem_ab, barriers, k_tiles):
        """Load every k-tile of every tile."""
        row, col = self.scheduler.cta_coord_in_cluster()
        load_a = self.operands.load_a(operands[0], smem_ab[0], col, multicast_ctas_a(self.scheduler, row))
        load_b = self.operands.load_b(operands[1], smem_ab[1], row, multicast_ctas_b(self.scheduler, col))
        state = self.mainloop.producer_state()
        start, stride, end = self.scheduler.work(mD, k_tiles)
        for tile_index in cutlass.range(start, end, stride):
            i, j, batch = self.scheduler.tile_coord(mD, tile_index)
            loads = ((load_a, i), (load_b, j))
            state = self.mainloop.load(loads, (batch,), barriers, state, (0, k_tiles))
        if cutlass.const_expr(self.scheduler.is_multicast):
            self.mainloop.producer_tail(barriers, state)

    @cute.jit
    def consume(self, mD, smem_ab, barriers, k_tiles, warpgroup_idx, scales):
        """Multiply the k-tiles of this warpgroup's tiles as they arrive, and write the tiles."""
        of_tile = 0 if cutlass.const_expr(self.pingpong) else warpgroup_idx
        mma = tiled_mma(self.element, (True, True), self.accumulator, self.warpgroups_per_tile, (MMA_M, self.tile_n))
        fragments = self.operands.fragments(mma, smem_ab, of_tile, self.accumulator)
        release = functools.partial(release_cluster, self.scheduler)
        state, start, stride, end = self.mainloop.consumer_start(self.scheduler, mD, k_tiles, warpgroup_idx)
        for tile_index in cutlass.range(start, end, stride):
            i, j, batch = self.scheduler.tile_coord(mD, tile_index)
            state = self.mainloop.multiply(fragments, barriers, state, k_tiles, warpgroup_idx, release)
            if cutlass.const_expr(self.pingpong):
                state = self.mainloop.advance_by(state, k_tiles)
            factors = self.factors(batch // self.planes, scales)
            gD = mD[None, None, batch]
            place = (i * self.tile_m, j * self.tile_n)
            self.write_tile(gD, fragments.accumulators, place, warpgroup_idx, factors)

    @cute.jit
    def factors(self, place, scales):
        """Return how an accumulator is reduced, by the place of the modulus: offset, factor and modulus."""
        del scales
        every = cutlass.const_expr([self.divisor_of(modulus) for modulus in MODULI])
        offset, factor, modulus = (Uint32(one) for one in every[0])
        for number in cutlass.range_constexpr(1, len(MODULI)):
            chosen = place == number
            offset = Uint32(select_(chosen, Uint32(every[number][0]), offset))
            factor = Uint32(select_(chosen, Uint32(every[number][1]), factor))
            modulus = Uint32(select_(chosen, Uint32(every[number][2]), modulus))
        return offset, factor, modulus

    def divisor_of(self, modulus: int) -> tuple[int, int, int]:
        """Return offset, factor and modulus; residues that are added to have their middle already."""
        offset, factor = quotient(modulus)
        return offset - (middle(modulus) if self.adds else 0), factor, modulus

    @cute.jit
    def write_tile(self, gD, accumulators, place, warpgroup_idx, factors):
        """Write a tile: of every 64 columns a thread has 16, which it writes contiguously."""
        m0, n0 = place
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        values = flat(accumulators)
        for block in cutlass.range_constexpr(self.mma_tiles_m):
            of_tile = block if cutlass.const_expr(self.pingpong) else warpgroup_idx + CONSUMERS * block
            for half in cutlass.range_constexpr(2):
                row = m0 + of_tile * MMA_M + warp * 16 + lane // 4 + 8 * half
                if row < gD.shape[0]:
                    for g in cutlass.range_constexpr(self.tile_n // GROUP):
                        col = n0 + GROUP * g
                        if col < gD.shape[1]:
                            first = cutlass.const_expr(block * self.tile_n // 2 + GROUP // 2 * g + 2 * half)
                            self.write(gD, values, first, row, col + 16 * (lane % 4), factors)

    @cute.jit
    def write(self, gD, values, first: cutlass.Constexpr[int], row, col, factors):
        """Write 16 bytes: two contiguous elements of every 8 columns, modulo the product's modulus."""
        offset, factor, modulus = factors
        target = words_at(gD.iterator + cute.crd2idx((row, col), gD.layout), 4)
        words = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
        if cutlass.const_expr(self.adds):
            cute.autovec_copy(target, words)
        for w in cutlass.range_constexpr(4):
            four = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
            for e in cutlass.range_constexpr(4):
                moved = Uint32(values[first + 8 * w + 4 * (e // 2) + e % 2]) + offset
                if cutlass.const_expr(self.adds):
                    moved = moved + ((words[w] >> 8 * e) & Uint32(0xFF))
                four[e] = moved - (instruction("mul.hi.u32", Uint32, moved, factor) >> SHIFT) * modulus
            words[w] = packed(four)
        cute.autovec_copy(words, target)


def first_matrices(mD: cute.Tensor, count: Int32) -> cute.Tensor:
    """Return the first matrices (M, N, count)."""
    return cute.make_tensor(mD.iterator, cute.make_layout((*mD.shape[:2], count), stride=mD.stride))


def buildable(config: ProductsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with fake arguments."""
    a, b = (major_tensor("int8", 1, batch=1, vector=16) for _ in range(2))
    d = major_tensor("uint8", 1, batch=1, vector=16)
    kernel = ResidueProducts(config, types)
    return Buildable(kernel, (a, b, d, Int32(1), *((tensor_1d("int32"),) if kernel.guarded else ())))
