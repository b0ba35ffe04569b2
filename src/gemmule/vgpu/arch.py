"""The virtual GPU's architecture."""

from __future__ import annotations

import os

from gemmule.core.arch import COMPILED, Arch
from gemmule.core.errors import ArgumentError

#: Unless ``GEMMULE_VGPU_ARCH`` names another.
DEFAULT_ARCH = "sm_90a"


def virtual_arch() -> Arch:
    """Return the virtual GPU's architecture: ``$GEMMULE_VGPU_ARCH``, else sm_90a.

    Raises
    ------
    ArgumentError
        If kernels are not compiled for it.
    """
    name = os.environ.get("GEMMULE_VGPU_ARCH") or DEFAULT_ARCH
    if name not in COMPILED:
        raise ArgumentError(f"GEMMULE_VGPU_ARCH={name!r} is not known; choose one of {', '.join(COMPILED)}")
    return Arch.parse(name)


def device_name() -> str:
    """Name the virtual GPU."""
    return f"virtual GPU ({virtual_arch()})"
