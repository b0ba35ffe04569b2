"""The compiler's name and version."""

from __future__ import annotations

import functools

#: The pinned version of nvidia-cutlass-dsl.
PINNED = "4.8.1"


@functools.cache
def toolchain() -> str:
    """Return the compiler's name and version; the pinned one if none is installed, as kernels of packs have it."""
    import importlib.metadata

    try:
        version = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        version = PINNED
    return f"nvidia-cutlass-dsl {version}"
