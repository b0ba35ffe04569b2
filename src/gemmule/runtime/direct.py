"""Launches that are made again and again: everything is packed once, and a call writes addresses and the stream.

The driver is called through its C interface: its Python bindings convert every argument of every call, which costs
more than the driver itself takes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from gemmule.core.launch import Launch, TensorMapParam

from .device import current, primary_context
from .driver import call, check
from .tensor_maps import encoded

# The driver's CUlaunchConfig in 64-bit words, and where in it the stream stands.
_CONFIG_WORDS, _STREAM = 7, 4
# Behind it the current context is written, then come the addresses of the parameters.
_CONTEXT = _CONFIG_WORDS
_ADDRESSES = _CONTEXT + 1
# What the driver asks of a tensor map's place in memory.
_MAP_WORDS = 64 // 8


@dataclasses.dataclass(frozen=True)
class Routes:
    """The driver's functions as C has them; each returns its status.

    Attributes
    ----------
    launch : callable
        cuLaunchKernelEx.
    replace_address : callable
        cuTensorMapReplaceAddress.
    current_context : callable
        cuCtxGetCurrent.
    """

    launch: Callable[..., int]
    replace_address: Callable[..., int]
    current_context: Callable[..., int]


@functools.cache
def routes() -> Routes:
    """Return the functions of the driver that is loaded."""

    def route(name: str, arguments: int) -> Callable[..., int]:
        # The interface of CUDA 12.0; 0 asks for the functions whose default stream is the legacy one.
        address, _ = call("cuGetProcAddress", name.encode(), 12000, 0)
        return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * arguments)(int(address))

    return Routes(route("cuLaunchKernelEx", 4), route("cuTensorMapReplaceAddress", 2), route("cuCtxGetCurrent", 1))


@dataclasses.dataclass(frozen=True)
class Packed:
    """A launch as the driver takes it, with the addresses of one call.

    Attributes
    ----------
    name : str
        The kernel's, for messages.
    ordinal : int
        The GPU.
    function : int
        The driver's handle of the kernel.
    config : bytes
        The driver's launch configuration.
    params : tuple of bytes
        The parameters in order.
    pointers : tuple of (int, int, int)
        Parameter, word in it, and operand of each pointer.
    maps : tuple of (int, int)
        Parameter and operand of each tensor map.
    addresses : tuple of int
        The operands' addresses in them.
    keepalive : object
        What must live as long as the handles are used.
    """

    name: str
    ordinal: int
    function: int
    config: bytes
    params: tuple[bytes, ...]
    pointers: tuple[tuple[int, int, int], ...]
    maps: tuple[tuple[int, int], ...]
    addresses: tuple[int, ...]
    keepalive: object = None


def packed(
    name: str, ordinal: int, function: int, config: bytes, launch: Launch, operands: Sequence[str],
    addresses: Sequence[int], keepalive: object = None,
) -> Packed:  # fmt: skip
    """Pack a launch, and find where in its parameters addresses stand.

    Parameters
    ----------
    name, ordinal, function, config, keepalive
        As of `Packed`.
    launch : Launch
        The recipe.
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
            params.append(encoded(param, given[param.operand]))
            maps.append((index, order[param.operand]))
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
            pointers.append((index, word, order[operand]))
    return Packed(
        name, ordinal, function, config, tuple(params), tuple(pointers), tuple(maps), tuple(addresses), keepalive
    )


def _words(data: bytes) -> tuple[int, ...]:
    return tuple(memoryview(data.ljust(-(-len(data) // 8) * 8, b"\0")).cast("Q"))


class _Frame:
    """The memory that one launch at a time is made from: configuration, parameters and their addresses."""

    __slots__ = ("addresses", "config", "context", "keepalive", "map_places", "params", "pointer_places", "words")

    def __init__(self, what: Packed) -> None:
        sizes = [-(-len(param) // 64) * _MAP_WORDS for param in what.params]
        header = -(-(_ADDRESSES + len(sizes)) // _MAP_WORDS) * _MAP_WORDS
        self.keepalive = memory = (ctypes.c_uint64 * (header + sum(sizes) + _MAP_WORDS))()
        skipped = -ctypes.addressof(memory) % 64
        base = ctypes.addressof(memory) + skipped
        self.words = memoryview(memory).cast("B")[skipped:].cast("Q")
        starts = [header + sum(sizes[:index]) for index in range(len(sizes))]
        raw = self.words.cast("B")
        raw[: len(what.config)] = what.config
        for index, (start, param) in enumerate(zip(starts, what.params, strict=True)):
            self.words[_ADDRESSES + index] = base + 8 * start
            raw[8 * start : 8 * start + len(param)] = param
        self.config = ctypes.c_void_p(base)
        self.context = ctypes.c_void_p(base + 8 * _CONTEXT)
        self.params = ctypes.c_void_p(base + 8 * _ADDRESSES)
        self.pointer_places = tuple((starts[index] + word, operand) for index, word, operand in what.pointers)
        self.map_places = tuple((ctypes.c_void_p(base + 8 * starts[index]), operand) for index, operand in what.maps)
        self.addresses = what.addresses


class DirectLaunch:
    """A launch whose addresses and stream change from call to call; any number of threads may call it at once.

    Parameters
    ----------
    what : Packed
        The launch.
    driver : Routes
        The driver's functions.
    context : int
        Handle of the context that the kernel is in.
    """

    def __init__(self, what: Packed, driver: Routes, context: int) -> None:
        self._what = what
        self._function = ctypes.c_void_p(what.function)
        self._context = context
        self._launch, self._replace, self._current = driver.launch, driver.replace_address, driver.current_context
        # Each call takes a frame out of the list and puts it back, so that no two write into one.
        self._free = [_Frame(what)]

    def __call__(self, addresses: tuple[int, ...], stream: int) -> None:
        """Queue the launch.

        Parameters
        ----------
        addresses : tuple of int
            The operands' addresses.
        stream : int
            The driver's handle of the stream.

        Raises
        ------
        DriverError
            If the driver refuses the launch.
        """
        try:
            frame = self._free.pop()
        except IndexError:
            frame = _Frame(self._what)
        words = frame.words
        if frame.addresses != addresses:
            self._point(frame, addresses)
        words[_STREAM] = stream
        self._current(frame.context)
        if words[_CONTEXT] == self._context:
            status = self._launch(frame.config, self._function, frame.params, None)
        else:
            with current(self._what.ordinal):
                status = self._launch(frame.config, self._function, frame.params, None)
        self._free.append(frame)
        if status:
            check("cuLaunchKernelEx", status)

    def _point(self, frame: _Frame, addresses: tuple[int, ...]) -> None:
        """Write the addresses that changed."""
        for place, operand in frame.pointer_places:
            frame.words[place] = addresses[operand]
        before = frame.addresses
        # A frame that fails in the middle is not put back.
        for where, operand in frame.map_places:
            if before[operand] != addresses[operand]:
                check("cuTensorMapReplaceAddress", self._replace(where, addresses[operand]))
        frame.addresses = addresses


def direct_launch(kernel: Any, launch: Launch, operands: Sequence[str], addresses: Sequence[int]) -> DirectLaunch:
    """Return a launch of a loaded kernel that is told addresses and stream at each call.

    Parameters
    ----------
    kernel : LoadedKernel
        The kernel.
    launch : Launch
        The recipe.
    operands, addresses
        As of `packed`.
    """
    with current(kernel.ordinal):
        kernel.allow_shared(launch.shared_bytes)
        config = kernel.config(launch, 0)
        what = packed(
            kernel.artifact.kernel,
            kernel.ordinal,
            int(kernel.function),
            ctypes.string_at(int(config.getPtr()), 8 * _CONFIG_WORDS),
            launch,
            operands,
            addresses,
            # The configuration's attributes stay in the memory of the object that it was copied from.
            (kernel, config),
        )
    return DirectLaunch(what, routes(), int(primary_context(kernel.ordinal)))
