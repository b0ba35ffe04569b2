"""Accesses to shared memory that others may precede or follow without a barrier of their warp between."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ..ptx.module import Instruction, Kernel
from .control_flow import flow_of

_READS, _WRITES = ("ld", "ldmatrix", "atom"), ("st", "stmatrix", "atom", "red", "cp")
_OTHERS = frozenset(("global", "local", "param", "const"))


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
    at_end = [(False, False)] * len(inside)
    found: tuple[set[int], set[int]] = set(), set()
    changed = True
    while changed:
        changed = False
        for number, block in enumerate(blocks):
            reads = any(at_end[source][0] for source in sources[number])
            writes = any(at_end[source][1] for source in sources[number])
            for index, does in block:
                if does is None:
                    reads = writes = False
                    continue
                if reads:
                    found[0].add(index)
                if writes:
                    found[1].add(index)
                reads, writes = reads or does[0], writes or does[1]
            if at_end[number] != (reads, writes):
                at_end[number], changed = (reads, writes), True
    return frozenset(found[0]), frozenset(found[1])


def _accesses(block: Sequence[Instruction]) -> list[tuple[int, tuple[bool, bool] | None]]:
    """Return the block's accesses: whether each reads and writes; None for what synchronises a warp."""
    found: list[tuple[int, tuple[bool, bool] | None]] = []
    for instruction in block:
        does = None if meets(instruction) else touches(instruction)
        if does is None or any(does):
            found.append((instruction.index, does))
    return found
