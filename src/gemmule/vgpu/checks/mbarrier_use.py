"""Mbarriers used before their initialisation is visible, and bytes that differ from those expected."""

from __future__ import annotations

import numpy as np

from ..engine.batch import Batch
from ..engine.isa.mbarrier_phases import MBarriers
from ..engine.lanes import WARP, Lanes
from ..engine.observer import AgentAccess
from ..ptx.module import Instruction
from ..types import Array
from .clocks import ClockCheck


class MBarrierUse(ClockCheck):
    """Looks at who uses mbarriers and what they have counted at the end."""

    def batch_begins(self, batch: Batch) -> None:
        del batch
        self._last: dict[int, tuple[Instruction, int]] = {}
        # The valid ones, with the instruction that initialised them.
        self._valid: dict[int, Instruction] = {}

    def mbarrier_initialised(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        order = np.argsort(places, kind="stable")
        again = np.zeros(len(places), np.bool_)
        again[order[1:]] = places[order[1:]] == places[order[:-1]]
        if again.any():
            barriers, place = MBarriers.of(batch), int(places[again][0])
            same = lanes.index[places == place]
            what = f"{len(same)} lanes initialise the mbarrier at {barriers.name(place)}; one thread must"
            self._collected.add(
                batch, "barrier", what, instruction, same, space="shared", address=barriers.address(place)
            )

        valid = np.array([place in self._valid for place in places.tolist()])
        if valid.any():
            barriers, place = MBarriers.of(batch), int(places[valid][0])
            what = (
                f"initialises the mbarrier at {barriers.name(place)}, which was initialised {self._valid[place].place} "
                "and is valid; mbarrier.inval must end it first"
            )
            self._collected.add(
                batch, "barrier", what, instruction, lanes.index[valid], space="shared", address=barriers.address(place)
            )
        self._valid.update(dict.fromkeys(places.tolist(), instruction))

    def load_repeated(self, batch: Batch, instruction: Instruction, index: Array, place: int) -> None:
        barriers, warp = MBarriers.of(batch), index // WARP
        count = np.count_nonzero(warp == warp[0])
        what = (
            f"{count} lanes of the warp issue the same TMA load, and each may count its bytes at the mbarrier at "
            f"{barriers.name(place)}; one thread must (elect_one)"
        )
        self._collected.add(batch, "barrier", what, instruction, index, space="shared", address=barriers.address(place))

    def mbarrier_invalidated(self, batch: Batch, places: Array) -> None:
        del batch
        for place in places.tolist():
            self._valid.pop(place, None)

    def mbarrier_arrived(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array, releases: bool
    ) -> None:
        del releases
        self._check(batch, instruction, lanes.index, places)
        remote = places * 8 // batch.shared_stride != lanes.pick(batch.cta_of_lane)
        self._check_fence(batch, instruction, lanes.index[remote], places[remote])

    def mbarrier_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        self._check(batch, instruction, lanes.index, places)

    def copies_signalled(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        self._check(batch, instruction, lanes.index, places)

    def agent_access(self, access: AgentAccess) -> None:
        if access.barriers is not None:
            self._check(access.batch, access.instruction, access.lanes, access.barriers)
            self._check_fence(access.batch, access.instruction, access.lanes, access.barriers)

    def _check(self, batch: Batch, instruction: Instruction, index: Array, places: Array) -> None:
        """Look for lanes that no barrier orders after the initialisation."""
        clocks = self._clocks
        numbers = clocks.number_of(places)
        self._last.update(dict.fromkeys(places.tolist(), (instruction, int(index[0]))))
        column = clocks.columns.own[clocks.init_warp[numbers]]
        unknown = ~clocks.knows_initialised(index // WARP, numbers)
        if unknown.any():
            who = clocks.columns.who(int(column[unknown][0]))
            mend = "mbarrier_init_fence and a barrier (sync_threads) behind it would"
            why = f", which {who} initialised, and nothing orders the two; {mend}"
            self._race(batch, instruction, index[unknown], int(places[unknown][0]), why)

    def _check_fence(self, batch: Batch, instruction: Instruction, index: Array, places: Array) -> None:
        """Look for mbarriers that no fence makes visible to TMA and other CTAs."""
        if not len(index):
            return
        unfenced = ~self._clocks.fenced[self._clocks.number_of(places)]
        if unfenced.any():
            why = (
                ", whose initialisation no fence.mbarrier_init or fence.proxy.async makes visible to TMA and other CTAs"
            )
            self._race(batch, instruction, index[unfenced], int(places[unfenced][0]), why)

    def _race(self, batch: Batch, instruction: Instruction, index: Array, place: int, why: str) -> None:
        barriers = MBarriers.of(batch)
        what, address = f"uses the mbarrier at {barriers.name(place)}{why}", barriers.address(place)
        self._collected.add(batch, "race", what, instruction, index, space="shared", address=address)

    def batch_ends(self, batch: Batch) -> None:
        barriers = MBarriers.of(batch)
        wrong = np.flatnonzero((barriers.expected > 0) & (barriers.bytes != 0))
        for place in wrong.tolist()[:1]:
            instruction, lane = self._last.get(place, (None, barriers.cta(place) * batch.cta_lanes))
            self._collected.add(
                batch,
                "barrier",
                f"at the end {barriers.state(place)}: expected and received bytes differ",
                instruction,
                np.array([lane]),
                space="shared",
                address=barriers.address(place),
            )
