"""Fingerprints that detect a changed matrix, without reading all of a large file."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gemmule.core.cpus import usable_cpus

from ..stores.matrix import Array, MatrixSource

#: Pieces of a file that are looked at, evenly spread, the first and the last bytes among them.
SAMPLES = 64
SAMPLE_BYTES = 4096
#: Bytes of memory that a thread looks at in one go.
_BLOCK_BYTES = 64 << 20


def input_fingerprint(source: MatrixSource) -> dict[str, Any]:
    """Return the fingerprint of an input: it changes with its bytes, and with how they are read."""
    return {**source.fingerprint(), "shape": list(source.shape), "dtype": source.dtype.name, "order": source.order}


#: Entries of a fingerprint in plain words.
_WORDS = {
    "bytes": "size",
    "changed_ns": "time of the last write",
    "sample": "content",
    "items": "content",
    "files": "number of files",
    "names_and_times": "names, sizes or times of its files",
    "order": "order of the elements",
    "read_as": "type that the items are read as",
    "computed_in": "compute_dtype",
}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in plain words how an input differs from what it was, and how its unfinished product can be resumed."""
    names = [name for name in dict.fromkeys((*now, *before)) if before.get(name) != now.get(name)]
    words = " and ".join(dict.fromkeys(_WORDS.get(name, name) for name in names))
    # A journal may lack the time, or hold something else there.
    if names == ["changed_ns"] and type(time := before.get("changed_ns")) is int:
        seconds, rest = divmod(time, 10**9)
        return (
            f"its {words} differs, its size and sampled content do not; if it was only touched, set the time back with "
            f"touch -d @{seconds}.{rest:09d}"
        )
    return f"{words} differ{'s' * (' and ' not in words)}; bring back what it was"


def file_fingerprint(path: str) -> dict[str, Any]:
    """Return size and time of the last change of a file, and a CRC-32 over pieces of it."""
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        sample = 0
        for index in range(SAMPLES):
            offset = max(status.st_size - SAMPLE_BYTES, 0) * index // (SAMPLES - 1)
            sample = zlib.crc32(os.pread(file.fileno(), SAMPLE_BYTES, offset), sample)
    return {"bytes": status.st_size, "changed_ns": status.st_mtime_ns, "sample": sample}


def files_fingerprint(folder: str, files: Iterable[str]) -> dict[str, Any]:
    """Return number and size of the files, and a CRC-32 over their names, sizes and times of the last change."""
    digest = count = size = 0
    for name in sorted(files):
        status = os.stat(os.path.join(folder, name))
        digest = zlib.crc32(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode(), digest)
        count, size = count + 1, size + status.st_size
    return {"files": count, "bytes": size, "names_and_times": digest}


def mapped_file(array: Array) -> str | None:
    """Return the file that an array is a view of, None where there is none."""
    base: Any = array
    while base is not None:
        if isinstance(base, np.memmap) and base.filename is not None:
            return os.fspath(base.filename)
        base = getattr(base, "base", None)
    return None


def whole_checksum(array: Array) -> int:
    """Return a CRC-32 of all items of an array in memory order, computed by several threads."""
    lines = array if abs(array.strides[0]) >= abs(array.strides[1]) else array.T
    if not lines.size:
        return 0
    height = max(_BLOCK_BYTES // (lines.shape[1] * lines.itemsize), 1)
    starts = range(0, lines.shape[0], height)
    with ThreadPoolExecutor(min(usable_cpus(), 16)) as threads:
        parts = list(threads.map(lambda start: _crc(lines[start : start + height]), starts))
    return zlib.crc32(np.asarray(parts, "<u4").tobytes())


def sampled_checksum(source: MatrixSource) -> int:
    """Return a CRC-32 over pieces of rows of a source, evenly spread."""
    rows, cols = source.shape
    if not rows or not cols:
        return 0
    width = min(cols, SAMPLE_BYTES // source.dtype.itemsize)
    piece = np.empty((1, width), source.dtype)
    checksum = 0
    for index in range(SAMPLES):
        row = (rows - 1) * index // (SAMPLES - 1)
        col = (cols - width) * (index % 8) // 7
        source.read(slice(row, row + 1), slice(col, col + width), piece)
        checksum = zlib.crc32(piece.view(np.uint8).data, checksum)
    return checksum


def _crc(lines: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(lines).view(np.uint8).data)
