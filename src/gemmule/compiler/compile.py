"""From a kernel's Python to PTX and machine code, with no GPU present."""

from __future__ import annotations

import re
import tempfile
import threading
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError, CompilerMissingError
from gemmule.core.spec import Config, KernelSpec, Signature

from .artifact import Artifact
from .resources import read_resources
from .signature import read_entry
from .toolchain import PINNED, toolchain

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# The compiler keeps state of its own and is not thread-safe.
_LOCK = threading.Lock()


def compile_kernel(spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> Artifact:
    """Compile a kernel for an architecture. About half a second, after a second for the compiler's import.

    Raises
    ------
    CompilerMissingError
        If nvidia-cutlass-dsl is not installed.
    CompileError
        If the kernel does not compile.
    """
    try:
        from cutlass import cute
        from cutlass.base_dsl.common import DSLBaseError
        from cutlass.base_dsl.compiler import DumpDir
    except ImportError as error:
        raise CompilerMissingError(
            f"kernel {spec.name} for {arch} is not in the cache, and the kernel compiler is not installed; "
            f"run: pip install nvidia-cutlass-dsl=={PINNED}"
        ) from error

    with _LOCK, tempfile.TemporaryDirectory() as folder:
        buildable = spec.build(config, signature)
        kernel_class: Any = type(buildable.function)
        kernel_class.kernel.set_name_prefix(spec.name, remove_cutlass_symbol=True, keep_mangled_name=False)
        options = (
            cute.KeepPTX(),
            cute.KeepCUBIN(),
            cute.GenerateLineInfo(),
            cute.GPUArch(arch.name),
            DumpDir(folder),
        )
        what = f"kernel {spec.name} ({config}; {dict(signature)}) for {arch}"
        try:
            compiled = cute.compile[options](buildable.function, *buildable.arguments)
        except DSLBaseError as error:
            raise CompileError(f"{what}: {_COLOURS.sub('', str(error)).strip()}") from error
        if compiled is None or not compiled.__ptx__ or not compiled.__cubin__:
            raise CompileError(f"{what}: the compiler gave no code; is one of its CUTE_DSL_ variables set?")
        ptx, cubin = compiled.__ptx__, compiled.__cubin__
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
