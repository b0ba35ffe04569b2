"""Accesses to shared memory that others may precede or follow without a barrier of their warp between."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ..ptx.module import Instruction, Kernel
from .control_flow import flow_of

_READS, _WRITES = ("ld", "ldmatrix", "atom"), ("st", "stmatrix", "atom", "red", "cp")
_OTHERS = frozenset(("global", "local", "param", "const"))
#: Numbers of instructions, and whether each reads and writes; None for what synchronises a warp.
_Accesses = list[tuple[int, tuple[bool, bool] | None]]


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Numbers of the instructions next to an access of some kind: no barrier of the warp is between."""

    #: before_write, before_access: A write to shared memory, or any access, may follow.
    before_write: frozenset[int]
    before_access: frozenset[int]
    #: after_write, after_read: A write to shared memory, or a read, may precede.
    after_write: frozenset[int]
    after_read: frozenset[int]


def meets(instruction: Instruction) -> bool:
    """Say whether the instruction synchronises all lanes of a warp that reach it, and orders their writes."""
    if instruction.guard is not None or "arrive" in instruction.modifiers:
        return False
    return instruction.name in ("bar", "barrier")


def touches(instruction: Instruction) -> tuple[bool, bool]:
    """Say whether an instruction may read shared memory, and whether it may write it; generic accesses may."""
    spaces = {modifier.split("::")[0] for modifier in instruction.modifiers}
    if instruction.name == "cp":
        # Copies out of shared memory read it, those into it write it.
        return "bulk" in spaces, "shared" in spaces
    if spaces & _OTHERS:
        return False, False
    return instruction.name in _READS, instruction.name in _WRITES


@functools.lru_cache(maxsize=256)
def neighbours(kernel: Kernel) -> Neighbours:
    """Return the accesses that may precede and follow others, along all paths through the code."""
    blocks = flow_of(kernel).blocks
    inside = [block.instructions for block in blocks]
    successors = [list(block.successors) for block in blocks]
    predecessors: list[list[int]] = [[] for _ in blocks]
    for number, following in enumerate(successors):
        for other in following:
            predecessors[other].append(number)
    behind = _reached(inside, predecessors)
    before = _reached([block[::-1] for block in inside], successors)
    return Neighbours(before[1], before[0] | before[1], behind[1], behind[0])


def _reached(
    inside: Sequence[Sequence[Instruction]], sources: Sequence[Sequence[int]]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the accesses that a read reaches, and those that a write does, in the direction of the blocks given."""
    blocks = [_accesses(block) for block in inside]
    at_end = [_after(block, (False, False))[-1] for block in blocks]
    passes = [all(does is not None for _, does in block) for block in blocks]
    following: list[list[int]] = [[] for _ in blocks]
    for number, those in enumerate(sources):
        for source in those:
            following[source].append(number)
    waiting = [number for number, reached in enumerate(at_end) if any(reached)]
    while waiting:
        number = waiting.pop()
        for other in following[number]:
            now = _either(at_end[number], at_end[other])
            if passes[other] and now != at_end[other]:
                at_end[other] = now
                waiting.append(other)
    reads, writes = set(), set()
    for block, those in zip(blocks, sources, strict=True):
        at_begin = functools.reduce(_either, (at_end[source] for source in those), (False, False))
        for (index, does), reached in zip(block, _after(block, at_begin), strict=False):
            if does is not None and reached[0]:
                reads.add(index)
            if does is not None and reached[1]:
                writes.add(index)
    return frozenset(reads), frozenset(writes)


def _either(one: tuple[bool, bool], other: tuple[bool, bool]) -> tuple[bool, bool]:
    return one[0] or other[0], one[1] or other[1]


def _after(block: _Accesses, reached: tuple[bool, bool]) -> list[tuple[bool, bool]]:
    """Return whether a read and a write reach each of a block's accesses and its end, of those that reach its begin."""
    found = [reached]
    for _, does in block:
        found.append((False, False) if does is None else _either(found[-1], does))
    return found


def _accesses(block: Sequence[Instruction]) -> _Accesses:
    """Return the block's accesses, and what synchronises a warp."""
    found: _Accesses = []
    for instruction in block:
        does = None if meets(instruction) else touches(instruction)
        if does is None or any(does):
            found.append((instruction.index, does))
    return found
