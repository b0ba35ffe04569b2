"""Packs: one file of compiled kernels for machines that have no compiler.

A pack is an uncompressed zip archive of files of the disk cache, under the same keys, and of tables. ``pack.json`` has
the SHA-256 of each member.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError, CompileError, FileFormatError
from gemmule.core.spec import KernelSpec
from gemmule.files.file_errors import errors_name
from gemmule.files.regular_file import check_regular, check_replaceable

from ..files.atomic_file import atomic_write
from .artifact import DAMAGE, Artifact
from .key import artifact_key
from .shared_file import SharedFile
from .toolchain import toolchain

#: Environment variable that names a pack for every process.
VARIABLE = "GEMMULE_PACK"
_FORMAT = 1
_MANIFEST = "pack.json"
#: Remedy for a damaged pack.
_AGAIN = "make it again with gemmule pack, or copy it again"
_KERNEL, _TABLE = "kernels/{}.kernel", "tables/{}"


@dataclasses.dataclass(frozen=True)
class Pack:
    """An open pack; members are read on demand.

    Attributes
    ----------
    path : Path
        The file.
    toolchain : str
        Compiler and version of the kernels.
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
    _file: SharedFile = dataclasses.field(repr=False, compare=False)

    def artifact(self, key: str) -> Artifact | None:
        """Return a compiled kernel, or None if the pack lacks it.

        Raises
        ------
        CompileError
            If it is damaged.
        """
        member = _KERNEL.format(key)
        if member not in self._digests:
            return None
        content = self._read(member)
        try:
            return Artifact.from_bytes(content, f"{member} in the pack {self.path}")
        except CompileError as error:
            raise CompileError(f"{error}; {_AGAIN}") from error

    def table(self, name: str) -> bytes | None:
        """Return a table, or None if the pack lacks it.

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
                f"the pack {self.path} is damaged: {member} cannot be read ({type(error).__name__}: {error}); {_AGAIN}"
            ) from error
        if hashlib.sha256(content).hexdigest() != self._digests[member]:
            raise CompileError(f"the pack {self.path} is damaged: {member} has another digest; {_AGAIN}")
        return content


def write_pack(path: Path, kernels: Iterable[tuple[str, bytes]], tables: Mapping[str, bytes] | None = None) -> Pack:
    """Write a pack atomically, and return it.

    Parameters
    ----------
    path : Path
        The file; an existing one is replaced.
    kernels : iterable of (str, bytes)
        Key and artifact of each, as of `cached_kernels`.
    tables : mapping of str to bytes, optional
        Other content by name.

    Raises
    ------
    ArgumentError
        If `path` exists and is no regular file.
    FileAccessError
        If it cannot be written.
    """
    check_replaceable(path)
    members = {_KERNEL.format(key): content for key, content in sorted(kernels)}
    members |= {_TABLE.format(name): content for name, content in sorted((tables or {}).items())}
    manifest = {
        "format": _FORMAT,
        "toolchain": toolchain(),
        "members": {name: hashlib.sha256(content).hexdigest() for name, content in members.items()},
    }
    with (
        errors_name(str(path), written=True),
        atomic_write(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        # Without time stamps: equal content has equal bytes.
        for name, content in {_MANIFEST: json.dumps(manifest, indent=1).encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return read_pack(path)


def read_pack(path: Path) -> Pack:
    """Open a pack.

    Raises
    ------
    FileFormatError
        If it is no pack, damaged, or no regular file.
    FileNotFoundError, PermissionError
        If it cannot be opened.
    """
    check_regular(path, "a pack")
    file = SharedFile(path)
    try:
        with zipfile.ZipFile(file.reader()) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            missing = set(manifest["members"]) - set(archive.namelist())
        version, digests, made_with = manifest["format"], dict(manifest["members"]), str(manifest["toolchain"])
    except DAMAGE as error:
        raise FileFormatError(
            f"{path} is no pack of gemmule, or is damaged ({type(error).__name__}: {error}); {_AGAIN}"
        ) from error
    if version != _FORMAT:
        raise FileFormatError(
            f"{path} is a pack of format {version!r}; this version of gemmule reads format {_FORMAT}; make it again "
            "with this version, or install the one that wrote it"
        )
    if missing:
        raise FileFormatError(f"the pack {path} lacks {', '.join(sorted(missing))} of its list; {_AGAIN}")

    def named(pattern: str) -> tuple[str, ...]:
        before, after = pattern.split("{}")
        return tuple(x[len(before) : len(x) - len(after)] for x in digests if x.startswith(before))

    return Pack(path, made_with, named(_KERNEL), named(_TABLE), digests, file)


def cached_kernels(
    folder: Path, specs: Mapping[str, KernelSpec], arch: Arch | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield key and artifact of the cached kernels of this version of gemmule; damaged ones are skipped.

    Parameters
    ----------
    folder : Path
        Folder of the cache.
    specs : mapping of str to KernelSpec
        The kernels to include, by name.
    arch : Arch, optional
        The architecture to include; every one by default.
    """
    for path in sorted(folder.glob("*.kernel")):
        if not path.is_file():
            continue
        try:
            content = path.read_bytes()
            artifact = Artifact.from_bytes(content, str(path))
        except (OSError, CompileError):
            # A run of the kernel warns, and compiles it again.
            continue
        spec = specs.get(artifact.kernel)
        if spec is None or (arch is not None and artifact.arch != arch.name):
            continue
        try:
            # Tuned configs need not be among the spec's.
            config = type(spec.default)(**artifact.config)
        except (ArgumentError, ArithmeticError, TypeError):
            continue
        # Kernels of other sources have another key.
        if artifact_key(spec, config, artifact.signature, Arch.parse(artifact.arch)) == path.stem:
            yield path.stem, content


class Packs:
    """The packs of this process: loaded ones, the last first, then the one of the environment variable."""

    def __init__(self) -> None:
        self._loaded: list[Pack] = []
        self._named: dict[str, Pack] = {}
        self._lock = threading.Lock()

    def load(self, pack: Pack) -> None:
        with self._lock:
            self._loaded = [pack, *(other for other in self._loaded if other.path != pack.path)]

    def unload(self) -> None:
        """Drop every pack of this process."""
        with self._lock:
            self._loaded = []
            self._named.clear()

    def all(self) -> list[Pack]:
        named = self.named()
        return self._loaded if named is None else [*self._loaded, named]

    def named(self) -> Pack | None:
        """Return the pack of the environment variable, if set."""
        name = os.environ.get(VARIABLE)
        if not name:
            return None
        with self._lock:
            if name not in self._named:
                try:
                    self._named[name] = read_pack(Path(name))
                except OSError as error:
                    raise FileFormatError(
                        f"{VARIABLE}={name!r} cannot be opened ({error.strerror}); name a pack, or unset it"
                    ) from error
            return self._named[name]


PACKS = Packs()
