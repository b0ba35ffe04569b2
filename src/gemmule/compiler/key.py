"""The key of a compiled kernel: everything that its code depends on."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.spec import Config, KernelSpec, Signature

from .toolchain import toolchain


def artifact_key(spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> str:
    """Return the file stem under which the compiled kernel is cached.

    It changes with the sources of the kernel and of every part, the config, the specialisation, the architecture,
    and the versions of the compiler and of the code that drives it.
    """
    identity = json.dumps([spec.name, type(config).__name__, config.as_dict(), signature, arch.name, toolchain()])
    digest = hashlib.sha256(identity.encode())
    for package in (spec.package, "gemmule.parts", "gemmule.compiler"):
        digest.update(_source_digest(package))
    return f"{spec.name}-{arch.name}-{digest.hexdigest()[:24]}"


@functools.cache
def _source_digest(package: str) -> bytes:
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"package {package} is not found", name=package)
    digest = hashlib.sha256()
    for folder in found.submodule_search_locations:
        for source in sorted(Path(folder).rglob("*.py")):
            digest.update(source.name.encode())
            digest.update(source.read_bytes())
    return digest.digest()
