"""The cache of compiled kernels: in this process, then on disk, then the compiler."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError
from gemmule.core.spec import Config, KernelSpec, Signature

from .artifact import Artifact
from .compile import compile_kernel
from .key import artifact_key

_SUFFIX = ".kernel"
_loaded: dict[str, Artifact] = {}


class CacheWarning(UserWarning):
    """The cache on disk could not be used; kernels are compiled again in every process."""


@dataclasses.dataclass(frozen=True)
class CacheContent:
    """What the cache on disk holds.

    Attributes
    ----------
    folder : Path
        Where it is.
    kernels : int
        Number of compiled kernels.
    bytes : int
        Their size on disk.
    """

    folder: Path
    kernels: int
    bytes: int


def cache_folder() -> Path:
    """Return the cache's folder: ``$GEMMULE_CACHE``, else ``gemmule/kernels`` in the user's cache folder."""
    chosen = os.environ.get("GEMMULE_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gemmule" / "kernels"


def artifact_for(spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> Artifact:
    """Return the compiled kernel, from the cache where it is there, compiled and cached where it is not.

    Raises
    ------
    CompilerMissingError
        If it must be compiled and the compiler is not installed.
    CompileError
        If it does not compile.
    """
    key = artifact_key(spec, config, signature, arch)
    if key not in _loaded:
        _loaded[key] = _from_disk(key) or _compiled(key, spec, config, signature, arch)
    return _loaded[key]


def _from_disk(key: str) -> Artifact | None:
    path = cache_folder() / (key + _SUFFIX)
    if not path.exists():
        return None
    try:
        return Artifact.load(path)
    except CompileError as error:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        warnings.warn(f"{error}; it was set aside as {aside}", CacheWarning, stacklevel=4)
        return None


def _compiled(key: str, spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> Artifact:
    artifact = compile_kernel(spec, config, signature, arch)
    path = cache_folder() / (key + _SUFFIX)
    try:
        artifact.save(path)
    except OSError as error:
        warnings.warn(f"compiled kernels cannot be kept in {path.parent}: {error}", CacheWarning, stacklevel=4)
    return artifact


def cache_content() -> CacheContent:
    """Count what the cache on disk holds."""
    folder = cache_folder()
    sizes = [path.stat().st_size for path in folder.glob("*" + _SUFFIX)]
    return CacheContent(folder, len(sizes), sum(sizes))


def clear_cache() -> CacheContent:
    """Remove every compiled kernel from the disk and from this process; return what was there.

    Only files that the cache made are removed.
    """
    content = cache_content()
    for pattern in ("*" + _SUFFIX, "*.damaged", "*.partial"):
        for path in content.folder.glob(pattern):
            path.unlink(missing_ok=True)
    _loaded.clear()
    return content
