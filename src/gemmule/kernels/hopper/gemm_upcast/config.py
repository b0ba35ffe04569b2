"""The configs of the kernel that converts 8-bit floats to 16-bit floats."""

from __future__ import annotations

from gemmule.kernels.hopper.repack_config import VectorsConfig


class WidenedConfig(VectorsConfig):
    """How operands are converted, see `VectorsConfig`; vectors are of the 16 bytes that are read."""
