"""NumPy arrays in the virtual GPU's memory: laid out there as they are here, and taken back afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.launch import Launch

from .memory import GLOBAL_BASE, POISON, Allocation, GlobalMemory
from .types import Array


@dataclasses.dataclass(frozen=True)
class Placed:
    """An array and where it is."""

    array: Array  #: The caller's array.
    address: int  #: Address of its first element.


def workspaces_of(launch: Launch) -> dict[str, Array]:
    """Return the workspaces of a launch by name: poisoned, or zeros where the recipe needs them."""
    return {one.name: np.full(one.nbytes, 0 if one.zeroed else POISON, np.uint8) for one in launch.workspaces}


def virtual_address(array: Array) -> int:
    """Return an address with the alignment that the array has on the virtual GPU.

    The memory that an array is a part of begins there at a multiple of 256, as a GPU's allocations do, wherever it is
    in the host's memory: so the same program has the same alignments, and the same counts, in every run.
    """
    return _address(array) - _owner_start(array)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _owner_start(array: Array) -> int:
    """Return the start of the memory that the array is a part of, through its chain of bases.

    An object with an array interface, such as that of NumPy's `as_strided` or of a tensor, may have a base, too.
    """
    while True:
        base: Any = array.base
        if base is not None and not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)
        if not isinstance(base, np.ndarray):
            return _bounds(array)[0]
        array = base


class DeviceArrays:
    """Arrays of the caller, copied into one arena with their strides; those that share memory share it there too.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Arrays by operand name.

    Attributes
    ----------
    memory : GlobalMemory
        The arena.
    addresses : dict of str to int
        Address of the first element of each array.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.memory = GlobalMemory()
        self._placed: dict[str, Placed] = {}
        self._names = tuple(arrays)
        for name, array in arrays.items():
            _check(name, array)
        for names, low, high in _groups(arrays):
            first_of_all = arrays[names[0]]
            allocation = self.memory.reserve("/".join(names), high - low, low - _owner_start(first_of_all))
            for name in names:
                first = _address(arrays[name]) - low
                self._placed[name] = Placed(arrays[name], GLOBAL_BASE + allocation.start + first)
        self.memory.seal()
        for name in self._placed:
            view = self._view(name)
            if view.size:
                view[...] = _bits(arrays[name])

    @property
    def arrays(self) -> dict[str, Array]:
        """The caller's arrays by name."""
        return {name: self._placed[name].array for name in self._names}

    @property
    def addresses(self) -> dict[str, int]:
        """Address of the first element of each array."""
        return {name: placed.address for name, placed in self._placed.items()}

    def fill(self, name: str, byte: int) -> None:
        """Set every byte of an array of bytes in the arena."""
        self._view(name)[...] = byte

    def take_back(self) -> None:
        """Copy what a kernel wrote into the caller's arrays.

        Raises
        ------
        ArgumentError
            If it wrote into read-only arrays; the others hold what it wrote.
        """
        for name, placed in self._placed.items():
            if placed.array.flags.writeable and self._changed(name):
                _bits(placed.array)[...] = self._view(name)
        # Memory that can be written through another operand has arrived by now: what still differs cannot be.
        lost = [name for name, placed in self._placed.items() if self._changed(name)]
        if lost:
            raise ArgumentError(
                f"the kernel wrote into operand {', '.join(lost)}, which is read-only; pass a writable array"
            )

    def gaps(self, allocation: Allocation) -> Array | None:
        """Return which bytes of an allocation belong to no element of any operand; None where all do."""
        free = np.ones(allocation.end - allocation.start, np.bool_)
        for placed in self._placed.values():
            array, first = placed.array, placed.address - GLOBAL_BASE - allocation.start
            if array.size and 0 <= first < len(free):
                shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
                np.ndarray(shape, np.bool_, free, first, strides)[...] = False
        return free if free.any() else None

    def _changed(self, name: str) -> bool:
        """Say whether an array in the arena differs from the caller's."""
        view = self._view(name)
        return bool(view.size) and not np.array_equal(view, _bits(self._placed[name].array))

    def _view(self, name: str) -> Array:
        """Return an array's elements in the arena, as unsigned integers."""
        placed = self._placed[name]
        bits = _bits(placed.array)
        if not bits.size:
            return bits
        offset = placed.address - GLOBAL_BASE
        return np.ndarray(bits.shape, bits.dtype, self.memory.data, offset, bits.strides)


def _check(name: str, array: Any) -> None:
    """Refuse what is no array of numbers that kernels can load."""
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"operand {name} is of type {type(array).__name__}, not an array; convert it with numpy.asarray"
        )
    if array.dtype.hasobject:
        raise DTypeError(f"operand {name} holds Python objects; pass a NumPy array of numbers")
    if array.itemsize not in (1, 2, 4) and (array.itemsize == 0 or array.itemsize % 8):
        raise DTypeError(
            f"operand {name} has elements of {array.itemsize} bytes ({array.dtype}); an element has 1, 2, 4 or a "
            "multiple of 8 bytes"
        )
    if not array.dtype.isnative:
        raise DTypeError(
            f"operand {name} is {array.dtype.str}, in the byte order of other machines, which a kernel would misread; "
            "convert it, and convert results back"
        )


def _bits(array: Array) -> Array:
    """Return the same memory as unsigned integers: two of 8 bytes for an element of 16."""
    if array.itemsize > 8:
        return array[..., None].view(np.uint64)
    return array.view(f"u{array.itemsize}")


def _bounds(array: Array) -> tuple[int, int]:
    """Return where an array's memory begins and ends."""
    if not array.size:
        return _address(array), _address(array)
    return byte_bounds(array)


def _groups(arrays: Mapping[str, Array]) -> list[tuple[list[str], int, int]]:
    """Return names of arrays whose memory overlaps, with the bounds of the whole."""
    spans = sorted((*_bounds(array), name) for name, array in arrays.items())
    groups: list[tuple[list[str], int, int]] = []
    for low, high, name in spans:
        if groups and low < groups[-1][2]:
            names, start, end = groups[-1]
            groups[-1] = ([*names, name], start, max(end, high))
        else:
            groups.append(([name], low, high))
    return groups
