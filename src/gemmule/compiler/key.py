"""The key of a compiled kernel: everything that its code depends on."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.spec import Config, KernelSpec, Signature

from .toolchain import toolchain

#: Prefix of the environment variables by which the compiler can be told to make other code.
_COMPILER_VARIABLES = "CUTE_DSL_"
#: Lines by which device code takes numbers from the core: those become a part of it.
_NUMBERS = re.compile(rb"^from (gemmule\.core\.\w+) import (?!Buildable$)", re.MULTILINE)


def artifact_key(spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> str:
    """Return the file stem under which the compiled kernel is cached.

    It changes with the sources of the kernel, of those that it is built on, of every part and of what these take from
    the core, the config, the specialisation, the architecture, the compiler's version and environment, and the code
    that drives it.
    """
    identity = [spec.name, type(config).__name__, config.as_dict(), signature, arch.name, toolchain()]
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_COMPILER_VARIABLES))
    digest = hashlib.sha256(json.dumps([identity, environment]).encode())
    for value in source_digests(spec).values():
        digest.update(value)
    return f"{spec.name}-{arch.name}-{digest.hexdigest()[:24]}"


def source_digests(spec: KernelSpec) -> dict[str, bytes]:
    """Return, for each package and module that a kernel's code comes from, a digest of its sources as they are now."""
    packages = (spec.package, *spec.built_on, "gemmule.parts", "gemmule.compiler")
    taken = sorted({module for package in packages for module in _taken_from_core(package)})
    return {name: _digest(name) for name in (*packages, *taken)}


def _taken_from_core(package: str) -> Iterator[str]:
    for source in _sources(package):
        if source.name != "spec.py":
            yield from map(bytes.decode, _NUMBERS.findall(source.read_bytes()))


def _digest(name: str) -> bytes:
    digest = hashlib.sha256()
    for source in _sources(name):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.digest()


def _sources(name: str) -> list[Path]:
    """Return the file of a module, or all of a package."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{name} is not found", name=name)
    if found.submodule_search_locations is None:
        return [Path(found.origin)]
    return [source for folder in found.submodule_search_locations for source in sorted(Path(folder).rglob("*.py"))]
