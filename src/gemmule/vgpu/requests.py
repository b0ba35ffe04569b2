"""What a process that runs CTAs for another is told, as plain data."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path
from typing import Any

from .engine.batch import Geometry, Setting
from .engine.program import program_of
from .memory import GlobalMemory
from .tensor_map import TensorMap


def request_of(setting: Setting, arena: Path) -> dict[str, Any]:
    """Return what a worker must be told of a launch, as plain data."""
    geometry, memory = setting.geometry, setting.memory
    return {
        "ptx": setting.ptx,
        "geometry": [geometry.grid, geometry.block, geometry.cluster],
        "params": setting.params.hex(),
        "arena": str(arena),
        "arrays": [[item.name, item.start, item.end] for item in memory.allocations],
        "shared_bytes": setting.shared_bytes,
        "schedule": setting.schedule,
        "seed": setting.seed,
        "mma": setting.mma,
        "maps": [[start, dataclasses.asdict(found)] for start, found in setting.maps.items()],
    }


def setting_of(request: dict[str, Any]) -> Setting:
    """Return the setting that a request describes; its memory is the file that it names."""
    memory = GlobalMemory()
    for name, start, end in request["arrays"]:
        memory.place(name, start, end)
    with open(request["arena"], "r+b") as file:
        memory.seal(mmap.mmap(file.fileno(), memory.size))
    grid, block, cluster = (tuple(extents) for extents in request["geometry"])
    return Setting(
        program=program_of(request["ptx"]),
        geometry=Geometry(grid, block, cluster),
        params=bytes.fromhex(request["params"]),
        memory=memory,
        shared_bytes=request["shared_bytes"],
        schedule=request["schedule"],
        seed=request["seed"],
        mma=request["mma"],
        ptx=request["ptx"],
        maps={start: _map_of(found) for start, found in request["maps"]},
    )


def _map_of(found: dict[str, Any]) -> TensorMap:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return TensorMap(**fields)
