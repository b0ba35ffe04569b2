"""The cache key of a compiled kernel: a digest of everything that its code depends on."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.spec import KernelSpec, Signature

from .toolchain import compiler_installed, toolchain

#: Prefix of the environment variables that change the compiler's output.
_COMPILER_VARIABLES = "CUTE_DSL_"
#: Folder of the modules of a kernel's import closure.
_PACKAGE = Path(__file__).parents[1]
_ROOT = str(_PACKAGE)
#: Digest of a module's source, and the modules that it may import.
_Module = tuple[bytes, tuple[str, ...]]
#: An import statement, on one line or in parentheses. A pattern that begins with letters is found faster.
_IMPORT = re.compile(r"from\s+(\.*)([\w.]*)\s+import\s+(\([^)]*\)|[^\n#]+)")


def artifact_key(
    spec: KernelSpec,
    config: Config,
    signature: Signature,
    arch: Arch,
    *,
    compiler: str | None = None,
    sources: Mapping[str, bytes] | None = None,
) -> str:
    """Return the stem of the compiled kernel's file in the cache.

    It depends on every module of the kernel's import closure and of this package, the config's compiled
    fields, the signature, the architecture, and the compiler's version and environment. The present `toolchain` and
    `source_digests` are taken unless others are given.
    """
    compiler = toolchain() if compiler is None else compiler
    identity = [spec.name, type(config).__name__, config.compiled_fields(), signature, arch.name, compiler]
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_COMPILER_VARIABLES))
    digest = hashlib.sha256(json.dumps([identity, environment]).encode())
    for value in (source_digests(spec) if sources is None else sources).values():
        digest.update(value)
    return f"{spec.name}-{arch.name}-{digest.hexdigest()[:24]}"


def source_digest(spec: KernelSpec) -> str:
    """Return one digest of the current sources of a kernel's import closure."""
    digest = hashlib.sha256()
    for value in source_digests(spec).values():
        digest.update(value)
    return digest.hexdigest()


def source_digests(spec: KernelSpec) -> dict[str, bytes]:
    """Return a digest of the current source of each module in a kernel's import closure.

    The closure starts at the kernel's module and the modules of this package, and excludes other distributions.
    """
    return _closure(spec.package, _module) if compiler_installed() else _closure_once(spec.package)


def _closure(package: str, read: Callable[[str], _Module | None]) -> dict[str, bytes]:
    pending = [f"{package}.kernel", *_compiler_modules()]
    digests: dict[str, bytes] = {}
    seen: set[str] = set()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        found = read(module)
        if found is None:
            continue
        digests[module], imported = found
        pending.extend(imported)
    return dict(sorted(digests.items()))


def _module(module: str) -> _Module | None:
    """Return the digest of a module's source and what it may import; None for any other name."""
    path = _source(module)
    if path is None:
        return None
    state = os.stat(path)
    return _read(path, module, state.st_mtime_ns, state.st_size)


# A source that changed has another time or size. Reading all of them again takes milliseconds of a kernel's first call.
@functools.lru_cache(maxsize=1024)
def _read(path: str, module: str, modified_ns: int, size: int) -> _Module:
    """Return the digest of a module's source, and the modules that it may import."""
    del modified_ns, size
    content = Path(path).read_text(encoding="utf-8")
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    imported = tuple(name for name in dict.fromkeys(_imports(content, package)) if _source(name) is not None)
    return hashlib.sha256(content.encode()).digest(), imported


#: In a process that cannot compile, sources are read once: it looks up many kernels.
_module_once = functools.cache(_module)


@functools.cache
def _closure_once(package: str) -> dict[str, bytes]:
    return _closure(package, _module_once)


@functools.cache
def _compiler_modules() -> tuple[str, ...]:
    folder = Path(__file__).parent
    return tuple(f"{__package__}.{source.stem}" for source in sorted(folder.glob("*.py")))


def _imports(content: str, package: str) -> tuple[str, ...]:
    """Return the modules that a source may import; a name after `import` may be a module, unless its base is a file."""
    found: list[str] = []
    end = 0
    while statement := _IMPORT.search(content, end):
        begin = statement.start()
        if content[content.rfind("\n", 0, begin) + 1 : begin].strip():
            # What follows a word of a comment or text may be a statement.
            end = begin + 1
            continue
        end = statement.end()
        dots, module, names = statement.groups()
        parents = package.split(".")[: package.count(".") + 2 - len(dots)] if dots else []
        base = ".".join([*parents, *([module] if module else [])])
        found.append(base)
        file = _source(base)
        if file is None or file.endswith("__init__.py"):
            found += [f"{base}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip()]
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _source(module: str) -> str | None:
    """Return the file of a module of gemmule, without importing it; None for any other name."""
    if module.partition(".")[0] != _PACKAGE.name:
        return None
    # Hundreds of names are looked up, most of which are no modules: paths are strings.
    stem = _stem(module)
    return next((file for file in (stem + ".py", os.path.join(stem, "__init__.py")) if os.path.isfile(file)), None)


def _stem(module: str) -> str:
    """Return the path of a module of gemmule without its suffix."""
    return os.path.join(_ROOT, *module.split(".")[1:])
