"""Products of many small matrices on the FMA units: several matrices a CTA.

Idea
    Small matrices are bound by memory. A CTA copies k-tiles of up to 32 matrices into shared memory at once, in the
    order of device memory and 16 bytes at a time, whatever the layouts are; an SM has several such CTAs, whose copies
    overlap the others' products. A thread computes 4 x 4 to 8 x 8 elements of one matrix. It reads vectors along K of
    a K-major operand and vectors along M or N of an MN-major one, so that no layout is transposed. Operands narrower
    than the accumulators stay so in shared memory, and are converted in registers.
Data movement
    Each element of A, B and D moves once where a tile covers the matrix: 65536 products of 16 x 16 x 16 in float32 are
    201 MB. For as many k as a vector has elements, 4 x 4 accumulators take 8 vectors of shared memory for 64 FMAs.
Limits
    Device memory; and where rows begin anywhere, the copies, which are of one element then.
Sources
    "CUDA C++ Programming Guide", asynchronous copies, and bank conflicts of 16-byte accesses.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.cluster_reduction import reduce_in_cluster
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.tensors import cute_type, major_tensor, strided_tensor

from .config import VECTOR_BYTES, BatchedConfig
from .copies import BatchedCopies

_ALIGNMENT = 128


class SimtBatched:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), C and D (M, N, L)."""

    def __init__(self, config: BatchedConfig, types: dict[str, str]) -> None:
        self.config = config
        self.element: Any = cute_type(types["element"])
        item = self.element.width // 8
        self.vector, self.d_vector = VECTOR_BYTES // item, int(types["d_vector"])
        self.resident = config.resident(item)
        self.copyA, self.copyB = (self._copies(operand, types) for operand in "ab")
        self.bytes_a = self.copyA.stage.matrix_bytes * config.matrices
        self.stage_bytes = self.bytes_a + self.copyB.stage.matrix_bytes * config.matrices

    def _copies(self, operand: str, types: dict[str, str]) -> BatchedCopies:
        """Return the copies of an operand, whose type is the accumulators' unless the signature has another."""
        name = types.get(operand, types["element"])
        item, wide = cute_type(name).width // 8, self.element.width // 8
        return BatchedCopies(
            self.config.stage(operand, types[f"{operand}_major"] == "k", item, wide),
            self.config.matrices,
            int(types[f"{operand}_copies"]) // item,
            self.config.threads,
            name,
            partial=item < wide,
        )

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        config = self.config
        tiles = cute.ceil_div(mD.shape[0], config.tile_m) * cute.ceil_div(mD.shape[1], config.tile_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(tiles * cute.ceil_div(mD.shape[2], config.matrices) * config.cluster_k, 1, 1),
            block=(config.threads, 1, 1),
            cluster=(config.cluster_k, 1, 1) if config.cluster_k > 1 else None,
            min_blocks_per_mp=self.resident,
            # Given, so that the compiler needs no driver; the launch recipe decides.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        config = self.config
        block, _, _ = cute.arch.block_idx()
        cta, rank = block // config.cluster_k, block % config.cluster_k
        tid, _, _ = cute.arch.thread_idx()
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], config.tile_m), cute.ceil_div(mD.shape[1], config.tile_n)
        tile = cta % (tiles_m * tiles_n)
        m0, n0 = tile // tiles_n * config.tile_m, tile % tiles_n * config.tile_n
        batch_0 = cta // (tiles_m * tiles_n) * config.matrices
        stages = SmemAllocator().allocate(config.stages * self.stage_bytes, _ALIGNMENT).toint()
        rC = cute.make_rmem_tensor(
            cute.make_layout((config.thread_m, config.thread_n), stride=(config.thread_n, 1)), self.element
        )
        rC.fill(self.element(0))
        wait_for_predecessor()

        depth = mA.shape[1] if alpha != 0 else 0
        k_tiles, first = cute.ceil_div(depth, config.tile_k), Int32(0)
        if cutlass.const_expr(config.cluster_k > 1):
            # CTAs of a cluster take consecutive parts of K.
            first, k_tiles = k_tiles * rank // config.cluster_k, k_tiles * (rank + 1) // config.cluster_k
            k_tiles -= first
        for s in cutlass.range_constexpr(config.stages):
            if s < k_tiles:
                self.issue(mA, mB, (m0, n0, batch_0), stages + s * self.stage_bytes, (first + s) * config.tile_k, depth)
            # A group even where there is no k-tile, so that all stages count alike.
            cute.arch.cp_async_commit_group()
        matrix = tid // (config.lanes_m * config.lanes_n)
        lane_m, lane_n = self.lanes()
        stage = stages
        for k_tile in cutlass.range(k_tiles, unroll=1):
            cute.arch.cp_async_wait_group(config.stages - 1)
            cute.arch.sync_threads()
            self.multiply(rC, stage, (matrix, lane_m, lane_n))
            if k_tile + config.stages < k_tiles:
                # The k-tile was read by all.
                cute.arch.sync_threads()
                k0 = (first + k_tile + config.stages) * config.tile_k
                self.issue(mA, mB, (m0, n0, batch_0), stage, k0, depth)
            cute.arch.cp_async_commit_group()
            stage = stage + self.stage_bytes if stage < stages + (config.stages - 1) * self.stage_bytes else stages
        cute.arch.cp_async_wait_group(0)
        rPart, part = rC, 0
        if cutlass.const_expr(config.cluster_k > 1):
            rows = cutlass.const_expr(config.thread_m // config.writers)
            rPart = cute.make_rmem_tensor(
                cute.make_layout((rows, config.thread_n), stride=(config.thread_n, 1)), self.element
            )
            part = rank if cutlass.const_expr(config.writers == config.cluster_k) else rank % config.writers
            reduce_in_cluster(rPart, rC, stages, part, config.cluster_k, config.threads)
        if batch_0 + matrix < mD.shape[2] and (config.writers == config.cluster_k or rank < config.writers):
            corner = m0 + lane_m * self.vector, n0 + lane_n * self.vector
            gC, gD = mC[None, None, batch_0 + matrix], mD[None, None, batch_0 + matrix]
            self.write(gD, gC, rPart, corner, part, (alpha, beta))

    @cute.jit
    def lanes(self):
        """Return this thread's place along M and N of its matrix.

        Its bits alternate, those of N first: where lanes i and i xor 1 read the same vector, or i and i xor 2, 16 lanes
        read at once.
        """
        tid, _, _ = cute.arch.thread_idx()
        places, bit = [Int32(0), Int32(0)], 0
        counts = cutlass.const_expr((self.config.lanes_m, self.config.lanes_n))
        for number in cutlass.range_constexpr(max(counts).bit_length()):
            for axis in cutlass.range_constexpr(1, -1, -1):
                if cutlass.const_expr(2 << number <= counts[axis]):
                    places[axis] = places[axis] | (tid >> bit & 1) << number
                    bit += 1
        return places[0], places[1]

    @cute.jit
    def issue(self, mA: cute.Tensor, mB: cute.Tensor, tile, stage, k0, depth):
        """Issue the copies of both operands' k-tiles; `tile` is the first row, column and matrix."""
        self.copyA.issue(mA, (tile[0], k0, tile[2]), stage, depth)
        self.copyB.issue(mB, (tile[1], k0, tile[2]), stage + self.bytes_a, depth)

    @cute.jit
    def multiply(self, rC: cute.Tensor, stage, place):
        """Add the products of a k-tile; `place` is a thread's matrix, and its place along M and N."""
        config = self.config
        matrix, lane_m, lane_n = place
        startA = stage + matrix * self.copyA.stage.matrix_bytes
        startB = stage + self.bytes_a + matrix * self.copyB.stage.matrix_bytes
        for k in cutlass.range_constexpr(0, config.tile_k, self.vector):
            rA = self.fragments(self.copyA, (0, config.thread_m), startA, lane_m, k)
            # A vector of columns at a time, for fewer registers.
            for col in cutlass.range_constexpr(0, config.thread_n, self.vector):
                rB = self.fragments(self.copyB, (col, self.vector), startB, lane_n, k)
                for v in cutlass.range_constexpr(self.vector):
                    for i in cutlass.range(config.thread_m, unroll_full=True):
                        for j in cutlass.range(self.vector, unroll_full=True):
                            rC[i, col + j] += rA[i, v] * rB[j, v]

    @cute.jit
    def fragments(
        self,
        copies: cutlass.Constexpr[BatchedCopies],
        part: cutlass.Constexpr[tuple[int, int]],
        start,
        lane,
        k: cutlass.Constexpr[int],
    ):
        """Return some of a thread's rows of an operand for the k of a vector; `part` is their first one and number."""
        stage, vector = copies.stage, self.vector
        narrow = cutlass.const_expr(stage.itemsize * 8 < self.element.width)
        own = cute_type(copies.element)
        begin, rows = cutlass.const_expr(part)
        stride = cutlass.const_expr((vector, 1) if stage.k_major else (1, rows))
        rX = cute.make_rmem_tensor(cute.make_layout((rows, vector), stride=stride), self.element)
        first, swizzle = stage.row_offset(lane)
        for f in cutlass.range_constexpr(0, rows, vector):
            for v in cutlass.range_constexpr(vector):
                # One of as many rows, or all of them for one k.
                at = cutlass.const_expr((begin + f + v, k) if stage.k_major else (begin + f, k + v))
                high, low = cutlass.const_expr(stage.piece_offset(*at))
                place = cutlass.const_expr((f + v) * vector if stage.k_major else v * rows + f)
                address = start + first + high + (low ^ swizzle)
                pointer = cute.make_ptr(own, address, cute.AddressSpace.smem, assumed_align=stage.read_bytes)
                found = cute.make_tensor(rX.iterator + place, cute.make_layout(vector))
                if cutlass.const_expr(narrow):
                    read = cute.make_rmem_tensor(cute.make_layout(vector), own)
                    cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(vector)), read)
                    for e in cutlass.range_constexpr(vector):
                        found[e] = self.element(read[e])
                else:
                    cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(vector)), found)
        return rX

    @cute.jit
    def write(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, corner, part, scalars):
        """Write D = alpha * rC + beta * C for a part of a thread tile; C is read only where beta is not 0."""
        (alpha, beta), config, length = scalars, self.config, self.d_vector
        rows = cutlass.const_expr(cute.size(rC, mode=[0]))
        for i in cutlass.range_constexpr(rows):
            number = part * rows + i
            row = corner[0] + (number // self.vector * config.lanes_m * self.vector + number % self.vector)
            for j in cutlass.range_constexpr(0, config.thread_n, length):
                col = corner[1] + (j // self.vector * config.lanes_n * self.vector + j % self.vector)
                if row < gD.shape[0] and col < gD.shape[1]:
                    values = cute.make_rmem_tensor(cute.make_layout(length), self.element)
                    for v in cutlass.range_constexpr(length):
                        values[v] = alpha * rC[i, j + v]
                    if beta != 0:
                        addend = cute.make_rmem_tensor(cute.make_layout(length), self.element)
                        cute.autovec_copy(self.vector_at(gC, row, col), addend)
                        for v in cutlass.range_constexpr(length):
                            values[v] += beta * addend[v]
                    cute.autovec_copy(values, self.vector_at(gD, row, col))

    @cute.jit
    def vector_at(self, gX: cute.Tensor, row, col):
        """Return elements of a row in device memory, their address assumed to be aligned for one access."""
        start = gX.iterator + cute.crd2idx((row, col), gX.layout)
        size = cutlass.const_expr(self.d_vector * self.element.width // 8)
        known = cute.make_ptr(self.element, start.toint(), gX.memspace, assumed_align=size)
        return cute.make_tensor(known, cute.make_layout(self.d_vector))


def buildable(config: BatchedConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    element = types["element"]

    def fake_tensor(name: str, major: str, length: int) -> Any:
        if length == 1:
            return strided_tensor(name)
        return major_tensor(name, 1 if major in "kn" else 0, batch=1, vector=length)

    operands = []
    for operand in "ab":
        own = types.get(operand, element)
        length = int(types[f"{operand}_copies"]) * 8 // cute_type(own).width
        operands.append(fake_tensor(own, "k" if types[f"{operand}_major"] == "k" else "m", length))
    results = [fake_tensor(element, "n", int(types["d_vector"])) for _ in range(2)]
    scalars = cute_type(element)(1), cute_type(element)(0)
    return Buildable(SimtBatched(config, types), (*operands, *results, *scalars))
