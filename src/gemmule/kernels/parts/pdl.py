"""Programmatic dependent launch (PDL): a grid that begins while its predecessor in the stream still runs."""

from __future__ import annotations

import cutlass
from cutlass import Int64, cute
from cutlass.base_dsl.dsl import BaseDSL
from cutlass.base_dsl.enums import Arch


@cute.jit
def wait_for_predecessor():
    """Wait for the predecessor grid's writes; before Hopper, where grids of a stream do not overlap, do nothing.

    A kernel whose launch recipe overlaps calls it before any access to device memory.
    """
    if cutlass.const_expr(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90):
        cute.arch.griddepcontrol_wait()


@cute.jit
def launch_dependents():
    """Let the dependent grid launch, after `wait_for_predecessor`; its CTAs wait for all of this one."""
    if cutlass.const_expr(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90):
        cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def overlap_predecessor(addresses: tuple[Int64, ...] = ()):
    """Wait for the predecessor grid's writes, then let the dependent grid launch; its CTAs wait for all of this one.

    In this order a dependent grid may read, before it waits, what the predecessor of its predecessor wrote: that one
    has ended.

    Parameters
    ----------
    addresses : tuple of Int64
        Addresses to compute before the wait: the compiler moves the wait before all that it does not depend on.
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
