"""Parameters that a kernel may write through: pointers followed from the parameters to the stores."""

from __future__ import annotations

import functools

from ..ptx.module import Address, Instruction, Kernel, Register, Symbol
from .effects import registers_in

_WRITES = ("st", "atom", "red")


@functools.lru_cache(maxsize=256)
def written_params(kernel: Kernel) -> frozenset[str] | None:
    """Return the parameters whose pointers lead to global memory that the kernel may write.

    Returns
    -------
    frozenset of str or None
        Names of parameters; None where a store's address has another source, so that any may be written.
    """
    origins: dict[Register, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for instruction in kernel.instructions:
            found = _pointer_of(instruction, kernel)
            if found is None:
                found = frozenset(
                    name
                    for operand in instruction.operands[1:]
                    if not isinstance(operand, Address)
                    for register in registers_in(operand)
                    for name in origins.get(register, ())
                )
            for register in registers_in(instruction.operands[0]) if found and instruction.operands else ():
                if not found <= origins.get(register, frozenset()):
                    origins[register] = origins.get(register, frozenset()) | found
                    changed = True
    written: set[str] = set()
    for instruction in kernel.instructions:
        if instruction.name in _WRITES and "shared" not in {part.split("::")[0] for part in instruction.modifiers}:
            if "local" in instruction.modifiers:
                continue
            address = next(operand for operand in instruction.operands if isinstance(operand, Address))
            names = origins.get(address.base) if isinstance(address.base, Register) else None
            if not names:
                return None
            written |= names
    return frozenset(written)


def _pointer_of(instruction: Instruction, kernel: Kernel) -> frozenset[str] | None:
    """Return the parameter whose first 8 bytes, its pointer, an instruction loads."""
    if instruction.name != "ld" or "param" not in instruction.modifiers:
        return None
    address = instruction.operands[1]
    if isinstance(address, Address) and isinstance(address.base, Symbol) and address.base.offset == 0:
        return frozenset({address.base.name} & {param.name for param in kernel.params if param.size >= 8})
    return frozenset()
