"""Small ``@cute.jit`` functions of the tests' own, as their authors would launch them."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

THREADS = 128
TILE, TILE_K = 16, 16


@cute.kernel
def axpy_kernel(x: cute.Tensor, y: cute.Tensor, alpha: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    place = block * THREADS + thread
    if place < cute.size(x):
        y[place] = x[place] * alpha + y[place]


@cute.jit
def axpy(x: cute.Tensor, y: cute.Tensor, alpha: cutlass.Float32, stream: cuda.CUstream):
    axpy_kernel(x, y, alpha).launch(
        grid=(cute.ceil_div(cute.size(x), THREADS), 1, 1), block=(THREADS, 1, 1), stream=stream
    )


@cute.jit
def axpy_twice(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    """Two launches, the second of which reads what the first has written."""
    grid = (cute.ceil_div(cute.size(x), THREADS), 1, 1)
    axpy_kernel(x, y, cutlass.Float32(2.0)).launch(grid=grid, block=(THREADS, 1, 1))
    axpy_kernel(y, z, cutlass.Float32(3.0)).launch(grid=grid, block=(THREADS, 1, 1))


@cute.kernel
def past_the_end_kernel(x: cute.Tensor, ahead: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    x[thread + ahead] = cutlass.Float32(1.0)


@cute.jit
def past_the_end(x: cute.Tensor, ahead: cutlass.Int32):
    past_the_end_kernel(x, ahead).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def shifted_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    x[thread + 8] = x[thread]


@cute.jit
def shifted(x: cute.Tensor):
    """A race: warps read what their neighbours write."""
    shifted_kernel(x).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def several_faults_kernel(x: cute.Tensor, ends: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    first = smem.allocate_tensor(cutlass.Float32, cute.make_layout(24), 128)
    second = smem.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 128)
    first[thread % 24], second[thread] = x[thread], x[thread]
    value = second[THREADS - 1 - thread]
    if cutlass.const_expr(ends == "fault"):
        x[thread + THREADS] = value
    elif thread < 32:
        cute.arch.barrier(barrier_id=1, number_of_threads=64)
        x[thread] = value


@cute.jit
def several_faults(x: cute.Tensor, ends: cutlass.Constexpr):
    """Races through shared memory, and then a fault or a deadlock."""
    several_faults_kernel(x, ends).launch(grid=(2, 1, 1), block=(THREADS, 1, 1))


# Annotations are texts in this file, which a struct does not take.
_FIELDS = {"count": cutlass.Int32, "values": cute.struct.Align[cute.struct.MemRange[cutlass.Float32, 32], 64]}
Storage = cute.struct(type("Storage", (), {"__annotations__": _FIELDS}))


@cute.kernel
def unwritten_field_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    storage = SmemAllocator().allocate(Storage)
    values = storage.values.get_tensor(cute.make_layout(32))
    if thread != 1:
        values[thread] = x[thread]
    x[thread] = values[thread]


@cute.jit
def unwritten_field(x: cute.Tensor):
    unwritten_field_kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))


class Sgemm:
    """C = A @ B.T through shared memory; `barriers` says whether the kernel has them."""

    def __init__(self, barriers: bool = True):
        self.barriers = barriers

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, scale: cutlass.Constexpr = 1.0):
        grid = (cute.ceil_div(mC.shape[0], TILE), cute.ceil_div(mC.shape[1], TILE), 1)
        self.kernel(mA, mB, mC, scale).launch(grid=grid, block=(TILE, TILE, 1))

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, scale: cutlass.Constexpr):
        column, row, _ = cute.arch.thread_idx()
        tile_m, tile_n, _ = cute.arch.block_idx()
        smem = SmemAllocator()
        sA = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, TILE_K), stride=(TILE_K + 1, 1)), 16)
        sB = smem.allocate_tensor(cutlass.Float32, cute.make_layout((TILE, TILE_K), stride=(TILE_K + 1, 1)), 16)
        m, n = tile_m * TILE + row, tile_n * TILE + column
        total = cutlass.Float32(0.0)
        for k in cutlass.range(cute.ceil_div(mA.shape[1], TILE_K)):
            place = k * TILE_K + column
            a, b = cutlass.Float32(0.0), cutlass.Float32(0.0)
            if m < mA.shape[0] and place < mA.shape[1]:
                a = mA[m, place]
            if tile_n * TILE + row < mB.shape[0] and place < mB.shape[1]:
                b = mB[tile_n * TILE + row, place]
            sA[row, column], sB[row, column] = a, b
            if cutlass.const_expr(self.barriers):
                cute.arch.sync_threads()
            for inner in cutlass.range_constexpr(TILE_K):
                total += sA[row, inner] * sB[column, inner]
            if cutlass.const_expr(self.barriers):
                cute.arch.sync_threads()
        if m < mC.shape[0] and n < mC.shape[1]:
            mC[m, n] = total * scale


class TmaCopy:
    """y = x, tile by tile through TMA and an mbarrier; `waits` says whether the threads wait for it."""

    rows, columns = 32, 64

    def __init__(self, waits: bool = True):
        self.waits = waits

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor):
        tile = (self.rows, self.columns)
        layout = cute.make_layout(tile, stride=(self.columns, 1))
        load, from_x = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, tile)
        grid = (cute.ceil_div(x.shape[0], self.rows), cute.ceil_div(x.shape[1], self.columns), 1)
        self.kernel(load, from_x, y, layout).launch(grid=grid, block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, load: cute.CopyAtom, from_x: cute.Tensor, y: cute.Tensor, layout: cute.Layout):
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        arrived = smem.allocate_array(cutlass.Int64, 1)
        tile = smem.allocate_tensor(y.element_type, layout, 128)
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(arrived, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        tiles = cute.local_tile(from_x, (self.rows, self.columns), (None, None))
        target, source = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, self.rows * self.columns * y.element_type.width // 8)
            cute.copy(load, source[None, row, column], target, tma_bar_ptr=arrived)
        if cutlass.const_expr(self.waits):
            cute.arch.mbarrier_wait(arrived, 0)
        for place in cutlass.range(thread, self.rows * self.columns, THREADS):
            m, n = row * self.rows + place // self.columns, column * self.columns + place % self.columns
            if m < y.shape[0] and n < y.shape[1]:
                y[m, n] = tile[place // self.columns, place % self.columns]


@cute.kernel
def array_kernel(x: cutlass.Array, step: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = thread * step


@cute.jit
def array_steps(x: cutlass.Array, step: cutlass.Constexpr):
    array_kernel(x, step).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def cluster_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if thread == 0:
        x[block] = cute.arch.block_in_cluster_idx()[0] + 10 * cute.arch.cluster_idx()[0]


@cute.jit
def cluster_ranks(x: cute.Tensor):
    cluster_kernel(x).launch(grid=(cute.size(x), 1, 1), block=(32, 1, 1), cluster=(4, 1, 1))


@cute.kernel
def never_arrives_kernel(x: cute.Tensor):
    arrived = SmemAllocator().allocate_array(cutlass.Int64, 1)
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        cute.arch.mbarrier_init(arrived, 1)
    cute.arch.sync_threads()
    cute.arch.mbarrier_wait(arrived, 0)
    x[thread] = cutlass.Float32(1.0)


@cute.jit
def never_arrives(x: cute.Tensor):
    never_arrives_kernel(x).launch(grid=(2, 1, 1), block=(64, 1, 1))


@cute.kernel
def store_kernel(
    x: cute.Tensor, a: cutlass.Int32, b: cutlass.Int32, c: cutlass.Int32, d: cutlass.Int32, e: cutlass.Int32
):
    x[0], x[1], x[2], x[3], x[4] = a, b, c, d, e


@cute.kernel
def store_last_kernel(x: cute.Tensor, f: cutlass.Int32):
    x[5] = f


@cute.jit
def host_arithmetic(x: cute.Tensor, n: cutlass.Int32):
    """Store what the host computes: quotient, remainder, a branch's value, a loop's sum, minimum, absolute value."""
    quotient = n // 3
    if n < 0:
        quotient = -((-n) // 3)
    half = n
    if n >= 0:
        half = n // 2
    total = cutlass.Int32(0)
    for i in range(n):
        total += i * i
    if n > 0:
        cute.printf("n is %d", n)
    store_kernel(x, quotient, n - 3 * quotient, half, total, cutlass.min(n, 2)).launch(grid=(1, 1, 1), block=(1, 1, 1))
    absolute = n
    if n < 0:
        absolute = -n
    store_last_kernel(x, absolute).launch(grid=(1, 1, 1), block=(1, 1, 1))


@cute.kernel
def printing_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread < 2:
        cute.printf("lane %d has %.3f", thread, x[thread])
    if thread == 32:
        cute.printf("done")


@cute.jit
def printing(x: cute.Tensor):
    printing_kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1))


@cute.kernel
def fill_kernel(start: cute.Pointer):
    thread, _, _ = cute.arch.thread_idx()
    cute.make_tensor(start, cute.make_layout(THREADS))[thread] = cutlass.Float32(7.0)


@cute.jit
def fill(start: cute.Pointer):
    fill_kernel(start).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


class TmaStore:
    """y = x through shared memory, by TMA stores; element `missing` of a tile is not written."""

    tile = (8, 16)

    def __init__(self, missing: int = -1):
        self.missing = missing

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor):
        layout = cute.make_layout(self.tile, stride=(self.tile[1], 1))
        store, to_y = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, layout, self.tile)
        grid = (cute.ceil_div(x.shape[0], self.tile[0]), cute.ceil_div(x.shape[1], self.tile[1]), 1)
        self.kernel(x, store, to_y, layout).launch(grid=grid, block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, store: cute.CopyAtom, to_y: cute.Tensor, layout: cute.Layout):
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        tile = SmemAllocator().allocate_tensor(x.element_type, layout, 128)
        m, n = thread // self.tile[1], thread % self.tile[1]
        i, j = row * self.tile[0] + m, column * self.tile[1] + n
        # What lies outside of the tensor is not stored, and needs no value.
        if i < x.shape[0] and j < x.shape[1] and thread != self.missing:
            tile[m, n] = x[i, j]
        cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()
        tiles = cute.local_tile(to_y, self.tile, (row, column))
        source, target = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
            cute.copy(store, source, target)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)


class BulkCopy:
    """y = x of 256 float32 by bulk copies, whose target CuTe names as one of a cluster of one CTA."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor):
        self.kernel(x, y).launch(grid=(1, 1, 1), block=(32, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        smem = SmemAllocator()
        arrived = smem.allocate_array(cutlass.Int64, 1)
        tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout(256), 128)
        load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float32, num_bits_per_copy=8192)
        store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), cutlass.Float32, num_bits_per_copy=8192)
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(arrived, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, 1024)
            cute.copy(load, cute.local_tile(x, (256,), (0,)), tile, mbar_ptr=arrived)
        cute.arch.sync_warp()
        cute.arch.mbarrier_wait(arrived, 0)
        with cute.arch.elect_one():
            cute.copy(store, tile, cute.local_tile(y, (256,), (0,)))
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.kernel
def first_kernel(x: cute.Tensor, y: cute.Tensor):
    y[0] = x[0]


@cute.jit
def first_element(x: cute.Tensor, y: cute.Tensor, blocks: cutlass.Int32, shared: cutlass.Int32):
    first_kernel(x, y).launch(grid=(blocks, 1, 1), block=(1, 1, 1), smem=shared)


@cute.kernel
def dependent_kernel(x: cute.Tensor, y: cute.Tensor, waits: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    if cutlass.const_expr(waits == "first"):
        cute.arch.griddepcontrol_wait()
    if cutlass.const_expr(waits == "behind a barrier"):
        if thread < 32:
            cute.arch.griddepcontrol_wait()
        cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    value = x[thread] + cutlass.Float32(1.0)
    if cutlass.const_expr(waits == "before it writes"):
        cute.arch.griddepcontrol_wait()
    y[thread] = value


@cute.jit
def dependent_launches(
    x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, waits: cutlass.Constexpr, third: cutlass.Constexpr
):
    """y = x + 1, then z = y + 1 in a dependent launch, and x = z + 1 in a `third` one."""
    one = {"grid": (1, 1, 1), "block": (THREADS, 1, 1)}
    dependent_kernel(x, y, "first").launch(**one)
    dependent_kernel(y, z, waits).launch(**one, use_pdl=True)
    if cutlass.const_expr(third):
        dependent_kernel(z, x, "before it writes").launch(**one, use_pdl=True)
