"""Programmatic dependent launch (PDL): a grid that begins while its predecessor in the stream still runs."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int64, cute
from cutlass.base_dsl.dsl import BaseDSL
from cutlass.base_dsl.enums import Arch


@cute.jit
def wait_for_predecessor(numbers: tuple[Any, ...] = ()):
    """Wait for the predecessor grid's writes; before Hopper, where grids of a stream do not overlap, do nothing.

    A kernel whose launch recipe overlaps calls it before any access to device memory.

    Parameters
    ----------
    numbers : tuple of Int32 or Int64
        Addresses, or other numbers of which none is negative, to compute before the wait: the compiler moves the wait
        before all that it does not depend on.
    """
    if cutlass.const_expr(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90):
        if cutlass.const_expr(len(numbers) > 0):
            known = Int64(numbers[0])
            for number in cutlass.range_constexpr(1, len(numbers)):
                known = known | Int64(numbers[number])
            # The compiler does not know that it is not negative.
            known = cute.arch.inline_ptx("mov.b64 {$w0}, {$r0};", write_only_types=[Int64], read_only_args=[known])
            if known >= 0:
                cute.arch.griddepcontrol_wait()
        else:
            cute.arch.griddepcontrol_wait()


@cute.jit
def launch_dependents():
    """Let the dependent grid launch, after `wait_for_predecessor`; its CTAs wait for all of this one."""
    if cutlass.const_expr(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90):
        cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def overlap_predecessor(numbers: tuple[Any, ...] = ()):
    """Wait for the predecessor grid's writes, then let the dependent grid launch; its CTAs wait for all of this one.

    In this order a dependent grid may read, before it waits, what the predecessor of its predecessor wrote: that one
    has ended. `numbers` are those of `wait_for_predecessor`.
    """
    wait_for_predecessor(numbers)
    launch_dependents()
