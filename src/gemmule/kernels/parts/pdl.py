"""Launches that begin while the one in front of them in the stream still runs."""

from __future__ import annotations

import cutlass
from cutlass import Int64, cute
from cutlass.base_dsl.dsl import BaseDSL
from cutlass.base_dsl.enums import Arch


@cute.jit
def await_launch_before():
    """Wait for what the launch in front of this one wrote; before Hopper, where launches are in order, do nothing.

    Where a recipe says that its launches overlap, it stands in front of everything that reads or writes device memory.
    """
    if cutlass.const_expr(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90):
        cute.arch.griddepcontrol_wait()


@cute.jit
def begin_beside_launch_before(addresses: tuple[Int64, ...] = ()):
    """Wait for the launch in front, then let the one behind begin: its CTAs wait in their turn for all of this one.

    The order matters to a launch behind that reads, before it waits, what the launch two in front wrote: that one has
    ended then.

    Parameters
    ----------
    addresses : tuple of Int64
        What is to be known before the wait, and not reckoned behind it: the compiler moves the wait in front of all
        that it does not depend on.
    """
    if cutlass.const_expr(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90):
        if cutlass.const_expr(len(addresses) > 0):
            known = addresses[0]
            for number in cutlass.range_constexpr(1, len(addresses)):
                known = known | addresses[number]
            # No memory is at 0.
            if known != 0:
                cute.arch.griddepcontrol_wait()
        else:
            cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
