"""Loads from shared memory that may be in flight: the blocks that need their values, and those where they are dead.

Arithmetic does not wait for a value here: its result depends on the load in turn. A value that nothing reads any more
is dead, whatever its register holds.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable

from ..ptx.module import Instruction, Kernel, Register
from .control_flow import Block, flow_of
from .uses import Uses, uses_of

#: Instructions that need their operands, and cannot be moved after an arrival.
_NEEDS = frozenset(
    {"wgmma", "mma", "st", "red", "atom", "stmatrix", "cp", "ld", "ldu", "ldmatrix", "movmatrix", "shfl", "vote",
     "match", "redux", "mbarrier", "bra", "brx", "ret", "exit"}
)  # fmt: skip
#: Instructions after which no load is in flight.
_ENDS = frozenset({"bar", "barrier", "fence", "membar"})
#: Spaces of loads from other memory.
_ELSEWHERE = frozenset({"global", "param", "local", "const"})


@dataclasses.dataclass(frozen=True)
class PendingLoads:
    """Loads whose values live beyond their block."""

    loads: frozenset[int]  #: The loads, by number.
    #: needed, dead: For each block the loads whose values it needs, and those whose values are dead where it begins.
    needed: dict[int, tuple[int, ...]]
    dead: dict[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class _Step:
    """An instruction; sets of registers are bits."""

    reads: int
    writes: int
    surely: bool
    needs: bool
    ends: bool


@functools.lru_cache(maxsize=256)
def pending_loads(kernel: Kernel) -> PendingLoads:
    """Return the loads of shared memory whose values live beyond their block."""
    blocks, uses = flow_of(kernel).blocks, uses_of(kernel)
    bit = {register: 1 << number for number, register in enumerate(uses.touching)}
    steps = [[_step(one, uses, bit) for one in block.instructions] for block in blocks]
    live = _live(blocks, uses, bit)
    needed: dict[int, list[int]] = collections.defaultdict(list)
    dead: dict[int, list[int]] = collections.defaultdict(list)
    for block in blocks:
        for place, load in enumerate(block.instructions):
            if not _is_load(load):
                continue
            left = _left(steps[block.index][place + 1 :], _bits(uses.writes[load.index], bit))
            held: dict[int, int] = {}
            waiting = [(block.index, left)]
            while waiting:
                number, left = waiting.pop()
                if left is None:
                    continue
                for following in blocks[number].successors:
                    before = held.get(following)
                    now = (before or 0) | (left & live[following])
                    if now != before:
                        held[following] = now
                        if now:
                            waiting.append((following, _left(steps[following], now)))
            for number, registers in held.items():
                if not registers:
                    dead[number].append(load.index)
                elif _left(steps[number], registers) is None:
                    needed[number].append(load.index)
    # Those that no instruction needs are not followed.
    loads = frozenset(load for those in needed.values() for load in those)
    return PendingLoads(loads, _frozen(needed, loads), _frozen(dead, loads))


def _frozen(found: dict[int, list[int]], loads: frozenset[int]) -> dict[int, tuple[int, ...]]:
    return {block: tuple(load for load in those if load in loads) for block, those in found.items()}


def _left(steps: list[_Step], held: int) -> int | None:
    """Return the registers that depend on a value after some steps; None if one waits for it."""
    for step in steps:
        if step.ends:
            return None
        if step.reads & held:
            if step.needs:
                return None
            held |= step.writes
        elif step.surely:
            held &= ~step.writes
    return held


def _step(one: Instruction, uses: Uses, bit: dict[Register, int]) -> _Step:
    ends = one.name in _ENDS and "warp" not in one.modifiers
    reads, writes = _bits(uses.reads[one.index], bit), _bits(uses.writes[one.index], bit)
    return _Step(reads, writes, one.guard is None, one.name in _NEEDS, ends)


def _bits(registers: Iterable[Register], bit: dict[Register, int]) -> int:
    found = 0
    for register in registers:
        found |= bit[register]
    return found


def _live(blocks: tuple[Block, ...], uses: Uses, bit: dict[Register, int]) -> list[int]:
    """Return for each block the registers that it or what follows reads before it writes them."""
    read, written = [0] * len(blocks), [0] * len(blocks)
    before: list[list[int]] = [[] for _ in blocks]
    for block in blocks:
        for one in block.instructions:
            read[block.index] |= _bits(uses.reads[one.index], bit) & ~written[block.index]
            if one.guard is None:
                written[block.index] |= _bits(uses.writes[one.index], bit)
        for following in block.successors:
            before[following].append(block.index)
    live = list(read)
    waiting = list(range(len(blocks)))
    while waiting:
        number = waiting.pop()
        for earlier in before[number]:
            found = live[earlier] | (live[number] & ~written[earlier])
            if found != live[earlier]:
                live[earlier] = found
                waiting.append(earlier)
    return live


def _is_load(instruction: Instruction) -> bool:
    """Say whether an instruction loads from shared memory, or may do so."""
    spaces = {part.split("::")[0] for part in instruction.modifiers}
    return instruction.name in ("ld", "ldu", "ldmatrix") and not spaces & _ELSEWHERE
