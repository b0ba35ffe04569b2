"""The guard's decision as launches behind the native kernel read it: before they wait for their predecessor."""

from __future__ import annotations

from cutlass import Int32, cute


@cute.jit
def decision(products: cute.Tensor):
    """Return the guard's decision: 0 where the native kernel computes.

    It may be read before ``griddepcontrol.wait``. The native kernel is the first behind the decision, and lets its
    dependent grid launch when the decision has ended.
    """
    return cute.arch.load(products.iterator, Int32, sem="relaxed", scope="gpu")


@cute.jit
def wait_for_emulation(count, cta):
    """Wait for the predecessor grid where the guard decided for emulation.

    Else one CTA waits, as a grid must not end before its predecessor, and the others return while the native kernel
    still runs.
    """
    if count > 0 or cta == 0:
        cute.arch.griddepcontrol_wait()
