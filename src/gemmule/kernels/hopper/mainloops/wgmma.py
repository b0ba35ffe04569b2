"""Hopper's matrix instruction for every type that gemmule gives it."""

from __future__ import annotations

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
    element: Any, along_k: tuple[bool, bool], sums: Any, warpgroups: int, tile: tuple[int, int], second: Any = None
) -> cute.TiledMma:
    """Return the instruction with operands in shared memory.

    Parameters
    ----------
    element, sums : type
        Of A and B, and of the sums.
    along_k : tuple of bool
        Whether A and B are contiguous along K; those that are not of 16 bits must be.
    warpgroups : int
        Warpgroups that take blocks of rows in turns.
    tile : tuple of int
        Rows and columns of an instruction.
    second : type, optional
        Of B, where it is another type: of 8-bit floats only.
    """
    a, b = (OperandMajorMode.K if along else OperandMajorMode.MN for along in along_k)
    layout = (warpgroups, 1, 1)
    if element is not cutlass.TFloat32:
        return hopper_helpers.make_trivial_tiled_mma(element, second or element, a, b, sums, layout, tile)
    op = _Tf32Op(element, element, sums, (*tile, _TF32_K), warpgroup.OperandSource.SMEM, a, b)
    return cute.make_tiled_mma(cute.make_mma_atom(op), layout)
