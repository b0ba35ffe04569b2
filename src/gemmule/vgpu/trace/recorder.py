"""The recorder: an observer that writes down, warp by warp, what one CTA did."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemmule.core.errors import ArgumentError
from gemmule.files.atomic_file import atomic_write, check_folder
from gemmule.files.regular_file import check_replaceable

from ..arrays import DeviceArrays
from ..engine.batch import Batch
from ..engine.isa.mbarrier_phases import MBarriers
from ..engine.lanes import WARP, Lanes
from ..engine.observer import Access, AgentAccess, Observer, TmaGlobalAccess
from ..memory import GLOBAL_BASE
from ..models import banks
from ..ptx.module import Instruction, Kernel
from ..report import Finding, kernel_name, merged
from ..source_text import line_text, shown_path
from ..types import Array

#: Steps that are recorded.
MOST_STEPS = 4000
_ROW = 16
_DATA = "/*data*/null"


def check_path(path: Path) -> None:
    """Check that a trace can be written to a path.

    Raises
    ------
    ArgumentError
        If it ends in neither .html nor .json, or there is something that is no regular file.
    FileAccessError
        If its folder takes no files.
    """
    if path.suffix not in (".html", ".json"):
        raise ArgumentError(
            f"trace={str(path)!r} ends in neither .html nor .json; a trace is a page, or its data; name e.g. trace.html"
        )
    check_replaceable(path)
    check_folder(path)


class Trace(Observer):
    """Records the first CTA of each launch, as `steps` that `write` puts into a page.

    Parameters
    ----------
    device : DeviceArrays
        The operands.
    """

    def __init__(self, device: DeviceArrays) -> None:
        self._device = device
        self.launches: list[dict[str, Any]] = []
        self._all_places: list[list[tuple[Array, int] | None]] = []
        self._codes: list[dict[int, int]] = []
        self._kernels: list[Kernel] = []

    def begin(self, kernel: Kernel) -> None:
        # For each step its bytes: first ones, and how many of each.
        self._places: list[tuple[Array, int] | None] = []
        self._all_places.append(self._places)
        self._steps: list[dict[str, Any]] = []
        self._code: dict[int, int] = {}
        self._codes.append(self._code)
        self._dropped, self._open = 0, False
        self._kernels.append(kernel)
        self._launch: dict[str, Any] = {
            "kernel": kernel_name(kernel),
            "operands": [
                {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
                for name, array in self._device.arrays.items()
            ],
            "code": [],
            "steps": self._steps,
        }
        self.launches.append(self._launch)

    def batch_begins(self, batch: Batch) -> None:
        # The first CTA of the first batch.
        self._open = "cta" not in self._launch
        if self._open:
            self._launch |= {
                "cta": batch.geometry.coordinates(batch.ctas[0]),
                "grid": batch.geometry.grid,
                "warps": batch.geometry.warps,
                "shared": [1024, batch.shared_end],
            }

    def end(self) -> None:
        self._launch["dropped"] = self._dropped

    def write(self, path: Path, findings: Sequence[Finding] = ()) -> None:
        """Write the page with the races among the findings, or the data only where the name ends with ``.json``."""
        for number, launch in enumerate(self.launches):
            launch["races"] = [
                race for finding in merged(findings) if finding.kind == "race" for race in self._races(number, finding)
            ]
        data = json.dumps(self.launches, separators=(",", ":"))
        if path.suffix != ".json":
            page = importlib.resources.files(__package__).joinpath("viewer.html").read_text(encoding="utf-8")
            # A script ends at the first such tag, in a string too.
            data = page.replace(_DATA, data.replace("</", "<\\/"))
        with atomic_write(path) as file:
            file.write(data.encode())

    def _races(self, number: int, finding: Finding) -> Iterator[dict[str, Any]]:
        """Yield the steps of a race of a launch, the second access first, and its place; nothing if it has none."""
        launch, instruction = self.launches[number], finding.instruction
        if finding.kernel != self._kernels[number].name or instruction is None or finding.address is None:
            return
        steps, places = launch["steps"], self._all_places[number]
        touching = [
            step
            for step, place in enumerate(places)
            if place is not None and self._touches(steps[step], place, finding.space, finding.address)
        ]
        code = self._codes[number].get(instruction.index)
        own = [step for step in touching if steps[step]["code"] == code and steps[step]["warp"] == finding.warp]
        if not own or finding.cta != tuple(launch["cta"]):
            return
        second = own[0]
        others = [step for step in touching if self._conflicts(number, steps[step], steps[second], finding)]
        before, after = [step for step in others if step < second], [step for step in others if step > second]
        # Either of two concurrent writers counts as the first.
        first = before[-1] if before else after[0] if after else None
        race: dict[str, Any] = {"first": first, "second": second, "space": finding.space, "address": finding.address}
        if finding.space == "global":
            start = self._allocation_start(places[second])
            race |= {
                name: one[0]
                for name, one in self._elements(np.array([start + finding.address])).items()
                if isinstance(one, list)
            }
            race["operand"] = steps[second]["operand"]
        yield race

    def _allocation_start(self, place: tuple[Array, int] | None) -> int:
        """Return where the operand begins in the arena that a step accesses."""
        allocation = None if place is None else self._device.memory.allocation_at(int(place[0][0]))
        return 0 if allocation is None else allocation.start

    def _conflicts(self, number: int, step: dict[str, Any], second: dict[str, Any], finding: Finding) -> bool:
        """Say whether a step may be the earlier access of a race."""
        if step is second or step.get("operand") != second.get("operand"):
            return False
        if finding.earlier is not None:
            return bool(step["code"] == self._codes[number].get(finding.earlier.index))
        return _writes(step) or _writes(second)

    def _touches(self, step: dict[str, Any], place: tuple[Array, int], space: str, address: int) -> bool:
        """Say whether a step accesses the byte at an address, of global memory counted in its operand."""
        first, size = place
        if not len(first) or (step["kind"] in ("global", "box")) != (space == "global"):
            return False
        if space == "global":
            first = first - self._allocation_start(place)
        return bool(((first <= address) & (address < first + size)).any())

    def _step(
        self,
        kind: str,
        instruction: Instruction | None,
        warp: int,
        places: tuple[Array, int] | None = None,
        **more: Any,
    ) -> None:
        if len(self._steps) >= MOST_STEPS:
            self._dropped += 1
            return
        self._places.append(places)
        number = None if instruction is None else self._number(instruction)
        self._steps.append({"kind": kind, "code": number, "warp": warp, **more})

    def _number(self, instruction: Instruction) -> int:
        """Return an instruction's place in the code of the trace."""
        known = self._code.get(instruction.index)
        if known is not None:
            return known
        source = instruction.source
        place = (
            ["", ""]
            if source is None
            else [f"{shown_path(source.file)}:{source.line}", line_text(source.file, source.line)]
        )
        self._code[instruction.index] = len(self._code)
        self._launch["code"].append([*place, instruction.text])
        return self._code[instruction.index]

    def _warps(self, batch: Batch, lanes: Lanes) -> dict[int, Array]:
        """Return for each warp of the CTA which of the lanes are its own."""
        if not self._open:
            return {}
        first = int(np.searchsorted(lanes.index, batch.cta_lanes))
        warps = lanes.index[:first] // WARP
        return {warp: np.flatnonzero(warps == warp) for warp in np.unique(warps).tolist()}

    def access(self, access: Access) -> None:
        if access.space not in ("global", "shared"):
            return
        for warp, which in self._warps(access.batch, access.lanes).items():
            lanes, address = access.lanes.index[which] % WARP, access.address[which]
            what: dict[str, Any] = {"lanes": lanes.tolist(), "size": access.size, "write": access.write}
            if access.space == "shared":
                what |= {"address": address.tolist(), "wavefronts": _wavefronts(access, lanes, address)}
            else:
                what |= self._elements(address)
            self._step(access.space, access.instruction, warp, (address, access.size), **what)

    def agent_access(self, access: AgentAccess) -> None:
        if not self._open:
            return
        last = access.batch.shared_stride // _ROW
        for number in np.flatnonzero(access.lanes < access.batch.cta_lanes).tolist():
            rows = access.rows[number]
            own = rows[rows < last] * _ROW
            self._step(
                "wgmma" if access.agent == "wgmma" else f"tma {access.agent}",
                access.instruction,
                int(access.lanes[number]) // WARP,
                (own, _ROW),
                rows=own.tolist(),
                barrier=None if access.barriers is None else int(access.barriers[number]) * 8,
            )

    def tma_global_access(self, access: TmaGlobalAccess) -> None:
        if not self._open:
            return
        for number in np.flatnonzero(access.lanes < access.batch.cta_lanes).tolist():
            inside = access.size[number] > 0
            warp = int(access.lanes[number]) // WARP
            what = self._elements(access.start[number][inside])
            size, place = int(access.size[number].max()), access.start[number][inside]
            self._step("box", access.instruction, warp, (place, size), size=size, write=access.write, **what)

    def _elements(self, positions: Array) -> dict[str, Any]:
        """Return the operand that contains positions of the arena, and their rows and columns."""
        addresses = self._device.addresses
        for number, (name, array) in enumerate(self._device.arrays.items()):
            offset = positions - (addresses[name] - GLOBAL_BASE)
            inside = (offset >= 0) & (offset < max(array.nbytes, 1))
            if inside.any() and array.ndim:
                left, found = np.where(inside, offset, 0), np.zeros((array.ndim, len(offset)), np.int64)
                for axis in sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])):
                    if array.shape[axis] > 1 and array.strides[axis] > 0:
                        found[axis], left = np.divmod(left, array.strides[axis])
                two = found[:2] if array.ndim > 1 else np.stack([np.zeros_like(found[0]), found[0]])
                along = 1 if array.ndim == 1 or array.strides[1] == array.itemsize else 0
                return {"operand": number, "row": two[0].tolist(), "column": two[1].tolist(), "along": along}
        return {"operand": None}

    def barrier_arrived(self, batch: Batch, instruction: Instruction, lanes: Lanes, barrier: Array) -> None:
        for warp, which in self._warps(batch, lanes).items():
            self._step("barrier", instruction, warp, number=int(barrier[which[0]]))

    def barrier_released(self, batch: Batch, lanes: Lanes, barrier: Array) -> None:
        for warp, which in self._warps(batch, lanes).items():
            self._step("released", None, warp, number=int(barrier[which[0]]))

    def mbarrier_initialised(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        self._mbarrier("init", batch, instruction, lanes, places)

    def mbarrier_arrived(
        self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array, releases: bool
    ) -> None:
        del releases
        self._mbarrier("arrive", batch, instruction, lanes, places)

    def mbarrier_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        self._mbarrier("wait", batch, instruction, lanes, places)

    def mbarrier_completed(self, batch: Batch, places: Array) -> None:
        for place in places[places * 8 < batch.shared_stride].tolist() if self._open else ():
            self._step("phase", None, -1, barrier=place * 8, phase=int(MBarriers.of(batch).phase[place]))

    def _mbarrier(self, kind: str, batch: Batch, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        for warp, which in self._warps(batch, lanes).items():
            for place in np.unique(places[which]).tolist():
                self._step(kind, instruction, warp, barrier=place * 8 % batch.shared_stride)

    def wgmma_awaited(self, batch: Batch, instruction: Instruction, lanes: Lanes, left: int) -> None:
        for warp in self._warps(batch, lanes):
            self._step("products awaited", instruction, warp, left=left)


def _writes(step: dict[str, Any]) -> bool:
    return bool(step.get("write")) or step["kind"] in ("tma load", "tma async store")


def _wavefronts(access: Access, lanes: Array, address: Array) -> list[int]:
    """Return the passes of an access to shared memory, and their number without bank conflicts."""
    addresses, active = np.zeros((1, WARP), np.int64), np.zeros((1, WARP), np.bool_)
    addresses[0, lanes], active[0, lanes] = address, True
    if access.instruction.name in ("ldmatrix", "stmatrix"):
        matrices = int(next(part for part in access.instruction.modifiers if part in ("x1", "x2", "x4"))[1:])
        return [int(banks.matrix_wavefronts(addresses, matrices).sum()), matrices]
    return [
        int(count(addresses, active, access.size, access.write).sum())
        for count in (banks.wavefronts, banks.ideal_wavefronts)
    ]
