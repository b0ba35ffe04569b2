"""Launches as plain data, for the processes that run CTAs of another's launch."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path
from typing import Any

from .engine.batch import Geometry, LaunchState
from .engine.program import Program, program_of
from .memory import GlobalMemory
from .tensor_map import TensorMap


def request_of(program: Program, launch_state: LaunchState, arena: Path) -> dict[str, Any]:
    """Return a launch as plain data for a worker."""
    geometry, memory = launch_state.geometry, launch_state.memory
    return {
        "ptx": program.ptx,
        "entry": program.kernel.name,
        "geometry": [geometry.grid, geometry.block, geometry.cluster],
        "params": launch_state.params.hex(),
        "arena": str(arena),
        "arrays": [[item.name, item.start, item.end] for item in memory.allocations],
        "shared_bytes": launch_state.shared_bytes,
        "schedule": launch_state.schedule,
        "seed": launch_state.seed,
        "mma": launch_state.mma,
        "maps": [[start, dataclasses.asdict(found)] for start, found in launch_state.maps.items()],
    }


def launch_of(request: dict[str, Any]) -> tuple[Program, LaunchState]:
    """Return the program and launch state that a request describes; its memory is the file that it names."""
    program, memory = program_of(request["ptx"], request["entry"]), GlobalMemory()
    for name, start, end in request["arrays"]:
        memory.place(name, start, end)
    with open(request["arena"], "r+b") as file:
        memory.seal(mmap.mmap(file.fileno(), memory.size))
    grid, block, cluster = (tuple(extents) for extents in request["geometry"])
    launch_state = LaunchState(
        kernel=program.kernel,
        binder=program.binder,
        geometry=Geometry(grid, block, cluster),
        params=bytes.fromhex(request["params"]),
        memory=memory,
        shared_bytes=request["shared_bytes"],
        schedule=request["schedule"],
        seed=request["seed"],
        mma=request["mma"],
        maps={start: _map_of(found) for start, found in request["maps"]},
    )
    return program, launch_state


def _map_of(found: dict[str, Any]) -> TensorMap:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return TensorMap(**fields)
