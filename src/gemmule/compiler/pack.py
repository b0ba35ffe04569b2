"""Packs: one file of compiled kernels for machines that have no compiler.

A pack is a zip archive, not compressed, whose members are what the cache on disk holds, under the same keys, and tables
of any kind beside them. ``pack.json`` names each with its SHA-256.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import json
import os
import threading
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from gemmule.core.arch import Arch
from gemmule.core.errors import CompileError, FileFormatError
from gemmule.core.spec import KernelSpec

from .artifact import DAMAGE, Artifact
from .key import artifact_key
from .toolchain import toolchain
from .whole_file import whole_file

#: Environment variable that names a pack for every process.
VARIABLE = "GEMMULE_PACK"
_FORMAT = 1
_MANIFEST = "pack.json"
_KERNEL, _TABLE = "kernels/{}.kernel", "tables/{}"


class _SharedFile:
    """An open file that threads, and processes after a fork, read at once; it stays the one that was opened.

    Parameters
    ----------
    path : Path
        The file; another one may take its name later.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)
        weakref.finalize(self, self.file.close)

    def reader(self) -> IO[bytes]:
        """Return a reader with a position of its own."""
        return io.BufferedReader(_Reader(self.file))


class _Reader(io.RawIOBase):
    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, 0
        self._size = os.fstat(file.fileno()).st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if place < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = place
        return place

    def readinto(self, buffer: Any) -> int:
        content = _read_at(self._file, len(buffer), self._at)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


_SEEKING = threading.Lock()


def _read_at(file: IO[bytes], size: int, place: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size, place)
    with _SEEKING:
        file.seek(place)
        return file.read(size)


@dataclasses.dataclass(frozen=True)
class Pack:
    """A pack that was opened; its members are read when they are asked for.

    Attributes
    ----------
    path : Path
        The file.
    toolchain : str
        Compiler and version that the kernels were made with.
    kernels : tuple of str
        Keys of the compiled kernels.
    tables : tuple of str
        Names of the tables.
    """

    path: Path
    toolchain: str
    kernels: tuple[str, ...]
    tables: tuple[str, ...]
    _digests: Mapping[str, str] = dataclasses.field(repr=False, compare=False)
    _file: _SharedFile = dataclasses.field(repr=False, compare=False)

    def artifact(self, key: str) -> Artifact | None:
        """Return a compiled kernel; None where the pack does not have it.

        Raises
        ------
        CompileError
            If it is damaged.
        """
        member = _KERNEL.format(key)
        if member not in self._digests:
            return None
        return Artifact.from_bytes(self._read(member), f"{member} in the pack {self.path}")

    def table(self, name: str) -> bytes | None:
        """Return a table; None where the pack does not have it.

        Raises
        ------
        CompileError
            If it is damaged.
        """
        member = _TABLE.format(name)
        return self._read(member) if member in self._digests else None

    def _read(self, member: str) -> bytes:
        try:
            with zipfile.ZipFile(self._file.reader()) as archive:
                content = archive.read(member)
        except DAMAGE as error:
            raise CompileError(
                f"the pack {self.path} is damaged: {member} cannot be read ({type(error).__name__}: {error})"
            ) from error
        if hashlib.sha256(content).hexdigest() != self._digests[member]:
            raise CompileError(f"the pack {self.path} is damaged: {member} is not what was packed")
        return content


def write_pack(path: Path, kernels: Iterable[tuple[str, bytes]], tables: Mapping[str, bytes] | None = None) -> Pack:
    """Write a pack, whole or not at all, and return it.

    Parameters
    ----------
    path : Path
        The file; one that is there is replaced.
    kernels : iterable of (str, bytes)
        Key and artifact of each, as `cached_kernels` gives them.
    tables : mapping of str to bytes, optional
        Other content by name.
    """
    members = {_KERNEL.format(key): content for key, content in sorted(kernels)}
    members |= {_TABLE.format(name): content for name, content in sorted((tables or {}).items())}
    manifest = {
        "format": _FORMAT,
        "toolchain": toolchain(),
        "members": {name: hashlib.sha256(content).hexdigest() for name, content in members.items()},
    }
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        # The same content gives the same file.
        for name, content in {_MANIFEST: json.dumps(manifest, indent=1).encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return read_pack(path)


def read_pack(path: Path) -> Pack:
    """Open a pack.

    Raises
    ------
    FileFormatError
        If it is no pack, or a damaged one.
    FileNotFoundError, PermissionError, IsADirectoryError
        If it cannot be opened.
    """
    file = _SharedFile(path)
    try:
        with zipfile.ZipFile(file.reader()) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            missing = set(manifest["members"]) - set(archive.namelist())
        version, digests, made_with = manifest["format"], dict(manifest["members"]), str(manifest["toolchain"])
    except DAMAGE as error:
        raise FileFormatError(
            f"{path} is no pack of gemmule, or is damaged ({type(error).__name__}: {error}); make it again with "
            "gemmule pack, or copy it again"
        ) from error
    if version != _FORMAT:
        raise FileFormatError(f"{path} is a pack of format {version}; this version of gemmule reads format {_FORMAT}")
    if missing:
        raise FileFormatError(f"the pack {path} lacks {', '.join(sorted(missing))}, which it names; copy it again")

    def named(pattern: str) -> tuple[str, ...]:
        before, after = pattern.split("{}")
        return tuple(x[len(before) : len(x) - len(after)] for x in digests if x.startswith(before))

    return Pack(path, made_with, named(_KERNEL), named(_TABLE), digests, file)


def cached_kernels(
    folder: Path, specs: Mapping[str, KernelSpec], arch: Arch | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield key and artifact of the cached kernels that this version of gemmule would use; damaged ones are left out.

    Parameters
    ----------
    folder : Path
        The cache's.
    specs : mapping of str to KernelSpec
        The kernels that are wanted, by name.
    arch : Arch, optional
        The architecture that is wanted; every one by default.
    """
    for path in sorted(folder.glob("*.kernel")):
        try:
            content = path.read_bytes()
            artifact = Artifact.from_bytes(content, str(path))
        except (OSError, CompileError):
            # Whoever runs the kernel is told, and it is compiled again.
            continue
        spec = specs.get(artifact.kernel)
        if spec is None or (arch is not None and artifact.arch != arch.name):
            continue
        config = next((config for config in spec.configs if config.as_dict() == artifact.config), None)
        # What was compiled from other sources has another key.
        if config and artifact_key(spec, config, artifact.signature, Arch.parse(artifact.arch)) == path.stem:
            yield path.stem, content


class _Packs:
    """The packs of this process: those that were loaded, the last one first, then the one that the variable names."""

    def __init__(self) -> None:
        self._loaded: list[Pack] = []
        self._named: dict[str, Pack] = {}
        self._lock = threading.Lock()

    def load(self, pack: Pack) -> None:
        with self._lock:
            self._loaded = [pack, *(other for other in self._loaded if other.path != pack.path)]

    def all(self) -> list[Pack]:
        name = os.environ.get(VARIABLE)
        if not name:
            return self._loaded
        with self._lock:
            if name not in self._named:
                try:
                    self._named[name] = read_pack(Path(name))
                except OSError as error:
                    raise FileFormatError(
                        f"{VARIABLE}={name!r} cannot be opened ({error.strerror}); name a pack, or unset it"
                    ) from error
            return [*self._loaded, self._named[name]]


PACKS = _Packs()
