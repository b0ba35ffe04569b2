"""Products of the very arrays that were multiplied before, found by their identity and held against a guard.

Reading shapes, strides and types of three tensors takes Python as long as the driver takes to launch. PyTorch has a
check in C++ that tells whether tensors are what they were, the one that guards the code of torch.compile; whatever it
does not let through is looked at the longer way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: ``again(a, b, out)``, of `gemm` ``again(a, b, out, c, bias)``, computes a product if the guard lets the arrays
#: through, and returns None otherwise. A stream that is named comes last; only the current one is let through.
Again = Callable[..., Any]
#: ``apart(addresses, in_place)`` tells whether the output, whose address is the last, is apart from the inputs, of C
#: unless it is C itself.
Apart = Callable[[tuple[int, ...], bool], bool]
#: Queues a product, given addresses and stream.
Queue = Callable[[tuple[int, ...], int], None]

#: Products that are kept; then all of them make room.
MOST_RECENT = 4096
#: Tensors that are aligned to fewer bytes, less one, are looked at the longer way.
LOW = 255

_recent: dict[tuple[Any, ...], Again] = {}
#: Gives the product that is known by this, if there is one. For `matmul` that are the identities of A, B and the
#: output, for `gemm` alpha, beta and the name of the epilogue behind them, then C and the bias if there is one of them.
#: The arrays themselves may be others by now.
find = _recent.get


def seen_once(*_: Any) -> None:
    """Stand for a product that was called once with arrays: compute nothing."""


def remember(key: tuple[Any, ...], again: Again) -> None:
    """Find a product by this from now on."""
    if len(_recent) >= MOST_RECENT:
        _recent.clear()
    _recent[key] = again


def forget() -> None:
    """Forget them all."""
    _recent.clear()


def of_two(
    check: Callable[..., bool],
    apart: Apart,
    new: Callable[[Any], Any] | None,
    queue: Queue,
    stream: Callable[[int], int],
    device: int,
    same: bool,
) -> Again:
    """Return what repeats a product of two of PyTorch's tensors.

    Parameters
    ----------
    check : callable
        The guard of A, B, and the output if it is given.
    apart : callable
        Judges an output that is given.
    new : callable or None
        Makes the output from A, where none is given.
    queue : callable
        Queues the product.
    stream : callable
        Gives the current stream of a GPU.
    device : int
        The GPU.
    same : bool
        Whether A and B begin at one address: what was decided for such holds for no others, and the other way round.
    """
    # Addresses that were found to be in order last; another thread may replace them at any time. What the launch is
    # given again is the very tuple that it has been told.
    known: tuple[int, ...] = ()

    def again(a: Any, b: Any, out: Any, c: Any = None, bias: Any = None, named: int | None = None) -> Any:
        nonlocal known
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
        addresses, last = (a.data_ptr(), b.data_ptr(), out.data_ptr()), known
        if addresses != last:
            pa, pb, at = addresses
            if (pa | pb | at) & LOW or (pa == pb) is not same or (new is None and not apart(addresses, False)):
                return None
            known = last = addresses
        queue(last, now)
        return out

    return again


def of_more(
    check: Callable[..., bool],
    apart: Apart,
    new: Callable[[Any], Any] | None,
    queue: Queue,
    stream: Callable[[int], int],
    device: int,
    same: bool,
) -> Again:
    """Return what repeats a product that reads C, a bias or both; C may be its output.

    The parameters are those of `of_two`; the guard is that of A, B, C and the bias, as far as there are these, and of
    an output that is given and none of them.
    """
    known: tuple[int, ...] = ()

    def again(a: Any, b: Any, out: Any, c: Any, bias: Any, named: int | None = None) -> Any:
        nonlocal known
        now = stream(device)
        if named is not None and named != now:
            return None
        given = [x for x in (a, b, c, bias) if x is not None]
        in_place = c is out
        if not (check(*given) if new is not None or in_place else check(*given, out)):
            return None
        result = out if new is None else new(a)
        given.append(result)
        addresses, last = tuple([x.data_ptr() for x in given]), known
        if addresses != last:
            if any(address & LOW for address in addresses) or (addresses[0] == addresses[1]) is not same:
                return None
            if new is None and not apart(addresses, in_place):
                return None
            known = last = addresses
        queue(last, now)
        return result

    return again
