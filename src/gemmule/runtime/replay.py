"""Replays of products: the prepacked launch of an earlier call, with the addresses and the stream of this one.

Reading shapes, strides and types of three tensors takes Python as long as the driver takes to launch. PyTorch has a
check in C++ whether tensors are what they were, the one that guards the code of torch.compile; whatever it
does not let through is described the longer way. Arrays of CuPy are recognised by weak references.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .direct import DirectLaunch

#: ``replay(a, b, out)``, of `gemm` ``replay(a, b, out, c, bias)``, computes a product if the guard lets the arrays
#: through, and returns None otherwise. A stream that is named comes last; only the current one is let through.
Replay = Callable[..., Any]
#: ``no_overlap(addresses, in_place)`` is whether the output, whose address is the last, overlaps no input; C may be the
#: output itself.
NoOverlap = Callable[[tuple[int, ...], bool], bool]
#: Queues a product, given addresses and stream.
Queue = Callable[[tuple[int, ...], int], None]

#: Alignment up to which kernels may differ, less one: arrays that are aligned to fewer bytes are described.
LOW = 255


def queue_of_parts(queue: Queue, begins: tuple[tuple[int, int], ...]) -> Queue:
    """Return a function that queues a product given the addresses of arrays, of which its operands are parts."""
    if all(own == (place, 0) for place, own in enumerate(begins)):
        return queue

    def queue_parts(addresses: tuple[int, ...], stream: int) -> None:
        queue(tuple([addresses[place] + beyond for place, beyond in begins]), stream)

    return queue_parts


def replay_two_operands(
    check: Callable[..., bool],
    no_overlap: NoOverlap,
    new: Callable[[Any], Any] | None,
    queue: Queue,
    stream: Callable[[int], int],
    device: int,
    same: bool,
) -> Replay:
    """Return the replay of a product of two of PyTorch's tensors.

    Parameters
    ----------
    check : callable
        The guard of A, B, and the output if it is given.
    no_overlap : callable
        Checks an output that is given.
    new : callable or None
        Makes the output from A, where none is given.
    queue : callable
        Queues the product. If that is one launch (its ``direct``), the replay contains its steps.
    stream : callable
        Gives the current stream of a GPU.
    same : bool
        Whether A and B begin at one address: what was decided for such holds for no others, and the other way round.
    """
    direct = getattr(queue, "direct", None)
    if direct is not None:
        return replay_single_launch(check, no_overlap, new, direct, stream, device, same)
    # Addresses that were found to be in order last; another thread may replace them at any time. What the launch is
    # given again is the very tuple that it was given before.
    known: tuple[int, ...] = ()

    def replay(a: Any, b: Any, out: Any, c: Any = None, bias: Any = None, named: int | None = None) -> Any:
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
            if (pa | pb | at) & LOW or not (pa and pb and at) or (pa == pb) is not same:
                return None
            if new is None and not no_overlap(addresses, False):
                return None
            known = last = addresses
        queue(last, now)
        return out

    return replay


def replay_with_addends(
    check: Callable[..., bool],
    no_overlap: NoOverlap,
    new: Callable[[Any], Any] | None,
    queue: Queue,
    stream: Callable[[int], int],
    device: int,
    same: bool,
) -> Replay:
    """Return the replay of a product that reads C, a bias or both; C may be its output.

    The parameters are those of `replay_two_operands`; the guard is that of A, B, C and the bias, as far as there are
    these, and of an output that is given and none of them.
    """
    known: tuple[int, ...] = ()

    def replay(a: Any, b: Any, out: Any, c: Any, bias: Any, named: int | None = None) -> Any:
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
            if any(address & LOW or not address for address in addresses):
                return None
            if (addresses[0] == addresses[1]) is not same:
                return None
            if new is None and not no_overlap(addresses, in_place):
                return None
            known = last = addresses
        queue(last, now)
        return result

    return replay


def replay_single_launch(
    check: Callable[..., bool],
    no_overlap: NoOverlap,
    new: Callable[[Any], Any] | None,
    direct: DirectLaunch,
    stream: Callable[[int], int],
    device: int,
    same: bool,
) -> Replay:
    """Return the replay of a product of two of PyTorch's tensors that is one launch.

    A repeated small product costs the driver's launch, the guard and the reading of
    addresses; a function more between them, and a second comparison of addresses, would show. The parameters are those
    of `replay_two_operands`, but for the launch, whose operands are A, B and the output.
    """
    from .driver import driver

    launch, function, success = driver().cuLaunchKernelEx, direct.function, driver().CUresult.CUDA_SUCCESS
    take, give = direct.take, direct.give

    def replay(a: Any, b: Any, out: Any, c: Any = None, bias: Any = None, named: int | None = None) -> Any:
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
            usable = not (pa | pb | at) & LOW and pa and pb and at and (pa == pb) is same
            if not usable or (new is None and not no_overlap(addresses, False)):
                give(frame)
                return None
            frame.point(addresses)
        if frame.stream != now:
            frame.config.hStream = now
            frame.stream = now
        (status,) = launch(frame.config, function, frame.params, 0)
        if status is not success:
            direct.again(frame, status)
        give(frame)
        return out

    return replay


def replay_same_arrays(
    given: tuple[Any, ...],
    addresses: tuple[int, ...],
    new: Callable[[], Any] | None,
    queue: Queue,
    stream: Callable[[int], Any],
    device: int,
) -> Replay:
    """Return the replay of a product of these very arrays of CuPy's.

    Such an array keeps its type and its memory for life. Its shape can be set, and its strides with it; to a shape that
    it had before, which means the same elements.

    Parameters
    ----------
    given : tuple of array
        The inputs, and the output if given and not an input. They are not retained.
    addresses : tuple of int
        Those of the inputs in order, and of a given output.
    new : callable or None
        Makes the output, where none is given.
    queue : callable
        Queues the product.
    stream : callable
        Gives the current stream of a GPU.
    """
    known: tuple[tuple[Callable[[], Any], tuple[int, ...]], ...] = tuple([(weakref.ref(x), x.shape) for x in given])

    def replay(a: Any, b: Any, out: Any, c: Any = None, bias: Any = None, named: int | None = None) -> Any:
        now = stream(device).ptr
        if named is not None and named != now:
            return None
        # In the order of `given`: what is called by other identities is not found here.
        arrays = (a, b, out) if c is bias is None else (a, b, *[x for x in (c, bias, out) if x is not None])
        for (reference, shape), x in zip(known, arrays, strict=False):
            # Another array may have the identity of one that is gone.
            if reference() is not x or x.shape != shape:
                return None
        if new is None:
            queue(addresses, now)
            return out
        out = new()
        at = out.data.ptr
        if at & LOW:
            return None
        queue((*addresses, at), now)
        return out

    return replay
