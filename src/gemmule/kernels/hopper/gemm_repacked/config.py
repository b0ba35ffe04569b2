"""The configs of the kernel that repacks operands."""

from __future__ import annotations

from gemmule.kernels.hopper.repack_config import VectorsConfig


class PackedConfig(VectorsConfig):
    """How operands are repacked, see `VectorsConfig`."""
