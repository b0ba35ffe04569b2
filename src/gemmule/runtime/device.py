"""The GPUs of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

from .driver import call, check, driver, driver_module


@dataclass(frozen=True)
class Device:
    """A GPU."""

    ordinal: int  #: Its number, as the driver counts.
    name: str  #: Its name, as the driver gives it.
    capability: tuple[int, int]  #: Compute capability (major, minor).
    multiprocessors: int  #: Number of SMs.
    memory_bytes: int  #: Size of its memory.
    max_shared_bytes: int  #: Most shared memory that a CTA can ask for.
    pci_bus_id: str  #: PCI bus id, in nvidia-smi's format.
    uuid: str  #: Its UUID, in hexadecimal digits.

    @functools.cached_property
    def arch(self) -> Arch:
        """Architecture that kernels are compiled for."""
        return Arch.for_device(*self.capability)

    @functools.cached_property
    def identity(self) -> tuple[str, ...]:
        """The key of its rates: UUID, name, the driver's version, and its PCIe link as far as Linux shows it.

        The link's greatest speed, as an idle link is slow, and its width.
        """
        folder = Path("/sys/bus/pci/devices") / self.pci_bus_id.lower()[-12:]
        link = []
        for name in ("max_link_speed", "current_link_width"):
            # Other systems, and some containers, show none.
            with contextlib.suppress(OSError):
                link.append((folder / name).read_text(encoding="ascii").strip())
        return self.uuid, self.name, str(call("cuDriverGetVersion")), " x ".join(link)


@functools.cache
def device_count() -> int:
    """Return the number of GPUs; 0 where there is no driver."""
    return int(call("cuDeviceGetCount")) if driver_module() is not None else 0


@functools.cache
def get_device(ordinal: int = 0) -> Device:
    """Return the GPU with that number.

    Raises
    ------
    ArgumentError
        If there is no such GPU.
    """
    if not 0 <= ordinal < device_count():
        raise ArgumentError(f"GPU {ordinal} does not exist; this machine has {device_count()}")
    handle = call("cuDeviceGet", ordinal)
    attribute = driver().CUdevice_attribute

    def read(name: str) -> int:
        return int(call("cuDeviceGetAttribute", getattr(attribute, "CU_DEVICE_ATTRIBUTE_" + name), handle))

    name = call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode()
    return Device(
        ordinal=ordinal,
        name=name,
        capability=(read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=read("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(call("cuDeviceTotalMem", handle)),
        max_shared_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        pci_bus_id=call("cuDeviceGetPCIBusId", 32, handle).split(b"\0")[0].decode(),
        uuid=bytes(call("cuDeviceGetUuid", handle).bytes).hex(),
    )


@functools.cache
def primary_context(ordinal: int) -> Any:
    """Return the driver's handle of the context that a GPU's memory and kernels are in."""
    # Retained for the life of the process: it is the context that array libraries use.
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))


@contextlib.contextmanager
def current(ordinal: int) -> Iterator[None]:
    """Make a GPU's primary context the calling thread's for the length of the block."""
    context = primary_context(ordinal)
    if int(call("cuCtxGetCurrent")) == int(context):
        yield
        return
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def ordinal_of_address(address: int) -> int:
    """Return the number of the GPU that memory was allocated on.

    Raises
    ------
    DriverError
        If the driver does not know the address.
    """
    attribute, found = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ctypes.c_int()
    # cuda-bindings up to 13.5 answers 0 for every address: https://github.com/NVIDIA/cuda-python/issues/2928
    ask = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    check("cuPointerGetAttribute", ask(ctypes.byref(found), int(attribute), ctypes.c_uint64(address)))
    return found.value
