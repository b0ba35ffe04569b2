"""Binding: the slot of a frame and the row of the register file of each name of a kernel."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from gemmule.compiler.host_functions.shared_tiles import SharedTile
from gemmule.vgpu.ptx.module import TYPE_BYTES, Kernel, Register, Symbol

from .registers import RegisterUse, View

#: Start of shared memory: the hardware reserves the first kilobyte.
SHARED_START = 1024
#: Addresses of texts of the module, which only printf reads.
_TEXTS = 1 << 47


def _aligned(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _own_name(name: str) -> str:
    """Return the name of a variable in its source: that of one in a function of CUDA C++ is mangled."""
    found = re.fullmatch(r"_ZZ.*E(\d+)(\w+)", name)
    return found[2][: int(found[1])] if found else name


class Binder:
    """Slots, rows and addresses of one kernel.

    Attributes
    ----------
    template : list
        The slots of a frame: constants, and None where a register belongs.
    counts : dict of int to int
        Registers by width in bytes.
    specials : dict of str to Register
        Special registers that the kernel reads.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.template: list[Any] = []
        self.counts: dict[int, int] = {}
        self.specials: dict[str, Register] = {}
        self._rows: dict[Register, tuple[int, int]] = {}
        self._views: dict[tuple[Register, str], View] = {}
        self._by_register: dict[Register, list[View]] = {}
        self._constants: dict[tuple[str, bytes], int] = {}
        self._scratch: dict[int, Register] = {}
        self._place_variables()

    def _place_variables(self) -> None:
        """Give every variable its address within its space."""
        self._addresses: dict[str, tuple[str, int]] = {}
        ends = {"param": 0, "shared": SHARED_START, "local": 0}
        variables = [*self.kernel.params, *self.kernel.variables]
        # Dynamic shared memory, of size 0, starts after the static.
        for variable in sorted(variables, key=lambda variable: variable.space == "shared" and variable.size == 0):
            if variable.space in ends:
                start = _aligned(ends[variable.space], variable.alignment)
                self._addresses[variable.name] = (variable.space, start)
                ends[variable.space] = start + variable.size
        self._texts: dict[int, bytes] = {}
        self._text_addresses: dict[str, int] = {}
        for variable in variables:
            if variable.space == "global" and variable.alignment == 1 and variable.data[-1:] == b"\0":
                address = _TEXTS + sum(map(len, self._texts.values()))
                self._text_addresses[variable.name], self._texts[address] = address, variable.data
        #: Static variables of shared memory.
        self.shared_variables = tuple(
            SharedTile(_own_name(variable.name), self._addresses[variable.name][1], variable.size)
            for variable in variables
            if variable.space == "shared" and variable.size
        )
        self._dynamic_start = next(
            (self._addresses[one.name][1] for one in variables if one.space == "shared" and not one.size),
            ends["shared"],
        )
        self.param_bytes = ends["param"]
        self.static_shared_end = ends["shared"]
        self.local_bytes = _aligned(ends["local"], 16)

    def address_of(self, symbol: Symbol) -> int | None:
        """Return the address of a variable within its space; None for spaces that are not modelled."""
        if symbol.name in self._text_addresses:
            return self._text_addresses[symbol.name] + symbol.offset
        found = self._addresses.get(symbol.name)
        return None if found is None else found[1] + symbol.offset

    def dynamic(self, tiles: Iterable[SharedTile]) -> tuple[SharedTile, ...]:
        """Return parts of dynamic shared memory with their addresses."""
        return tuple(dataclasses.replace(tile, start=self._dynamic_start + tile.start) for tile in tiles)

    def text_at(self, address: int) -> str:
        """Return the text of the module at an address, up to its zero byte; an empty one where none begins."""
        return self._texts.get(address, b"").split(b"\0", 1)[0].decode(errors="replace")

    def address_of_name(self, name: str) -> int:
        """Return the address of a parameter within its space."""
        return self._addresses[name][1]

    def space_of(self, symbol: Symbol) -> str:
        """Return the space of a variable, or an empty text for an unknown one."""
        return self._addresses.get(symbol.name, ("", 0))[0]

    def register(self, register: Register, dtype: np.dtype[Any]) -> int:
        """Return the slot of a register read or written as that type."""
        key = (register, dtype.str)
        view = self._views.get(key)
        if view is None:
            width, row = self.row(register)
            view = self._views[key] = View(self._slot(None), width, row, dtype)
            self._by_register.setdefault(register, []).append(view)
        return view.slot

    def row(self, register: Register) -> tuple[int, int]:
        """Return a register's width and its row of the register file."""
        found = self._rows.get(register)
        if found is None:
            width = TYPE_BYTES[register.type]
            found = self._rows[register] = (width, self.counts.get(width, 0))
            self.counts[width] = found[1] + 1
        return found

    def constant(self, value: Any) -> int:
        """Return the slot of a constant."""
        key = (value.dtype.str, value.tobytes())
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self._slot(value)
        return found

    def special(self, name: str) -> Register:
        """Return the register that holds a special register's value; batches fill it."""
        if name not in self.specials:
            kind = "u64" if name in ("%clock64", "%globaltimer") else "u32"
            self.specials[name] = Register(name, kind, -1 - len(self.specials))
        return self.specials[name]

    def scratch(self, kind: str) -> Register:
        """Return a register for results that are discarded."""
        width = TYPE_BYTES[kind]
        if width not in self._scratch:
            self._scratch[width] = Register(f"_{width}", kind, -1000 - width)
        return self._scratch[width]

    def carry(self) -> Register:
        """Return the register that holds the carry between instructions."""
        return Register("CC.CF", "pred", -500)

    def uses(self, reads: Iterable[Register], writes: Iterable[Register]) -> RegisterUse:
        """Return the part of the register file that instructions with those registers need."""
        written = set(writes)
        touched = sorted({*reads, *written}, key=self.row)
        rows: dict[int, list[int]] = {}
        stored: dict[int, list[tuple[int, int]]] = {}
        views, positions = [], []
        for register in touched:
            width, row = self.row(register)
            place = rows.setdefault(width, [])
            if register in written:
                stored.setdefault(width, []).append((row, len(place)))
            for view in self._by_register.get(register, ()):
                views.append(view)
                positions.append(len(place))
            place.append(row)
        return RegisterUse(tuple(views), tuple(positions), rows, stored)

    def _slot(self, value: Any) -> int:
        self.template.append(value)
        return len(self.template) - 1
