"""Grouped float32 GEMM: products of several groups in one launch, whose sizes are in device memory.

Idea
    There is a CTA for each of the most tiles that there may be. Each reads the groups' ends, and finds its group and
    the tile in it, or that there is none, before it copies. A tile's matrices are the parts of its group alone: copies
    and writes end where they do, whatever the group's first row, column or k is.
Change from simt_gemm
    The scheduler of `hopper_grouped`; mainloop and epilogue are those of `simt_gemm`.
Data movement
    As of `simt_gemm`, with a weight matrix for each group.
Limits
    The last tile of a group is computed whole: half a tile a group is lost on average.
Sources
    As of `simt_gemm` and `hopper_grouped`.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, cute, select_
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.mainloops.operands import Matrices, TmaTensor
from gemmule.kernels.hopper.schedulers.grouped import GroupedKScheduler, GroupedScheduler
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.schedulers.persistent import KTileRange
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.kernel import SimtGemm, fake_args
from gemmule.kernels.simt.gemm.mainloop import SimtGemmMainloop


class GroupEpilogue(VectorEpilogue):
    """An epilogue whose result is zero beyond the last group."""

    def of_batch(self, extras: Any, batch: Any) -> tuple[Any, ...]:
        """Return the inputs of a group, and last whether there is one: `batch` is a matrix, and that."""
        matrix, is_group = batch
        return (*super().of_batch(extras, matrix), is_group)

    def values(
        self, accumulators: Any, ups: Any, addend: Any, extras: Any, at: Any, mD: Any, alpha: Any, beta: Any
    ) -> Any:
        """As of `VectorEpilogue`; `extras` as of `of_batch`."""
        values = super().values(accumulators, ups, addend, extras[:-1], at, mD, alpha, beta)
        for v in range(cute.size(values)):
            values[v] = Float32(select_(Boolean(extras[-1]), values[v], Float32(0)))
        return values


class GroupedMainloop(SimtGemmMainloop):
    """A mainloop that does not wait for the predecessor, which the reading of offsets did, and copies every operand."""

    waits = False
    # With the scheduler's registers there are none left for vectors.
    takes_vectors = False
    interleaves = False
    # It was not timed so.
    shares_mask = False


class SimtGroupedGemm(SimtGemm):
    """D[m, n] = sum over k of A[m, k] B[n, k] for each group; A is (M, K, L), B (N, K, L), D (M, N, L), row-major.

    Parameters
    ----------
    config : SimtConfig
        Tiles and stages.
    types : dict
        The signature: that of `SimtGemm`, and the divided dimension.
    """

    vector_epilogue = GroupEpilogue
    mainloop_type = GroupedMainloop
    triggers = False

    def __init__(self, config: SimtConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.axis, shape = types["axis"], (config.tile_m, config.tile_n, config.group)
        self.groups: Any = (
            GroupedKScheduler(config.tile_k, False, *shape)
            if self.axis == "k"
            else GroupedScheduler("mn".index(self.axis), MAX_GROUPS, False, *shape)
        )

    @cute.jit
    def compute_tile(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, offsets, extras
    ):
        """Compute this CTA's tile, if it has one."""
        wait_for_predecessor()
        tensors = Matrices(TmaTensor(None, mA), TmaTensor(None, mB), d=TmaTensor(None, mD))
        schedule = self.groups.schedule(tensors, (offsets, None), self.groups.allocate(SmemAllocator()))
        work_index, _, end = self.groups.work(schedule, Int32(0))
        if work_index < end:
            self.compute_group_tile((mA, mB, mC, mD), schedule, work_index, (alpha, beta), extras)

    @cute.jit
    def compute_group_tile(self, matrices, schedule, work_index, scalars, extras):
        """Compute a tile of a group: that of the parts of the matrices that are the group's."""
        mA, mB, mC, mD = matrices
        (i, j, group), _ = self.groups.work_tile(schedule, work_index, KTileRange(Int32(0), Int32(0)))
        start, end = self.groups.bounds(schedule, group)
        is_group = group < schedule.offsets.shape[0]
        # Rows beyond the last group have no matrix: their result is zero.
        matrix = cutlass.min(group, mD.shape[2] - 1)
        extents = {"m": mD.shape[0], "n": mD.shape[1], "k": mA.shape[1] if is_group else 0}
        begins = dict.fromkeys("mnk", Int32(0))
        extents[self.axis], begins[self.axis] = end - start, start
        parts = tuple(
            _part(mX[None, None, matrix], [begins[axis] for axis in axes], [extents[axis] for axis in axes])
            for mX, axes in ((mA, "mk"), (mB, "nk"), (mC, "mn"), (mD, "mn"))
        )
        origin = i * self.config.tile_m, j * self.config.tile_n
        self.multiply_and_write(parts, origin, 0, scalars, extras, (matrix, is_group))


def _part(gX: cute.Tensor, origin: list[Any], shape: list[Any]) -> cute.Tensor:
    """Return the part of a matrix that begins at `origin`."""
    begin = gX.iterator + cute.crd2idx(tuple(origin), gX.layout)
    return cute.make_tensor(begin, cute.make_layout(tuple(shape), stride=gX.stride))


def buildable(config: SimtConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    kernel = SimtGroupedGemm(config, types)
    offsets = cute.runtime.make_fake_compact_tensor(Int32, (cute.sym_int32(),), assumed_align=4)
    return Buildable(kernel, fake_args(kernel, types, (offsets,)))
