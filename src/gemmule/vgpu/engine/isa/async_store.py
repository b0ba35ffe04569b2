"""Asynchronous stores into another CTA's shared memory, which complete at an mbarrier there: st.async."""

from __future__ import annotations

import dataclasses

import numpy as np

from gemmule.vgpu.memory import GlobalMemory
from gemmule.vgpu.tensor_map import CHUNK
from gemmule.vgpu.types import NUMPY, Array, size_of

from ..definition import Build, Step
from ..observer import AgentAccess
from ..running_batch import Frame
from ..spaces import address_of, locator
from .bulk_copy import BulkCopies, Load
from .mbarrier_phases import SIZE, MBarriers


@dataclasses.dataclass(frozen=True)
class StoredValues:
    """Values from registers: (stores, 1, 2) words of 8 bytes, or (stores, 1) of 4 or 8 for smaller stores."""

    data: Array

    def read(self, memory: GlobalMemory, coordinates: Array) -> Array:
        """Return the values."""
        del memory, coordinates
        return self.data


def async_store(build: Build) -> Step:
    """Store 4, 8 or 16 bytes asynchronously."""
    build.take("async")
    build.take("weak", default="")
    build.take("shared::cluster")
    build.take("mbarrier::complete_tx::bytes")
    count = int(build.take("v2", "v4", default="v1")[1:])
    kind = build.type("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")
    build.done(3)
    size = count * size_of(kind)
    if size > CHUNK:
        raise build.error("an asynchronous store has 4, 8 or 16 bytes")
    target = locator(build, "shared", address_of(build, build.operands[0]), size)
    slots = [build.source(item, kind) for item in build.items(build.operands[1], count)]
    barrier = locator(build, "shared", address_of(build, build.operands[2]), SIZE)
    instruction = build.instruction

    def store(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        _, position, _ = target(frame)
        _, place, _ = barrier(frame)
        elsewhere = position // batch.shared_stride != place // batch.shared_stride
        if elsewhere.any():
            raise batch.fault(
                "barrier", "st.async and its mbarrier are in different CTAs", instruction,
                lanes, elsewhere,
            )  # fmt: skip
        barriers = place // SIZE
        MBarriers.of(batch).check(instruction, lanes, barriers)
        values = np.empty((lanes.count, count), NUMPY[kind])
        for number, slot in enumerate(slots):
            values[:, number] = frame[slot]
        rows = (position // CHUNK)[:, None]
        if batch.observers:
            start = position % CHUNK if size < CHUNK else None
            access = AgentAccess(instruction, batch, "async store", lanes.index, rows, barriers, size, start=start)
            for observer in batch.observers:
                observer.agent_access(access)
        if size < CHUNK:
            data, places = values.view(f"u{size}"), (position // size)[:, None]
        else:
            data, places = values.view(np.uint64).reshape(lanes.count, 1, 2), rows
        BulkCopies.of(batch).load(Load(StoredValues(data), rows, np.arange(lanes.count), places, barriers, size))

    return store
