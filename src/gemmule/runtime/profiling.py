"""Kernels, copies and calls into CUDA while a block runs, as CUPTI records them.

CUPTI is NVIDIA's profiling library; the package cupti-python calls it. It fills buffers with records and hands the full
ones to a callback, in a thread of its own or in the one that flushes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

from gemmule.core.errors import UnsupportedError
from gemmule.executor.activity import Call, Copy, KernelRun, Profile, Range, Span

from .driver import call
from .profiling_ranges import nvtx_range
from .stopwatch import closing

_S = TypeVar("_S", bound=Span)

# Thousands of records each; CUPTI requests another when one is full.
_BUFFER_BYTES = 8 << 20
_FORCED = 1

# Names of copies as nsys writes them.
_WAYS = {"HTOD": "HtoD", "DTOH": "DtoH", "DTOD": "DtoD", "HTOH": "HtoH", "PTOP": "PtoP"}

_INSTALL = "pip install 'gemmule[profile]'"
_OTHER = (
    "another profiler is attached, and CUPTI serves one; run outside of nsys, ncu, cuda-gdb, compute-sanitizer and "
    "torch.profiler, or leave the measuring to them: --ranges-only"
)
_PRIVILEGES = (
    "the driver keeps profiling to administrators; run as root, or load it with NVreg_RestrictProfilingToAdminUsers=0 "
    "(https://developer.nvidia.com/ERR_NVGPUCTRPERM), and give a container --cap-add=SYS_ADMIN"
)
_NOT_HERE = "CUPTI does not profile this GPU as it is set up here; `gemmule bench gemm` times kernels without it"
#: Remedies of the errors that a user can meet, by CUPTI's names without ``ERROR_``.
_REMEDIES = {
    "INSUFFICIENT_PRIVILEGES": _PRIVILEGES,
    "VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": _PRIVILEGES,
    "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": _OTHER,
    "MAX_LIMIT_REACHED": _OTHER,
    "OLD_PROFILER_API_INITIALIZED": _OTHER,
    "VIRTUALIZED_DEVICE_NOT_SUPPORTED": _NOT_HERE,
    "CONFIDENTIAL_COMPUTING_NOT_SUPPORTED": _NOT_HERE,
    "CMP_DEVICE_NOT_SUPPORTED": _NOT_HERE,
    "MIG_DEVICE_NOT_SUPPORTED": _NOT_HERE,
    "SLI_DEVICE_NOT_SUPPORTED": _NOT_HERE,
    "WSL_DEVICE_NOT_SUPPORTED": _NOT_HERE,
}
# Refusals of a library that does not fit the driver.
_VERSIONS = ("NOT_INITIALIZED", "NOT_COMPATIBLE", "API_NOT_IMPLEMENTED")


class Profiling:
    """A recording in progress. Made by `profiling`."""

    def __init__(self) -> None:
        self._cupti = _module()
        kinds = self._cupti.ActivityKind
        self._readers: dict[int, Callable[[Any], None]] = {
            int(kinds.DRIVER): self._read_call,
            int(kinds.RUNTIME): self._read_call,
            int(kinds.CONCURRENT_KERNEL): self._read_kernel,
            int(kinds.MEMCPY): self._read_copy,
            int(kinds.MEMSET): self._read_copy,
        }
        self._kernels: list[KernelRun] = []
        self._copies: list[Copy] = []
        self._calls: list[Call] = []
        self._ranges: list[Range] = []
        self._lost = 0
        self._failure: Exception | None = None
        self._begin_ns = int(_cupti("get_timestamp"))

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of records that are read, as CUPTI numbers them."""
        return tuple(self._readers)

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Give the block a name, here and, where nvtx is installed, in other profilers."""
        start = int(_cupti("get_timestamp"))
        try:
            with nvtx_range(name):
                yield
        finally:
            end = int(_cupti("get_timestamp"))
            self._ranges.append(Range(name, start, end, threading.get_native_id()))

    def profile(self) -> Profile:
        """Return the recording, once the block has ended.

        Raises
        ------
        UnsupportedError
            If records could not be read.
        """
        if self._failure is not None:
            raise UnsupportedError(
                f"records of CUPTI could not be read ({self._failure}); the fields of cupti-python 13.0 to 13.4 are "
                f"known, and {cupti_version()} is installed; {_INSTALL}"
            ) from self._failure
        return Profile(
            _ordered(self._kernels), _ordered(self._copies), _ordered(self._calls), _ordered(self._ranges), self._lost
        )

    def take(self, activities: Sequence[Any]) -> None:
        """Note the records of a buffer; CUPTI gives them to be read before this returns."""
        try:
            for activity in activities:
                if read := self._readers.get(int(activity.kind)):
                    start, end = int(activity.start), int(activity.end)
                    if start == 0 or end == 0:
                        # Not ended, or without an end time from CUPTI.
                        self._lost += 1
                    elif start >= self._begin_ns:
                        # Others are left over from a block that ended in an error.
                        read(activity)
        except (AttributeError, TypeError, ValueError, UnsupportedError) as error:
            # Python would print an exception that leaves a callback and forget it.
            self._failure = error

    def take_dropped(self) -> None:
        """Note how many records CUPTI had no room for."""
        count = ctypes.c_size_t(0)
        _cupti("activity_get_num_dropped_records", 0, 0, ctypes.addressof(count))
        self._lost += count.value

    def _read_call(self, activity: Any) -> None:
        is_runtime = activity.kind == self._cupti.ActivityKind.RUNTIME
        name = _call_name(is_runtime, int(activity.cbid))
        numbers = int(activity.thread_id), int(activity.correlation_id)
        self._calls.append(Call(name, int(activity.start), int(activity.end), *numbers))

    def _read_copy(self, activity: Any) -> None:
        name = "memset"
        if activity.kind == self._cupti.ActivityKind.MEMCPY:
            way = self._cupti.ActivityMemcpyKind(activity.copy_kind).name
            name = f"memcpy {_WAYS.get(way, way)}"
        size = int(activity.bytes)
        self._copies.append(Copy(name, int(activity.start), int(activity.end), *_place(activity), size))

    def _read_kernel(self, activity: Any) -> None:
        self._kernels.append(
            KernelRun(
                str(activity.name),
                int(activity.start),
                int(activity.end),
                *_place(activity),
                grid=(int(activity.grid_x), int(activity.grid_y), int(activity.grid_z)),
                block=(int(activity.block_x), int(activity.block_y), int(activity.block_z)),
                registers=int(activity.registers_per_thread),
                shared_bytes=int(activity.static_shared_memory) + int(activity.dynamic_shared_memory),
            )
        )


@contextlib.contextmanager
def profiling() -> Iterator[Profiling]:
    """Record what happens on the GPUs and in calls into CUDA while the block runs.

    The block must wait for the work that it queues.

    Yields
    ------
    Profiling
        Names ranges meanwhile, and gives the profile afterwards.

    Raises
    ------
    UnsupportedError
        If cupti-python is not installed, or CUPTI refuses, with reason and remedy.
    """
    with contextlib.ExitStack() as stack:
        # A subscriber excludes other profilers, and is refused if one is active; no callback is enabled.
        subscriber = _cupti("subscribe", _nothing, None)
        stack.enter_context(closing(lambda: _cupti("unsubscribe", subscriber)))
        # Ranges and calls are matched by the operating system's numbers of their threads.
        _cupti("set_thread_id_type", _module().ActivityThreadIdType.SYSTEM)
        session = Profiling()
        stack.enter_context(closing(session.take_dropped))
        _cupti("activity_register_callbacks", _new_buffer, session.take)
        for kind in session.kinds:
            _cupti("activity_enable", kind)
            stack.enter_context(closing(functools.partial(_cupti, "activity_disable", kind)))
        # The last step in is the first one out: what is in the buffers comes before all else is undone.
        stack.enter_context(closing(lambda: _cupti("activity_flush_all", _FORCED)))
        yield session


def _ordered(spans: Iterable[_S]) -> tuple[_S, ...]:
    # Of two ranges with one start, the longer encloses the other.
    return tuple(sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)))


def _place(activity: Any) -> tuple[int, int, int]:
    return int(activity.device_id), int(activity.stream_id), int(activity.correlation_id)


def _nothing(*_: object) -> None:
    """Take callbacks, of which none come."""


def _new_buffer() -> tuple[int, int]:
    """Return the size of a buffer, and 0: it may hold any number of records."""
    return _BUFFER_BYTES, 0


def check_cupti() -> None:
    """Raise UnsupportedError if cupti-python is not installed, or the library that it calls does not load."""
    _cupti("get_timestamp")


def cupti_version() -> str:
    """Return the version of cupti-python."""
    return importlib.metadata.version("cupti-python")


@functools.cache
def _call_name(is_runtime: bool, number: int) -> str:
    domains = _module().CallbackDomain
    name = str(_cupti("get_callback_name", domains.RUNTIME_API if is_runtime else domains.DRIVER_API, number))
    # cudaMemcpy_v3020 is in the runtime since CUDA 3.2; cuMemcpyHtoD_v2 of the driver is another than cuMemcpyHtoD.
    head, version, digits = name.rpartition("_v")
    return head if is_runtime and version and digits.isdecimal() else name


def _module() -> ModuleType:
    try:
        return importlib.import_module("cupti.cupti")
    except ModuleNotFoundError as error:
        if error.name not in ("cupti", "cupti.cupti"):
            raise
        raise UnsupportedError(
            f"profiles come through the package cupti-python, which is not installed; {_INSTALL}"
        ) from error
    except ImportError as error:
        raise UnsupportedError(f"cupti-python is installed and does not load: {error}; {_INSTALL}") from error


def _cupti(name: str, *arguments: Any) -> Any:
    """Call a function of CUPTI; raises UnsupportedError, with the reason and the remedy, where it refuses."""
    cupti = _module()
    try:
        return getattr(cupti, name)(*arguments)
    except cupti.cuptiError as error:
        refusal = str(cupti.Result(error.status).name).removeprefix("ERROR_")
        raise UnsupportedError(f"CUPTI refuses {name} with CUPTI_ERROR_{refusal}: {_remedy(refusal)}") from error
    except RuntimeError as error:
        raise UnsupportedError(
            f"the library of CUPTI does not load ({error}); {_INSTALL} brings it (nvidia-cuda-cupti), and a CUDA "
            "toolkit has it in extras/CUPTI/lib64, to be put on LD_LIBRARY_PATH"
        ) from error


def _remedy(refusal: str) -> str:
    """Return the remedy of a refusal."""
    if refusal in _REMEDIES:
        return _REMEDIES[refusal]
    version = int(call("cuDriverGetVersion"))
    speaks = f"{version // 1000}.{version % 1000 // 10}"
    versions = f"cupti-python is {cupti_version()}, the driver speaks CUDA {speaks}"
    if refusal in _VERSIONS:
        fitting = f"'nvidia-cuda-cupti=={speaks}.*'"
        return (
            f"its version does not fit the driver ({versions}); pip install cupti-python {fitting}, or a newer driver"
        )
    return f"{versions}; `gemmule bench gemm` times kernels without it"
