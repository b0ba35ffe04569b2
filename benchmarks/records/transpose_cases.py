"""The cases of transposes' records: extreme shapes, permutations that models and images need, and random ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

SEED = 275


class Case(NamedTuple):
    """A transpose: the source's shape, the order of its axes, the bytes of an element, kernels with all configs.

    Source and target begin `offset` elements after an aligned address. Some have a name, or the seed of a draw.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    itemsize: int
    also: tuple[str, ...] = ()
    offset: int = 0
    name: str = ""
    seed: int = SEED


_SKINNY = ("transpose_skinny",)
_BLOCKS = ("transpose_blocks",)
_LONG = 10_000_019


def bar() -> Iterator[Case]:
    """Yield the matrices that every release is held to."""
    for itemsize in (1, 2, 4, 8, 16):
        yield Case((3, _LONG), (1, 0), itemsize, _SKINNY)
        yield Case((_LONG, 3), (1, 0), itemsize, _SKINNY)
    for itemsize in (1, 2, 4, 8, 16):
        yield Case((100_000, 33), (1, 0), itemsize, _SKINNY)
        yield Case((33, 100_000), (1, 0), itemsize, _SKINNY)
    yield Case((1000, 1001), (1, 0), 16, ("transpose_tiled",))


def odd() -> Iterator[Case]:
    """Yield permutations of odd axes."""
    for shape, axes, itemsizes in (
        ((77, 65, 55, 33), (3, 1, 0, 2), (1, 2)),
        ((1048, 20, 5, 5, 40), (4, 3, 1, 2, 0), (1,)),
        ((15, 25, 15, 25, 15, 25), (5, 3, 1, 4, 2, 0), (2, 4)),
        ((600_001, 7, 11), (0, 2, 1), (1, 2)),
        ((60_000_001, 7, 11), (0, 2, 1), (1,)),
        ((20, 28990, 65), (1, 0, 2), (1, 2)),
    ):
        for itemsize in itemsizes:
            yield Case(shape, axes, itemsize, _BLOCKS)


def matrices() -> Iterator[Case]:
    """Yield the matrices of the bar, and others with a short side."""
    yield from bar()
    for short, itemsize in (
        *((short, 1) for short in (2, 4, 5, 7, 8, 12, 16, 64)),
        *((4, 4), (8, 2), (16, 2), (32, 4), (16, 8), (8, 16)),
    ):
        yield Case((short, 16_000_003 // (short * itemsize)), (1, 0), itemsize, _SKINNY)
        yield Case((16_000_003 // (short * itemsize), short), (1, 0), itemsize, _SKINNY)


def misaligned() -> Iterator[Case]:
    """Yield matrices with a short side, and permutations, that begin one element after an aligned address."""
    for itemsize in (1, 2, 4, 8):
        for short in (3, 33):
            long = 16_000_003 // (short * itemsize)
            yield Case((short, long), (1, 0), itemsize, offset=1)
            yield Case((long, short), (1, 0), itemsize, offset=1)
    yield Case((8, 2048, 32, 128), (0, 2, 1, 3), 2, offset=1)
    yield Case((16, 16, 16, 16, 16, 16), (5, 4, 3, 2, 1, 0), 2, offset=1)


def drawn(count: int) -> Iterator[Case]:
    """Yield matrices of a random short side, 2 to 64, and of 1 to 128 MiB."""
    rng = np.random.default_rng(SEED)
    for _ in range(count):
        itemsize = int(rng.choice((1, 2, 4, 8, 16)))
        short = round(2 ** rng.uniform(1, 6))
        long = round(2 ** rng.uniform(20, 27) / (short * itemsize))
        yield Case((short, long) if rng.integers(2) else (long, short), (1, 0), itemsize)


def permutations() -> Iterator[Case]:
    """Yield permutations of three axes and more, as models and images need them."""
    for shape, axes, itemsize in (
        ((8, 2048, 32, 128), (0, 2, 1, 3), 2),
        ((8, 2048, 32, 128), (0, 2, 3, 1), 2),
        ((8, 32, 2048, 128), (0, 2, 1, 3), 4),
        ((8, 1025, 12, 65), (0, 2, 1, 3), 2),
        ((32, 224, 224, 3), (0, 3, 1, 2), 1),
        ((32, 3, 224, 224), (0, 2, 3, 1), 1),
        ((32, 256, 56, 56), (0, 2, 3, 1), 2),
        ((32, 56, 56, 256), (0, 3, 1, 2), 4),
        ((400, 300, 200), (2, 1, 0), 4),
        ((301, 203, 403), (1, 0, 2), 4),
        ((301, 203, 403), (2, 0, 1), 8),
        ((24, 23, 22, 21, 20), (4, 2, 0, 3, 1), 4),
        ((16, 16, 16, 16, 16, 16), (5, 4, 3, 2, 1, 0), 2),
        ((100_000, 8, 12), (0, 2, 1), 2),
        ((3, 100_000, 40), (1, 0, 2), 4),
        ((1000, 33, 3, 17), (3, 1, 0, 2), 4),
        ((64, 8, 8, 8, 96), (0, 3, 2, 1, 4), 1),
        ((4096, 16, 5), (1, 2, 0), 8),
        ((25, 24, 23, 22, 8), (3, 0, 4, 1, 2), 16),
        ((16, 3, 512, 513), (0, 2, 3, 1), 4),
    ):
        yield Case(shape, axes, itemsize, _BLOCKS)
    for itemsize, axes in itertools.product((1, 2, 4, 8, 16), ((0, 2, 1), (2, 1, 0), (1, 0, 2))):
        yield Case((256, 320, 6400 // (4 * itemsize)), axes, itemsize)


def named() -> Iterator[Case]:
    """Yield permutations of models, images and tensors by their names."""
    for name, shape, axes, itemsize in (
        ("attention heads, bfloat16", (8, 2048, 32, 128), (0, 2, 1, 3), 2),
        ("attention heads, 577 patches, float16", (16, 577, 16, 80), (0, 2, 1, 3), 2),
        ("attention heads of 8, bfloat16", (8, 4096, 16, 8), (0, 2, 1, 3), 2),
        ("keys transposed, bfloat16", (8, 1500, 20, 64), (0, 2, 3, 1), 2),
        ("Q, K and V, 197 patches, float32", (64, 197, 3, 12, 64), (2, 0, 3, 1, 4), 4),
        ("Q, K and V, heads of 65, bfloat16", (8, 1025, 3, 12, 65), (2, 0, 3, 1, 4), 2),
        ("NHWC to NCHW, 3 channels, uint8", (64, 224, 224, 3), (0, 3, 1, 2), 1),
        ("NHWC to NCHW, 3 channels, odd, float32", (64, 255, 257, 3), (0, 3, 1, 2), 4),
        ("NCHW to NHWC, 3 channels, odd, float16", (64, 3, 299, 299), (0, 2, 3, 1), 2),
        ("NCHW to NHWC, 4 channels, odd, uint8", (64, 4, 333, 335), (0, 2, 3, 1), 1),
        ("NCHW to NHWC, 17 channels, odd, float32", (32, 17, 255, 257), (0, 2, 3, 1), 4),
        ("NHWC to NCHW, 17 channels, odd, float16", (32, 255, 257, 17), (0, 3, 1, 2), 2),
        ("NCHW to NHWC, 7 x 7, float16", (128, 512, 7, 7), (0, 2, 3, 1), 2),
        ("NHWC to NCHW, 14 x 14, float16", (64, 14, 14, 256), (0, 3, 1, 2), 2),
        ("video, channels first, uint8", (16, 65, 112, 113, 3), (0, 4, 1, 2, 3), 1),
        ("windows of 7 x 7, 96 channels, float16", (64, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5), 2),
        ("windows of 7 x 7, 1 channel, float32", (256, 32, 7, 32, 7), (0, 1, 3, 2, 4), 4),
        ("windows of 7 x 7, 3 channels, uint8", (64, 32, 7, 32, 7, 3), (0, 1, 3, 2, 4, 5), 1),
        ("patches of 14 x 14, float16", (64, 3, 16, 14, 16, 14), (0, 2, 4, 1, 3, 5), 2),
        ("patches of 14 x 14, channels last, float16", (64, 3, 16, 14, 16, 14), (0, 2, 4, 3, 5, 1), 2),
        ("patches of 16 x 16, channels last, float32", (64, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1), 4),
        ("images of patches of 16 x 16, float32", (64, 14, 14, 16, 16, 3), (0, 5, 1, 3, 2, 4), 4),
        ("pixel shuffle by 2, float32", (16, 64, 2, 2, 128, 128), (0, 1, 4, 2, 5, 3), 4),
        ("pixel shuffle by 3, odd, float32", (16, 16, 3, 3, 127, 129), (0, 1, 4, 2, 5, 3), 4),
        ("pixel unshuffle by 3, float16", (16, 3, 128, 3, 128, 3), (0, 1, 3, 5, 2, 4), 2),
        ("sequences first, 255 features, float32", (1001, 64, 255), (1, 0, 2), 4),
        ("tensor of 5, 7, 9, float32", (1001, 5, 7, 9, 13), (4, 2, 0, 1, 3), 4),
        ("tensor of 5, 7, 9, float64", (1001, 5, 7, 9, 13), (3, 1, 4, 2, 0), 8),
        ("tensor of 5, 7, 9, bfloat16", (1001, 5, 7, 9, 13), (4, 2, 0, 1, 3), 2),
        ("tensor of seven 9, float32", (9,) * 7, (6, 5, 4, 3, 2, 1, 0), 4),
        ("tensor of 15 and 25, float32", (15, 25, 15, 25, 15, 25), (5, 3, 1, 4, 2, 0), 4),
        ("matrices of 11 x 13, complex64", (20_000, 11, 13), (0, 2, 1), 8),
        ("tensor of 7, 9, 11, complex128", (3000, 7, 9, 11), (3, 2, 0, 1), 16),
        ("tensor of 7, 9, 11, int8", (20_000, 7, 9, 11), (0, 3, 2, 1), 1),
        ("six qubits reversed, complex64", (2, 2, 2, 2, 2, 2, 1 << 18), (6, 5, 4, 3, 2, 1, 0), 8),
    ):
        yield Case(shape, axes, itemsize, name=name)


def drawn_permutations(count: int, seed: int = SEED + 1) -> Iterator[Case]:
    """Yield permutations of 3 to 6 random axes, of 4 to 64 MiB."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        itemsize, rank = int(rng.choice((1, 2, 4, 8, 16))), int(rng.integers(3, 7))
        size = 2 ** rng.uniform(22, 26) / itemsize
        shape = tuple(max(2, round(size**share)) for share in rng.dirichlet([3.0] * rank))
        axes = tuple(map(int, rng.permutation(rank)))
        if axes != tuple(range(rank)):
            yield Case(shape, axes, itemsize, seed=seed)


#: Bytes of drawn layouts: the logarithms of the least and the most.
_SIZES = 20.0, 32.0
Layout = Callable[[np.random.Generator], tuple[str, list[int], tuple[int, ...], tuple[int, ...]]]


def drawn_layouts(count: int, seed: int) -> Iterator[Case]:
    """Yield transposes and permutations of 2 to 6 axes as people have them, of 1 MiB to 4 GiB.

    A layout has its axes' extents, of which that of 0 grows to the size that is drawn, their order, and the bytes of
    its elements. Layouts follow one another: a run that its time limit ended is a fair sample.
    """
    rng = np.random.default_rng(seed)
    found = 0
    while found < count:
        name, extents, axes, itemsizes = _LAYOUTS[found % len(_LAYOUTS)](rng)
        itemsize = int(rng.choice(itemsizes))
        size = 2 ** rng.uniform(*_SIZES) / itemsize
        long = round(size / np.prod([extent for extent in extents if extent], dtype=np.float64))
        if long and axes != tuple(range(len(axes))):
            found += 1
            yield Case(tuple(extent or long for extent in extents), axes, itemsize, name=name, seed=seed)


def _extent(rng: np.random.Generator, least: float, most: float) -> int:
    """Return a random extent: odd or even, or a multiple of 8 or 64."""
    found = round(2 ** rng.uniform(np.log2(least), np.log2(most)))
    unit = int(rng.choice((1, 1, 2, 8, 64)))
    return found // unit * unit or found


def _images(rng: np.random.Generator) -> Any:
    channels = int(rng.choice((2, 3, 4, 10, 17, 32, 64, 96, 100, 256, _extent(rng, 3, 1024))))
    height, width = _extent(rng, 7, 512), _extent(rng, 7, 512)
    if rng.integers(2):
        return "NCHW to NHWC", [0, channels, height, width], (0, 2, 3, 1), (1, 2, 4)
    return "NHWC to NCHW", [0, height, width, channels], (0, 3, 1, 2), (1, 2, 4)


def _heads(rng: np.random.Generator) -> Any:
    heads, width = _extent(rng, 4, 64), int(rng.choice((32, 64, 80, 96, 128, 40, 65, _extent(rng, 8, 256))))
    positions = _extent(rng, 49, 8192)
    if rng.integers(3) == 0:
        return "Q, K and V", [0, positions, 3, heads, width], (2, 0, 3, 1, 4), (1, 2, 4)
    order = (0, 2, 1, 3) if rng.integers(2) else (0, 2, 3, 1)
    return "heads", [0, positions, heads, width], order, (1, 2, 4)


def _windows(rng: np.random.Generator) -> Any:
    side, count = int(rng.choice((7, 8, 12, 14, 16))), _extent(rng, 4, 32)
    channels = int(rng.choice((1, 3, 32, 96, 97, 180)))
    order = (0, 1, 3, 2, 4, 5)
    if rng.integers(2):
        return "windows", [0, count, side, count, side, channels], order, (1, 2, 4)
    return "images of windows", [0, count, count, side, side, channels], order, (1, 2, 4)


def _patches(rng: np.random.Generator) -> Any:
    side, count, channels = int(rng.choice((8, 14, 15, 16))), _extent(rng, 4, 40), int(rng.choice((1, 3, 4, 13)))
    order = ((0, 2, 4, 1, 3, 5), (0, 2, 4, 3, 5, 1))[rng.integers(2)]
    return "patches", [0, channels, count, side, count, side], order, (1, 2, 4)


def _shuffles(rng: np.random.Generator) -> Any:
    by, channels, height, width = (
        int(rng.integers(2, 5)),
        *(_extent(rng, *limits) for limits in ((1, 64), *((16, 400),) * 2)),
    )
    if rng.integers(2):
        return "pixel shuffle", [0, channels, by, by, height, width], (0, 1, 4, 2, 5, 3), (1, 2, 4)
    return "pixel unshuffle", [0, channels, height, by, width, by], (0, 1, 3, 5, 2, 4), (1, 2, 4)


def _spectra(rng: np.random.Generator) -> Any:
    sides = [2 ** int(rng.integers(5, 10)) + int(rng.choice((0, 0, 1, 2))) for _ in range(2)]
    order = ((2, 1, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0))[rng.integers(5)]
    return "spectrum", [0, *sides], order, (4, 8, 16)


def _matrices(rng: np.random.Generator) -> Any:
    other = _extent(rng, 2, 64) if rng.integers(2) else _extent(rng, 64, 20_000)
    return "matrix", [0, other] if rng.integers(2) else [other, 0], (1, 0), (1, 2, 4, 8, 16)


def _batches(rng: np.random.Generator) -> Any:
    sides = [_extent(rng, 2, 64), _extent(rng, 16, 20_000)]
    return "matrices", [0, *(sides if rng.integers(2) else sides[::-1])], (0, 2, 1), (1, 2, 4, 8, 16)


def _sequences(rng: np.random.Generator) -> Any:
    return "sequences first", [0, _extent(rng, 8, 512), _extent(rng, 16, 2048)], (1, 0, 2), (1, 2, 4)


def _tensors(rng: np.random.Generator) -> Any:
    rank = int(rng.integers(3, 7))
    extents = [_extent(rng, 2, 2 ** (24 / rank)) for _ in range(rank)]
    extents[int(rng.integers(rank))] = 0
    return "tensor", extents, tuple(map(int, rng.permutation(rank))), (1, 2, 4, 8, 16)


_LAYOUTS: tuple[Layout, ...] = (
    _images,
    _tensors,
    _heads,
    _tensors,
    _windows,
    _matrices,
    _patches,
    _tensors,
    _shuffles,
    _batches,
    _spectra,
    _sequences,
)
