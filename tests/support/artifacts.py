"""Stand-ins for compiled kernels."""

from __future__ import annotations

from gemmule.compiler import cache
from gemmule.compiler.artifact import Artifact
from gemmule.compiler.cache import KernelCache
from gemmule.compiler.pack import PACKS
from gemmule.compiler.resources import Resources
from gemmule.compiler.signature import ParamSlot

_CODE = bytes(range(256)) * 8


def made(spec, config, signature, arch, mark="compiled"):
    """Return what stands in for a compiled kernel; `mark` tells where it was found."""
    return Artifact(
        kernel=spec.name,
        config=config.as_dict(),
        signature=signature,
        arch=arch.name,
        entry="kernel",
        params=(ParamSlot(8, 8),),
        resources=Resources(32, 0, 0, 1024),
        ptx=f"// {mark}",
        cubin=_CODE + mark.encode(),
        toolchain="none",
    )


def mark_of(artifact):
    """Return the mark, which is in the machine code too: packs of wheels have no PTX."""
    return artifact.cubin.removeprefix(_CODE).decode()


def compile_by(monkeypatch, compiler):
    """Let the cache of this process be another one, which compiles by `compiler`."""
    monkeypatch.setattr(cache, "KERNELS", KernelCache(PACKS, compiler))


def compiler_is_installed(monkeypatch, there):
    """Let whoever asks be told whether the compiler is installed."""
    for module in ("compiler.toolchain", "compiler.key", "dispatch.select", "dispatch.grouped"):
        monkeypatch.setattr(f"gemmule.{module}.compiler_installed", lambda: there)
