"""The guard's decision as launches behind the native kernel read it: before they wait for their predecessor."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute, select_

from gemmule.kernels.emulation.guard_words import NEVER


@cute.jit
def decision(shortfall: cute.Tensor, most: Any):
    """Return how many moduli emulate the product, of `most` that may, or 0 where the native kernel computes.

    The shortfall may be read before ``griddepcontrol.wait``. The native kernel is the first behind the guard, and lets
    its dependent grid launch when the guard has ended.
    """
    short = shortfall[0]
    return Int32(select_(short < NEVER, most - (NEVER - 1) + short, Int32(0)))


@cute.jit
def wait_for_emulation(count, cta):
    """Wait for the predecessor grid where the guard decided for emulation.

    Else one CTA waits, as a grid must not end before its predecessor, and the others return while the native kernel
    still runs.
    """
    if count > 0 or cta == 0:
        cute.arch.griddepcontrol_wait()
