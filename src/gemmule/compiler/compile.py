"""Compilation of a kernel to PTX and cubin, without a GPU."""

from __future__ import annotations

import re
import tempfile
import threading
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.errors import CompilerMissingError, KernelFailedError
from gemmule.core.spec import Buildable, KernelSpec, Signature

from .artifact import Artifact
from .resources import read_resources
from .signature import read_entry
from .source_places import remembered_places
from .toolchain import COMPILER_REMEDY, REMEDY, toolchain

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# The compiler has global state and is not thread-safe.
COMPILER_LOCK = threading.Lock()


def compile_kernel(
    spec: KernelSpec, config: Config, signature: Signature, arch: Arch, *, line_info: bool = True
) -> Artifact:
    """Compile a kernel for an architecture, in about 0.5 s after 1 s for the compiler's import.

    Line information names the files of the sources, wherever they are on this machine; the instructions are the same
    without it.

    Raises
    ------
    CompilerMissingError
        If nvidia-cutlass-dsl is not installed.
    KernelFailedError
        If the kernel does not compile.
    """
    what = f"kernel {spec.name} ({config}; {dict(signature)}) for {arch}"
    with COMPILER_LOCK:
        _check_installed(f"kernel {spec.name} for {arch} is not in the cache, and", REMEDY)
        buildable = spec.build(config, signature)
        kernel_class: Any = type(buildable.function)
        kernel_class.kernel.set_name_prefix(spec.name, remove_cutlass_symbol=True, keep_mangled_name=False)
        ptx, cubin = _code(buildable, arch, what, line_info)
    entry, params = read_entry(ptx)
    return Artifact(
        kernel=spec.name,
        config=config.as_dict(),
        signature=signature,
        arch=arch.name,
        entry=entry,
        params=params,
        resources=read_resources(cubin, ptx, entry),
        ptx=ptx,
        cubin=cubin,
        toolchain=toolchain(),
    )


def compile_ptx(buildable: Buildable, arch: Arch) -> str:
    """Compile a ``@cute.jit`` callable that launches one kernel, and return its PTX.

    Raises
    ------
    CompilerMissingError
        If nvidia-cutlass-dsl is not installed.
    KernelFailedError
        If it does not compile.
    """
    with COMPILER_LOCK:
        _check_installed("a CuTe kernel is to be compiled, and", COMPILER_REMEDY)
        ptx, _ = _code(
            buildable, arch, f"{getattr(buildable.function, '__name__', buildable.function)} for {arch}", True
        )
    return ptx


def _check_installed(why: str, remedy: str) -> None:
    try:
        import cutlass  # noqa: F401
    except ImportError as error:
        raise CompilerMissingError(f"{why} the kernel compiler is not installed; {remedy}") from error


def _code(buildable: Buildable, arch: Arch, what: str, line_info: bool) -> tuple[str, bytes]:
    """Return PTX and cubin."""
    from cutlass import cute
    from cutlass.base_dsl.common import DSLBaseError
    from cutlass.base_dsl.compiler import DumpDir

    with tempfile.TemporaryDirectory() as folder:
        options = (
            cute.KeepPTX(),
            cute.KeepCUBIN(),
            cute.GenerateLineInfo(line_info),
            cute.GPUArch(arch.name),
            DumpDir(folder),
        )
        try:
            with remembered_places():
                compiled = cute.compile[options](buildable.function, *buildable.arguments)
        except DSLBaseError as error:
            raise KernelFailedError(f"{what}: {_COLOURS.sub('', str(error)).strip()}") from error
        if compiled is None or not compiled.__ptx__ or not compiled.__cubin__:
            raise KernelFailedError(f"{what}: the compiler returned no code; is one of its CUTE_DSL_ variables set?")
        return compiled.__ptx__, compiled.__cubin__
