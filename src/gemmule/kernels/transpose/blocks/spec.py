"""Permutations of short axes: their limits, and launch recipe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.block import (
    AXES,
    BLOCK_AXES,
    Block,
    axes_of,
    in_units,
    places_of,
    sides_of,
    stage_bytes,
    stages_of,
)
from gemmule.kernels.transpose.blocks.block_choice import Ctas, conflicts_us, least_us, predicted_us, small_us
from gemmule.kernels.transpose.blocks.config import BlocksConfig
from gemmule.kernels.transpose.refusals import ITEMSIZES, rows_are_aligned, target_is_aligned, why_not_itemsize
from gemmule.kernels.transpose.small_batches import is_small_batch
from gemmule.kernels.transpose.spec import element_signature, transpose_spec
from gemmule.kernels.transpose.tile_config import SECTOR, WORD, TileConfig
from gemmule.kernels.transpose.tiled.spec import SPEC as TILED
from gemmule.kernels.transpose.tiled.spec import refuse_byte_tiles
from gemmule.kernels.transpose.whole_rows.spec import SPEC as WHOLE_ROWS
from gemmule.kernels.transpose.whole_rows.spec import refuse_whole_rows
from gemmule.kernels.transpose.whole_sectors.spec import SPEC as WHOLE_SECTORS
from gemmule.kernels.transpose.whole_sectors.spec import refuse_sector_tiles

# Bytes of both sides of matrices, of unaligned ones, and of all their elements, from which on tiles are full.
_LONG, _LONG_UNALIGNED, _LARGE = 512, 1024, 64 << 10
# Bytes of the shorter side of matrices that fill small parts of tiles, and the matrices from which on tiles are slower.
_NARROW, _MANY = 128, 64
# Share of the time of blocks below which tiles are chosen, and that of matrices of few bytes in tiles of vectors, whose
# times are predicted too short; the same where rows are not aligned, of elements of 1 and 2 bytes and of larger ones.
_FASTER, _FASTER_FEW, _FEW_BYTES, _FASTER_NARROW = 0.97, 0.85, 64 << 20, (0.55, 0.85)
# The same of large ones where rows of the target share sectors.
_FASTER_SHARED = 0.9

# Factor on the predicted time of such CTAs, by the bytes of a unit; of small batches those of 1 and less.
_SLOWER = {
    Ctas(512, 64, 1): {1: 1.1},
    Ctas(256, 64, 2): {8: 1.03, 16: 1.07},
    Ctas(256, 32, 4): dict.fromkeys(ITEMSIZES, 1.03),
    Ctas(256, 16, 4): dict.fromkeys(ITEMSIZES, 0.98),
}


def refuse_blocks(problem: TransposeProblem) -> str | None:
    """Return why no blocks can be moved, or None where that depends on the config."""
    if reason := why_not_itemsize(problem, ITEMSIZES):
        return reason
    axes, keeps_last = axes_of(problem), problem.source.col_stride == problem.target.col_stride == 1
    # Strided or reversed elements fill no tile, however few axes they have.
    is_strided = any(min(side.strides, default=1) != 1 for side in sides_of(problem))
    least = 1 if is_strided else 3
    if not least <= len(axes) <= AXES:
        return f"{len(axes)} axes of more than one element remain; blocks are of {least} to {AXES}"
    if keeps_last or is_strided:
        return None
    sides = problem.rows * problem.itemsize, problem.cols * problem.itemsize
    long = _LONG if rows_are_aligned(problem) else _LONG_UNALIGNED
    if min(sides) >= long and sides[0] * problem.cols >= _LARGE:
        return f"matrices with sides of {sides[1]} and {sides[0]} bytes fill tiles, which are faster"
    return None


def blocks_us(problem: TransposeProblem, gpu: GpuRates) -> float | None:
    """Return about the microseconds of a transpose in blocks, or None where there are no blocks for it."""
    if refuse_blocks(problem) is not None:
        return None
    return min(_costs(problem, _CONFIGS, gpu))


def blocks_take_less(problem: TransposeProblem, most: float, gpu: GpuRates) -> bool:
    """Return whether blocks are predicted to take less than so many microseconds: their choice takes long."""
    if least_us(problem) * SMS / gpu.multiprocessors >= most:
        return False
    blocks = blocks_us(problem, gpu)
    return blocks is not None and blocks < most


def _costs(problem: TransposeProblem, configs: Sequence[BlocksConfig], gpu: GpuRates) -> list[float]:
    unit = in_units(problem).itemsize
    least = least_us(problem)
    found = [
        max(predicted_us(problem, one.residents) * _SLOWER.get(one.residents, {}).get(unit, 1.0), least)
        for one in configs
    ]
    # Places take long to choose: conflicts are counted of what would be chosen.
    counted: set[int] = set()
    while (best := min(range(len(found)), key=found.__getitem__)) not in counted:
        counted.add(best)
        found[best] += conflicts_us(problem, configs[best].residents)
    if is_small_batch(problem):
        ctas = configs[best].residents
        slower = min(_SLOWER.get(ctas, {}).get(unit, 1.0), 1.0)
        closer = max(small_us(problem, ctas) * slower, least) + conflicts_us(problem, ctas)
        # The config stays that of the least time.
        found = [one * closer / found[best] for one in found]
    return [one * SMS / gpu.multiprocessors for one in found]


def faster_tiles(problem: TransposeProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of tiles that is predicted to be faster, or None."""
    if problem.source.row_stride != 1 or problem.target.col_stride != 1:
        return None
    if refuse_whole_rows(problem) is None:
        least = _least_us(WHOLE_ROWS, problem, gpu)
        return WHOLE_ROWS.name if least is not None and least < cost else None
    if min(problem.rows, problem.cols) * problem.itemsize <= _NARROW and math.prod(problem.batch) >= _MANY:
        return None
    for spec, refuse in ((WHOLE_SECTORS, refuse_sector_tiles), (TILED, refuse_byte_tiles)):
        if refuse(problem) is None and (least := _least_us(spec, problem, gpu)) is not None:
            return spec.name if least < _share_of_tiles(spec, problem) * cost else None
    return None


def _share_of_tiles(spec: KernelSpec, problem: TransposeProblem) -> float:
    """Return the share of the time of blocks below which a kernel of tiles is faster."""
    if spec is not TILED:
        return _FASTER
    if not rows_are_aligned(problem):
        return _FASTER_NARROW[problem.itemsize >= WORD]
    # Nor do tiles fill short sides, which their times do not say.
    is_short = min(problem.rows, problem.cols) * problem.itemsize < _LONG
    if is_short or problem.bytes_min <= _FEW_BYTES:
        return _FASTER_FEW
    return _FASTER if target_is_aligned(problem, SECTOR) else _FASTER_SHARED


def _least_us(spec: KernelSpec, problem: TransposeProblem, gpu: GpuRates) -> float | None:
    """Return the microseconds of a kernel's fastest config by prediction, or None where no config takes a problem."""
    assert spec.cost is not None
    taken = (
        config for config in spec.configs_on(gpu) if isinstance(config, TileConfig) and not config.why_not(problem)
    )
    return min((spec.cost(problem, config, gpu) for config in taken), default=None)


def _launch(problem: TransposeProblem, config: BlocksConfig) -> Launch:
    block, item = config.of(problem), in_units(problem).itemsize
    in_stage = places_of(block, item)
    pitches = dict(zip(block.inner, in_stage.pitches, strict=True))
    stage = stage_bytes(block, item)

    def order(numbers: Sequence[int], side: str) -> list[int]:
        """Return divisors of coordinates, extents, bytes to the next element in memory and a stage, and skews."""
        extents = [block.extents[number] for number in numbers]
        strides = [getattr(block.axes[number], side) * item for number in numbers]
        places = [pitches[number] * item for number in numbers]
        divisors = [-(-(1 << 32) // extent) for extent in extents]
        return [
            *filled([signed(one) for one in divisors], BLOCK_AXES, 0),
            *filled(extents, BLOCK_AXES, 1),
            *filled(strides, BLOCK_AXES, 0),
            *filled(places, BLOCK_AXES, 0),
            *filled([in_stage.skew * item * (number == block.inner[0]) for number in numbers], BLOCK_AXES, 0),
        ]

    # Axes with one block have the last places: what is left to divide is 0 there.
    outer = sorted(range(len(block.axes)), key=lambda number: block.counts[number] == 1)
    earlier = [
        count * size - axis.extent for count, size, axis in zip(block.counts, block.extents, block.axes, strict=True)
    ]

    def blocks(side: str, operand: str) -> TensorParam:
        strides = [getattr(block.axes[number], side) for number in outer]
        counts = [block.counts[number] for number in outer]
        return TensorParam(operand, filled(counts, AXES, 1), filled(strides, AXES, 0))

    bits = {number: 1 << place for place, number in enumerate(block.inner) if earlier[number]}
    divisors = [divisor_of(block.counts[number]) for number in outer]
    scalars = (
        *order(block.read, "source"),
        *order(block.inner, "target"),
        *filled([earlier[number] for number in block.inner], BLOCK_AXES, 0),
        *filled([divisor for divisor, _ in divisors], AXES, 0),
        *filled([shift for _, shift in divisors], AXES, 0),
        *filled([block.extents[number] for number in outer], AXES, 1),
        *filled([earlier[number] for number in outer], AXES, 0),
        *filled([bits.get(number, 0) for number in outer], AXES, 0),
        *block.accesses,
        stage,
        *(_before(block, side) * item for side in ("source", "target")),
        math.prod(block.counts),
    )
    return Launch(
        grid=config.grid(problem),
        block=(config.threads, 1, 1),
        shared_bytes=stages_of(block.vectors[0] * item) * stage,
        params=(
            blocks("source", "a"),
            blocks("target", "d"),
            *(ScalarParam(f"number{number}", INT32, one) for number, one in enumerate(scalars)),
        ),
        overlaps=True,
    )


def divisor_of(count: int) -> tuple[int, int]:
    """Return a factor, as a signed number, and a shift: the upper 32 bits of products with numbers below 2**31.

    Shifted, they are quotients by a count (T. Granlund and P. Montgomery, "Division by invariant integers using
    multiplication").
    """
    if count == 1:
        return 0, 0
    bits = (count - 1).bit_length()
    return signed(-(-(1 << (31 + bits)) // count)), bits - 1


def _before(block: Block, side: str) -> int:
    """Return the elements from the lowest address of a block to its first element."""
    strides = [getattr(block.axes[number], side) for number in block.inner]
    return sum(
        max(-stride, 0) * (block.extents[number] - 1) for stride, number in zip(strides, block.inner, strict=True)
    )


def signed(number: int) -> int:
    """Return an unsigned number of 32 bits as a signed one of the same bits."""
    return number - (1 << 32) if number >= 1 << 31 else number


def filled(values: Sequence[int], count: int, rest: int) -> tuple[int, ...]:
    """Return values, and as many of another one as are missing."""
    return (*values, *(rest,) * (count - len(values)))


def _signature(problem: TransposeProblem, config: BlocksConfig) -> Signature:
    block, item = config.of(problem), in_units(problem).itemsize
    read, write = block.vectors
    return _accesses_signature(item, (read * item, write * item), len(block.inner), places_of(block, item).skew > 0)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    # The widest and the narrowest on both sides, of few axes and of many, say that the others compile.
    found = []
    for item in ITEMSIZES:
        widths = tuple(dict.fromkeys((VECTOR_BYTES, item)))
        found += [
            _accesses_signature(item, (read, write), axes, write > item)
            for read, write, axes in itertools.product(widths, widths, (3, BLOCK_AXES))
        ]
    return tuple(found)


def _accesses_signature(itemsize: int, nbytes: tuple[int, int], axes: int, is_skewed: bool) -> Signature:
    read, write = map(str, nbytes)
    skew = "some" if is_skewed else "none"
    return (*element_signature(itemsize), ("read", read), ("write", write), ("axes", str(max(axes, 2))), ("skew", skew))


_CONFIGS = (
    BlocksConfig(),
    BlocksConfig(512, 64, 1, SMS),
    BlocksConfig(256, 32, 4, 4 * SMS),
    # Small tensors.
    BlocksConfig(256, 16, 4, 4 * SMS),
)

SPEC = transpose_spec(
    name="transpose_blocks",
    summary="many short axes, elements of 1 to 16 bytes, any strides: blocks of up to 5 axes in shared memory",
    package=__package__,
    configs=_CONFIGS,
    itemsizes=ITEMSIZES,
    signatures=_signatures,
    signature=_signature,
    refuses=refuse_blocks,
    launch=_launch,
    costs=_costs,
    cost_in_us=True,
    faster_alternative=faster_tiles,
    batch_dims=AXES - 2,
)
