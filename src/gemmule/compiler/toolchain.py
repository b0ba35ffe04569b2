"""The compiler's name and version."""

from __future__ import annotations

import functools
import importlib.util
import sys

#: The newest tested version of nvidia-cutlass-dsl, which packs are built with; pyproject.toml has the range.
TESTED = "4.8.1"
#: The remedy where PTX is needed, which the wheel of kernels lacks.
COMPILER_REMEDY = 'pip install "gemmule[compiler]" compiles it'
#: The remedies where a kernel is compiled nowhere.
REMEDY = f"{COMPILER_REMEDY}; gemmule-kernels-sm90 has kernels for Hopper GPUs"


def toolchain() -> str:
    """Return the compiler's name and version; the newest tested one if none is installed, as of packs."""
    # importlib.metadata takes longer to import than all the rest here, in the first call of a process.
    return f"nvidia-cutlass-dsl {_installed_version() if compiler_installed() else TESTED}"


@functools.cache
def _installed_version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return TESTED


@functools.cache
def compiler_installed() -> bool:
    """Return whether kernels can be compiled, without importing the compiler; determined once in a process."""
    if "cutlass" in sys.modules:
        return sys.modules["cutlass"] is not None
    return importlib.util.find_spec("cutlass") is not None
