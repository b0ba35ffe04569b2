"""The transpose through words that are not shifted: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT
from gemmule.core.spec import Config, KernelSpec, Signature
from gemmule.kernels.transpose.byte_tile_config import BATCH_DIMS, packed_rows, rows_are_wide, tile_params
from gemmule.kernels.transpose.sector_tile_config import why_not_apart
from gemmule.kernels.transpose.small_matrices import (
    element_signature,
    element_signatures,
    why_not_elements,
    why_not_small,
)

# Bytes of the largest matrices by those of an element: beyond, whole sectors were measured to be faster.
_LARGEST = {1: 1 << 20, 2: 2 << 20}
# Narrower matrices leave most of a CTA without work.
_MIN_EXTENT = 16
# Bytes that offsets of 32 bits reach.
_MAX_SPAN = 1 << 30
_WORD, _BANKS = 4, 32


@dataclasses.dataclass(frozen=True)
class UnshiftedConfig(Config):
    """Tile that a CTA moves.

    Attributes
    ----------
    lanes : int
        Words of 4 bytes that are read side by side of a row of the source, 16 or 32; one of them is the neighbour's.
    words : int
        Words of a row of the target.
    threads : int
        Threads of a CTA.
    begin : int
        Bytes at a multiple of which the first word of a row of the target begins.
    """

    lanes: int = 16
    words: int = 8
    threads: int = 128
    begin: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lanes not in (16, 32) or self.words not in (8, 16, 32):
            raise ArgumentError(f"config {self}: lanes must be 16 or 32, and words 8, 16 or 32")
        if self.threads & (self.threads - 1) or not 32 <= self.threads <= 1024:
            raise ArgumentError(f"config {self}: threads must be a power of 2 from 32 to 1024")
        if self.begin not in (4, 8, 16, 32) or self.threads // self.words % self.begin:
            raise ArgumentError(f"config {self}: begin must be 4, 8, 16 or 32, and divide the rows of all threads")

    @property
    def outputs(self) -> int:
        return (self.lanes - 1) * self.words * _WORD

    def tile_i(self, itemsize: int) -> int:
        """Return the elements of a row of the source that a CTA takes."""
        return (self.lanes - 1) * packed_rows(itemsize)

    def held(self, itemsize: int) -> int:
        """Return the rows of the source that a CTA reads."""
        return (self.words * _WORD + self.begin) // itemsize - 1

    def slots(self, itemsize: int) -> int:
        """Return the rows of a kind in the tile: those whose numbers have the same rest by the elements of a word."""
        return -(-self.held(itemsize) // packed_rows(itemsize))

    @property
    def pitch(self) -> int:
        """Return the words from a row of the tile to the next of its kind."""
        return self.lanes + 2

    def kind(self, itemsize: int) -> int:
        """Return the words from the rows of a kind to those of the next.

        A warp gathers words of several rows of the target from rows of several kinds, 16 banks apart: with this, and
        the pitch, fewest lanes meet in a bank. A row's elements begin anywhere in its words, so that some do.
        """
        least = self.slots(itemsize) * self.pitch
        return least + (_BANKS // 2 - least) % _BANKS

    def tile_bytes(self, itemsize: int) -> int:
        """Return the bytes of the tile in shared memory."""
        return packed_rows(itemsize) * self.kind(itemsize) * _WORD

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        """Return how many CTAs stand along the source's rows and along the target's."""
        words = -(-(problem.cols * problem.itemsize + self.begin - problem.itemsize) // _WORD)
        return -(-problem.rows // self.tile_i(problem.itemsize)), -(-words // self.words)


# By the bytes of an element.
_FASTEST = {1: UnshiftedConfig(), 2: UnshiftedConfig(32, 16, 256)}


def why_not(problem: TransposeProblem, arch: Arch, config: UnshiftedConfig) -> str | None:
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
    if reason := why_not_apart(problem):
        return reason
    if abs(problem.source.col_stride) * problem.cols * problem.itemsize >= _MAX_SPAN:
        return f"rows of the source reach over {_MAX_SPAN} bytes and more"
    return None


def cost(problem: TransposeProblem, config: UnshiftedConfig, multiprocessors: int) -> float:
    """Return how much slower than the fastest a config is expected to be: what was measured knows one for each size."""
    del multiprocessors
    return 0.0 if config == _FASTEST[problem.itemsize] else 1.0


def signature(problem: TransposeProblem, config: UnshiftedConfig) -> Signature:
    """Specialise for the element size."""
    del config
    return element_signature(problem.itemsize)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every specialisation."""
    del arch
    return element_signatures(_LARGEST)


def launch(problem: TransposeProblem, config: UnshiftedConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile."""
    along_source, along_target = config.tiles(problem)
    return Launch(
        grid=(along_target, along_source, math.prod(problem.batch)),
        block=(config.threads, 1, 1),
        shared_bytes=config.tile_bytes(problem.itemsize),
        params=tile_params(problem),
        overlaps=True,
    )


SPEC = KernelSpec(
    name="transpose_word_aligned",
    operation="transpose",
    summary="small matrices, elements of 1 or 2 bytes, rows that begin anywhere, batch: words kept as they lie",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        UnshiftedConfig(),
        UnshiftedConfig(32, 16, 256),
        UnshiftedConfig(16, 16, 256),
        UnshiftedConfig(32, 8, 256),
        UnshiftedConfig(16, 8, 128, 16),
        UnshiftedConfig(16, 8, 256, 32),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=BATCH_DIMS,
    cost=cost,
)
