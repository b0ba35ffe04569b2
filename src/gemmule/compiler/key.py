"""The key of a compiled kernel: everything that its code depends on."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.spec import Config, KernelSpec, Signature

from .toolchain import toolchain

#: Prefix of the environment variables by which the compiler can be told to make other code.
_COMPILER_VARIABLES = "CUTE_DSL_"
#: The folder whose modules a kernel's code is made of.
_PACKAGE = Path(__file__).parents[1]
#: An import of modules or of what they define, on one line or within parentheses.
_IMPORT = re.compile(r"^\s*from\s+(\.*)([\w.]*)\s+import\s+(\([^)]*\)|[^\n#]+)", re.MULTILINE)


def artifact_key(spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> str:
    """Return the file stem under which the compiled kernel is cached.

    It changes with every module that the kernel's code imports, directly or through others, the config, the
    specialisation, the architecture, the compiler's version and environment, and the code that drives it.
    """
    identity = [spec.name, type(config).__name__, config.as_dict(), signature, arch.name, toolchain()]
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_COMPILER_VARIABLES))
    digest = hashlib.sha256(json.dumps([identity, environment]).encode())
    for value in source_digests(spec).values():
        digest.update(value)
    return f"{spec.name}-{arch.name}-{digest.hexdigest()[:24]}"


def source_digests(spec: KernelSpec) -> dict[str, bytes]:
    """Return a digest of the source, as it is now, of each module in the import closure of a kernel's code.

    The closure begins at the kernel's module and at the modules of the package that compiles it, and leaves out other
    packages.
    """
    pending = [f"{spec.package}.kernel", *_compiler_modules()]
    digests: dict[str, bytes] = {}
    while pending:
        module = pending.pop()
        if module in digests:
            continue
        path = _source(module)
        if path is None:
            continue
        content = path.read_text(encoding="utf-8")
        digests[module] = hashlib.sha256(content.encode()).digest()
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        pending.extend(_imports(content, package))
    return dict(sorted(digests.items()))


@functools.cache
def _compiler_modules() -> tuple[str, ...]:
    folder = Path(__file__).parent
    return tuple(f"{__package__}.{source.stem}" for source in sorted(folder.glob("*.py")))


@functools.lru_cache(maxsize=512)
def _imports(content: str, package: str) -> tuple[str, ...]:
    """Return the modules that a source may import: a name after `import` may be a module's or one that it defines."""
    found = []
    for dots, module, names in _IMPORT.findall(content):
        parents = package.split(".")[: package.count(".") + 2 - len(dots)] if dots else []
        base = ".".join([*parents, *([module] if module else [])])
        found += [base, *(f"{base}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip())]
    return tuple(found)


def _source(module: str) -> Path | None:
    """Return the file of one of gemmule's modules; None for any other name. Nothing is imported."""
    own, *names = module.split(".")
    if own != _PACKAGE.name:
        return None
    path = _PACKAGE.joinpath(*names)
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)
