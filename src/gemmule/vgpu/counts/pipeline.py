"""Events of every warp in order, with what they wait for: the data of a pipeline's timeline.

Nothing here is time. Each event names the completions it waits for and those to which it contributes; a completion is a
phase of an mbarrier, a barrier, a group of products or of bulk stores. A copy, a product and a bulk store contribute
when they are complete, everything else at once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..dataflow.control_flow import Block
from ..engine.batch import Batch
from ..engine.isa.bulk_copy import BulkCopies
from ..engine.isa.mbarrier_phases import MBarriers
from ..engine.isa.wgmma import Warpgroups
from ..engine.lanes import Lanes, rows_of
from ..engine.observer import Access, AgentAccess, Observer, TmaGlobalAccess
from ..models import banks, sectors
from ..ptx.module import Instruction, Kernel
from ..types import Array
from .classes import flop_of_lane

#: A completion: its kind, place, and number.
Token = tuple[str, int, int]
_WARP, _WARPGROUP, _ROW = 32, 128, 16


@dataclasses.dataclass
class PipelineEvent:
    """One thing that a warp does, or the four of a warpgroup together."""

    #: ``copy`` into shared memory; ``store``, bulk, out of it; ``products`` of a warpgroup; ``wait``; ``arrive``;
    #: ``barrier``, which waits where `waits` is not empty; or ``end``.
    kind: str
    cta: int  #: CTA of the launch.
    warps: tuple[int, ...]  #: Warps of the CTA.
    instructions: int = 0  #: Instructions that the warp issued since its event before.
    passes: int = 0  #: Passes through L1 and shared memory of its loads and stores since then.
    #: written, shared_written: Bytes that its stores wrote to global and to shared memory since then.
    written: int = 0
    shared_written: int = 0
    #: waits, signals: Completions that it waits for, and to which it contributes.
    waits: tuple[Token, ...] = ()
    signals: tuple[Token, ...] = ()
    bytes: int = 0  #: Bytes that a copy reads from global memory, or a store writes there.
    shared_bytes: int = 0  #: Bytes that a copy writes into shared memory of all CTAs, or a product or a store reads.
    flop: int = 0  #: Floating-point operations of products.
    reads: tuple[Token, ...] = ()  #: The mbarriers' phases that loaded the k-tiles of products.


class Pipeline(Observer):
    """Collects the events of the CTAs of a launch, which must run in one batch.

    Attributes
    ----------
    events : list of PipelineEvent
        Those of a warp in its order.
    """

    def __init__(self) -> None:
        self.events: list[PipelineEvent] = []

    def begin(self, kernel: Kernel) -> None:
        del kernel
        self.events = []

    def batch_begins(self, batch: Batch) -> None:
        warps = batch.lane_count // _WARP
        self._warps = batch.geometry.warps
        # Since each warp's last event: instructions, passes, bytes written to global and to shared memory.
        self._since = np.zeros((4, warps), np.int64)
        # The completion of the load of each row of shared memory.
        self._tokens: list[Token] = []
        self._loaded_with = np.full(len(batch.shared_rows), -1, np.int64)
        self._fetched: dict[int, int] = {}
        self._groups: dict[int, list[int]] = {}
        self._store_groups: dict[int, list[int]] = {}
        self._barriers: dict[tuple[int, int], int] = {}
        self._at_barrier: dict[int, PipelineEvent] = {}
        self._clusters = np.zeros(len(batch.ctas), np.int64)

    def _add(self, kind: str, warps: tuple[int, ...], **what: Any) -> PipelineEvent:
        cta = warps[0] // self._warps
        picked = self._since[:, list(warps)]
        # The warps of a warpgroup issue side by side; what they pass through L1 adds up.
        passes, written, shared = (int(row.sum()) for row in picked[1:])
        self._since[:, list(warps)] = 0
        here = tuple(warp - cta * self._warps for warp in warps)
        event = PipelineEvent(kind, cta, here, int(picked[0].max()), passes, written, shared, **what)
        self.events.append(event)
        return event

    def executed(self, batch: Batch, block: Block, lanes: Lanes) -> None:
        self._since[0][np.unique(lanes.pick(batch.warp_of_lane))] += len(block.instructions)

    def access(self, access: Access) -> None:
        if access.space not in ("global", "shared") or not access.lanes.count:
            return
        warps = rows_of(access.lanes)
        addresses, active = warps.spread(access.address), warps.active
        size: int | Array = access.size if access.sizes is None else warps.spread(access.sizes, 1)
        if access.space == "global":
            passes = sectors.request_lines(addresses, active, size)
        elif access.instruction.name in ("ldmatrix", "stmatrix"):
            matrices = int(next(part for part in access.instruction.modifiers if part in ("x1", "x2", "x4"))[1:])
            passes = banks.matrix_wavefronts(addresses, matrices)
        else:
            passes = banks.wavefronts(addresses, active, access.size, access.write)
        self._since[1][warps.numbers] += passes
        if access.write:
            written = (active * size).sum(axis=1)
            self._since[2 if access.space == "global" else 3][warps.numbers] += written

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        self._fetched = dict(zip(access.lanes.tolist(), access.size.sum(axis=1).tolist(), strict=True))

    def agent_access(self, access: AgentAccess) -> None:
        if access.agent == "wgmma":
            self._products(access)
            return
        batch = access.batch
        for lane in np.unique(access.lanes).tolist():
            own = access.lanes == lane
            rows, warp = access.rows[own], lane // _WARP
            size = {"bytes": self._fetched.get(lane, 0), "shared_bytes": rows.size * _ROW}
            if access.agent != "load":
                group = int(BulkCopies.of(batch).committed[lane])
                self._store_groups.setdefault(lane, []).append(group)
                self._add("store", (warp,), signals=(("read", lane, group), ("written", lane, group)), **size)
                continue
            assert access.barriers is not None
            places = access.barriers[own]
            tokens = [_phase_of(batch, place) for place in places.tolist()]
            for token, target in zip(tokens, rows, strict=True):
                self._loaded_with[target] = len(self._tokens)
                self._tokens.append(token)
            self._add("copy", (warp,), signals=tuple(dict.fromkeys(tokens)), **size)

    def _products(self, access: AgentAccess) -> None:
        batch, flop = access.batch, round(flop_of_lane(access.instruction) * _WARPGROUP)
        for first, rows in zip(access.lanes.tolist(), access.rows, strict=True):
            warp = first // _WARP
            group = int(Warpgroups.of(batch).committed[warp])
            self._groups.setdefault(warp, []).append(group)
            loads = np.unique(self._loaded_with[rows])
            reads = tuple(dict.fromkeys(self._tokens[number] for number in loads.tolist() if number >= 0))
            self._add(
                "products", tuple(range(warp, warp + 4)), flop=flop, reads=reads, shared_bytes=rows.size * _ROW,
                signals=(("products", warp, group),),
            )  # fmt: skip

    def wgmma_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        del instruction
        for warp in _warps(lanes):
            leader = warp - warp % self._warps % 4
            limit = int(Warpgroups.of(batch).committed[warp]) - left - 1
            done = [group for group in self._groups.get(leader, ()) if group <= limit]
            self._add("wait", (warp,), waits=(("products", leader, done[-1]),) if done else ())

    def bulk_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int, read_only: bool) -> None:
        del instruction
        kind = "read" if read_only else "written"
        for warp in _warps(lanes):
            waits = []
            for lane in lanes.index[lanes.index // _WARP == warp].tolist():
                limit = int(BulkCopies.of(batch).committed[lane]) - left - 1
                done = [group for group in self._store_groups.get(lane, ()) if group <= limit]
                waits += [(kind, lane, done[-1])] if done else []
            self._add("wait", (warp,), waits=tuple(waits))

    def mbarrier_arrived(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array, releases: bool
    ) -> None:
        del instruction, releases
        for warp in _warps(lanes):
            own = np.unique(places[lanes.index // _WARP == warp])
            self._add("arrive", (warp,), signals=tuple(_phase_of(batch, place) for place in own.tolist()))

    def mbarrier_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        del instruction
        for warp in _warps(lanes):
            own = np.unique(places[lanes.index // _WARP == warp])
            phases = [("mbarrier", place, int(MBarriers.of(batch).phase[place]) - 1) for place in own.tolist()]
            self._add("wait", (warp,), waits=tuple(token for token in phases if token[2] >= 0))

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        del instruction
        for warp in _warps(lanes):
            number = int(barrier[lanes.index // _WARP == warp][0])
            place = (int(batch.cta_of_lane[warp * _WARP]), number)
            token = ("barrier", 16 * place[0] + number, self._barriers.setdefault(place, 0))
            self._at_barrier[warp] = self._add("barrier", (warp,), signals=(token,))

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        complete = set()
        for warp in _warps(lanes):
            event = self._at_barrier.pop(warp)
            event.waits = event.signals
            complete.add((int(batch.cta_of_lane[warp * _WARP]), int(barrier[lanes.index // _WARP == warp][0])))
        for place in complete:
            self._barriers[place] += 1

    def cluster_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, releases: bool) -> None:
        del instruction, releases
        for warp in _warps(lanes):
            cluster = warp // self._warps // batch.cluster_ctas
            self._add("barrier", (warp,), signals=(("cluster", cluster, int(self._clusters[cluster])),))

    def cluster_completed(self, batch: Batch, clusters: Array) -> None:
        del batch
        self._clusters[clusters] += 1

    def cluster_left(self, batch: Batch, instruction: Instruction, lanes: Lanes, acquires: bool) -> None:
        del instruction, acquires
        for warp in _warps(lanes):
            cluster = warp // self._warps // batch.cluster_ctas
            self._add("barrier", (warp,), waits=(("cluster", cluster, int(self._clusters[cluster]) - 1),))

    def exited(self, batch: Batch, instruction: Instruction | None, lanes: Lanes) -> None:
        del batch, instruction
        for warp in _warps(lanes):
            self._add("end", (warp,))


def _warps(lanes: Lanes) -> list[int]:
    found: list[int] = np.unique(lanes.index // _WARP).tolist()
    return found


def _phase_of(batch: Batch, place: int) -> Token:
    """Return the current phase of an mbarrier."""
    return ("mbarrier", place, int(MBarriers.of(batch).phase[place]))
