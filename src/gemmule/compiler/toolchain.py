"""The compiler's name and version, known even where it is not installed."""

from __future__ import annotations

import functools

#: The version of nvidia-cutlass-dsl that the project is pinned to.
PINNED = "4.8.1"


@functools.cache
def toolchain() -> str:
    """Return the compiler's name and version; the pinned one where none is installed.

    A machine without the compiler runs the kernels that another one cached with the pinned version.
    """
    import importlib.metadata

    try:
        version = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        version = PINNED
    return f"nvidia-cutlass-dsl {version}"
