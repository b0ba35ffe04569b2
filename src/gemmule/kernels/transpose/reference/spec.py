"""The transpose that takes everything: what it is, what it needs, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Config, KernelSpec, Signature

_ITEMSIZES = (1, 2, 4, 8, 16)
_MAX_GRID = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class ReferenceConfig(Config):
    """Tile that a CTA moves.

    Attributes
    ----------
    tile : int
        Rows and columns of the tile.
    rows : int
        Rows of threads: a thread moves tile / rows elements.
    """

    tile: int = 32
    rows: int = 8

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory: the tile, each row padded by an element."""
        return self.tile * (self.tile + 1) * itemsize


def why_not(problem: TransposeProblem, arch: Arch, config: ReferenceConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch, config
    if problem.itemsize not in _ITEMSIZES:
        return f"elements of {problem.itemsize} bytes are not supported; the kernel moves 1, 2, 4, 8 or 16 bytes"
    return None


def signature(problem: TransposeProblem, config: ReferenceConfig) -> Signature:
    """Specialise for the element size."""
    del config
    return (("element", opaque_dtype(problem.itemsize).name),)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every specialisation."""
    del arch
    return tuple((("element", opaque_dtype(size).name),) for size in _ITEMSIZES)


def launch(problem: TransposeProblem, config: ReferenceConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile, up to the grid's limit."""
    missing = SPEC.batch_dims - len(problem.batch)
    batch = problem.batch + (1,) * missing

    def param(operand: str, x: StridedMatrix) -> TensorParam:
        strides = (x.row_stride, x.col_stride, *x.batch_strides, *(0,) * missing)
        return TensorParam(operand, (problem.rows, problem.cols, *batch), strides, shape_bits=64)

    tiles = -(-problem.rows // config.tile) * -(-problem.cols // config.tile) * batch[0] * batch[1] * batch[2]
    return Launch(
        grid=(min(tiles, _MAX_GRID), 1, 1),
        block=(config.tile, config.rows, 1),
        shared_bytes=config.shared_bytes(problem.itemsize),
        params=(param("a", problem.source), param("d", problem.target)),
    )


SPEC = KernelSpec(
    name="transpose_reference",
    operation="transpose",
    summary="elements of 1, 2, 4, 8 or 16 bytes, any strides, alignment, shape, batch: 32 x 32 tiles in shared memory",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(ReferenceConfig(),),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=3,
)
