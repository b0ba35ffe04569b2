"""Loads and stores: ld, ldu, st of one value or a vector, to and from every space."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.vgpu.dataflow.polling import is_strong
from gemmule.vgpu.ptx.module import Address, Operand, Symbol
from gemmule.vgpu.types import NUMPY, Array, is_signed, size_of

from ..definition import Build, Step, defines
from ..running_batch import Frame
from ..spaces import address_of, locator, refuse_parameters, space_of, words
from .async_store import async_store


@defines("ld", "ldu")
def _ld(build: Build) -> Step:
    """Load one value or a vector of them; a register wider than the type is extended."""
    space = space_of(build)
    count = int(build.take("v2", "v4", "v8", default="v1")[1:])
    kind = build.type()
    build.done(2, 3)
    address = address_of(build, build.operands[1])
    items = build.items(build.operands[0], count)
    if space == "param" and isinstance(address.base, Symbol):
        return _load_param(build, address, kind, items)
    size = size_of(kind)
    total = size * count
    locate = locator(build, space, address, total)
    slots = [build.wide_dest(item, kind) for item in items]
    shift = total.bit_length() - 1
    signed = is_signed(kind)
    plain = np.dtype(f"u{size}")
    instruction, strong = build.instruction, is_strong(build.instruction)

    def load(frame: Frame) -> None:
        space, position, address = locate(frame)
        if frame.batch.observers:
            atomic = strong and space == "global"
            frame.batch.access(instruction, frame.lanes, space, address, total, read=True, atomic=atomic)
        memory = words(frame, space, size)
        index = position >> shift
        if count > 1:
            values = memory.reshape(-1, count).take(index, 0)
            for number, slot in enumerate(slots):
                _extend(values[:, number], frame[slot], signed, plain)
            return
        out = frame[slots[0]]
        if out.itemsize == size:
            memory.take(index, out=out.view(plain), mode="clip")
        else:
            _extend(memory[index], out, signed, plain)

    return load


def _extend(values: Array, out: Array, signed: bool, plain: np.dtype[Any]) -> None:
    """Write loaded bits into registers of the same size or wider."""
    if out.itemsize == plain.itemsize:
        out.view(plain)[...] = values
    else:
        out[...] = values.view(f"i{plain.itemsize}") if signed else values


def _load_param(build: Build, address: Address, kind: str, items: tuple[Operand, ...]) -> Step:
    """Load parameters, which are the same for all lanes."""
    assert isinstance(address.base, Symbol)
    start = build.binder.address_of(address.base)
    size = size_of(kind)
    end = (start or 0) + size * len(items)
    if build.binder.space_of(address.base) != "param" or start is None or end > build.binder.param_bytes:
        raise build.error("this is outside of the kernel's parameters")
    if start % size:
        raise build.error(f"a parameter of {size} bytes is at a multiple of {size}")
    slots = [build.wide_dest(item, kind) for item in items]
    dtype = NUMPY[kind]

    def load(frame: Frame) -> None:
        values = np.frombuffer(frame.batch.params, dtype, len(slots), start)
        for slot, value in zip(slots, values, strict=True):
            frame[slot][...] = value

    return load


@defines("st")
def _st(build: Build) -> Step:
    """Store one value or a vector of them; of a register wider than the type, the low bits."""
    if "async" in build.instruction.modifiers:
        return async_store(build)
    space = space_of(build)
    count = int(build.take("v2", "v4", "v8", default="v1")[1:])
    kind = build.type()
    build.done(2, 3)
    size = size_of(kind)
    total = size * count
    locate = locator(build, space, address_of(build, build.operands[0]), total)
    slots = [build.wide_source(item, kind) for item in build.items(build.operands[1], count)]
    shift = total.bit_length() - 1
    plain = np.dtype(f"u{size}")
    instruction, strong = build.instruction, is_strong(build.instruction)

    def bits(value: Any) -> Any:
        return value.view(plain) if value.dtype.itemsize == size else value.astype(plain)

    def store(frame: Frame) -> None:
        space, position, address = locate(frame)
        refuse_parameters(build, frame, space)
        if frame.batch.observers:
            atomic = strong and space == "global"
            frame.batch.access(instruction, frame.lanes, space, address, total, write=True, atomic=atomic)
        memory = words(frame, space, size)
        index = position >> shift
        if count == 1:
            values = bits(frame[slots[0]])
            memory[index] = values
        else:
            values = np.empty((len(index), count), plain)
            for number, slot in enumerate(slots):
                values[:, number] = bits(frame[slot])
            memory = memory.reshape(-1, count)
            memory[index] = values
        if frame.batch.observers and not strong:
            lost = memory[index] != values
            if lost.any():
                which = lost if count == 1 else lost.any(axis=1)
                for observer in frame.batch.observers:
                    observer.overwritten(frame.batch, instruction, frame.lanes, space, address, which)

    return store
