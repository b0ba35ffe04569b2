"""Products of the very arrays that were multiplied before, found by their identity and held against a guard.

Reading shapes, strides and types of three tensors takes Python as long as the driver takes to launch. PyTorch has a
check in C++ that tells whether tensors are what they were, the one that guards the code of torch.compile; whatever it
does not let through is looked at the longer way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: ``again(a, b, out)`` computes a product if the guard lets the arrays through, and returns None otherwise.
Again = Callable[[Any, Any, Any], Any]

#: Products that are kept; then all of them make room.
MOST_RECENT = 4096
#: Tensors that are aligned to fewer bytes, less one, are looked at the longer way.
LOW = 255

_recent: dict[tuple[int, int, int], Again] = {}
#: Gives the product of arrays with these identities, if there is one; the arrays themselves may be others by now.
find = _recent.get


def remember(a: Any, b: Any, out: Any, again: Again) -> None:
    """Find a product by these arrays from now on."""
    if len(_recent) >= MOST_RECENT:
        _recent.clear()
    _recent[id(a), id(b), id(out)] = again


def forget() -> None:
    """Forget them all."""
    _recent.clear()


def with_output(
    check: Callable[..., bool],
    overlap: tuple[tuple[int, int], tuple[int, int]],
    queue: Callable[[tuple[int, ...], int], None],
    stream: Callable[[int], int],
    device: int,
) -> Again:
    """Return what repeats a product of PyTorch's tensors whose output is given.

    Parameters
    ----------
    check : callable
        The guard of A, B and the output.
    overlap : tuple of (int, int)
        For A and B the differences, its address less the output's, between which the two may overlap.
    queue : callable
        Queues the product, given addresses and stream.
    stream : callable
        Gives the current stream of a GPU.
    device : int
        The GPU.
    """
    (low_a, high_a), (low_b, high_b) = overlap
    # Addresses that were found to be in order last; another thread may replace them at any time.
    known: tuple[int, ...] = ()

    def again(a: Any, b: Any, out: Any) -> Any:
        nonlocal known
        if not check(a, b, out):
            return None
        addresses, last = (a.data_ptr(), b.data_ptr(), out.data_ptr()), known
        if addresses == last:
            # The very tuple that the launch has been told.
            addresses = last
        else:
            pa, pb, at = addresses
            if (pa | pb | at) & LOW or low_a < pa - at < high_a or low_b < pb - at < high_b:
                return None
            known = addresses
        queue(addresses, stream(device))
        return out

    return again


def with_new_output(
    check: Callable[..., bool],
    new: Callable[[Any], Any],
    queue: Callable[[tuple[int, ...], int], None],
    stream: Callable[[int], int],
    device: int,
) -> Again:
    """Return what repeats a product of PyTorch's tensors that makes its output; `new` does, given A."""
    known: tuple[int, ...] = ()

    def again(a: Any, b: Any, out: Any) -> Any:
        nonlocal known
        del out
        if not check(a, b):
            return None
        pa, pb = a.data_ptr(), b.data_ptr()
        if (pa | pb) & LOW:
            return None
        result = new(a)
        addresses, last = (pa, pb, result.data_ptr()), known
        if addresses == last:
            addresses = last
        else:
            known = addresses
        queue(addresses, stream(device))
        return result

    return again
