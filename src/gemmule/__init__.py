"""gemmule: matrix multiplication and transpose on NVIDIA GPUs, from Python.

`matmul` multiplies by the rules of the array API standard, `gemm` by those of BLAS, with a bias and a function of each
element, which `gemmule.epilogue` has the functions for; `grouped_gemm` multiplies groups, as of a mixture of experts,
`scaled_gemm` 8-bit floats with scales, as `quantize` makes them;
`transpose` and `matrix_transpose` give transposes; `gemmule.outofcore.matmul` multiplies files and arrays that do not
fit into memory. ``matmul.plan`` says what a call would run, and why; every one of these functions has a ``plan``.
Errors are `GemmuleError` and its kinds.
`gemmule.torch` and `gemmule.jax`, which are imported by name, have the product as an operator of the framework.
"""

# First, for `python -m gemmule`: Ctrl-C while the rest is loaded.
import gemmule_command  # noqa: F401

# isort: split
import importlib
from typing import TYPE_CHECKING

from gemmule.core.errors import (
    ArgumentError,
    CompileError,
    CompilerMissingError,
    DeviceMemoryError,
    DriverError,
    DTypeError,
    FileAccessError,
    FileFormatError,
    GemmuleError,
    HostMemoryError,
    KernelFailedError,
    MemoryLimitError,
    NoKernelError,
    OverlapError,
    ShapeError,
    UnsupportedError,
    WrongResultError,
)

if TYPE_CHECKING:
    from gemmule import epilogue, outofcore
    from gemmule.api.functions import gemm, matmul, matrix_transpose, transpose
    from gemmule.api.grouped import grouped_gemm
    from gemmule.api.packs import load_pack
    from gemmule.api.planning.choice import CompileWarning
    from gemmule.api.planning.plan import Plan
    from gemmule.api.quantization import quantize
    from gemmule.api.scaled import scaled_gemm
    from gemmule.compiler.cache import CacheWarning
    from gemmule.compiler.pack import Pack, PackWarning
    from gemmule.dispatch.choices.choice_cache import clear_choices
    from gemmule.dispatch.choices.packed_choice import PackedKernelWarning
    from gemmule.dispatch.rates_file import RatesFileWarning
    from gemmule.dispatch.recording import RecordingWarning
    from gemmule.dispatch.tuned_file import TunedFileWarning
    from gemmule.outofcore.device.planner.probe_cache import ProbeCacheWarning

__version__ = "0.1.0.dev0"

__all__ = [
    "ArgumentError",
    "CacheWarning",
    "CompileError",
    "CompileWarning",
    "CompilerMissingError",
    "DTypeError",
    "DeviceMemoryError",
    "DriverError",
    "FileAccessError",
    "FileFormatError",
    "GemmuleError",
    "HostMemoryError",
    "KernelFailedError",
    "MemoryLimitError",
    "NoKernelError",
    "OverlapError",
    "Pack",
    "PackWarning",
    "PackedKernelWarning",
    "Plan",
    "ProbeCacheWarning",
    "RatesFileWarning",
    "RecordingWarning",
    "ShapeError",
    "TunedFileWarning",
    "UnsupportedError",
    "WrongResultError",
    "__version__",
    "clear_choices",
    "epilogue",
    "gemm",
    "grouped_gemm",
    "load_pack",
    "matmul",
    "matrix_transpose",
    "outofcore",
    "quantize",
    "scaled_gemm",
    "transpose",
]


#: Names by the module that has them. It is imported when one is first used: the package itself imports in milliseconds.
_LAZY = {
    "gemmule.api.functions": ("gemm", "matmul", "matrix_transpose", "transpose"),
    "gemmule.api.grouped": ("grouped_gemm",),
    "gemmule.api.packs": ("load_pack",),
    "gemmule.api.planning.choice": ("CompileWarning",),
    "gemmule.api.planning.plan": ("Plan",),
    "gemmule.api.quantization": ("quantize",),
    "gemmule.api.scaled": ("scaled_gemm",),
    "gemmule.compiler.cache": ("CacheWarning",),
    "gemmule.compiler.pack": ("Pack", "PackWarning"),
    "gemmule.dispatch.choices.choice_cache": ("clear_choices",),
    "gemmule.dispatch.choices.packed_choice": ("PackedKernelWarning",),
    "gemmule.dispatch.rates_file": ("RatesFileWarning",),
    "gemmule.dispatch.recording": ("RecordingWarning",),
    "gemmule.dispatch.tuned_file": ("TunedFileWarning",),
    "gemmule.outofcore.device.planner.probe_cache": ("ProbeCacheWarning",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}
#: Public modules, imported likewise.
_LAZY_MODULES = ("epilogue", "outofcore")
#: Public modules that are imported by name: they need a framework, or time.
_NAMED_MODULES = ("jax", "torch", "vgpu")


if not TYPE_CHECKING:
    # A type checker that saw it would accept every name.
    def __getattr__(name: str) -> object:
        """Import a public name's module, and bind the name."""
        if name in _LAZY_MODULES:
            # The import binds the name.
            return importlib.import_module(f"gemmule.{name}")
        if name not in _MODULES:
            remedy = f"; import gemmule.{name} first" if name in _NAMED_MODULES else ""
            raise AttributeError(f"module 'gemmule' has no attribute {name!r}{remedy}")
        found: object = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    # Completion shows the public names, not this module's imports.
    named = (name for name in globals() if name.startswith("__") or name in _NAMED_MODULES)
    return sorted({*named, *__all__})
