"""Storage of the items of an HDF5 dataset: in its file as NumPy holds them, or in other files that it names."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from gemmule.core.dataclass import dataclass

from ....core.errors import FileFormatError
from ..store_errors import hdf5_errors

#: Drivers whose addresses are offsets in the one file that has the name.
_PLAIN_DRIVERS = ("sec2", "stdio")
#: In the name of a source: the number of a block, and an escaped percent sign.
_PATTERN = re.compile("%[b%]")
#: Stands for the folder of the main file in prefixes of names.
_ORIGIN = "${ORIGIN}"
_RESTORE = "restore it, or write the dataset again"


@dataclass(frozen=True)
class NamedFiles:
    """The other files that hold items of a dataset."""

    paths: tuple[str, ...]  #: The files, sorted.
    chunk_bytes: int  #: Bytes of the largest chunk in them; 0 where there are none.


def items_offset(h5py: Any, dataset: Any) -> int | None:
    """Return the offset in the file of a dataset stored in NumPy's own format, None if stored otherwise."""
    offset = dataset.id.get_offset()
    if offset is None or dataset.external or dataset.is_virtual or dataset.file.driver not in _PLAIN_DRIVERS:
        return None
    # Writes to an open file may still be buffered.
    if dataset.file.mode != "r" or dataset.id.get_storage_size() != dataset.size * dataset.dtype.itemsize:
        return None
    # dtype is the nearest type of NumPy; precision, offset, padding, exponent or bias of the stored one may differ.
    stored = dataset.id.get_type()
    exact = stored.get_class() == h5py.h5t.OPAQUE or stored.equal(h5py.h5t.py_create(dataset.dtype))
    return int(offset) if exact else None


def named_files(h5py: Any, dataset: Any, name: str) -> NamedFiles:
    """Return the external files and the source files of the virtual layout that a dataset names, nested ones too.

    Raises
    ------
    FileFormatError
        If one is missing, or smaller than what the dataset takes from it: HDF5 would return fill values, zeros or
        other items of the file.
    """
    access = dataset.id.get_access_plist()
    walk = _Walk(h5py, name, _text(access.get_efile_prefix()), _text(access.get_virtual_prefix()))
    walk.visit(dataset, ())
    return NamedFiles(tuple(sorted(walk.paths)), walk.chunk_bytes)


def _text(prefix: bytes | str) -> str:
    return os.fsdecode(prefix)


class _Walk:
    """Visits a dataset and the datasets that it maps."""

    def __init__(self, h5py: Any, name: str, external_prefix: str, virtual_prefix: str) -> None:
        self.paths: set[str] = set()
        self.chunk_bytes = 0
        self._h5py = h5py
        self._name = name
        self._external_prefix = os.environ.get("HDF5_EXTFILE_PREFIX") or external_prefix
        self._virtual_prefix = virtual_prefix
        self._visited: set[tuple[str, str]] = set()

    def visit(self, dataset: Any, above: tuple[tuple[str, str], ...]) -> None:
        """Check what a dataset names; `above` are the datasets that map it."""
        main = os.fspath(dataset.file.filename)
        place = os.path.realpath(main), str(dataset.name)
        if place in above:
            raise FileFormatError(f"{self._name}: virtual dataset maps itself; write the dataset again")
        if place in self._visited:
            return
        self._visited.add(place)
        if dataset.external:
            self._check_external(dataset, os.path.dirname(os.path.abspath(main)))
        if dataset.chunks:
            self.chunk_bytes = max(self.chunk_bytes, math.prod(dataset.chunks) * dataset.id.get_type().get_size())
        if not dataset.is_virtual:
            return
        mappings: dict[str, dict[str, list[Any]]] = {}
        for mapping in dataset.virtual_sources():
            for file, inner in _expanded(mapping, dataset.shape, self._h5py.h5s.UNLIMITED):
                mappings.setdefault(file, {}).setdefault(inner, []).append(mapping)
        for file, datasets in mappings.items():
            if file == ".":
                self._visit_sources(dataset.file, datasets, (*above, place))
                continue
            path = self._source_file(file, main)
            with hdf5_errors(path), self._h5py.File(path, "r") as opened:
                self.paths.add(os.path.realpath(path))
                self._visit_sources(opened, datasets, (*above, place))

    def _visit_sources(self, file: Any, datasets: dict[str, list[Any]], above: tuple[tuple[str, str], ...]) -> None:
        for inner, mappings in datasets.items():
            where = f"{file.filename}::/{inner.strip('/')}"
            source = file.get(inner)
            if not isinstance(source, self._h5py.Dataset):
                raise FileFormatError(f"{self._name}: virtual dataset maps {where}, which is not a dataset; {_RESTORE}")
            for mapping in mappings:
                if not _inside(self._h5py.h5s, mapping, source.shape):
                    raise FileFormatError(
                        f"{self._name}: virtual dataset maps more of {where} than its shape {source.shape}; {_RESTORE}"
                    )
            self.visit(source, above)

    def _check_external(self, dataset: Any, folder: str) -> None:
        left = dataset.size * dataset.id.get_type().get_size()
        prefix = _with_origin(self._external_prefix, folder)
        for file, offset, size in dataset.external:
            path = os.path.abspath(os.path.join(prefix, file))
            used = min(size, left)
            left -= used
            if used == 0:
                continue
            if not os.path.isfile(path):
                raise FileFormatError(f"{self._name}: external file {path} does not exist; {_RESTORE}")
            if os.path.getsize(path) < offset + used:
                raise FileFormatError(
                    f"{self._name}: external file {path} has {os.path.getsize(path)} bytes, and the dataset ends at "
                    f"byte {offset + used}; {_RESTORE}"
                )
            self.paths.add(os.path.realpath(path))

    def _source_file(self, file: str, main: str) -> str:
        """Return the file that HDF5 opens for a source of a virtual dataset in the file `main`."""
        folder = os.path.dirname(os.path.abspath(main))
        prefixes = [
            *os.environ.get("HDF5_VDS_PREFIX", "").split(os.pathsep),
            _with_origin(self._virtual_prefix, folder),
        ]
        # The order of H5F_prefix_open_file. Of an absolute name that is not there, the last part is looked for.
        last = os.path.basename(file) if os.path.isabs(file) else file
        folders = [*filter(None, prefixes), folder, os.getcwd(), os.path.dirname(os.path.realpath(main))]
        candidates = dict.fromkeys([os.path.abspath(file)] if os.path.isabs(file) else [])
        candidates.update(dict.fromkeys(os.path.abspath(os.path.join(each, last)) for each in folders))
        for path in candidates:
            if os.path.isfile(path):
                return path
        raise FileFormatError(
            f"{self._name}: virtual dataset maps {file}, which does not exist ({' or '.join(candidates)}); {_RESTORE}"
        )


def _with_origin(prefix: str, folder: str) -> str:
    return folder + prefix.removeprefix(_ORIGIN) if prefix.startswith(_ORIGIN) else prefix


def _expanded(mapping: Any, shape: Sequence[int], unlimited: int) -> Iterator[tuple[str, str]]:
    """Return the files and datasets that a mapping names: one, or one a block of the dataset."""
    blocks = 1
    if any("%b" in _PATTERN.findall(text) for text in (mapping.file_name, mapping.dset_name)):
        start, stride, count, _ = mapping.vspace.get_regular_hyperslab()
        axis = count.index(unlimited)
        # HDF5 ends the dataset where the first block is missing.
        blocks = -(-max(shape[axis] - start[axis], 0) // stride[axis])
    for block in range(blocks):
        yield _numbered(mapping.file_name, block), _numbered(mapping.dset_name, block)


def _numbered(name: str, block: int) -> str:
    """Return a name of a source with the number of a block in it, and percent signs as they are meant."""
    return _PATTERN.sub(lambda found: str(block) if found[0] == "%b" else "%", name)


def _inside(h5s: Any, mapping: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a mapping stays inside a source of that shape."""
    if _grows(h5s, mapping.src_space) or _grows(h5s, mapping.vspace):
        # HDF5 follows the shape of the source.
        return True
    if mapping.src_space.get_select_type() == h5s.SEL_ALL:
        return bool(math.prod(shape) == mapping.vspace.get_select_npoints())
    _, last = mapping.src_space.get_select_bounds()
    return len(last) == len(shape) and all(end < extent for end, extent in zip(last, shape, strict=True))


def _grows(h5s: Any, space: Any) -> bool:
    if space.get_select_type() != h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return False
    _, _, count, block = space.get_regular_hyperslab()
    return h5s.UNLIMITED in (*count, *block)
