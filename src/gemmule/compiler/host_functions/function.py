"""Compiled ``@cute.jit`` functions: their kernels' PTX, their host part as IR, and the arguments of that."""

from __future__ import annotations

import ctypes
import re
import tempfile
import traceback
from pathlib import Path
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError, CompilerMissingError, KernelFailedError, UnsupportedError

from ..compile import COMPILER_LOCK
from ..toolchain import COMPILER_REMEDY
from .arguments import CuteArguments
from .shared_tiles import SharedTiles

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CODE, _TYPE = re.compile(r"^error\[\w+\]: "), re.compile(r"<class '(?:\w+\.)*(\w+)'>")
#: The compiler's codes of errors for what is no function with launches.
_NO_HOST_FUNCTION = ("CALL_MISSING_JIT_DECORATOR", "CALL_KERNEL_TARGET", "CALL_UNSUPPORTED_CALLABLE_TYPE")


class CuteFunction:
    """A ``@cute.jit`` function, compiled for arguments.

    Parameters
    ----------
    function : callable
        The function, or an object whose ``__call__`` is one.
    arch : Arch
        Architecture to compile for.

    Attributes
    ----------
    ptx : str
        PTX of its kernels.
    module : cutlass._mlir.ir.Module
        Its host part in MLIR's LLVM dialect.
    name : str
        Name of the host function in `module`.
    arguments : list of (str, int)
        Type and address of each argument's bytes, which live as long as this object.
    tiles : SharedTiles
        Names in the kernels' shared memory.

    Raises
    ------
    CompilerMissingError
        If nvidia-cutlass-dsl is not installed.
    ArgumentError
        If it is no ``@cute.jit`` function, or takes arguments of other types.
    KernelFailedError
        If it does not compile.
    """

    def __init__(self, function: Any, arguments: CuteArguments, arch: Arch) -> None:
        from cutlass import cute
        from cutlass.base_dsl.common import DSLBaseError
        from cutlass.base_dsl.compiler import DumpDir

        self._arguments = arguments
        self.tiles = SharedTiles()
        name = getattr(function, "__name__", type(function).__name__)
        with COMPILER_LOCK, tempfile.TemporaryDirectory() as folder, arguments.on_gpu(), self.tiles.recorded():
            options = (
                cute.KeepPTX(),
                cute.KeepCUBIN(),
                cute.GenerateLineInfo(True),
                cute.GPUArch(arch.name),
                DumpDir(folder),
            )
            try:
                self._compiled = cute.compile[options](function, *arguments.args, **arguments.kwargs)
            except DSLBaseError as error:
                text = _COLOURS.sub("", str(error)).strip()
                if any(code in text for code in _NO_HOST_FUNCTION):
                    raise ArgumentError(
                        f"{name} is not a @cute.jit function; pass the one that launches the kernel"
                    ) from error
                if __file__ in text:
                    # The place is the call above: the arguments are meant.
                    raise ArgumentError(f"{name}: {_first_line(text)}") from error
                raise KernelFailedError(f"{name} for {arch}: {text}{_remedy(arguments)}") from error
            except (TypeError, ValueError) as error:
                raise KernelFailedError(f"{name} for {arch}: {_place(error)}{error}{_remedy(arguments)}") from error
            if self._compiled is None or not self._compiled.__ptx__ or self._compiled.ir_module is None:
                raise KernelFailedError(
                    f"{name}: the compiler returned no code; is one of its CUTE_DSL_ variables set?"
                )
            execution = self._compiled.execution_args
            runtime = execution.get_rectified_args_from_original_args(
                _bound(function, arguments.args), arguments.kwargs
            )
            pointers, adapted = execution.generate_execution_args(runtime, {})
        # Pointers own what they point to.
        self._alive = pointers, adapted, runtime
        self.ptx: str = self._compiled.__ptx__
        self.module: Any = self._compiled.ir_module
        self.name: str = self._compiled.function_name
        kinds = [str(argument.type) for argument in _entry(self.module, self.name).arguments]
        if len(pointers) != len(kinds):
            raise UnsupportedError(f"{name} has {len(pointers)} arguments, and its host code takes {len(kinds)}")
        self.arguments = [(kind, _address(pointer)) for kind, pointer in zip(kinds, pointers, strict=True)]


def _remedy(arguments: CuteArguments) -> str:
    """Return what to pass instead of None, which a function that does not test for it fails with."""
    names = " and ".join(f"{name}=None" for name in arguments.absent)
    return f"; {names} may be why: pass arrays or numbers" if names else ""


def is_host_function(function: Any) -> bool:
    """Say whether an object is a ``@cute.jit`` function, or a class or an object whose ``__call__`` is one."""
    calls = (function, getattr(function, "__call__", None))  # noqa: B004
    return any(getattr(call, "_decorator_kind", None) == "jit" for call in calls)


def check_compiler() -> None:
    """Raise an error if the kernel compiler is not installed.

    Raises
    ------
    CompilerMissingError
        With the command that installs it.
    """
    try:
        import cutlass  # noqa: F401
    except ImportError as error:
        raise CompilerMissingError(
            f"a CuTe kernel is to be compiled, and the compiler is not installed; {COMPILER_REMEDY}"
        ) from error


def _first_line(text: str) -> str:
    """Return the message of a compiler error, without its code and with types by their names."""
    return _TYPE.sub(r"\1", _CODE.sub("", text.partition("\n")[0]))


def _bound(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return positional arguments with the object that a method or a callable object is called on."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return (owner, *args)
    return args if hasattr(function, "__code__") or hasattr(function, "__wrapped__") else (function, *args)


def _place(error: Exception) -> str:
    """Return the last line outside the DSL from which an error came while a function was traced."""
    import cutlass

    ours, theirs = Path(__file__), Path(cutlass.__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) != ours and theirs not in Path(frame.filename).parents
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno} `{frames[-1].line}`: " if frames else ""


def _entry(module: Any, name: str) -> Any:
    """Return the first block of the host function."""
    for op in module.body.operations:
        found = op.operation
        if found.name == "llvm.func" and found.attributes["sym_name"].value == name:
            return found.regions[0].blocks[0]
    raise UnsupportedError(f"the compiled module has no function {name}")


def _address(pointer: Any) -> int:
    return pointer if isinstance(pointer, int) else ctypes.cast(pointer, ctypes.c_void_p).value or 0
