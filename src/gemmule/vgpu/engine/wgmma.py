"""Matrix instructions of a warpgroup: wgmma, its fence, groups and waits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gemmule.core.errors import UnsupportedError
from gemmule.vgpu.mma.warpgroup import ROWS, check_types
from gemmule.vgpu.observe import AgentAccess
from gemmule.vgpu.ptx.module import Immediate, Operand, Register, Vector

from .define import Build, Step, defines
from .lanes import Lanes
from .matrix import check_whole
from .registers import Frame
from .types import Array
from .warp import whole_warps
from .warpgroups import LANES, Form, Product, factor_rows

if TYPE_CHECKING:
    from .batch import Batch

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f32", "s32")


@defines("wgmma")
def _wgmma(build: Build) -> Step:
    """Multiply, order registers, make a group, or wait for groups."""
    action = build.take("mma_async", "fence", "commit_group", "wait_group")
    build.take("sync")
    build.take("aligned")
    if action == "mma_async":
        return _product(build)
    build.done(1 if action == "wait_group" else 0)
    left = build.integer(build.operands[0]) if action == "wait_group" else 0
    whole_warps(build)
    instruction = build.instruction

    def step(frame: Frame) -> None:
        check_whole(build, frame)
        batch, lanes = frame.batch, frame.lanes
        if action == "commit_group":
            batch.warpgroups.commit(lanes)
        elif action == "wait_group":
            batch.warpgroups.wait(lanes, left)
        for observer in batch.observers:
            if action == "fence":
                observer.products_fenced(batch, instruction, lanes)
            elif action == "commit_group":
                observer.products_committed(batch, instruction, lanes)
            else:
                observer.products_awaited(batch, instruction, lanes, left)

    return step


def _is_whole(batch: Batch, lanes: Lanes) -> bool:
    """Say whether lanes are those of whole warpgroups; the first lane of one is a multiple of its size in its CTA."""
    if lanes.count % LANES:
        return False
    groups = lanes.index.reshape(-1, LANES)
    first, last = groups[:, 0], groups[:, -1]
    return bool((last - first == LANES - 1).all() and (first % batch.cta_lanes % LANES == 0).all())


def _register_rows(build: Build, operand: Operand, count: int) -> tuple[int, ...]:
    """Return the rows of the register file of a vector of 32-bit registers."""
    items = operand.items if isinstance(operand, Vector) else ()
    registers = [item for item in items if isinstance(item, Register)]
    if len(items) != count or len(registers) != count:
        raise build.error(f"a vector of {count} registers is expected")
    found = [build.binder.row(register) for register in registers]
    if any(width != 4 for width, _ in found):
        raise build.error("the registers have 32 bits")
    return tuple(row for _, row in found)


def _sign(build: Build, operand: Operand) -> int:
    value = build.integer(operand)
    if value not in (1, -1):
        raise build.error("a factor is multiplied with 1 or -1")
    return value


def _product(build: Build) -> Step:
    shape_name = next((modifier for modifier in build.instruction.modifiers if _SHAPE.match(modifier)), "")
    match = _SHAPE.match(build.take(shape_name) if shape_name else "")
    if match is None:
        raise build.error("a shape such as .m64n128k16 is expected")
    n, k = int(match[1]), int(match[2])
    satfinite = build.flag("satfinite")
    d_type, a_type, b_type = (build.take(*_TYPES) for _ in range(3))
    in_registers = len(build.operands) > 1 and isinstance(build.operands[1], Vector)
    transposable = a_type in ("f16", "bf16")
    integers = d_type == "s32"
    build.done(4 if integers else 6 + (2 - in_registers if transposable else 0))
    try:
        check_types(n, k, a_type, b_type, d_type)
    except UnsupportedError as error:
        raise build.error(str(error)) from None
    d, a, b, scale, *rest = build.operands
    d_rows = _register_rows(build, d, n // (4 if d_type == "f16" else 2))
    a_rows = _register_rows(build, a, 4) if in_registers else ()
    a_slot = None if in_registers else build.source(a, "b64")
    b_slot = build.source(b, "b64")
    adds = bool(scale.value) if isinstance(scale, Immediate) else build.predicate(scale)
    signs = (1, 1) if integers else (_sign(build, rest[0]), _sign(build, rest[1]))
    turned = [build.integer(operand) for operand in rest[2:]] if transposable else []
    if any(value not in (0, 1) for value in turned):
        raise build.error("a factor is transposed, 1, or is not, 0")
    # With A in registers only B can be transposed.
    a_turned, b_turned = ([0] * (2 - len(turned)) + turned)[:2] if turned else (0, 0)
    form = Form(n, a_type, b_type, d_type, d_rows, a_rows, not a_turned, not b_turned, signs, satfinite)
    instruction = build.instruction

    def gate(frame: Frame, taking_part: Array | None) -> Array | None:
        lanes = frame.lanes
        if taking_part is None and _is_whole(frame.batch, lanes):
            return None
        here = np.ones(lanes.count, np.bool_) if taking_part is None else taking_part
        group = lanes.index // frame.batch.cta_lanes * frame.batch.cta_lanes
        group = group + (lanes.index - group) // LANES * LANES
        first, inverse = np.unique(group, return_inverse=True)
        came = np.bincount(inverse, here)
        alive = frame.batch.alive
        wanted = np.array([np.count_nonzero(alive[start : start + LANES]) for start in first.tolist()])
        ready = came >= wanted
        return None if ready.all() else ready[inverse]

    def waits_for(batch: Batch, lanes: Lanes) -> str:
        del batch
        return f"waits for the other warps of its warpgroup, of {LANES} threads (warp {int(lanes.index[0]) // 32})"

    build.gate, build.waits_for = gate, waits_for

    def uniform(frame: Frame, slot: int) -> Array:
        given = np.broadcast_to(np.asarray(frame[slot]), (frame.lanes.count,)).reshape(-1, LANES)
        differ = given != given[:, :1]
        if differ.any():
            raise frame.batch.fault(
                "barrier", "the threads of a warpgroup give different descriptors or conditions", instruction,
                frame.lanes, differ.reshape(-1),
            )  # fmt: skip
        return np.ascontiguousarray(given[:, 0])

    def located(frame: Frame, first: Array, slot: int, extent: int, along_k: bool) -> Array:
        descriptor = uniform(frame, slot)
        rows, bad = factor_rows(frame.batch, first, descriptor, extent, along_k)
        if bad.any():
            raise frame.batch.fault(
                "out of bounds",
                f"the descriptor {int(descriptor[bad][0]):#018x} leads outside of the CTA's shared memory, or has a "
                "base offset, which the virtual GPU does not know",
                instruction, frame.lanes, np.repeat(bad, LANES), space="shared",
            )  # fmt: skip
        return rows

    def step(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        first = lanes.index[::LANES]
        if not _is_whole(batch, lanes):
            everyone = np.ones(lanes.count, np.bool_)
            raise batch.fault(
                "barrier", f"the instruction needs all {LANES} threads of its warpgroup", instruction, lanes, everyone
            )
        added = np.full(len(first), adds) if isinstance(adds, bool) else uniform(frame, adds[0]) ^ adds[1]
        a_chunks = None if a_slot is None else located(frame, first, a_slot, ROWS, form.a_along_k)
        b_chunks = located(frame, first, b_slot, n, form.b_along_k)
        group = batch.warpgroups.committed[first // 32]
        if batch.observers:
            parts = [chunks.reshape(len(first), -1) for chunks in (a_chunks, b_chunks) if chunks is not None]
            access = AgentAccess(instruction, batch, "wgmma", first, np.concatenate(parts, axis=1))
            for observer in batch.observers:
                observer.products_issued(batch, instruction, lanes)
                observer.agent_access(access)
        batch.warpgroups.issue(Product(form, first, group, a_chunks, b_chunks, added))

    return step
