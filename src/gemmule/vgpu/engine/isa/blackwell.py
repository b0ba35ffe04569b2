"""Blackwell's instructions: they are read, and refused until their state is modelled (docs/decisions/0018)."""

from __future__ import annotations

from ..definition import Build, Step, defines

_WHAT = {
    "tcgen05": "the tensor memory and tensor cores of Blackwell",
    "clusterlaunchcontrol": "cluster launches of Blackwell",
}


@defines(*_WHAT)
def _blackwell(build: Build) -> Step:
    """Refuse the instruction by name."""
    what = _WHAT[build.instruction.name]
    raise build.error(f"{what} are not modelled yet; compile for sm_90a (GEMMULE_VGPU_ARCH)")
