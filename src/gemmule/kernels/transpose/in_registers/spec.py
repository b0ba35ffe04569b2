"""The transpose of small matrices: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.transpose.byte_tile_config import BATCH_DIMS, packed_rows, rows_are_multiples
from gemmule.kernels.transpose.small_matrices import (
    element_signature,
    element_signatures,
    why_not_elements,
    why_not_small,
    word_launch,
)

# Bytes of the largest matrices by those of an element: beyond, a tile in shared memory was measured to be faster.
_LARGEST = {1: 160 << 10, 2: 4 << 10}
_WARP, _WORD = 32, 4


@dataclasses.dataclass(frozen=True)
class SquareConfig(Config):
    """Threads of a CTA, a word of 4 bytes each.

    Attributes
    ----------
    lanes : int
        Lanes of a warp side by side along the source's rows, a power of 2; the others stand along the target's.
    warps : int
        Warps of a CTA, side by side along the source's rows.
    """

    lanes: int = 4
    warps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if _WARP % self.lanes:
            raise ArgumentError(f"config {self}: lanes must divide the {_WARP} of a warp")
        if self.warps > _WARP:
            raise ArgumentError(f"config {self}: a CTA has up to {_WARP} warps")

    @property
    def outputs(self) -> int:
        return _WARP * self.warps

    def tile(self, itemsize: int) -> tuple[int, int]:
        """Return the elements of a CTA along the source's rows and along the target's."""
        pack = packed_rows(itemsize)
        return self.warps * self.lanes * pack, _WARP // self.lanes * pack

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        """Return how many CTAs stand along the source's rows and along the target's."""
        tile_i, tile_j = self.tile(problem.itemsize)
        return -(-problem.rows // tile_i), -(-problem.cols // tile_j)


def why_not(problem: TransposeProblem, arch: Arch, config: SquareConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    if reason := why_not_elements(problem, _LARGEST):
        return reason
    if not rows_are_multiples(problem, _WORD):
        item = problem.itemsize
        return f"elements of {item} bytes are moved in words: rows must begin and end at multiples of {_WORD} bytes"
    return why_not_small(problem, _LARGEST, config.tiles(problem)[0])


def signature(problem: TransposeProblem, config: SquareConfig) -> Signature:
    """Specialise for the element size."""
    del config
    return element_signature(problem.itemsize)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every specialisation."""
    del arch
    return element_signatures(_LARGEST)


def launch(problem: TransposeProblem, config: SquareConfig) -> Launch:
    """Return the launch recipe: a thread for each word."""
    return word_launch(problem, config.tiles(problem), config.warps)


SPEC = KernelSpec(
    name="transpose_in_registers",
    operation="transpose",
    summary="small matrices, elements of 1 or 2 bytes, rows of whole words, batch: squares exchanged in registers",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(SquareConfig(),),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=BATCH_DIMS,
)
