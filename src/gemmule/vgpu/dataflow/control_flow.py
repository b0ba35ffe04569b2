"""Control flow: basic blocks and their successors.

A block ends after an instruction that jumps or ends the thread; one that may have to wait for others is a block of its
own: threads converge, diverge and sleep between blocks only.
"""

from __future__ import annotations

import dataclasses
import functools

from ..ptx.module import Instruction, Kernel, Target

#: Instructions after which a thread jumps or may have to wait.
JUMPS = frozenset({"bra", "brx", "ret", "exit", "trap"})
WAITS = frozenset(
    {
        "bar",
        "barrier",
        "shfl",
        "vote",
        "match",
        "redux",
        "elect",
        "activemask",
        "mma",
        "wgmma",
        "mbarrier",
        "ldmatrix",
        "stmatrix",
        "movmatrix",
    }
)


@dataclasses.dataclass(frozen=True)
class Block:
    """Instructions that run one after the other."""

    index: int  #: Its number; blocks stand in the order of the code.
    instructions: tuple[Instruction, ...]  #: The instructions.
    successors: tuple[int, ...]  #: Blocks that can follow.


@dataclasses.dataclass(frozen=True)
class Flow:
    """The blocks of a kernel, and the block that each instruction begins (by instruction number)."""

    blocks: tuple[Block, ...]
    block_at: dict[int, int]


def targets(instruction: Instruction) -> tuple[int, ...]:
    """Return the instructions that a jump names."""
    return tuple(operand.index for operand in instruction.operands if isinstance(operand, Target))


def ends_block(instruction: Instruction) -> bool:
    """Say whether threads may diverge or wait after the instruction."""
    return instruction.name in JUMPS or instruction.name in WAITS


def falls_through(instruction: Instruction) -> bool:
    """Say whether the next instruction can follow."""
    return instruction.name not in JUMPS or instruction.guard is not None


@functools.lru_cache(maxsize=256)
def flow_of(kernel: Kernel) -> Flow:
    """Return the blocks of a kernel."""
    code = kernel.instructions
    starts = {0}
    for instruction in code:
        starts.update(targets(instruction))
        if ends_block(instruction):
            starts.add(instruction.index + 1)
        if instruction.name in WAITS:
            starts.add(instruction.index)
    # A label may come after the last instruction: an empty block ends the thread there.
    starts.add(len(code))
    ordered = sorted(starts)
    block_at = {start: number for number, start in enumerate(ordered)}
    blocks = []
    for number, start in enumerate(ordered):
        end = ordered[number + 1] if number + 1 < len(ordered) else len(code)
        inside = code[start:end]
        following = []
        if inside:
            following = [block_at[target] for target in targets(inside[-1])]
            if falls_through(inside[-1]):
                following.append(number + 1)
        blocks.append(Block(number, inside, tuple(dict.fromkeys(following))))
    return Flow(tuple(blocks), block_at)
