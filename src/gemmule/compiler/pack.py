"""Packs: one file of compiled kernels for machines that have no compiler.

A pack is an uncompressed zip archive of files of the disk cache, under the same keys, and of tables; in a wheel, some
files that are alike are compressed together, as a block, and lack their PTX. ``pack.json`` has the SHA-256 of each
member. The packs of installed distributions are found by the names of their packages, and checked against the sources
of this version of gemmule.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import itertools
import json
import lzma
import os
import struct
import threading
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import CompileError, FileFormatError
from gemmule.core.spec import KernelSpec
from gemmule.files.regular_file import check_regular, check_replaceable

from ..files.atomic_file import atomic_write
from .artifact import DAMAGE, Artifact
from .key import source_digest
from .shared_file import SharedFile
from .toolchain import toolchain
from .zip_directory import Directory

#: Environment variable that names a pack for every process.
VARIABLE = "GEMMULE_PACK"
#: Packages whose file `kernels.pack` is found without a name, and their distributions.
INSTALLED = {"gemmule_kernels_sm90": "gemmule-kernels-sm90"}
INSTALLED_FILE = "kernels.pack"
# The second has blocks, and the third no PTX in them.
_FORMATS = (1, 2, 3)
_MANIFEST = "pack.json"
#: Remedy for a damaged pack.
AGAIN = "make it again with gemmule pack, or copy it again"
_KERNEL, _TABLE, _BLOCK = "kernels/{}.kernel", "tables/{}", "blocks/{:04}.xz"
#: Kernels of a block. Those of one config in other layouts and types are alike: without PTX sixteen take 0.82 of the
#: bytes that they take in blocks of eight, and some milliseconds to decompress.
BLOCK = 16
#: 1.6 % less bytes than without the flag, in two fifths more time.
_PRESET = lzma.PRESET_DEFAULT | lzma.PRESET_EXTREME


@dataclass(frozen=True)
class Pack:
    """An open pack; members are read on demand.

    Attributes
    ----------
    path : Path
        The file.
    toolchain : str
        Compiler and version of the kernels.
    origin : str
        Distribution and version, of a pack in a wheel; else empty.
    kernels : tuple of str
        Keys of the compiled kernels.
    tables : tuple of str
        Names of the tables.
    """

    path: Path
    toolchain: str
    origin: str
    kernels: tuple[str, ...]
    tables: tuple[str, ...]
    _sources: Mapping[str, str] = dataclasses.field(repr=False, compare=False)
    _blocks: Mapping[str, Mapping[str, int]] = dataclasses.field(repr=False, compare=False)
    _directory: Directory = dataclasses.field(repr=False, compare=False)
    _digests: Mapping[str, str] = dataclasses.field(repr=False, compare=False)
    _file: SharedFile = dataclasses.field(repr=False, compare=False)

    @functools.cached_property
    def _block_of(self) -> Mapping[str, str]:
        """The block of each key."""
        return {key: block for block, sizes in self._blocks.items() for key in sizes}

    @functools.cached_property
    def prefixes(self) -> frozenset[str]:
        """Names of kernels and architectures, as keys begin with."""
        return frozenset(key.rpartition("-")[0] for key in self.kernels)

    def artifact(self, key: str) -> Artifact | None:
        """Return a compiled kernel, or None if the pack lacks it.

        Raises
        ------
        CompileError
            If it is damaged.
        """
        block, member = self._block_of.get(key), _KERNEL.format(key)
        if block is None and member not in self._digests:
            return None
        content = self._read(block or member)
        try:
            if block is not None:
                content = _part(content, self._blocks[block], key)
            return Artifact.from_bytes(content, f"{member} in the pack {self.path}")
        except lzma.LZMAError as error:
            raise CompileError(f"{member} in the pack {self.path} is damaged ({error}); {AGAIN}") from error
        except CompileError as error:
            raise CompileError(f"{error}; {AGAIN}") from error

    def is_foreign(self, spec: KernelSpec) -> bool:
        """Return whether the pack has kernels of `spec` that were compiled from other sources than the present ones."""
        sources = self._sources.get(spec.name)
        return sources is not None and sources != source_digest(spec)

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
            with self._file.reader() as file:
                content = self._directory.content(file, member)
        except (OSError, *DAMAGE) as error:
            raise CompileError(
                f"the pack {self.path} is damaged: {member} cannot be read ({type(error).__name__}: {error}); {AGAIN}"
            ) from error
        if hashlib.sha256(content).hexdigest() != self._digests[member]:
            raise CompileError(f"the pack {self.path} is damaged: {member} has another digest; {AGAIN}")
        return content


def write_pack(
    path: Path,
    kernels: Iterable[tuple[str, bytes]],
    tables: Mapping[str, bytes] | None = None,
    *,
    origin: str = "",
    specs: Iterable[KernelSpec] = (),
) -> Pack:
    """Write a pack atomically, and return it.

    Parameters
    ----------
    path : Path
        The file; an existing one is replaced.
    kernels : iterable of (str, bytes)
        Key and artifact of each, as of `cache.cached_kernels`.
    tables : mapping of str to bytes, optional
        Other content by name.
    origin : str
        Distribution and version of a pack for a wheel; its kernels are compressed in blocks, without their PTX.
    specs : iterable of KernelSpec
        Kernels whose present sources the pack is checked against where it is installed.

    Raises
    ------
    ArgumentError
        If `path` exists and is no regular file.
    FileAccessError
        If it cannot be written.
    """
    check_replaceable(path)
    blocks: dict[str, dict[str, int]] = {}
    if origin:
        members = _compressed_blocks(dict(kernels), blocks)
    else:
        members = {_KERNEL.format(key): content for key, content in sorted(kernels)}
    members |= {_TABLE.format(name): content for name, content in sorted((tables or {}).items())}
    manifest = {
        "format": _FORMATS[-1 if origin else 0],
        "toolchain": toolchain(),
        "origin": origin,
        "sources": {spec.name: source_digest(spec) for spec in sorted(specs, key=lambda spec: spec.name)},
        "members": {name: hashlib.sha256(content).hexdigest() for name, content in members.items()},
        "blocks": blocks,
    }
    # Without time stamps: equal content has equal bytes.
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {_MANIFEST: json.dumps(manifest, indent=1).encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return read_pack(path)


def _compressed_blocks(kernels: Mapping[str, bytes], blocks: dict[str, dict[str, int]]) -> dict[str, bytes]:
    """Return compressed blocks of kernels that are alike; of each, the size of each kernel is written into `blocks`."""
    from concurrent.futures import ThreadPoolExecutor

    alike: dict[str, tuple[str, ...]] = {}
    codes: dict[str, bytes] = {}
    for key, content in kernels.items():
        artifact = Artifact.from_bytes(content, key)
        alike[key] = artifact.kernel, str(artifact.config), str(artifact.signature), key
        codes[key] = artifact.without_ptx().as_bytes(compressed=False)
    contents: dict[str, bytes] = {}
    ordered = sorted(codes, key=alike.__getitem__)
    for number, start in enumerate(range(0, len(ordered), BLOCK)):
        name, keys = _BLOCK.format(number), ordered[start : start + BLOCK]
        blocks[name] = {key: len(codes[key]) for key in keys}
        contents[name] = b"".join(codes[key] for key in keys)
    # The interpreter's lock is released meanwhile.
    with ThreadPoolExecutor() as threads:
        compressed = threads.map(functools.partial(lzma.compress, preset=_PRESET), contents.values())
        return dict(zip(contents, compressed, strict=True))


def _part(compressed: bytes, sizes: Mapping[str, int], key: str) -> bytes:
    """Return a kernel out of its block; no more is decompressed than the listed sizes and a byte."""
    nbytes, start = sum(sizes.values()), 0
    decompressor = lzma.LZMADecompressor()
    content = decompressor.decompress(compressed, max_length=nbytes + 1)
    if len(content) != nbytes or not decompressor.eof:
        raise lzma.LZMAError(f"its block has not the {nbytes:,} bytes that are listed")
    for one, size in sizes.items():
        if one == key:
            break
        start += size
    return content[start : start + sizes[key]]


def _sizes(listed: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of a block's kernels; ValueError if one is no size."""
    sizes = dict(listed)
    if wrong := [size for size in sizes.values() if type(size) is not int or not 0 < size < 1 << 31]:
        raise ValueError(f"{wrong[0]!r} is not the size of a kernel")
    return sizes


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
        with file.reader() as reader:
            directory = Directory(reader)
            listed = directory.content(reader, _MANIFEST)
            if zlib.crc32(listed) != directory.crc(_MANIFEST):
                raise zipfile.BadZipFile(f"{_MANIFEST} has another CRC")
            manifest = json.loads(listed)
            enough = directory.count == 1 + len(manifest["members"])
            missing = set() if enough else {name for name in manifest["members"] if name not in directory}
        version, digests, made_with = manifest["format"], dict(manifest["members"]), str(manifest["toolchain"])
        origin, sources = str(manifest.get("origin", "")), dict(manifest.get("sources", {}))
        blocks = {name: _sizes(listed) for name, listed in dict(manifest.get("blocks", {})).items()}
        compressed = bool(manifest.get("compressed"))
        missing |= blocks.keys() - digests.keys()
    except (*DAMAGE, struct.error) as error:
        raise FileFormatError(
            f"{path} is not a pack of gemmule, or is damaged ({type(error).__name__}: {error}); {AGAIN}"
        ) from error
    # True equals 1. In a former format 1 a wheel's kernels were compressed one by one.
    if type(version) is not int or version not in _FORMATS or compressed:
        raise FileFormatError(
            f"{path} is a pack of format {version!r}{', compressed' if compressed else ''}; this version of gemmule "
            "reads formats 1 to 3; make it again with this version, or install the one that wrote it"
        )
    if missing:
        raise FileFormatError(f"the pack {path} lacks {', '.join(sorted(missing))} of its list; {AGAIN}")

    def named(pattern: str) -> tuple[str, ...]:
        before, after = pattern.split("{}")
        return tuple(x[len(before) : len(x) - len(after)] for x in digests if x.startswith(before))

    kernels = (*named(_KERNEL), *itertools.chain.from_iterable(blocks.values()))
    return Pack(path, made_with, origin, kernels, named(_TABLE), sources, blocks, directory, digests, file)


class PackWarning(UserWarning):
    """An installed pack of kernels is refused."""


class Packs:
    """The packs of this process: loaded ones, the last first, that of the environment variable, and installed ones."""

    def __init__(self) -> None:
        self._loaded: list[Pack] = []
        self._named: dict[str, Pack] = {}
        # None before the first look-up.
        self._installed: list[Pack] | None = None
        self._lock = threading.RLock()

    def load(self, pack: Pack) -> None:
        with self._lock:
            self._loaded = [pack, *(other for other in self._loaded if other.path != pack.path)]

    def unload(self) -> None:
        """Drop every pack of this process."""
        with self._lock:
            self._loaded = []
            self._named.clear()
            self._installed = None

    def all(self) -> list[Pack]:
        named = self.named()
        return [*self._loaded, *([named] if named is not None else []), *self.installed()]

    def installed(self) -> list[Pack]:
        """Return the packs of installed distributions; warn of those that are refused, once in a process."""
        with self._lock:
            if self._installed is None:
                self._installed = []
                for package, distribution in INSTALLED.items():
                    pack = _installed_pack(package, distribution)
                    self._installed += [pack] if pack is not None else []
            return self._installed

    def refuse_foreign(self, spec: KernelSpec) -> None:
        """Drop installed packs of other sources, with a warning: to be called where `spec` was not in any pack."""
        with self._lock:
            for pack in self.installed():
                if pack.is_foreign(spec):
                    self._installed = [one for one in self.installed() if one is not pack]
                    _refuse(pack.path, pack.origin, f"it was made from other sources of {spec.name}")

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


def _installed_pack(package: str, distribution: str) -> Pack | None:
    """Return the pack of a package, or None if there is none; warn if it is refused."""
    try:
        found = importlib.util.find_spec(package)
    except ValueError:
        # A module of that name is there, made by hand.
        return None
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).with_name(INSTALLED_FILE)
    try:
        pack = read_pack(path)
    except OSError as error:
        _refuse(path, distribution, f"{INSTALLED_FILE} cannot be opened ({error.strerror})")
    except FileFormatError as error:
        _refuse(path, distribution, str(error).partition("; ")[0])
    else:
        if pack.toolchain == toolchain():
            return pack
        _refuse(
            path, pack.origin or distribution, f"it was made with {pack.toolchain}, and this gemmule uses {toolchain()}"
        )
    return None


def _refuse(path: Path, distribution: str, why: str) -> None:
    name = distribution.partition(" ")[0]
    warnings.warn(
        f"the kernels of {distribution} ({path}) are not used: {why}; install gemmule and {name} of one version",
        PackWarning,
        stacklevel=7,
    )


PACKS = Packs()
