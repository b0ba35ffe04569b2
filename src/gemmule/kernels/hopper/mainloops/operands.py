"""Stages of A and B in shared memory, the TMA loads that fill them, and the operands of wgmma that they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.hopper_facts import WARPGROUP


class TmaTensor(NamedTuple):
    """A TMA atom, and the tensor of coordinates that it takes; without an atom, a tensor that threads access."""

    atom: Any
    tensor: Any


#: No tensor, for an optional operand.
NO_TENSOR = TmaTensor(None, None)


class Matrices(NamedTuple):
    """The matrices of a launch; C and D have no TMA atom where threads access them."""

    a: TmaTensor
    b: TmaTensor
    c: TmaTensor = NO_TENSOR
    d_transposed: TmaTensor = NO_TENSOR  #: For SYRK only: before `d`, in the order of the launch recipe.
    d: TmaTensor = NO_TENSOR


class Fragments(NamedTuple):
    """A wgmma, its operands A and B by stage, and the accumulators of a warpgroup."""

    mma: Any
    a: Any
    b: Any
    accumulators: Any


@dataclass(frozen=True)
class TmaLoad:
    """A TMA load of one operand's k-tile into a stage."""

    atom: Any  #: CopyAtom. The load.
    #: smem, gmem: Tensor. Stages, and tiles of the operand as (box, tile, k-tile, …), both partitioned for the atom.
    smem: Any
    gmem: Any
    #: Tuple or None. CTAs of the cluster that receive it: rank of the first, stride to the next, how many; None is this
    #: CTA alone.
    multicast_ctas: Any = None

    def issue(self, coord: tuple[Any, ...], stage: Any, full: Any) -> None:
        """Issue the load of the k-tile at (tile, k-tile, …); the stage's barrier counts its bytes."""
        source, target = self.gmem[(None, *coord)], self.smem[None, stage]
        if self.multicast_ctas is None:
            cute.copy(self.atom, source, target, tma_bar_ptr=full + stage)
        else:
            first, stride, num_ctas = self.multicast_ctas
            mask = cutlass.Int16(sum(1 << stride * cta for cta in range(num_ctas)))
            if first is not None:
                mask = mask << first.to(cutlass.Int16)
            cute.copy(self.atom, source, target, tma_bar_ptr=full + stage, mcast_mask=mask)


def partitioned(
    atom: Any, smem: Any, gmem_tiles: Any, multicast_slice: Any = 0, multicast_size: int = 1
) -> tuple[Any, Any]:
    """Return shared- and global-memory tiles partitioned for a TMA atom: with multicast, this CTA's slice of each."""
    return cpasync.tma_partition(
        atom,
        multicast_slice,
        cute.make_layout(multicast_size),
        cute.group_modes(smem, 0, 2),
        cute.group_modes(gmem_tiles, 0, 2),
    )


def flat(accumulators: Any) -> Any:
    """Return a thread's accumulators as a vector, in the order in which wgmma leaves them."""
    return cute.make_tensor(accumulators.iterator, cute.make_layout(cute.size(accumulators)))


@dataclass(frozen=True)
class OperandStages:
    """Stages of a k-tile of A (M, K) and one of B (N, K), in the layout that TMA writes and wgmma reads."""

    cta_tile_mnk: tuple[int, int, int]  #: Extents of a CTA's tile along M, N and K.
    elements: tuple[Any, Any]  #: Element types of A and B.
    k_major: tuple[bool, bool]  #: Whether A and B are K-major.
    num_stages: int  #: Stages.
    #: multicast_size_a, multicast_size_b: CTAs of the cluster that share a load of A, and of B: each issues a slice of
    #: it, for all of them.
    multicast_size_a: int = 1
    multicast_size_b: int = 1
    #: num_b, num_a: Matrices B whose tiles are contiguous in a stage, or matrices A: 2 for a gated activation (dual
    #: GEMM), each with half of the columns, or rows.
    num_b: int = 1
    num_a: int = 1
    parts_b: int = 1  #: Parts of B's columns that are whole swizzle atoms each, for warpgroups side by side.

    @property
    def stage_bytes(self) -> int:
        """Bytes of the loads that fill a stage of a CTA."""
        _, n, k = self.cta_tile_mnk
        b_bytes: int = n * k * self.elements[1].width // 8
        return self.a_bytes + b_bytes

    @property
    def a_bytes(self) -> int:
        """Bytes of A's k-tile."""
        m, _, k = self.cta_tile_mnk
        nbytes: int = m * k * self.elements[0].width // 8
        return nbytes

    @property
    def tile_mk(self) -> tuple[int, int]:
        """Extents of the k-tile of one A."""
        return self.cta_tile_mnk[0] // self.num_a, self.cta_tile_mnk[2]

    @property
    def tile_nk(self) -> tuple[int, int]:
        """Extents of the k-tile of one B."""
        return self.cta_tile_mnk[1] // self.num_b, self.cta_tile_mnk[2]

    def layout_a(self, num_a: int = 1) -> Any:
        """Return the shared-memory layout of all stages of A, or of their part for one of `num_a`."""
        m, n, k = self.cta_tile_mnk
        tile = (m // num_a, n, k)
        return hopper_helpers.make_smem_layout_a(_order(self.k_major[0]), tile, self.elements[0], self.num_stages)

    def layout_b(self, num_b: int = 1) -> Any:
        """Return the shared-memory layout of all stages of B, or of their part for one of `num_b`."""
        m, n, k = self.cta_tile_mnk
        order, element = _order(self.k_major[1]), self.elements[1]
        if self.k_major[1] or self.parts_b == 1:
            return hopper_helpers.make_smem_layout_b(order, (m, n // num_b, k), element, self.num_stages)
        kind = hopper_helpers.get_smem_layout_atom(order, element, n // self.parts_b)
        atom = cute.nvgpu.warpgroup.make_smem_layout_atom(kind, element)
        return cute.tile_to_shape(atom, (n, k, self.num_stages), order=(1, 0, 2))

    def tma_a(self, mA: Any) -> TmaTensor:
        """Return the TMA load of the k-tiles of A, or of one of two."""
        return _tma(mA, self.layout_a(self.num_a), self.tile_mk, self.multicast_size_a, self.elements[0])

    def tma_b(self, mB: Any) -> TmaTensor:
        """Return the TMA load of the k-tiles of B, or of one of two."""
        return _tma(mB, self.layout_b(self.num_b), self.tile_nk, self.multicast_size_b, self.elements[1])

    def allocate(self, smem: Any) -> tuple[Any, Any]:
        """Allocate the stages: tensors sA (M, K, stage) and sB (N, K, stage)."""
        layouts = (self.layout_a(), self.layout_b())
        a, b = (
            smem.allocate_tensor(element, layout.outer, 1024, swizzle=layout.inner)
            for element, layout in zip(self.elements, layouts, strict=True)
        )
        return a, b

    def num_k_tiles(self, operand: TmaTensor) -> Any:
        """Return how many k-tiles an operand has."""
        return cute.ceil_div(operand.tensor.shape[1], self.cta_tile_mnk[2])

    def stages(self, smem: Any, operands: Any) -> tuple[Any, Any]:
        """Allocate the stages of the operands of a launch."""
        del operands
        return self.allocate(smem)

    def load_a(
        self, a: TmaTensor, sA: Any, multicast_slice: Any = 0, multicast_ctas: Any = None, index: int = 0
    ) -> TmaLoad:
        """Return this CTA's load of A's k-tiles into sA: with multicast its slice of each, to all that share it.

        `index` picks one of two A, and its half of sA.
        """
        smem = cute.local_tile(sA, self.tile_mk, (index, 0, None)) if self.num_a > 1 else sA
        tiles = cute.local_tile(a.tensor, self.tile_mk, (None,) * cute.rank(a.tensor))
        parts = partitioned(a.atom, smem, tiles, multicast_slice, self.multicast_size_a)
        return TmaLoad(a.atom, *parts, multicast_ctas)

    def load_b(
        self, b: TmaTensor, sB: Any, multicast_slice: Any = 0, multicast_ctas: Any = None, index: int = 0
    ) -> TmaLoad:
        """Return this CTA's load of B, as `load_a`."""
        smem = cute.local_tile(sB, self.tile_nk, (index, 0, None)) if self.num_b > 1 else sB
        tiles = cute.local_tile(b.tensor, self.tile_nk, (None,) * cute.rank(b.tensor))
        parts = partitioned(b.atom, smem, tiles, multicast_slice, self.multicast_size_b)
        return TmaLoad(b.atom, *parts, multicast_ctas)

    def fragments(self, mma: Any, smem_ab: tuple[Any, Any], warpgroup_idx: Any, acc: Any) -> Fragments:
        """Return a warpgroup's fragments: its rows of A by stage, B by stage, and its accumulators.

        Parameters
        ----------
        mma : TiledMma
            The instruction, for all warpgroups that share a tile.
        smem_ab : tuple of Tensor
            What `allocate` returned.
        warpgroup_idx : Int32 or int
            The warpgroup's index among those that share a tile.
        acc : type
            Type of the accumulators.
        """
        part = mma.get_slice(warpgroup_idx * WARPGROUP)
        a = mma.make_fragment_A(part.partition_A(smem_ab[0]))
        b = mma.make_fragment_B(part.partition_B(smem_ab[1]))
        return Fragments(mma, a, b, cute.make_rmem_tensor(mma.partition_shape_C(self.cta_tile_mnk[:2]), acc))


def _order(k_major: bool) -> Any:
    return LayoutEnum.ROW_MAJOR if k_major else LayoutEnum.COL_MAJOR


def _tma(matrix: Any, layout: Any, tile: tuple[int, int], multicast_size: int, element: Any) -> TmaTensor:
    load = cpasync.CopyBulkTensorTileG2SOp() if multicast_size == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    # nvidia-cutlass-dsl 4.8.1 slices no stage out of those of an odd number of swizzle atoms.
    stage = cute.make_composed_layout(layout.inner, 0, cute.select(layout.outer, [0, 1]))
    return TmaTensor(*cpasync.make_tiled_tma_atom(load, matrix, stage, tile, multicast_size, internal_type=element))
