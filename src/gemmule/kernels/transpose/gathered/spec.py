"""The transpose of small matrices whose rows begin anywhere: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.transpose.byte_tile_config import BATCH_DIMS, rows_are_wide
from gemmule.kernels.transpose.sector_tile_config import SECTOR
from gemmule.kernels.transpose.small_matrices import (
    element_signature,
    element_signatures,
    why_not_elements,
    why_not_small,
    word_launch,
)

# Bytes of the largest matrices by those of an element: beyond, a tile in shared memory was measured to be faster.
_LARGEST = {1: 100 << 10, 2: 400 << 10}
# Narrower matrices leave most of a CTA without work.
_MIN_EXTENT = 16
_WARP, _WORD = 32, 4


@dataclasses.dataclass(frozen=True)
class GatherConfig(Config):
    """Threads of a CTA, and the words of 4 bytes that each writes.

    Attributes
    ----------
    lanes : int
        Lanes of a warp side by side along the source's rows, a power of 2; the others stand along the target's.
    warps : int
        Warps of a CTA, side by side along the source's rows.
    words : int
        Words of a thread, as far apart as the warp's lanes reach along the target's rows.
    """

    lanes: int = 8
    warps: int = 4
    words: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if _WARP % self.lanes:
            raise ArgumentError(f"config {self}: lanes must divide the {_WARP} of a warp")
        if self.warps > _WARP:
            raise ArgumentError(f"config {self}: a CTA has up to {_WARP} warps")

    @property
    def outputs(self) -> int:
        return _WARP * self.warps * self.words

    @property
    def tile(self) -> tuple[int, int]:
        """Return the elements of a CTA along the source's rows, and its words along the target's."""
        return self.warps * self.lanes, _WARP // self.lanes * self.words

    @property
    def begin(self) -> int:
        """Return the bytes at a multiple of which a row's words begin.

        Half a sector, where a warp writes that of a row. Where it writes more, counting from a sector's beginning was
        measured to be slower than from the word in which the row begins.
        """
        written = _WORD * _WARP // self.lanes
        return written if written < SECTOR else _WORD

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        """Return how many CTAs stand along the source's rows and along the target's."""
        tile_i, tile_words = self.tile
        # A row that begins at the last element before such a multiple needs the most.
        words = -(-(problem.cols * problem.itemsize + self.begin - problem.itemsize) // _WORD)
        return -(-problem.rows // tile_i), -(-words // tile_words)


def why_not(problem: TransposeProblem, arch: Arch, config: GatherConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    if reason := why_not_elements(problem, _LARGEST):
        return reason
    if rows_are_wide(problem):
        return "every row begins and ends at a multiple of 16 bytes: whole vectors are better"
    if min(problem.rows, problem.cols) < _MIN_EXTENT:
        return f"a matrix of {problem.cols} rows of {problem.rows} elements is narrower than {_MIN_EXTENT}"
    if reason := why_not_small(problem, _LARGEST, config.tiles(problem)[0]):
        return reason
    if max(problem.rows, problem.cols) > MAX_EXTENT:
        return f"an extent of {(problem.rows, problem.cols)} is more than {MAX_EXTENT}"
    return None


def cost(problem: TransposeProblem, config: GatherConfig, multiprocessors: int) -> float:
    """Return how much slower than the fastest a config is expected to be: what was measured knows one."""
    del problem, multiprocessors
    return 0.0 if config == GatherConfig() else 1.0


def signature(problem: TransposeProblem, config: GatherConfig) -> Signature:
    """Specialise for the element size."""
    del config
    return element_signature(problem.itemsize)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every specialisation."""
    del arch
    return element_signatures(_LARGEST)


def launch(problem: TransposeProblem, config: GatherConfig) -> Launch:
    """Return the launch recipe: a thread for each word of the target."""
    return word_launch(problem, config.tiles(problem), config.warps)


SPEC = KernelSpec(
    name="transpose_gathered",
    operation="transpose",
    summary="small matrices, elements of 1 or 2 bytes, rows that begin anywhere, batch: a word of the target a thread",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        GatherConfig(),
        GatherConfig(16, 4, 2),
        GatherConfig(4, 8),
        GatherConfig(4, 4, 2),
        GatherConfig(4, 8, 2),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=BATCH_DIMS,
    cost=cost,
)
