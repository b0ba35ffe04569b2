"""As `recent`, for products that are one launch: the steps of that launch stand in the call itself.

Of a call that repeats a small product, what is left is the driver's launch, the guard and the reading of addresses; a
function more between them, and a second comparison of addresses, would show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .recent import LOW, Again, Apart

if TYPE_CHECKING:
    from gemmule.runtime.direct import DirectLaunch


def of_two_in_one_launch(
    check: Callable[..., bool],
    apart: Apart,
    new: Callable[[Any], Any] | None,
    direct: DirectLaunch,
    stream: Callable[[int], int],
    device: int,
    same: bool,
) -> Again:
    """Return what repeats a product of two of PyTorch's tensors.

    The parameters are those of `recent.of_two`, but for the launch, whose operands are A, B and the output.
    """
    from gemmule.runtime.direct import point
    from gemmule.runtime.driver import driver

    launch, function, success = driver().cuLaunchKernelEx, direct.function, driver().CUresult.CUDA_SUCCESS
    take, give = direct.take, direct.give

    def again(a: Any, b: Any, out: Any, c: Any = None, bias: Any = None, named: int | None = None) -> Any:
        del c, bias
        now = stream(device)
        if named is not None and named != now:
            return None
        if new is None:
            if not check(a, b, out):
                return None
        elif check(a, b):
            out = new(a)
        else:
            return None
        addresses = (a.data_ptr(), b.data_ptr(), out.data_ptr())
        try:
            frame = take()
        except IndexError:
            frame = direct.frame()
        # Addresses that are in a frame were found to be in order before.
        if frame.addresses != addresses:
            pa, pb, at = addresses
            if (pa | pb | at) & LOW or (pa == pb) is not same or (new is None and not apart(addresses, False)):
                give(frame)
                return None
            point(frame, addresses)
        if frame.stream != now:
            frame.config.hStream = now
            frame.stream = now
        (status,) = launch(frame.config, function, frame.params, 0)
        if status is not success:
            direct.again(frame, status)
        give(frame)
        return out

    return again
