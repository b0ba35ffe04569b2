"""Products of the very arrays that were multiplied before, found by their identity and held against a guard.

Reading shapes, strides and types of three tensors takes Python as long as the driver takes to launch. PyTorch has a
check in C++ that tells whether tensors are what they were, the one that guards the code of torch.compile; whatever it
does not let through is looked at the longer way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: ``again(a, b, out)``, of `gemm` ``again(a, b, out, c, bias)``, computes a product if the guard lets the arrays
#: through, and returns None otherwise.
Again = Callable[..., Any]

#: Products that are kept; then all of them make room.
MOST_RECENT = 4096
#: Tensors that are aligned to fewer bytes, less one, are looked at the longer way.
LOW = 255

_recent: dict[tuple[Any, ...], Again] = {}
#: Gives the product that is known by this, if there is one. For `matmul` that are the identities of A, B and the
#: output, for `gemm` those of A, B, C, the bias and the output, then alpha, beta, and the name of the epilogue. The
#: arrays themselves may be others by now.
find = _recent.get


def remember(key: tuple[Any, ...], again: Again) -> None:
    """Find a product by this from now on."""
    if len(_recent) >= MOST_RECENT:
        _recent.clear()
    _recent[key] = again


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

    def again(a: Any, b: Any, out: Any, *_: Any) -> Any:
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

    def again(a: Any, b: Any, out: Any, *_: Any) -> Any:
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


def with_more_inputs(
    check: Callable[..., bool],
    apart: Callable[[tuple[int, ...], bool], bool],
    new: Callable[[Any], Any],
    queue: Callable[[tuple[int, ...], int], None],
    stream: Callable[[int], int],
    device: int,
) -> Again:
    """Return what repeats a product that reads C, a bias or both; C may be its output.

    Parameters
    ----------
    check : callable
        The guard of A, B, C and the bias, as far as there are these, and of an output that is none of them.
    apart : callable
        ``apart(addresses, in_place)`` tells whether the output, whose address is the last, is apart from the inputs, of
        C unless it is C itself.
    new : callable
        Makes the output, where none is given, from A.
    queue, stream, device
        As of `with_output`.
    """
    known: tuple[int, ...] = ()

    def again(a: Any, b: Any, out: Any, c: Any, bias: Any) -> Any:
        nonlocal known
        inputs = [x for x in (a, b, c, bias) if x is not None]
        in_place = c is out
        if not (check(*inputs) if out is None or in_place else check(*inputs, out)):
            return None
        addresses, last = [x.data_ptr() for x in inputs], known
        if out is None and any(address & LOW for address in addresses):
            return None
        result = new(a) if out is None else out
        found = (*addresses, result.data_ptr())
        if found == last:
            found = last
        else:
            if out is not None and (any(address & LOW for address in found) or not apart(found, in_place)):
                return None
            known = found
        queue(found, stream(device))
        return result

    return again
