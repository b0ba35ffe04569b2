"""Matrix instructions of a warp: ldmatrix, stmatrix, mma.sync."""

from __future__ import annotations

import re

import numpy as np

from gemmule.core.errors import UnsupportedError
from gemmule.vgpu.mma import MmaForm, ldmatrix, mma_sync
from gemmule.vgpu.types import Array

from ..definition import Build, Step, defines
from ..lanes import WARP, rows_of
from ..running_batch import Frame
from ..spaces import address_of, locator
from .warp import check_whole, whole_warps

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64", "f32", "s32")


@defines("ldmatrix", "stmatrix")
def _ldmatrix(build: Build) -> Step:
    """Load or store matrices of 8 rows of 16 bytes, each row at the address of one lane."""
    load = build.instruction.name == "ldmatrix"
    build.take("sync")
    build.take("aligned")
    build.take("m8n8")
    count = int(build.take("x1", "x2", "x4")[1:])
    transposed = build.flag("trans")
    space = build.take("shared", "shared::cta", default="generic").split("::")[0]
    build.take("b16")
    build.done(2)
    memory, fragment = build.operands[::-1] if load else build.operands
    whole_warps(build)
    address = address_of(build, memory)
    find = locator(build, space, address, 16)
    items = build.items(fragment, count)
    slots = [build.dest(item, "b32") if load else build.source(item, "b32") for item in items]
    instruction = build.instruction
    used = ldmatrix.row_lanes(count)
    addresses = ldmatrix.half_addresses if transposed else ldmatrix.word_addresses
    size = 2 if transposed else 4

    def rows(frame: Frame) -> Array:
        """Return the address of each row that is used, and check it: those of other lanes may be anything."""
        warps = rows_of(frame.lanes)
        taking = warps.collect(np.broadcast_to(used, warps.active.shape))
        part = frame if count == 4 else frame.part(taking, build.read_slots)
        found, position, seen = find(part)
        if found != "shared":
            raise frame.batch.fault(
                "out of bounds", f"the address is in {found} memory, but matrices are in shared memory", instruction,
                frame.lanes, np.ones(frame.lanes.count, np.bool_),
            )  # fmt: skip
        if frame.batch.observers:
            frame.batch.access(instruction, part.lanes, "shared", seen, 16, read=load, write=not load)
        places = np.zeros((len(warps.numbers), WARP), np.int64)
        places[:, used] = position.reshape(len(warps.numbers), -1)
        return addresses(places, count) // size

    def load_step(frame: Frame) -> None:
        check_whole(build, frame)
        values = frame.batch.shared_words[size].take(rows(frame))
        if transposed:
            values = values.view(np.uint32)[..., 0]
        values = values.reshape(-1, count)
        for number, slot in enumerate(slots):
            frame[slot][...] = values[:, number]

    def store_step(frame: Frame) -> None:
        check_whole(build, frame)
        where = rows(frame)
        values = np.stack([np.broadcast_to(frame[slot], (frame.lanes.count,)) for slot in slots], axis=1)
        values = values.reshape(-1, WARP, count)
        if transposed:
            values = values[..., None].view(np.uint16)
        frame.batch.shared_words[size][where] = values

    return load_step if load else store_step


@defines("mma")
def _mma(build: Build) -> Step:
    """Multiply two small matrices and add a third, held in the registers of a warp."""
    build.take("sync")
    build.take("aligned")
    shape_name = next((modifier for modifier in build.instruction.modifiers if _SHAPE.match(modifier)), "")
    match = _SHAPE.match(build.take(shape_name) if shape_name else "")
    if match is None:
        raise build.error("a shape such as .m16n8k16 is expected")
    shape = (int(match[1]), int(match[2]), int(match[3]))
    build.take("row")
    build.take("col")
    satfinite = build.flag("satfinite")
    # Rounding of f64: to nearest is all that there is.
    build.flag("rn")
    d_type, a_type, b_type, c_type = (build.take(*_TYPES) for _ in range(4))
    build.done(4)
    try:
        form = MmaForm(shape, a_type, b_type, c_type, d_type, satfinite)
    except UnsupportedError as error:
        raise build.error(str(error)) from None
    counts, word = form.registers, "b64" if a_type == "f64" else "b32"
    whole_warps(build)
    groups = [
        [build.source(item, word) for item in build.items(operand, count)]
        for operand, count in zip(build.operands[1:], counts[:3], strict=True)
    ]
    targets = [build.dest(item, word) for item in build.items(build.operands[0], counts[3])]
    dtype = np.dtype("u8" if word == "b64" else "u4")

    def gather(frame: Frame, slots: list[int]) -> Array:
        values = np.empty((frame.lanes.count, len(slots)), dtype)
        for number, slot in enumerate(slots):
            values[:, number] = frame[slot]
        return values.reshape(-1, WARP, len(slots))

    def multiply(frame: Frame) -> None:
        check_whole(build, frame)
        a, b, c = (gather(frame, slots) for slots in groups)
        d = mma_sync(form, a, b, c, mode=frame.batch.launch_state.mma)
        flat = d.reshape(-1, len(targets))
        for number, slot in enumerate(targets):
            frame[slot][...] = flat[:, number]

    return multiply
