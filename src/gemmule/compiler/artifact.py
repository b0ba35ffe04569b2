"""A compiled kernel: code, parameter list and resource usage, in one file."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import os
import tempfile
import zipfile
import zlib
from pathlib import Path

from gemmule.core.errors import CompileError
from gemmule.core.launch import Launch
from gemmule.core.spec import Signature

from .resources import Resources
from .signature import ParamSlot

# What reading a damaged archive raises, from memory; the standard library documents no common base. A flipped bit in
# the method of compression leads to bzip2 (OSError) and LZMA.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, NotImplementedError, RuntimeError, KeyError,
           TypeError, ValueError, EOFError)  # fmt: skip
_META, _PTX, _CUBIN = "artifact.json", "kernel.ptx", "kernel.cubin"


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A kernel compiled for one architecture; it runs without the compiler.

    Attributes
    ----------
    kernel : str
        Name of the KernelSpec.
    config : dict
        Fields of the config that it was compiled with.
    signature : Signature
        What it is specialised for.
    arch : str
        Architecture, e.g. ``sm_90a``.
    entry : str
        Name of the function in the cubin.
    params : tuple of ParamSlot
        Its parameters in order.
    resources : Resources
        Registers, stack, spills and shared memory.
    ptx : str
        The PTX text.
    cubin : bytes
        The machine code.
    toolchain : str
        Compiler and version.
    """

    kernel: str
    config: dict[str, int]
    signature: Signature
    arch: str
    entry: str
    params: tuple[ParamSlot, ...]
    resources: Resources
    ptx: str
    cubin: bytes
    toolchain: str

    def check_launch(self, launch: Launch) -> None:
        """Hold a launch recipe against the kernel's parameter list.

        Raises
        ------
        CompileError
            If number, size or alignment of the parameters differ.
        """
        recipe = tuple(ParamSlot(param.size, param.alignment) for param in launch.params)
        if recipe != self.params:
            raise CompileError(
                f"the launch recipe of {self.kernel} gives parameters (size, alignment) "
                f"{[(slot.size, slot.alignment) for slot in recipe]}, but its PTX takes "
                f"{[(slot.size, slot.alignment) for slot in self.params]}"
            )

    def save(self, path: Path) -> None:
        """Write the artifact to `path`: whole or not at all."""
        fields = dataclasses.asdict(self)
        ptx, cubin = fields.pop("ptx"), fields.pop("cubin")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
        try:
            with os.fdopen(descriptor, "wb") as file:
                with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                    archive.writestr(_META, json.dumps(fields, indent=1))
                    archive.writestr(_PTX, ptx)
                    archive.writestr(_CUBIN, cubin)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(partial, 0o666 & ~_umask())
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Artifact:
        """Read an artifact.

        Raises
        ------
        CompileError
            If the file is damaged.
        """
        content = path.read_bytes()
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                fields = json.loads(archive.read(_META))
                ptx, cubin = archive.read(_PTX).decode(), archive.read(_CUBIN)
            fields["signature"] = tuple((name, value) for name, value in fields["signature"])
            fields["params"] = tuple(ParamSlot(**slot) for slot in fields["params"])
            fields["resources"] = Resources(**fields["resources"])
            return cls(ptx=ptx, cubin=cubin, **fields)
        except _DAMAGE as error:
            raise CompileError(f"the cached kernel {path} is damaged ({type(error).__name__}: {error})") from error
