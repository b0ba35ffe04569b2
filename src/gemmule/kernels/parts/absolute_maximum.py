"""The absolute maximum of a result: a maximum for each thread, reduced by warps, then by atomics in device memory.

Floats of 32 bits without their sign are ordered as integers are, NaN above infinity: the result is the same whatever
the order, and NaN if one value is.
"""

from __future__ import annotations

from typing import Any

from cutlass import Boolean, Float32, Int32, cute, select_


def fake_absmax() -> Any:
    """Return a fake tensor for the one value in memory, as the integer of its bits."""
    return cute.runtime.make_fake_tensor(Int32, (1,), (1,))


def absmax_init() -> Any:
    """Return a thread's register before its first value."""
    largest = cute.make_rmem_tensor(cute.make_layout(1), Float32)
    largest[0] = Float32(0)
    return largest


def absmax_update(largest: Any, value: Any, inside: Any) -> None:
    """Update the register with a value that is inside the result.

    Parameters
    ----------
    largest : Tensor
        The thread's register.
    value : Float32
        The value.
    inside : Boolean
        Whether the value is inside the result.
    """
    magnitude = Float32(select_(Boolean(inside), cute.math.abs(Float32(value)), Float32(0)))
    largest[0] = cute.arch.inline_ptx(
        "max.NaN.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[largest[0], magnitude]
    )


@cute.jit
def absmax_atomic_max(largest: cute.Tensor, absmax: cute.Tensor):
    """Reduce a warp's maxima into device memory; all of its threads take part."""
    lane = cute.arch.lane_idx()
    of_warp = cute.arch.warp_redux_sync(largest[0].bitcast(Int32), "max")
    if lane == 0:
        cute.arch.atomic_max(absmax.iterator, of_warp, sem="relaxed", scope="gpu")
