"""The sizes that figures are measured at: named sets, and any M,N,K."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gemmule.core.errors import ArgumentError
from gemmule.core.names import unknown_name

Size = tuple[int, int, int]


def _cubes(*edges: int) -> tuple[Size, ...]:
    return tuple((edge, edge, edge) for edge in edges)


_SOURCE_EDGES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)

#: The named sets, each with what it is for.
SIZE_SETS: dict[str, tuple[str, tuple[Size, ...]]] = {
    "source": ("M = N = 128, 192, 256, 384 ... 16384, K = 1024", tuple((edge, edge, 1024) for edge in _SOURCE_EDGES)),
    "square": ("M = N = K = 256, 512, 1024 ... 16384", _cubes(256, 512, 1024, 2048, 4096, 8192, 16384)),
    "llm": (
        "projections and MLPs of language models, M = 1 to 8192 tokens",
        (
            (1, 4096, 4096),
            (16, 4096, 4096),
            (64, 576, 7168),
            (128, 576, 7168),
            (128, 14336, 4096),
            (512, 4096, 14336),
            (512, 28672, 8192),
            (4096, 6144, 4096),
            (4096, 14336, 4096),
            (4096, 4096, 14336),
            (8192, 10240, 8192),
        ),
    ),
    "odd": (
        "M = N = K = 127, 509, 1000, 2047, 4095, 4097, 8191",
        _cubes(127, 509, 1000, 2047, 4095, 4097, 8191),
    ),
}


def parse_sizes(words: Sequence[str]) -> tuple[Size, ...]:
    """Return the sizes that are asked for, each once, in the order given.

    Parameters
    ----------
    words : sequence of str
        Names of sets with commas between them, or ``M,N,K``.

    Raises
    ------
    ArgumentError
        If a word is neither.
    """
    sizes: dict[Size, None] = {}
    for word in words:
        for named, parts in itertools.groupby(word.split(","), lambda part: part.strip() in SIZE_SETS):
            if named:
                for name in parts:
                    sizes.update(dict.fromkeys(SIZE_SETS[name.strip()][1]))
            else:
                sizes[_one(",".join(parts))] = None
    return tuple(sizes)


def _one(word: str) -> Size:
    parts = word.split(",")
    numbers = [int(part) for part in parts if part.strip().isascii() and part.strip().isdigit()]
    if not numbers:
        raise ArgumentError(f"{unknown_name('size', word, SIZE_SETS)}, or any M,N,K such as 4096,4096,1024")
    if len(numbers) != len(parts) or len(numbers) != 3 or min(numbers) < 1:
        raise ArgumentError(f"size {word!r} is not M,N,K in whole numbers from 1, such as 4096,4096,1024")
    return numbers[0], numbers[1], numbers[2]
