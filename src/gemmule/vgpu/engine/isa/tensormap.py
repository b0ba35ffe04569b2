"""Parts of tensor maps in global memory: tensormap.replace."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.map_bytes import PARTS, SIZE, is_map, part_of

from ..definition import Build, Step, defines
from ..running_batch import Frame
from ..spaces import address_of, locator


@defines("tensormap")
def _replace(build: Build) -> Step:
    """Replace the address, an extent or a stride of a map."""
    build.take("replace")
    build.take("tile")
    part = build.take(*PARTS)
    build.take("global")
    build.take("b1024")
    kind = build.type("b32", "b64")
    offset, width, count = PARTS[part]
    build.done(2 if count == 1 else 3)
    number = 0 if count == 1 else build.integer(build.operands[1])
    if not 0 <= number < count:
        raise build.error(f"{part} {number} is none of the {count} that a map has")
    locate = locator(build, "global", address_of(build, build.operands[0]), SIZE)
    slot = build.source(build.operands[-1], kind)
    instruction = build.instruction

    def replace(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        _, position, _ = locate(frame)
        values = np.broadcast_to(np.asarray(frame[slot]), (lanes.count,)).astype(np.uint64).tolist()
        for lane, (place, value) in enumerate(zip(position.tolist(), values, strict=True)):
            held, why = part_of(part, value), f"a {part} of {value} breaks the rules of tensor maps"
            if not is_map(batch.memory.data[place : place + SIZE]):
                held, why = None, f"there is no tensor map at {batch.memory.describe(place)}"
            if held is None:
                mask = np.arange(lanes.count) == lane
                raise batch.fault("out of bounds", why, instruction, lanes, mask)
            batch.memory.words(width)[(place + offset) // width + number] = held

    return replace
