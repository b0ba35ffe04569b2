"""The transposes that are measured: sizes, problems, and their random inputs."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.cpus import usable_cpus
from gemmule.core.dtype import numpy_dtype, opaque_dtype
from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice, KernelSpec

from .sizes import extents_named

Array = np.ndarray[Any, np.dtype[Any]]
#: M and N, preceded by the matrices of a batch where there is one.
Size = tuple[int, ...]

ITEMSIZES = (1, 2, 4, 8, 16)
# Alignment of compact matrices on a device, in bytes.
_ALIGNMENT = 256
_CHUNK = 1 << 20


def _squares(*edges: int) -> tuple[Size, ...]:
    return tuple((edge, edge) for edge in edges)


#: The named sets, each with what it is for.
SIZE_SETS: dict[str, tuple[str, tuple[Size, ...]]] = {
    "source": ("M = N = 4096", _squares(4096)),
    "square": ("M = N = 512, 1024, 2048 ... 16384", _squares(512, 1024, 2048, 4096, 8192, 16384)),
    "small": ("M = N = 32, 64, 128, 256, 384", _squares(32, 64, 128, 256, 384)),
    "odd": (
        "8191 x 8193, 4095 x 4097, 1000 x 1001, 8190 x 8194",
        ((8191, 8193), (4095, 4097), (1000, 1001), (8190, 8194)),
    ),
    "narrow": ("65536 x 64, 64 x 65536, 1000000 x 3, 3 x 1000000", ((65536, 64), (64, 65536), (10**6, 3), (3, 10**6))),
}


def parse_sizes(words: Sequence[str]) -> tuple[Size, ...]:
    """Return the requested sizes, each once, in the order given.

    Parameters
    ----------
    words : sequence of str
        Names of sets with commas between them, or ``M,N``: the source has M rows of N elements; or ``BATCH,M,N``.

    Raises
    ------
    ArgumentError
        If a word is neither.
    """
    return extents_named(words, SIZE_SETS, "[BATCH,]M,N", "4096,4096")


def itemsize_of(word: str) -> int:
    """Return the bytes of an element: of a dtype's name, or as the number itself.

    Raises
    ------
    ArgumentError
        If kernels move no elements of that size.
    DTypeError
        If there is no such dtype.
    """
    if word.isascii() and word.isdigit():
        size = int(word)
    else:
        try:
            dtype = numpy_dtype(word)
        except DTypeError as error:
            raise DTypeError(f"{error}; or give the bytes of an element") from None
        if dtype.hasobject:
            raise DTypeError(f"dtype {word!r} holds Python objects; name one of numbers, or its bytes")
        size = dtype.itemsize
    if size not in ITEMSIZES:
        raise ArgumentError(f"{word!r} is {size} bytes an element; transposes move {', '.join(map(str, ITEMSIZES))}")
    return size


def transpose_of(m: int, n: int, itemsize: int, batch: tuple[int, ...] = ()) -> TransposeProblem:
    """Return the transpose of a compact matrix of m rows and n columns into another, or of those of a batch."""
    kind, strides = opaque_dtype(itemsize), (m * n,) * len(batch)
    # Contiguous elements of the source are along i, the n columns of its rows.
    source = StridedMatrix(kind, n, m, 1, n, strides, _ALIGNMENT)
    return TransposeProblem(n, m, batch, source, StridedMatrix(kind, n, m, m, 1, strides, _ALIGNMENT))


def transposes_of(sizes: Iterable[Size], itemsizes: Iterable[int]) -> tuple[TransposeProblem, ...]:
    """Return the transposes of matrices of all sizes, of elements of each of some bytes."""
    each = itertools.product(itemsizes, sizes)
    return tuple(transpose_of(m, n, itemsize, tuple(batch)) for itemsize, (*batch, m, n) in each)


def problem_for(spec: KernelSpec, config: Config, arch: Arch, transpose: TransposeProblem) -> TransposeProblem:
    """Return the problem of a kernel that is measured: a transpose, in place or not, or the copy of a copy kernel."""
    copy = dataclasses.replace(transpose, target=transpose.source)
    if spec.in_place:
        return dataclasses.replace(transpose, in_place=True)
    if spec.why_not(transpose, arch, config) is None or spec.why_not(copy, arch, config) is not None:
        return transpose
    # The reference supports both; a kernel that only copies refuses the transpose.
    return copy


def in_order(choice: Choice) -> Choice:
    """Return a kernel whose launches begin only when the one in front of them has ended."""
    launch = choice.spec.launch
    spec = dataclasses.replace(choice.spec, launch=lambda *given: dataclasses.replace(launch(*given), overlaps=False))
    return dataclasses.replace(choice, spec=spec)


def is_copy(problem: TransposeProblem) -> bool:
    """Whether the target lies in memory as the source does."""
    return problem.source == problem.target


def random_matrices(problem: TransposeProblem, seed: int) -> Array:
    """Return random bits for the source of a transpose: (m, n), or (batch, m, n)."""
    m, n = problem.cols, problem.rows
    return random_matrix(math.prod(problem.batch) * m, n, problem.itemsize, seed).reshape(*problem.batch, m, n)


def random_matrix(m: int, n: int, itemsize: int, seed: int) -> Array:
    """Return random bits as m rows of n elements; the same seed gives the same, whatever the number of threads."""
    values: Array = np.empty((m, n), opaque_dtype(itemsize).numpy())
    raw = values.view(np.uint8).reshape(-1)
    starts = range(0, raw.size, _CHUNK)
    seeds = np.random.SeedSequence([seed, m, n, itemsize]).spawn(len(starts))

    def fill(start: int, child: np.random.SeedSequence) -> None:
        part = raw[start : start + _CHUNK]
        words = np.random.SFC64(child).random_raw(-(-part.size // 8))
        part[...] = words.view(np.uint8)[: part.size]

    with concurrent.futures.ThreadPoolExecutor(usable_cpus()) as pool:
        for done in [pool.submit(fill, *item) for item in zip(starts, seeds, strict=True)]:
            done.result()
    return values
