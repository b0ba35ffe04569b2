"""Launches that begin while the one in front of them in the stream still ends."""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.base_dsl.dsl import BaseDSL
from cutlass.base_dsl.enums import Arch


@cute.jit
def await_launch_before():
    """Wait for what the launch in front of this one wrote; before Hopper, where launches are in order, do nothing.

    Where a recipe says that its launches overlap, it stands in front of everything that reads or writes device memory.
    """
    if cutlass.const_expr(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90):
        cute.arch.griddepcontrol_wait()
