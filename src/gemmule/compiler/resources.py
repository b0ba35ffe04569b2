"""Resource usage of a compiled kernel, read from its cubin."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import CompileError

# Attributes of the .nv.info section, as cuobjdump names them.
_FORMAT_SIZED = 4
_REGCOUNT = 0x2F
_FRAME_SIZE = 0x11
_LOCAL_DEPOT = re.compile(r"\.local\s+\.align\s+\d+\s+\.b8\s+\S+\[(\d+)\];")


@dataclass(frozen=True)
class Resources:
    """Resource usage of a kernel."""

    registers: int  #: Registers of a thread.
    stack_bytes: int  #: Local memory of a thread.
    spill_bytes: int  #: The part of it that is register spills, not arrays of the program.
    static_shared_bytes: int  #: Static shared memory of a CTA; the launch adds the dynamic part.


def read_resources(cubin: bytes, ptx: str, entry: str) -> Resources:
    """Read the resource usage of `entry` from its cubin.

    Raises
    ------
    CompileError
        If the cubin lacks the kernel.
    """
    # Imported here: artifacts of cached kernels have their resources.
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    elf = ELFFile(io.BytesIO(cubin))
    table, info_section = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".nv.info")
    if not isinstance(table, SymbolTableSection) or info_section is None:
        raise CompileError("the cubin has no symbol table or no .nv.info section; it is no output of the compiler")
    symbols = {symbol.name: index for index, symbol in enumerate(table.iter_symbols())}
    if entry not in symbols:
        raise CompileError(f"the cubin has no kernel {entry!r}, only {', '.join(filter(None, symbols))}")
    attributes = _per_symbol(info_section.data())
    found = {attribute: value for attribute, symbol, value in attributes if symbol == symbols[entry]}
    stack = found.get(_FRAME_SIZE, 0)
    declared = sum(int(size) for size in _LOCAL_DEPOT.findall(ptx))
    shared = elf.get_section_by_name(f".nv.shared.{entry}")
    return Resources(
        registers=found[_REGCOUNT],
        stack_bytes=stack,
        spill_bytes=max(stack - declared, 0),
        static_shared_bytes=shared["sh_size"] if shared is not None else 0,
    )


def _per_symbol(info: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (attribute, symbol index, value) of the attributes of functions."""
    position = 0
    while position + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, position)
        position += 4
        if form != _FORMAT_SIZED:
            continue
        if size == 8:
            symbol, value = struct.unpack_from("<II", info, position)
            yield attribute, symbol, value
        position += size
