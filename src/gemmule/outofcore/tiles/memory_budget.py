"""Amounts of memory: parsed, formatted, and queried from the system."""

from __future__ import annotations

import math
import operator
import os
import re
from typing import Any

from ...core.errors import ArgumentError, shown

_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}b": size for unit, size in list(_UNITS.items()) if unit not in ("", "b")}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)
# Limit and use of memory, in versions 2 and 1 of Linux's control groups.
_CONTROL_GROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
#: Assumed where the system does not say how much memory is available.
FALLBACK_BYTES = 2 << 30
#: Numbers of bytes below this, as limits, may have been meant as MiB.
_PERHAPS_MIB = 1 << 18
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_DECIMAL = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class GivenBytes(int):
    """Bytes that an argument names; messages state amounts in its units, multiples of 1000 or 1024, or bytes."""

    units: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, size: int, unit: str) -> GivenBytes:
        """Return bytes that were given in a unit, such as ``MB``."""
        found = cls(size)
        if unit:
            found.units = ((1, "bytes"),) if unit in "bB" else _BINARY if "i" in unit.lower() else _DECIMAL
        return found


def parse_bytes(text: str, name: str = "memory") -> GivenBytes:
    """Return the bytes that e.g. ``256MiB``, ``2GB`` or ``1.5GiB`` means; `name` is the argument, for messages.

    Raises
    ------
    ArgumentError
        If it is no positive amount of memory.
    """
    match = _AMOUNT.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ArgumentError(f"{name}={shown(text)} is not an amount of memory; write it like 256MiB, 2GB or 1.5GiB")
    size = float(match[1]) * unit
    if not 1 <= size < 2**63:
        raise ArgumentError(f"{name}={text!r} is no amount that a computer has; give one like 256MiB")
    return GivenBytes.of(int(size), match[2])


def given_bytes(size: Any, name: str) -> GivenBytes:
    """Return the bytes that the argument called `name` means, as a number or as text.

    Raises
    ------
    ArgumentError
        If it is no positive amount of memory.
    """
    if isinstance(size, str):
        return parse_bytes(size, name)
    if isinstance(size, GivenBytes):
        return size
    try:
        count = operator.index(size)
    except TypeError:
        count = 0
    if count < 1 or isinstance(size, bool):
        raise ArgumentError(f"{name}={shown(size)} is not an amount of memory; give whole bytes, or text like '256MiB'")
    return GivenBytes(count)


def format_bytes(size: int, *, up: bool = False, like: int | None = None) -> str:
    """Return `size` for people, e.g. ``256 MiB``; with `up`, never less than it is.

    It is in its own units, or those of `like`, which an argument named; else in multiples of 1024.
    """
    given = size if like is None else like
    for unit, name in given.units if isinstance(given, GivenBytes) else _BINARY:
        if size >= unit:
            amount = -(-size * 10 // unit) / 10 if up else size / unit
            return f"{amount:.1f} {name}".replace(".0 ", " ")
    return f"{size} bytes"


def at_least(name: str, size: int, given: int) -> str:
    """Return the remedy where `given`, the argument `name`, is too small: `size`, in its units; or MiB for bytes."""
    text = format_bytes(size, up=True, like=given).replace(" bytes", "").replace(" ", "")
    bare = isinstance(given, GivenBytes) and not given.units
    perhaps_mib = bare and given < _PERHAPS_MIB and 8 * given < size <= given << 20
    return f"give {name}='{text}' or more" + (f", or a unit as in {name}='{int(given)}MiB'" if perhaps_mib else "")


def available_memory() -> int:
    """Return the bytes of memory that new work can have without swapping, or beyond the limit of its container."""
    return int(min(_system_memory(), _container_memory()))


def _container_memory() -> float:
    """Return the rest of the control group's limit, infinity where there is none."""
    for limit, used in _CONTROL_GROUP:
        try:
            with open(limit, encoding="ascii") as limit_file, open(used, encoding="ascii") as used_file:
                return max(int(limit_file.read()) - int(used_file.read()), 0)
        except (OSError, ValueError):
            # No such control group, or its limit is "max".
            continue
    return math.inf


def _system_memory() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return FALLBACK_BYTES


def resident_memory() -> int:
    """Return the bytes of memory that this process has now, or 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def memory_limit(memory: str | int | None) -> int:
    """Return the requested bytes, with their unit, or half of the available memory by default."""
    return available_memory() // 2 if memory is None else given_bytes(memory, "memory")
