"""A compiled kernel: code, parameter list and resource usage, in one file."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import zipfile
import zlib
from pathlib import Path

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import CompileError
from gemmule.core.launch import Launch
from gemmule.core.spec import Signature

from ..files.atomic_file import atomic_write
from .resources import Resources
from .signature import ParamSlot

# Exceptions from damaged archives in memory, which have no documented common base. A flipped bit in the method of
# compression leads to bzip2 (OSError) and LZMA.
DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, NotImplementedError, RuntimeError, KeyError,
          TypeError, ValueError, EOFError)  # fmt: skip
_META, _PTX, _CUBIN = "artifact.json", "kernel.ptx", "kernel.cubin"
_LACKS_PTX = "lacks_ptx"


@dataclass(frozen=True)
class Artifact:
    """A kernel compiled for one architecture; it runs without the compiler."""

    kernel: str  #: Name of the KernelSpec.
    config: dict[str, int]  #: Fields of the config.
    signature: Signature  #: The specialisation.
    arch: str  #: Architecture, e.g. ``sm_90a``.
    entry: str  #: Name of the function in the cubin.
    params: tuple[ParamSlot, ...]  #: Its parameters in order.
    resources: Resources  #: Registers, stack, spills and shared memory.
    ptx: str  #: The PTX text, which only the virtual GPU reads; empty where a pack leaves it out.
    cubin: bytes  #: The machine code.
    toolchain: str  #: Compiler and version.

    def check_launch(self, launch: Launch) -> None:
        """Check a launch recipe against the kernel's parameter list.

        Raises
        ------
        CompileError
            If number, size or alignment of the parameters differ.
        """
        recipe = tuple(ParamSlot(param.size, param.alignment) for param in launch.params)
        if recipe != self.params:
            raise CompileError(
                f"the launch recipe of {self.kernel} has parameters (size, alignment) "
                f"{[(slot.size, slot.alignment) for slot in recipe]}, but its PTX has "
                f"{[(slot.size, slot.alignment) for slot in self.params]}"
            )

    def save(self, path: Path) -> None:
        """Write the artifact to `path` atomically."""
        with atomic_write(path) as file:
            file.write(self.as_bytes())

    def without_ptx(self) -> Artifact:
        """Return the kernel without its PTX, more than half of the compressed bytes."""
        return dataclasses.replace(self, ptx="")

    def as_bytes(self, *, compressed: bool = True) -> bytes:
        """Return the bytes of the artifact's file; not compressed for a pack that compresses its members as a whole."""
        method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        fields = dataclasses.asdict(self)
        ptx, cubin = fields.pop("ptx"), fields.pop("cubin")
        if not ptx:
            # Stated, as a member whose name is damaged would look the same.
            fields[_LACKS_PTX] = True
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", method) as archive:
            for name, part in ((_META, json.dumps(fields, indent=1)), (_PTX, ptx), (_CUBIN, cubin)):
                # Without a time stamp: equal artifacts have equal bytes.
                if part:
                    archive.writestr(zipfile.ZipInfo(name), part, method)
        return content.getvalue()

    @classmethod
    def load(cls, path: Path) -> Artifact:
        """Read an artifact.

        Raises
        ------
        CompileError
            If the file is damaged.
        """
        return cls.from_bytes(path.read_bytes(), f"the cached kernel {path}")

    @classmethod
    def from_bytes(cls, content: bytes, what: str) -> Artifact:
        """Read an artifact from the bytes of its file.

        Raises
        ------
        CompileError
            If it is damaged; the message begins with `what`.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                fields = dict(json.loads(archive.read(_META)))
                ptx = "" if fields.pop(_LACKS_PTX, False) else archive.read(_PTX).decode()
                cubin = archive.read(_CUBIN)
            fields["signature"] = tuple((name, value) for name, value in fields["signature"])
            fields["params"] = tuple(ParamSlot(**slot) for slot in fields["params"])
            fields["resources"] = Resources(**fields["resources"])
            return cls(ptx=ptx, cubin=cubin, **fields)
        except DAMAGE as error:
            raise CompileError(f"{what} is damaged ({type(error).__name__}: {error})") from error
