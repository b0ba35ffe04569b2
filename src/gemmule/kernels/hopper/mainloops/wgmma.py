"""wgmma for every supported type, and groups of it: issue, commit, wait, release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cutlass
from cutlass import cute
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import hopper_helpers

#: K of an instruction on 32-bit elements.
_TF32_K = 8


class _Tf32Op(warpgroup.MmaOp):
    """wgmma on TF32, which the compiler can make and has no class for."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _make_trait(self, *, loc: Any = None, ip: Any = None, **kwargs: Any) -> Any:
        del kwargs
        shape = cute.core._pack_shape(self.shape_mnk, loc=loc, ip=ip)
        kind = cute_nvgpu.MmaAtomSM90Type.get(
            shape.type.attribute,
            self.a_major_mode._to_ir(),
            self.b_major_mode._to_ir(),
            self.a_dtype.mlir_type,
            self.b_dtype.mlir_type,
            self.acc_dtype.mlir_type,
            self.a_src._to_ir(),
        )
        started = cutlass.Boolean(False).ir_value(loc=loc, ip=ip)
        return warpgroup.MmaTraits(cute.atom.make_atom(kind, [started], loc=loc, ip=ip))


def tiled_mma(
    element: Any,
    k_major: tuple[bool, bool],
    acc: Any,
    warpgroups: int,
    mma_shape_mn: tuple[int, int],
    b_element: Any = None,
    warpgroups_n: int = 1,
) -> cute.TiledMma:
    """Return the instruction with operands in shared memory; an MN-major A of TF32 is in registers.

    Parameters
    ----------
    element, acc : type
        Of A and B, and of the accumulators.
    k_major : tuple of bool
        Whether A and B are K-major; B of 8 or 32 bits must be, and A of 8.
    warpgroups : int
        Warpgroups of a CTA tile: its wgmma tiles of 64 rows alternate among them.
    mma_shape_mn : tuple of int
        M and N of an instruction.
    b_element : type, optional
        Of B, where it is another 8-bit float.
    warpgroups_n : int
        Number of warpgroups side by side.
    """
    a, b = (OperandMajorMode.K if is_k_major else OperandMajorMode.MN for is_k_major in k_major)
    layout = (warpgroups // warpgroups_n, warpgroups_n, 1)
    if element is not cutlass.TFloat32:
        return hopper_helpers.make_trivial_tiled_mma(element, b_element or element, a, b, acc, layout, mma_shape_mn)
    source = warpgroup.OperandSource.SMEM if k_major[0] else warpgroup.OperandSource.RMEM
    op = _Tf32Op(element, element, acc, (*mma_shape_mn, _TF32_K), source, OperandMajorMode.K, b)
    return cute.make_tiled_mma(cute.make_mma_atom(op), layout)


def issue_group(mmas: Iterable[tuple[Any, Any, Any]], accumulators: Any, *, fence: bool = True) -> None:
    """Issue wgmma one after another on the same accumulators, and commit them as a group.

    Parameters
    ----------
    mmas : iterable of tuple
        Instruction, A and B of each; a generator may wait for a stage before it yields those that read it.
    accumulators : Tensor
        Accumulators of the warpgroup.
    fence : bool
        Whether the accumulators, or an operand in registers, may have been accessed since the last group.
    """
    if fence:
        warpgroup.fence()
    for mma, a, b in mmas:
        cute.gemm(mma, accumulators, a, b, accumulators)
    warpgroup.commit_group()


def k_block_mmas(mma: Any, a: Any, b: Any, stage: Any, mma_accumulating: Any = None) -> Iterator[tuple[Any, Any, Any]]:
    """Yield instruction, A and B of each k-block of a stage.

    The first is of `mma`, the others of `mma_accumulating`; without that, `mma` accumulates after the first.
    """
    for k_block in range(cute.size(a, mode=[2])):
        instruction = mma if k_block == 0 else mma_accumulating or mma
        yield instruction, a[None, None, k_block, stage], b[None, None, k_block, stage]
        if mma_accumulating is None:
            mma.set(warpgroup.Field.ACCUMULATE, True)


def wait_group_and_release(
    in_flight: int, release: Callable[[Any, Any], None], empty: Any, stages: Iterable[Any]
) -> None:
    """Wait until at most so many groups are in flight, then ``release(empty, stage)`` the stages that others read."""
    warpgroup.wait_group(in_flight)
    for stage in stages:
        release(empty, stage)
