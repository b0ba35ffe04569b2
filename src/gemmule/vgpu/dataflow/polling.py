"""Strong loads and stores, by which CTAs synchronise, and polling loops, which only wait for such a word or lock."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ..ptx.module import Instruction, Kernel
from .control_flow import Block, Flow, flow_of
from .effects import read, written

#: Modifiers of loads and stores that synchronise with other threads.
_STRONG = frozenset({"acquire", "release", "relaxed", "volatile", "mmio"})
#: Blocks of the longest loop that is examined, and its instructions: those that another pass repeats.
_MOST_BLOCKS = 3
_REPEATABLE = frozenset(
    {"ld", "setp", "bra", "nanosleep", "fence", "membar", "mov", "cvt", "and", "or", "xor", "not", "add", "sub", "selp"}
)
_TIMES = ("%clock", "%globaltimer")
#: Atomic operations that take a lock: while they fail, another pass leaves the word as it is.
_TAKES = frozenset({"cas", "exch"})


def is_strong(instruction: Instruction) -> bool:
    """Say whether it is a load or store that does not race with another such: it acquires, releases or is relaxed."""
    return instruction.name in ("ld", "st") and not _STRONG.isdisjoint(instruction.modifiers)


@functools.lru_cache(maxsize=256)
def polling_blocks(kernel: Kernel) -> frozenset[int]:
    """Return the blocks of polling loops, which load or try to take the same words until other threads change them."""
    flow = flow_of(kernel)
    found: set[int] = set()
    for block in flow.blocks:
        if any(map(_polls, block.instructions)):
            for loop in _loops(flow, block):
                if _repeats([one for number in loop for one in flow.blocks[number].instructions]):
                    found.update(loop)
    return frozenset(found)


def _polls(instruction: Instruction) -> bool:
    if instruction.name == "atom":
        return not _TAKES.isdisjoint(instruction.modifiers)
    return instruction.name == "ld" and is_strong(instruction)


def _loops(flow: Flow, block: Block) -> Iterator[tuple[int, ...]]:
    """Yield the short ways from a block back to it."""
    ways: list[tuple[tuple[int, ...], int]] = [((block.index,), following) for following in block.successors]
    while ways:
        way, number = ways.pop()
        if number == block.index:
            yield way
        elif number not in way and len(way) < _MOST_BLOCKS:
            ways += [((*way, number), following) for following in flow.blocks[number].successors]


def _repeats(loop: list[Instruction]) -> bool:
    """Say whether a pass depends on nothing but memory: nothing goes from one to the next, as a counter would."""
    if any(not (one.name in _REPEATABLE or _polls(one)) or any(time in one.text for time in _TIMES) for one in loop):
        return False
    ever = {register for one in loop for register in written(one)}
    now: set[object] = set()
    for one in loop:
        if any(register in ever and register not in now for register in read(one)):
            return False
        now.update(written(one))
    return True
