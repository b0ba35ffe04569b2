"""Address spaces: the memory of an address, its bounds and its alignment.

A locator turns the address operand of an instruction into byte positions within the array that holds the space: the
arena, the shared memory of all CTAs of the batch, the local memory of all its lanes. Every access is checked against
the bounds of the array and its alignment: nothing outside is ever accessed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gemmule.vgpu.memory import GLOBAL_BASE
from gemmule.vgpu.ptx.module import TYPE_BYTES, Address, Immediate, Operand, Register, Symbol
from gemmule.vgpu.types import Array

from .batch import Batch
from .binder import SHARED_START
from .definition import Build
from .running_batch import Frame

#: First generic address of each space; global addresses are generic ones unchanged.
WINDOWS = {"shared": 1 << 44, "local": 1 << 45, "param": 1 << 46}
_WINDOW_SIZE = 1 << 32
_SPACES = ("global", "shared", "local", "param", "const", "shared::cta", "shared::cluster", "param::entry")
_CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
_EVICTION = tuple(
    f"{level}::{what}"
    for level in ("L1", "L2")
    for what in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate", "evict_last_use")
)
_PREFETCH = ("L2::64B", "L2::128B", "L2::256B")
_ORDER = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
_SCOPES = ("cta", "cluster", "gpu", "sys")
#: An address of shared memory names a CTA of the cluster above this bit: its rank + 1, or 0 for the own CTA.
RANK_SHIFT = 24


class Locator(Protocol):
    """Gives the space, the byte positions within the array that holds it, and the addresses that observers see."""

    def __call__(self, frame: Frame, size: int | Array = ...) -> tuple[str, Array, Array]: ...


def words(frame: Frame, space: str, size: int) -> Array:
    """Return the array that holds a space, as unsigned integers of `size` bytes."""
    batch = frame.batch
    if space == "global":
        return batch.memory.words(size)
    if space == "shared":
        return batch.shared_words[size]
    data = batch.local if space == "local" else batch.param_data
    return data.view(f"u{size}")


def locator(build: Build, space: str, operand: Address, size: int) -> Locator:
    """Return the locator of the bytes that an address operand names, for accesses of `size` bytes, aligned to that.

    Callers can give fewer bytes, whose bounds are then checked.
    """
    base, offset = operand.base, operand.offset
    if operand.extra:
        raise build.error("an address has one part here")
    if isinstance(base, Symbol):
        symbol_space = build.binder.space_of(base)
        if space == "generic":
            space = symbol_space
        if symbol_space != space:
            raise build.error(f"{base.name} is in {symbol_space or 'no'} memory that the virtual GPU has")
    kind = "u32" if isinstance(base, Register) and TYPE_BYTES[base.type] == 4 else "u64"
    if isinstance(base, Immediate | Symbol):
        kind = "s64"
    if space in ("generic", "global") and kind == "u32":
        raise build.error("an address of global memory has 64 bits")
    slot = build.source(base, kind)
    if space == "generic":
        return _generic(build, slot, offset, size)
    if space not in _IN_SPACE:
        raise build.error(f"memory of space .{space} is not modelled by the virtual GPU")
    find, alignment = _IN_SPACE[space], size

    def locate(frame: Frame, size: int | Array = size) -> tuple[str, Array, Array]:
        address = frame[slot]
        if address.ndim == 0:
            address = np.full(frame.lanes.count, address)
        if address.dtype == np.uint32 and offset:
            # Addresses of 32 bits wrap.
            address = address + np.uint32(offset % 2**32)
            return space, *find(build, frame, address.astype(np.int64), size, alignment)
        position = address.astype(np.int64) if address.dtype == np.uint32 else address.view(np.int64)
        return space, *find(build, frame, position + offset if offset else position, size, alignment)

    return locate


def _generic(build: Build, slot: int, offset: int, size: int) -> Locator:
    """Return the locator for addresses that say themselves which space they mean."""
    instruction, alignment = build.instruction, size

    def locate(frame: Frame, size: int | Array = size) -> tuple[str, Array, Array]:
        address = np.broadcast_to(np.asarray(frame[slot]).view(np.int64), (frame.lanes.count,)) + offset
        for space, start in WINDOWS.items():
            inside = (address >= start) & (address < start + _WINDOW_SIZE)
            if inside.all():
                return space, *_IN_SPACE[space](build, frame, address - start, size, alignment)
            if inside.any():
                raise frame.batch.fault(
                    "out of bounds",
                    f"some lanes' generic addresses are in {space} memory and others' are not; the virtual GPU takes "
                    "one space for an instruction",
                    instruction,
                    frame.lanes,
                    inside,
                )
        return "global", *_in_global(build, frame, address, size, alignment)

    return locate


def _in_global(build: Build, frame: Frame, address: Array, size: int | Array, alignment: int) -> tuple[Array, Array]:
    memory = frame.batch.memory
    position = address - GLOBAL_BASE
    allocation = memory.allocation_at(int(position.min()))
    if allocation is None or int((position + size).max()) > allocation.end:
        bad = memory.outside(position, size)
        if bad.any():
            first = np.flatnonzero(bad)[0]
            where = int(position[first])
            raise frame.batch.fault(
                "out of bounds",
                f"{np.broadcast_to(size, bad.shape)[first]} bytes at {memory.describe(where)}",
                build.instruction,
                frame.lanes,
                bad,
                space="global",
                address=memory.offset(where),
            )
    _check_alignment(build, frame, "global", position, alignment)
    return position, position


def _in_shared(build: Build, frame: Frame, address: Array, size: int | Array, alignment: int) -> tuple[Array, Array]:
    batch = frame.batch
    base = frame.lanes.pick(batch.shared_base)
    # A CTA that is launched alone is a cluster of one.
    high = int(address.max())
    named = high >> RANK_SHIFT
    if named == 1 or (named and batch.cluster_ctas > 1):
        address, moved = _of_cluster(build, frame, address)
        position, seen = _in_shared(build, frame, address, size, alignment)
        return position + moved, seen + moved
    if high + size > batch.shared_end or int(address.min()) < SHARED_START:
        bad = (address < SHARED_START) | (address + size > batch.shared_end)
        where = int(address[np.flatnonzero(bad)[0]])
        raise batch.fault(
            "out of bounds",
            f"{size} bytes at {where:#x} of shared memory{_behind(batch, where)}, which a CTA has from "
            f"{SHARED_START:#x} to {batch.shared_end:#x}",
            build.instruction,
            frame.lanes,
            bad,
            space="shared",
            address=where,
        )
    _check_alignment(build, frame, "shared", address, alignment)
    return address + base, address


def _behind(batch: Batch, address: int) -> str:
    """Say which named part of shared memory ends before an address."""
    before = [tile for tile in batch.launch_state.tiles if tile.start + tile.size <= address]
    if not before:
        return ""
    last = max(before, key=lambda tile: tile.start + tile.size)
    return f", {address - last.start - last.size} bytes beyond the end of {last.name}"


def _of_cluster(build: Build, frame: Frame, address: Array) -> tuple[Array, Array]:
    """Return addresses within the CTAs that they name, and how far these CTAs' memory is from the lanes' own."""
    batch = frame.batch
    code = address >> RANK_SHIFT
    bad = (code < 0) | (code > batch.cluster_ctas)
    if bad.any():
        raise batch.fault(
            "out of bounds",
            f"address {int(address[bad][0]):#x} names no CTA of a cluster of {batch.cluster_ctas}",
            build.instruction,
            frame.lanes,
            bad,
            space="shared",
            address=int(address[bad][0]),
        )
    rank = frame.lanes.pick(batch.cta_of_lane) % batch.cluster_ctas
    moved = np.where(code > 0, code - 1 - rank, 0) * batch.shared_stride
    return address & ((1 << RANK_SHIFT) - 1), moved


def _in_local(build: Build, frame: Frame, address: Array, size: int | Array, alignment: int) -> tuple[Array, Array]:
    batch = frame.batch
    bad = (address < 0) | (address + size > build.binder.local_bytes)
    if bad.any():
        where = int(address[np.flatnonzero(bad)[0]])
        raise batch.fault(
            "out of bounds",
            f"{size} bytes at {where} of local memory, of which a thread has {build.binder.local_bytes}",
            build.instruction,
            frame.lanes,
            bad,
            space="local",
            address=where,
        )
    _check_alignment(build, frame, "local", address, alignment)
    return address + frame.lanes.pick(batch.local_base), address


def _in_param(build: Build, frame: Frame, address: Array, size: int | Array, alignment: int) -> tuple[Array, Array]:
    bad = (address < 0) | (address + size > build.binder.param_bytes)
    if bad.any():
        where = int(address[np.flatnonzero(bad)[0]])
        raise frame.batch.fault(
            "out of bounds",
            f"{size} bytes at {where} of the parameters, which have {build.binder.param_bytes}",
            build.instruction,
            frame.lanes,
            bad,
        )
    _check_alignment(build, frame, "param", address, alignment)
    return address, address


def _check_alignment(build: Build, frame: Frame, space: str, address: Array, size: int) -> None:
    if size > 1 and int(np.bitwise_or.reduce(address)) & (size - 1):
        bad = (address & (size - 1)) != 0
        where = int(address[np.flatnonzero(bad)[0]])
        place, memory = f"{space} address {where:#x}", frame.batch.memory
        if space == "global":
            place = f"global address {GLOBAL_BASE + where:#x}, {memory.describe(where)}"
        raise frame.batch.fault(
            "misaligned",
            f"{size} bytes at {place}: the address must be a multiple of {size}",
            build.instruction,
            frame.lanes,
            bad,
            space=space,
            address=memory.offset(where) if space == "global" else where,
        )


_IN_SPACE = {"global": _in_global, "shared": _in_shared, "local": _in_local, "param": _in_param}


def space_of(build: Build) -> str:
    """Read the modifiers of a memory instruction that say where and how, and return the space."""
    build.take(*_ORDER, default="")
    build.take(*_SCOPES, default="")
    space = build.take(*_SPACES, default="generic").split("::")[0]
    for choices in (_CACHE, _CACHE, _EVICTION, _EVICTION, _PREFETCH):
        build.take(*choices, default="")
    build.flag("unified")
    build.flag("L2::cache_hint")
    return space


def address_of(build: Build, operand: Operand) -> Address:
    """Return an operand that must be an address."""
    if not isinstance(operand, Address):
        raise build.error("an address in brackets is expected")
    return operand


def refuse_parameters(build: Build, frame: Frame, space: str) -> None:
    """Refuse to change a kernel's parameters, which are constant."""
    if space == "param":
        everyone = np.ones(frame.lanes.count, np.bool_)
        raise frame.batch.fault(
            "out of bounds", "parameters cannot be written", build.instruction, frame.lanes, everyone
        )
