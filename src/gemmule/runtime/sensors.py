"""Clocks and watts of a GPU while work runs, through NVIDIA's management library."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gemmule.core.errors import UnsupportedError

_LIBRARY = "libnvidia-ml.so.1"
_SM_CLOCK = 1
#: Seconds between two samples.
_INTERVAL = 0.02


class Readings:
    """Samples of clock and power while a block ran."""

    def __init__(self) -> None:
        self.clock_mhz: list[int] = []
        self.power_w: list[float] = []

    def summary(self) -> dict[str, float]:
        """Return the clock of the SMs in MHz and the power in watts: median, lowest or highest.

        Quantities that were not sampled are absent.
        """
        found: dict[str, float] = {}
        if self.clock_mhz:
            found |= {"clock_mhz": statistics.median(self.clock_mhz), "clock_mhz_min": min(self.clock_mhz)}
        if self.power_w:
            found |= {
                "power_w": round(statistics.median(self.power_w), 1),
                "power_w_max": round(max(self.power_w), 1),
            }
        return found


class Sensors:
    """The sensors of one GPU.

    Parameters
    ----------
    pci_bus_id : str
        PCI bus id of the GPU.
    load : callable
        Loads the management library, by its name.

    Raises
    ------
    UnsupportedError
        If the management library is not there or does not answer.
    """

    def __init__(self, pci_bus_id: str, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        try:
            self._library = load(_LIBRARY)
        except OSError as error:
            raise UnsupportedError(f"clocks and watts cannot be sampled: {error}") from error
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.encode(), ctypes.byref(self._device))
        # Unreadable sensors are refused before a run, not during it.
        self.clock_mhz(), self.power_w()

    def clock_mhz(self) -> int:
        """Return the clock of the SMs now, in MHz."""
        value = ctypes.c_uint()
        self._call("nvmlDeviceGetClockInfo", self._device, ctypes.c_int(_SM_CLOCK), ctypes.byref(value))
        return value.value

    def power_w(self) -> float:
        """Return the power that the board draws, in watts; newer GPUs give the mean of the last second."""
        value = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerUsage", self._device, ctypes.byref(value))
        return value.value / 1000

    @contextlib.contextmanager
    def readings(self) -> Iterator[Readings]:
        """Sample in a thread of its own while the block runs; what cannot be read is left out and ends nothing."""
        readings, stop = Readings(), threading.Event()

        def sample() -> None:
            while True:
                with contextlib.suppress(UnsupportedError):
                    readings.clock_mhz.append(self.clock_mhz())
                with contextlib.suppress(UnsupportedError):
                    readings.power_w.append(self.power_w())
                if stop.wait(_INTERVAL):
                    return

        thread = threading.Thread(target=sample, name="gemmule-sensors", daemon=True)
        thread.start()
        try:
            yield readings
        finally:
            stop.set()
            thread.join()

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            self._library.nvmlErrorString.restype = ctypes.c_char_p
            text = self._library.nvmlErrorString(status).decode()
            raise UnsupportedError(f"clocks and watts cannot be sampled: {name} says {text}")
