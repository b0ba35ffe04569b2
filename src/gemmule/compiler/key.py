"""The key of a compiled kernel: everything that its code depends on."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.spec import Config, KernelSpec, Signature

from .toolchain import toolchain

#: Prefix of the environment variables by which the compiler can be told to make other code.
_COMPILER_VARIABLES = "CUTE_DSL_"


def artifact_key(spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> str:
    """Return the file stem under which the compiled kernel is cached.

    It changes with the sources of the kernel, of those that it is built on and of every part, the config, the
    specialisation, the architecture, the compiler's version and environment, and the code that drives it.
    """
    identity = [spec.name, type(config).__name__, config.as_dict(), signature, arch.name, toolchain()]
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_COMPILER_VARIABLES))
    digest = hashlib.sha256(json.dumps([identity, environment]).encode())
    for value in source_digests(spec).values():
        digest.update(value)
    return f"{spec.name}-{arch.name}-{digest.hexdigest()[:24]}"


def source_digests(spec: KernelSpec) -> dict[str, bytes]:
    """Return, for each package that a kernel's code comes from, a digest of the sources as they are on disk now."""
    packages = (spec.package, *spec.built_on, "gemmule.parts", "gemmule.compiler")
    return {package: _digest(package) for package in packages}


def _digest(package: str) -> bytes:
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"package {package} is not found", name=package)
    digest = hashlib.sha256()
    for folder in found.submodule_search_locations:
        for source in sorted(Path(folder).rglob("*.py")):
            digest.update(source.name.encode())
            digest.update(source.read_bytes())
    return digest.digest()
