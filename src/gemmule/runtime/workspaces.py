"""Device memory that launches need beyond their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gemmule.core.launch import Launch

from .device import current
from .driver import call
from .memory import DeviceBuffer


class Workspaces:
    """Workspaces by name, given back together when the block that they were opened in ends.

    Parameters
    ----------
    stream : int
        Stream that allocation, use and release are ordered in: what uses them later may have the same memory.
    """

    def __init__(self, ordinal: int, stream: int) -> None:
        self._ordinal, self._stream = ordinal, stream
        self._buffers: dict[str, DeviceBuffer] = {}
        self._outgrown: list[DeviceBuffer] = []

    def __enter__(self) -> Workspaces:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def take(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return an address for each name, with at least so many bytes there."""
        for name, nbytes in sizes.items():
            held = self._buffers.get(name)
            if held is None or held.nbytes < nbytes:
                self._buffers[name] = DeviceBuffer(nbytes, self._ordinal, self._stream)
                if held is not None:
                    # Launches that were prepared before still name it.
                    self._outgrown.append(held)
        return {name: self._buffers[name].address for name in sizes}

    def free(self) -> None:
        """Give the memory back once the work queued so far is done."""
        for buffer in (*self._buffers.values(), *self._outgrown):
            buffer.free()
        self._buffers.clear()
        self._outgrown.clear()


def needs_zeros(launch: Launch) -> bool:
    """Say whether a launch has workspaces that are set to zero before it."""
    return any(one.zeroed for one in launch.workspaces)


def zeroing(
    queue: Callable[[], None], launch: Launch, addresses: Mapping[str, int], ordinal: int, stream: int
) -> Callable[[], None]:
    """Return a function that sets a launch's workspaces to zero, as far as it wants that, and queues it then.

    That is part of every launch: one that was aborted, or other work that had the memory, leaves nothing behind.

    Parameters
    ----------
    queue : callable
        Queues the launch.
    addresses : mapping of str to int
        Addresses of the workspaces, by name.
    ordinal, stream : int
        The GPU, and the driver's handle of the stream.
    """

    def queue_both() -> None:
        clear(launch, addresses, ordinal, stream)
        queue()

    return queue_both


def clear(launch: Launch, addresses: Mapping[str, int], ordinal: int, stream: int) -> None:
    """Queue the zeros that a launch finds in its workspaces."""
    with current(ordinal):
        for one in launch.workspaces:
            if one.zeroed:
                call("cuMemsetD8Async", addresses[one.name], 0, one.nbytes, stream)
