"""The sizes that figures are measured at: named sets, and any M,N,K."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from gemmule.core.errors import ArgumentError
from gemmule.core.name_suggestions import unknown_name

Size = tuple[int, int, int]


def _cubes(*edges: int) -> tuple[Size, ...]:
    return tuple((edge, edge, edge) for edge in edges)


_SOURCE_EDGES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)

#: Edges that are not whole or one off a power of two, and the aligned edge that each is compared with.
NEIGHBOURS = {127: 128, 509: 512, 1000: 1024, 2047: 2048, 4095: 4096, 4097: 4096, 8191: 8192}


def _odd() -> tuple[Size, ...]:
    """Return each of those edges in all dimensions, then in one dimension of its neighbour's cube."""
    single = [(odd, even) for odd, even in NEIGHBOURS.items() if odd != 509]
    return (
        *_cubes(*NEIGHBOURS),
        *(size for odd, even in single for size in ((odd, even, even), (even, odd, even), (even, even, odd))),
    )


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
        "127, 509, 1000 ... 8191 in all dimensions or in one",
        _odd(),
    ),
}


def parse_sizes(words: Sequence[str]) -> tuple[Size, ...]:
    """Return the requested sizes, each once, in the order given.

    Parameters
    ----------
    words : sequence of str
        Names of sets with commas between them, or ``M,N,K``.

    Raises
    ------
    ArgumentError
        If a word is neither.
    """
    return tuple((m, n, k) for m, n, k in extents_named(words, SIZE_SETS, "M,N,K", "4096,4096,1024"))


def extents_named(
    words: Sequence[str], sets: Mapping[str, tuple[str, Sequence[tuple[int, ...]]]], axes: str, example: str
) -> tuple[tuple[int, ...], ...]:
    """Return the requested extents, each once, in the order given.

    Parameters
    ----------
    words : sequence of str
        Names of sets with commas between them, or extents.
    sets : mapping
        Purpose and extents of each set.
    axes, example : str
        Format of extents, those that may be left out in brackets.

    Raises
    ------
    ArgumentError
        If a word is neither.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for named, parts in itertools.groupby(word.split(","), lambda part: part.strip() in sets):
            if named:
                for name in parts:
                    found.update(dict.fromkeys(sets[name.strip()][1]))
            else:
                found[_one(",".join(parts), sets, axes, example)] = None
    return tuple(found)


def _one(word: str, sets: Iterable[str], axes: str, example: str) -> tuple[int, ...]:
    parts = word.split(",")
    numbers = tuple(int(part) for part in parts if part.strip().isascii() and part.strip().isdigit())
    most = len(axes.split(","))
    if len(numbers) != len(parts) or not most - axes.count("[") <= len(numbers) <= most or min(numbers) < 1:
        listed = f"choose one of {', '.join(sets)}, or any {axes} in whole numbers from 1, such as {example}"
        raise ArgumentError(unknown_name("size", word, sets, listed))
    return numbers
