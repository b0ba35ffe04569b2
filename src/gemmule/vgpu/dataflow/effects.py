"""Effects of an instruction: the registers that it reads and writes."""

from __future__ import annotations

from ..ptx.module import Address, Immediate, Instruction, Negated, Operand, Pair, Register, Vector

#: Instructions without a destination: all their operands are read.
_NO_DESTINATION = frozenset(
    {"st", "red", "call", "bar", "barrier", "bra", "brx", "ret", "exit", "trap", "cp", "membar", "fence", "prefetch",
     "prefetchu", "stmatrix", "nanosleep", "discard", "applypriority", "pmevent", "setmaxnreg", "griddepcontrol"}
)  # fmt: skip


def _has_no_destination(instruction: Instruction) -> bool:
    """Say whether all operands of an instruction are read; a reduction at a barrier has a result."""
    return instruction.name in _NO_DESTINATION and not (
        instruction.name in ("bar", "barrier") and "red" in instruction.modifiers
    )


def registers_in(operand: Operand) -> tuple[Register, ...]:
    """Return the registers that an operand names."""
    if isinstance(operand, Register):
        return (operand,)
    if isinstance(operand, Negated):
        return (operand.register,)
    parts: tuple[Operand, ...] = ()
    if isinstance(operand, Vector):
        parts = operand.items
    elif isinstance(operand, Pair):
        parts = (operand.first, operand.second)
    elif isinstance(operand, Address):
        parts = (operand.base, *operand.extra)
    return tuple(register for part in parts for register in registers_in(part))


def written(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction writes."""
    if _has_no_destination(instruction) or not instruction.operands:
        return ()
    return registers_in(instruction.operands[0])


def operands_read(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers among the operands that an instruction reads."""
    operands = instruction.operands if _has_no_destination(instruction) else instruction.operands[1:]
    if instruction.name == "prmt" and instruction.modifiers == ("b32",) and isinstance(operands[2], Immediate):
        # A register of which no byte is selected is not read: the compiler names any there.
        chosen = {operands[2].value >> 4 * number & 4 for number in range(4)}
        operands = tuple(operand for operand, digit in zip(operands[:2], (0, 4), strict=True) if digit in chosen)
    return tuple(register for operand in operands for register in registers_in(operand))


def read(instruction: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction reads, its guard's included."""
    guard = instruction.guard
    if guard is None:
        return operands_read(instruction)
    return (*operands_read(instruction), guard.register if isinstance(guard, Negated) else guard)
