"""The virtual GPU: runs compiled kernels on the CPU, checks them for races, and counts what the hardware would do."""

from gemmule.core.launch import BytesParam, Launch, ScalarParam, TensorMapParam, TensorParam

from .counts import Counter, Counts
from .cute_run import run
from .engine.observer import Observer
from .launcher import Options, launch
from .ptx.errors import PtxError
from .report import CheckError, DeadlockError, FaultError, Finding, VirtualGpuError
from .triton_run import run_triton

__all__ = [
    "BytesParam",
    "CheckError",
    "Counter",
    "Counts",
    "DeadlockError",
    "FaultError",
    "Finding",
    "Launch",
    "Observer",
    "Options",
    "PtxError",
    "ScalarParam",
    "TensorMapParam",
    "TensorParam",
    "VirtualGpuError",
    "launch",
    "run",
    "run_triton",
]
