"""The architecture that a kernel is being compiled for."""

from __future__ import annotations

from cutlass.cutlass_dsl import CuTeDSL


def target_major() -> int:
    """Return the major compute capability, 9 of ``sm_90a``, while a kernel is traced."""
    major: int = CuTeDSL._get_dsl().get_arch_enum().major
    return major
