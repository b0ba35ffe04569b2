"""Matrix products of a warpgroup: wgmma, its fence, groups and waits.

The schedule decides when a product takes place: ``late``, at the wait for its group; ``eager``, at once; ``random``, at
either.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from gemmule.core.errors import UnsupportedError
from gemmule.vgpu.mma import descriptors, warpgroup
from gemmule.vgpu.mma.fragments import places_of_a
from gemmule.vgpu.mma.warpgroup import ROWS, check_types
from gemmule.vgpu.ptx.module import Immediate, Operand, Register, Vector
from gemmule.vgpu.types import Array

from ..batch import Batch
from ..binder import SHARED_START
from ..definition import Build, Step, defines
from ..lanes import WARP, Lanes
from ..observer import AgentAccess
from ..running_batch import AsyncUnit, Frame, RunningBatch
from .warp import check_whole, whole_warps

#: Lanes and warps of a warpgroup.
LANES, WARPS = 128, 4


@dataclasses.dataclass(frozen=True)
class Form:
    """The operands of one wgmma instruction."""

    n: int  #: Columns of B and D.
    #: a_type, b_type, d_type: Types as in PTX.
    a_type: str
    b_type: str
    d_type: str
    d_rows: tuple[int, ...]  #: Rows of the register file that hold D.
    a_rows: tuple[int, ...]  #: Those that hold A; none where A is in shared memory.
    #: a_k_major, b_k_major: Whether the operands in shared memory are K-major.
    a_k_major: bool
    b_k_major: bool
    signs: tuple[int, int]  #: Factors of A and B, 1 or -1.
    satfinite: bool  #: Whether integers are clamped.


@dataclasses.dataclass
class WgmmaOp:
    """A wgmma of some warpgroups."""

    form: Form  #: The instruction.
    lanes: Array  #: Array of int. First lane of each warpgroup.
    group: Array  #: Array of int. For each of them, which of its groups the product belongs to.
    #: a, b: Array of int64 or None. Rows of 16 bytes of the batch's shared memory that hold A and B: (warpgroups,
    #: …); None for A in registers.
    a: Array | None
    b: Array
    adds: Array  #: Array of bool. For each warpgroup, whether D is added to.

    def part(self, mask: Array) -> WgmmaOp:
        """Return the products of some of the warpgroups."""
        a = None if self.a is None else self.a[mask]
        return WgmmaOp(self.form, self.lanes[mask], self.group[mask], a, self.b[mask], self.adds[mask])


class Warpgroups(AsyncUnit):
    """The products of a batch that are in flight.

    Attributes
    ----------
    committed : array of int
        For each warp, how many groups it has committed.
    """

    chance = 0.3

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        self._pending: list[WgmmaOp] = []
        self.committed = np.zeros(batch.lane_count // WARP, np.int64)

    def issue(self, product: WgmmaOp) -> None:
        """Begin a product; those of a warpgroup take place in order."""
        self._pending.append(product)
        if self._at_once():
            done, self._pending = self._pending, []
            self._perform(done)

    def commit(self, lanes: Lanes) -> None:
        """Make the products since the last commit a group."""
        self.committed[np.unique(lanes.pick(self._batch.warp_of_lane))] += 1

    def wait(self, lanes: Lanes, left: int) -> None:
        """Complete all but the last `left` groups of these warps."""
        if not self._pending:
            return
        warps = np.unique(lanes.pick(self._batch.warp_of_lane))
        limit = np.full(len(self.committed), -1, np.int64)
        limit[warps] = self.committed[warps] - left - 1
        due_now, still = [], []
        for product in self._pending:
            first = product.lanes // 32
            due = np.asarray((product.group[:, None] <= limit[first[:, None] + np.arange(WARPS)]).any(axis=1))
            if due.any():
                due_now.append(product if due.all() else product.part(due))
            if not due.all():
                still.append(product if not due.any() else product.part(~due))
        self._pending = still
        self._perform(due_now)

    def finish(self) -> None:
        done, self._pending = self._pending, []
        self._perform(done)

    def _perform(self, products: list[WgmmaOp]) -> None:
        """Multiply, now; D stays a matrix until all are done or its registers are needed otherwise."""
        held: dict[tuple[tuple[int, ...], bytes], tuple[WgmmaOp, Array]] = {}
        for product in products:
            form, key = product.form, (product.form.d_rows, product.lanes.tobytes())
            if key not in held:
                self._give_back(held, set(form.d_rows))
            if form.a_rows:
                self._give_back(held, set(form.a_rows), but=key)
            if key in held:
                matrix = held[key][1]
            else:
                matrix = warpgroup.matrix_of(self._registers(form.d_rows, product.lanes), form.d_type)
            if not product.adds.all():
                matrix[~product.adds] = 0
            a, b = self._operands(product)
            held[key] = (
                product,
                warpgroup.multiply(
                    a, b, matrix, form.a_type, form.b_type, form.d_type, self._batch.launch_state.mma, form.satfinite
                ),
            )
        self._give_back(held, None)

    def _give_back(
        self, held: dict[tuple[tuple[int, ...], bytes], tuple[WgmmaOp, Array]], rows: set[int] | None,
        but: tuple[tuple[int, ...], bytes] | None = None,
    ) -> None:  # fmt: skip
        """Write matrices into their registers: those that use some of these rows, or all."""
        for key in list(held):
            if key == but or (rows is not None and rows.isdisjoint(key[0])):
                continue
            product, matrix = held.pop(key)
            words = warpgroup.registers_of(matrix, product.form.d_type)
            table, lanes = self._batch.register_file.rows[4], self._lanes(product.lanes)
            for row, values in zip(key[0], words, strict=True):
                table[row][lanes] = values

    @staticmethod
    def _lanes(first: Array) -> Array:
        found: Array = (first[:, None] + np.arange(LANES)).reshape(-1)
        return found

    def _registers(self, rows: tuple[int, ...], first: Array) -> Array:
        table, lanes = self._batch.register_file.rows[4], self._lanes(first)
        return np.stack([table[row].take(lanes) for row in rows])

    def _operands(self, product: WgmmaOp) -> tuple[Array, Array]:
        form = product.form
        groups = len(product.lanes)
        if product.a is None:
            words = self._registers(form.a_rows, product.lanes)
            words = words.T.reshape(groups * WARPS, -1)
            ordered = words.take(places_of_a(16, len(form.a_rows) * 2), axis=1)
            a = warpgroup.operands(ordered.reshape(groups, warpgroup.ROWS, -1), form.a_type)
        else:
            a = self._matrix(product.a, form.a_type, form.a_k_major)
        b = self._matrix(product.b, form.b_type, form.b_k_major).swapaxes(1, 2)
        if form.signs[0] < 0:
            a = -a
        if form.signs[1] < 0:
            b = -b
        return a, b

    def _matrix(self, rows: Array, kind: str, along_k: bool) -> Array:
        """Return an operand as (warpgroups, extent, K)."""
        words = self._batch.shared_rows.take(rows, 0).reshape(*rows.shape[:2], -1).view(np.uint32)
        found = warpgroup.operands(words, kind)
        return found if along_k else found.swapaxes(1, 2)


def operand_rows(
    batch: Batch, first: Array, descriptor: Array, extent: int, along_k: bool
) -> tuple[Array, Array]:  # fmt: skip
    """Return the rows of 16 bytes that descriptors name, and for which warpgroups they cannot be read.

    Parameters
    ----------
    batch : Batch
        The CTAs.
    first : array of int
        First lane of each warpgroup.
    descriptor : array of uint64
        Count for each of them.
    extent : int
        Rows of A or columns of B.
    along_k : bool
        Whether K is contiguous.
    """
    start, leading, stride, base_offset, swizzle = descriptors.fields(descriptor)
    kinds = np.stack([leading, stride, swizzle], axis=1)
    shape = (extent, 2) if along_k else (16, extent // 8)
    address = np.empty((len(first), *shape), np.int64)
    alike = bool((kinds == kinds[0]).all())
    for kind in kinds[:1] if alike else np.unique(kinds, axis=0):
        same = slice(None) if alike else (kinds == kind).all(axis=1)
        address[same] = descriptors.chunk_addresses(start[same], extent, along_k, *kind.tolist())
    bad = base_offset != 0
    low, high = address.min(axis=(1, 2)), address.max(axis=(1, 2))
    bad |= (low < SHARED_START) | (high + 16 > batch.shared_end)
    base = batch.cta_of_lane[first] * batch.shared_stride
    return (address + base[:, None, None]) // 16, bad


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
            Warpgroups.of(batch).commit(lanes)
        elif action == "wait_group":
            Warpgroups.of(batch).wait(lanes, left)
        for observer in batch.observers:
            if action == "fence":
                observer.wgmma_fenced(batch, instruction, lanes)
            elif action == "commit_group":
                observer.wgmma_committed(batch, instruction, lanes)
            else:
                observer.wgmma_awaited(batch, instruction, lanes, left)

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
        raise build.error("an operand is multiplied by 1 or -1")
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
        raise build.error("an operand is transposed, 1, or not, 0")
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

    def waits_for(batch: RunningBatch, lanes: Lanes) -> str:
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
        rows, bad = operand_rows(frame.batch, first, descriptor, extent, along_k)
        if bad.any():
            raise frame.batch.fault(
                "out of bounds",
                f"the descriptor {int(descriptor[bad][0]):#018x} leads outside of the CTA's shared memory, or has a "
                "base offset, which the virtual GPU does not model",
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
        a_chunks = None if a_slot is None else located(frame, first, a_slot, ROWS, form.a_k_major)
        b_chunks = located(frame, first, b_slot, n, form.b_k_major)
        group = Warpgroups.of(batch).committed[first // 32]
        if batch.observers:
            parts = [chunks.reshape(len(first), -1) for chunks in (a_chunks, b_chunks) if chunks is not None]
            access = AgentAccess(instruction, batch, "wgmma", first, np.concatenate(parts, axis=1))
            for observer in batch.observers:
                observer.wgmma_issued(batch, instruction, lanes)
                observer.agent_access(access)
        Warpgroups.of(batch).issue(WgmmaOp(form, first, group, a_chunks, b_chunks, added))

    return step
