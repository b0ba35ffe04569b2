"""Launches that are made again and again: everything is packed once, and a call writes addresses and the stream."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from gemmule.core.dataclass import dataclass
from gemmule.core.launch import Launch, TensorMapParam

from .device import current
from .driver import call, check, driver
from .launch import LoadedKernel
from .tensor_maps import address_word, encoded, map_at, move

# A tensor map stands at a multiple of 64 bytes, so all parameters do.
_ALIGNED_WORDS = 64 // 8


@dataclass(frozen=True)
class Packed:
    """A launch as the driver takes it, with the addresses of one call."""

    name: str  #: The kernel's, for messages.
    ordinal: int  #: The GPU.
    function: Any  #: CUfunction. The driver's handle of the kernel.
    config: Callable[[], Any]  #: Makes the driver's launch configuration, a new one at each call.
    params: tuple[bytes, ...]  #: The parameters in order.
    #: Parameter, word in it, operand, and bytes beyond the operand's address, of each address.
    pointers: tuple[tuple[int, int, int, int], ...]
    #: Parameter, operand and bytes beyond it of each tensor map that only the driver can change.
    maps: tuple[tuple[int, int, int], ...]
    addresses: tuple[int, ...]  #: The operands' addresses in them.
    keepalive: object = None  #: Object. What must live as long as the handles are used.
    serial: Callable[[], Any] | None = None  #: Builds the configuration of a further dependent launch (PDL).


def packed(
    name: str, ordinal: int, function: Any, config: Callable[[], Any], launch: Launch, operands: Sequence[str],
    addresses: Sequence[int], keepalive: object = None,
) -> Packed:  # fmt: skip
    """Pack a launch, and find where in its parameters addresses stand.

    Parameters
    ----------
    name, ordinal, function, config, keepalive
        As of `Packed`.
    operands : sequence of str
        Operands in the order in which calls give their addresses.
    addresses : sequence of int
        The addresses of one call.
    """
    order = {operand: place for place, operand in enumerate(operands)}
    given = dict(zip(operands, addresses, strict=True))
    params, pointers, maps = [], [], []
    for index, param in enumerate(launch.params):
        if isinstance(param, TensorMapParam):
            params.append(encoded(param, given[param.operand] + param.offset))
            if (word := address_word(param)) is None:
                maps.append((index, order[param.operand], param.offset))
            else:
                pointers.append((index, word, order[param.operand], param.offset))
            continue
        params.append(param.pack(given))
        # A pointer is the word that follows its operand's address.
        before, after = (_words(param.pack(dict.fromkeys(operands, probe))) for probe in (0, 1 << 40))
        for word in [word for word, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]:
            (operand,) = (
                operand
                for operand in operands
                if _words(param.pack(dict.fromkeys(operands, 0) | {operand: 1 << 40}))[word] != before[word]
            )
            pointers.append((index, word, order[operand], 0))
    return Packed(
        name, ordinal, function, config, tuple(params), tuple(pointers), tuple(maps), tuple(addresses), keepalive
    )


def _words(data: bytes) -> tuple[int, ...]:
    return tuple(memoryview(data.ljust(-(-len(data) // 8) * 8, b"\0")).cast("Q"))


class Frame:
    """The memory that one launch at a time is made from: its configuration, parameters and their addresses.

    Attributes
    ----------
    config : CUlaunchConfig
        The driver's launch configuration.
    stream : int or None
        The stream in it, if it was written before.
    params : int
        Address of the parameters' addresses.
    ordinal : int
        The GPU.
    addresses : tuple of int
        The operands' addresses in the parameters.
    """

    __slots__ = (
        "addresses", "beyond", "config", "keepalive", "maps", "ordinal", "params", "pointer_places", "stream", "words",
    )  # fmt: skip

    def __init__(self, what: Packed) -> None:
        sizes = [-(-len(param) // 64) * _ALIGNED_WORDS for param in what.params]
        header = -(-len(sizes) // _ALIGNED_WORDS) * _ALIGNED_WORDS
        self.keepalive = memory = (ctypes.c_uint64 * (header + sum(sizes) + _ALIGNED_WORDS))()
        skipped = -ctypes.addressof(memory) % 64
        base = ctypes.addressof(memory) + skipped
        raw = memoryview(memory).cast("B")[skipped:]
        self.words = raw.cast("Q")
        starts = [header + sum(sizes[:index]) for index in range(len(sizes))]
        for index, (start, param) in enumerate(zip(starts, what.params, strict=True)):
            self.words[index] = base + 8 * start
            raw[8 * start : 8 * start + len(param)] = param
        self.config = what.config()
        self.stream: int | None = None
        self.params = base
        places = [(starts[index] + word, operand, offset) for index, word, operand, offset in what.pointers]
        # Nearly all are operands' own: they are written without an addition.
        self.pointer_places = tuple((place, operand) for place, operand, offset in places if not offset)
        self.beyond = tuple(one for one in places if one[2])
        self.maps = tuple((map_at(base + 8 * starts[index]), *rest) for index, *rest in what.maps)
        self.addresses, self.ordinal = what.addresses, what.ordinal

    def point(self, addresses: tuple[int, ...]) -> None:
        """Write the operands' addresses. A frame that fails in the middle is not used again."""
        words, before = self.words, self.addresses
        for place, operand in self.pointer_places:
            words[place] = addresses[operand]
        for place, operand, offset in self.beyond:
            words[place] = addresses[operand] + offset
        for tensor_map, operand, offset in self.maps:
            if before[operand] != addresses[operand]:
                move(tensor_map, addresses[operand] + offset, self.ordinal)
        self.addresses = addresses


class DirectLaunch:
    """A launch whose addresses and stream change from call to call; any number of threads may call it at once.

    Parameters
    ----------
    what : Packed
        The launch.

    Attributes
    ----------
    queue : callable
        ``queue(addresses, stream)`` queues it: the operands' addresses, a tuple of int, and the driver's handle of the
        stream. It raises DriverError if the driver refuses the launch. The launch itself is its ``direct``, for callers
        that write the same steps out: each takes a frame, points it, and gives it back.
    function : CUfunction
        The driver's handle of the kernel.
    take, give : callable
        Take the frame of the call before out of the list, IndexError if there is none, and put it back: no two calls
        write into one.
    """

    __slots__ = ("_what", "function", "give", "queue", "take")

    def __init__(self, what: Packed) -> None:
        self._what, self.function = what, what.function
        free = [Frame(what)]
        self.take: Callable[[], Frame] = free.pop
        self.give: Callable[[Frame], None] = free.append
        self.queue: Callable[[tuple[int, ...], int], None] = _queueing(self)

    def frame(self) -> Frame:
        """Return a new frame, for a call that finds none."""
        return Frame(self._what)

    def serial(self) -> DirectLaunch:
        """Return the launch without programmatic dependent launch (PDL): this one where it has none."""
        if self._what.serial is None:
            return self
        return DirectLaunch(dataclasses.replace(self._what, config=self._what.serial, serial=None))

    def again(self, frame: Frame, status: Any) -> None:
        """Queue a launch that the driver refused, if only the thread's context is not the right one.

        Raises
        ------
        DriverError
            If the driver refuses it for another reason.
        """
        known = driver().CUresult
        if status == known.CUDA_SUCCESS:
            return
        if status not in (known.CUDA_ERROR_INVALID_CONTEXT, known.CUDA_ERROR_INVALID_HANDLE):
            check("cuLaunchKernelEx", int(status))
        # The thread has no context, or another one is current. To ask before every launch would cost more.
        with current(self._what.ordinal):
            call("cuLaunchKernelEx", frame.config, self.function, frame.params, 0)


def _queueing(direct: DirectLaunch) -> Callable[[tuple[int, ...], int], None]:
    """Return a function that queues a launch, with all that it needs at hand."""
    bindings = driver()
    launch, function, success = bindings.cuLaunchKernelEx, direct.function, bindings.CUresult.CUDA_SUCCESS
    take, give = direct.take, direct.give

    def queue(addresses: tuple[int, ...], stream: int) -> None:
        try:
            frame = take()
        except IndexError:
            frame = direct.frame()
        # Callers that keep their tuple are spared the comparison.
        if frame.addresses is not addresses and frame.addresses != addresses:
            frame.point(addresses)
        if frame.stream != stream:
            frame.config.hStream = stream
            frame.stream = stream
        (status,) = launch(frame.config, function, frame.params, 0)
        if status != success:
            direct.again(frame, status)
        give(frame)

    queue.direct = direct  # type: ignore[attr-defined]
    return queue


def direct_launch(
    kernel: LoadedKernel, launch: Launch, operands: Sequence[str], addresses: Sequence[int]
) -> DirectLaunch:
    """Return a launch of a loaded kernel whose addresses and stream are arguments of each call.

    Parameters
    ----------
    operands, addresses
        As of `packed`.
    """
    with current(kernel.ordinal):
        kernel.allow(launch)
        name, config = kernel.artifact.kernel, functools.partial(kernel.config, launch, 0)
        what = packed(name, kernel.ordinal, kernel.function, config, launch, operands, addresses, kernel)
        if launch.overlaps:
            serial = functools.partial(kernel.config, dataclasses.replace(launch, overlaps=False), 0)
            what = dataclasses.replace(what, serial=serial)
        return DirectLaunch(what)


def serial_queue(queue: Callable[[tuple[int, ...], int], None]) -> Callable[[tuple[int, ...], int], None]:
    """Return a function that queues a product of one launch without programmatic dependent launch (PDL).

    Kernels of PyTorch's trigger no dependent launch: behind one, there is nothing to overlap with.
    """
    direct: DirectLaunch | None = getattr(queue, "direct", None)
    return queue if direct is None else direct.serial().queue
