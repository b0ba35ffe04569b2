"""The cache of compiled kernels: look-up in this process, on disk, in packs, and then compilation."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError, CompileError, CompilerMissingError
from gemmule.core.spec import KernelSpec, Signature
from gemmule.files.user_folders import user_cache_folder

from .artifact import Artifact
from .compile import compile_kernel
from .key import artifact_key, source_digests
from .pack import AGAIN, PACKS, Packs
from .toolchain import COMPILER_REMEDY

_SUFFIX = ".kernel"
# Files of the cache, damaged and partial ones included; no other file is ever removed.
_OURS = re.compile(r"\w+-sm_\d+a?-[0-9a-f]{24}\w*\.(kernel|damaged|partial)")
_Compiler = Callable[[KernelSpec, Config, Signature, Arch], Artifact]


class CacheWarning(UserWarning):
    """The cache on disk could not be used; kernels are compiled again in every process."""


@dataclass(frozen=True)
class CacheContent:
    """Content of the disk cache."""

    folder: Path  #: The folder.
    kernels: int  #: Number of compiled kernels.
    bytes: int  #: Their size on disk.


def cache_folder() -> Path:
    """Return the cache's folder: ``$GEMMULE_CACHE``, else ``gemmule/kernels`` in the user's cache folder.

    Raises
    ------
    ArgumentError
        If the user has no home folder.
    """
    return user_cache_folder("GEMMULE_CACHE", "kernels")


class KernelCache:
    """Compiled kernels of one process: loaded ones, then those on disk, in packs, and compiled.

    Parameters
    ----------
    packs : Packs
        Packs of compiled kernels.
    compiler : callable
        Compiles a kernel, as `compile_kernel` does.
    sources : callable
        Reads the digests of a kernel's sources, as `source_digests` does.
    """

    def __init__(
        self,
        packs: Packs = PACKS,
        compiler: _Compiler = compile_kernel,
        sources: Callable[[KernelSpec], dict[str, bytes]] = source_digests,
    ) -> None:
        self._packs, self._compiler, self._sources = packs, compiler, sources
        self._loaded: dict[tuple[KernelSpec, Config, Signature, Arch], Artifact] = {}
        # Digests of the sources that this process imported, which may have changed on disk since.
        self._imported: dict[str, bytes] = {}

    @property
    def loaded(self) -> int:
        """Number of loaded kernels."""
        return len(self._loaded)

    def unload(self) -> None:
        """Drop the loaded kernels; those on disk stay."""
        self._loaded.clear()

    def artifact_for(
        self, spec: KernelSpec, config: Config, signature: Signature, arch: Arch, *, with_ptx: bool = False
    ) -> Artifact:
        """Return the compiled kernel; see the function `artifact_for`."""
        kernel = (spec, config, signature, arch)
        artifact = self._loaded.get(kernel)
        if artifact is None or (with_ptx and not artifact.ptx):
            # A wrong name is an error, whether the kernel is on disk or not.
            self._packs.named()
            key = artifact_key(*kernel)
            path = cache_folder() / (key + _SUFFIX)
            artifact = _from_disk(path) or self._from_packs(key, *kernel, with_ptx=with_ptx)
            artifact = artifact or self._compiled(path, *kernel, with_ptx=with_ptx)
            self._loaded[kernel] = artifact
        return artifact

    def has_any(self, spec: KernelSpec, arch: Arch) -> bool:
        """Return whether any kernel of `spec` is on disk or in a pack, of these sources or others."""
        prefix = f"{spec.name}-{arch.name}"
        folder = cache_folder()
        return any(prefix in pack.prefixes for pack in self._packs.all()) or any(folder.glob(f"{prefix}-*{_SUFFIX}"))

    def is_compiled(
        self, spec: KernelSpec, config: Config, signature: Signature, arch: Arch, *, with_ptx: bool = False
    ) -> bool:
        """Return whether the kernel is loaded, or could be from disk or a pack; nothing is compiled."""
        kernel = (spec, config, signature, arch)
        loaded = self._loaded.get(kernel)
        if loaded is None or (with_ptx and not loaded.ptx):
            key = artifact_key(*kernel)
            # Loaded, not only looked up: a damaged one is none.
            path = cache_folder() / (key + _SUFFIX)
            artifact = _from_disk(path) or self._from_packs(key, *kernel, with_ptx=with_ptx)
            if artifact is None:
                return False
            self._loaded[kernel] = artifact
        return True

    def _from_packs(
        self, key: str, spec: KernelSpec, config: Config, signature: Signature, arch: Arch, *, with_ptx: bool
    ) -> Artifact | None:
        """Return the kernel of a pack, or None; warn where it is damaged, or its pack was made from other sources."""
        for pack in self._packs.all():
            try:
                artifact = pack.artifact(key)
            except CompileError as error:
                warnings.warn(str(error), CacheWarning, stacklevel=5)
                continue
            if artifact is None or (with_ptx and not artifact.ptx):
                continue
            found = artifact.kernel, artifact.arch, artifact.signature
            if (
                found == (spec.name, arch.name, signature)
                and config.compiled_fields().items() <= artifact.config.items()
            ):
                return artifact
            message = f"the pack {pack.path} is damaged: it has another kernel under the key {key}; {AGAIN}"
            warnings.warn(message, CacheWarning, stacklevel=5)
        self._packs.refuse_foreign(spec)
        return None

    def _compiled(
        self, path: Path, spec: KernelSpec, config: Config, signature: Signature, arch: Arch, *, with_ptx: bool
    ) -> Artifact:
        before = self._sources(spec)
        try:
            artifact = self._compiler(spec, config, signature, arch)
        except CompilerMissingError as error:
            if with_ptx:
                held = "".join(
                    f"; the pack {pack.path} has its machine code only"
                    for pack in self._packs.all()
                    if path.stem in pack.kernels
                )
                raise CompilerMissingError(
                    f"the virtual GPU interprets PTX, that of {spec.name} for {arch} is neither in the cache nor in a "
                    f"pack{held}, and the kernel compiler is not installed; {COMPILER_REMEDY}"
                ) from error
            if packs := ", ".join(str(pack.path) for pack in self._packs.all()):
                raise CompilerMissingError(
                    f"{error}. The packs that are loaded lack it too, or were made by another version of gemmule: "
                    f"{packs}"
                ) from error
            raise
        after = self._sources(spec)
        for package, digest in before.items():
            if digest != after.get(package) or digest != self._imported.setdefault(package, digest):
                raise CompileError(
                    f"the sources of {package} changed since this process imported them, so that the compiled kernel "
                    "would not match its key; start a new process"
                )
        try:
            artifact.save(path)
        except OSError as error:
            message = f"compiled kernels cannot be cached: {error}; GEMMULE_CACHE names the folder"
            warnings.warn(message, CacheWarning, stacklevel=5)
        return artifact


#: The cache of this process.
KERNELS = KernelCache()


def artifact_for(
    spec: KernelSpec, config: Config, signature: Signature, arch: Arch, *, with_ptx: bool = False
) -> Artifact:
    """Return the compiled kernel from the cache or a pack, else compile and cache it.

    With `with_ptx` a kernel that is packed without PTX is none, as for the virtual GPU.

    Raises
    ------
    CompilerMissingError
        If it must be compiled and the compiler is not installed.
    CompileError
        If it does not compile, or its sources changed since this process imported them.
    FileFormatError
        If ``GEMMULE_PACK`` names no pack.
    """
    return KERNELS.artifact_for(spec, config, signature, arch, with_ptx=with_ptx)


def has_any(spec: KernelSpec, arch: Arch) -> bool:
    """Return whether any kernel of `spec` is in the cache or in a pack: a fast test before `is_compiled`."""
    return KERNELS.has_any(spec, arch)


def is_compiled(spec: KernelSpec, config: Config, signature: Signature, arch: Arch, *, with_ptx: bool = False) -> bool:
    """Return whether the kernel is in the cache or in a pack, with its PTX if need be, without compiling it."""
    return KERNELS.is_compiled(spec, config, signature, arch, with_ptx=with_ptx)


def _from_disk(path: Path) -> Artifact | None:
    """Return the cached kernel, or None; warn where it cannot be used."""
    try:
        try:
            return Artifact.load(path)
        except CompileError:
            # Another process may just have replaced it.
            return Artifact.load(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warnings.warn(f"a compiled kernel cannot be read: {error}", CacheWarning, stacklevel=5)
    except CompileError as error:
        aside = path.with_suffix(".damaged")
        try:
            path.replace(aside)
            warnings.warn(f"{error}; it was set aside as {aside}", CacheWarning, stacklevel=5)
        except FileNotFoundError:
            # Another process set it aside.
            pass
        except OSError as stuck:
            warnings.warn(f"{error}, and cannot be set aside: {stuck}", CacheWarning, stacklevel=5)
    return None


def cache_content() -> CacheContent:
    """Return the content of the disk cache."""
    folder = cache_folder()
    sizes = [path.stat().st_size for path in folder.glob("*" + _SUFFIX) if _OURS.fullmatch(path.name)]
    return CacheContent(folder, len(sizes), sum(sizes))


def clear_cache() -> CacheContent:
    """Remove every compiled kernel from disk and from this process; return the former content.

    Only files of the cache are removed.
    """
    content = cache_content()
    if content.folder.is_dir():
        for path in content.folder.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
    KERNELS.unload()
    return content


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
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
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
