"""Uses of a kernel's registers: the instructions that read and write them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable

from ..ptx.module import Instruction, Kernel, Operand, Register
from .control_flow import Block, flow_of
from .effects import byte_sources, operands_read, read, selected_bytes, written

#: Instructions whose only effect is a result that depends on their operands, lane by lane.
COMPUTES = frozenset(
    {"mov", "add", "sub", "mul", "mad", "fma", "div", "rem", "neg", "abs", "min", "max", "sad", "and", "or",
     "xor", "not", "cnot", "lop3", "shl", "shr", "shf", "bfe", "bfi", "bfind", "brev", "popc", "clz", "prmt",
     "cvt", "cvta", "set", "setp", "selp", "slct", "rcp", "sqrt", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh",
     "copysign", "testp", "addc", "subc", "madc", "mul24", "mad24", "dp2a", "dp4a", "szext", "bmsk"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Uses:
    """A kernel's registers."""

    #: reads, operands, writes: For each instruction, by its number: what it reads, its guard included; what its
    #: operands read; what it writes.
    reads: tuple[tuple[Register, ...], ...]
    operands: tuple[tuple[Register, ...], ...]
    writes: tuple[tuple[Register, ...], ...]
    #: For each register, the instructions that read or write it, each with its block, in the order of the code.
    touching: dict[Register, list[tuple[int, Instruction]]]
    #: For each register, those into which an instruction of `COMPUTES` puts what it makes of it.
    results: dict[Register, set[Register]]
    unwritten: frozenset[Register]  #: Registers that some path reads before it writes them.


@functools.lru_cache(maxsize=256)
def uses_of(kernel: Kernel) -> Uses:
    """Return where a kernel's registers are read and written."""
    code = kernel.instructions
    unread = _unread(code)

    def but_unread(registers: Callable[[Instruction], tuple[Register, ...]]) -> tuple[tuple[Register, ...], ...]:
        return tuple(tuple(x for x in registers(one) if x not in unread.get(one.index, ())) for one in code)

    reads, writes = but_unread(read), tuple(map(written, code))
    blocks = flow_of(kernel).blocks
    touching: dict[Register, list[tuple[int, Instruction]]] = collections.defaultdict(list)
    results: dict[Register, set[Register]] = collections.defaultdict(set)
    for block in blocks:
        for instruction in block.instructions:
            number = instruction.index
            for register in dict.fromkeys((*reads[number], *writes[number])):
                touching[register].append((block.index, instruction))
            if instruction.name in COMPUTES:
                for register in reads[number]:
                    results[register].update(writes[number])
    unwritten = _read_unwritten(blocks, set(kernel.registers), reads, writes)
    return Uses(reads, but_unread(operands_read), writes, dict(touching), dict(results), frozenset(unwritten))


def _unread(code: tuple[Instruction, ...]) -> dict[int, set[Operand]]:
    """Return operands of which no byte that an instruction selects is used later, by the instruction's number.

    The compiler packs two bytes into a word for a dot product with two numbers of 16 bits, and names any register for
    the bytes that this does not read.
    """
    packing = [one for one in code if byte_sources(one)] if any(one.name == "dp2a" for one in code) else []
    used: dict[Operand, set[int]] = {register: set() for one in packing for register in written(one)}
    for one in code if packing else ():
        if not byte_sources(one):
            for register in used.keys() & {*read(one)}:
                used[register].update(_bytes_used(one, register))
    changed = bool(packing)
    while changed:
        changed = False
        for one in reversed(packing):
            for operand, chosen in selected_bytes(one, used[one.operands[0]]):
                if operand in used and not chosen <= used[operand]:
                    used[operand] |= chosen
                    changed = True
    found = {}
    for one in packing:
        both = selected_bytes(one, used[one.operands[0]])
        found[one.index] = {operand for operand, chosen in both if not chosen} - {x for x, chosen in both if chosen}
    return found


def _bytes_used(instruction: Instruction, register: Operand) -> Iterable[int]:
    """Return the bytes of a register that an instruction reads, which may select none."""
    first, second, added = instruction.operands[1:] if instruction.name == "dp2a" else (register,) * 3
    if register in (first, added) or second != register:
        return range(4)
    return (2, 3) if "hi" in instruction.modifiers else (0, 1)


def _read_unwritten(
    blocks: tuple[Block, ...],
    everything: set[Register],
    reads: tuple[tuple[Register, ...], ...],
    writes: tuple[tuple[Register, ...], ...],
) -> set[Register]:
    """Return the registers that some path reads before it writes them."""
    # Registers surely written in each block, and before it, a bit each: what all ways there have in common.
    surely = [
        functools.reduce(
            operator.or_,
            (1 << register.number for one in block.instructions if one.guard is None for register in writes[one.index]),
            0,
        )
        for block in blocks
    ]
    whole = functools.reduce(operator.or_, (1 << register.number for register in everything), 0)
    before = [0 if block.index == 0 else whole for block in blocks]
    waiting = [0]
    seen: set[int] = set()
    while waiting:
        number = waiting.pop()
        seen.add(number)
        after = before[number] | surely[number]
        for following in blocks[number].successors:
            common = before[following] & after
            if common != before[following] or following not in seen:
                before[following] = common
                waiting.append(following)
    found: set[Register] = set()
    for block in blocks:
        if block.index not in seen:
            continue
        ways, here = before[block.index], set[Register]()
        for instruction in block.instructions:
            for register in reads[instruction.index]:
                if register not in here and not ways >> register.number & 1:
                    found.add(register)
            if instruction.guard is None:
                here.update(writes[instruction.index])
    return found
