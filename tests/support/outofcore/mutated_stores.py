"""Small valid HDF5 files and Zarr arrays, and seeded ways to damage them."""

from __future__ import annotations

import contextlib
import copy
import json
import os

#: What a field of metadata is replaced by.
VALUES = [None, -1, 0, 1, 7, 2**40, 2**70, -(2**63), 1.5, True, "", "x", [], [0, 0], [-3, 5], {}, {"name": "x"}]


def make_hdf5(path, x, kind):
    """Write `x` as ``g/x``: ``checked`` has checksums over all that is read, ``old`` and ``plain`` have none."""
    import h5py

    options = {
        "checked": {"chunks": (4, 5), "fletcher32": True, "compression": "gzip"},
        "old": {"chunks": (4, 5), "compression": "gzip", "shuffle": True},
        "plain": {},
    }[kind]
    with h5py.File(path, "w", libver="latest" if kind == "checked" else "earliest") as file:
        file.create_dataset("g/x", data=x, **options)


def make_zarr(path, x, kind):
    """Write `x` as an array: ``crc`` and ``shards`` have checksums over the items."""
    import zarr

    crc = [zarr.codecs.Crc32cCodec()]
    options = {
        "crc": {"chunks": (4, 5), "compressors": crc},
        "shards": {"chunks": (4, 5), "shards": (8, 10), "compressors": crc},
        "zstd": {"chunks": (4, 5)},
        "gzip": {"chunks": (4, 5), "compressors": [zarr.codecs.GzipCodec()]},
        "blosc": {"chunks": (4, 5), "compressors": [zarr.codecs.BloscCodec()]},
        "v2": {"chunks": (4, 5), "zarr_format": 2},
    }[kind]
    zarr.create_array(path, data=x, **options)


def mutate_bytes(raw, rng):
    """Return `raw` with a bit flipped, bytes replaced or zeroed, or the end cut off or prolonged."""
    raw = bytearray(raw)
    where = int(rng.integers(len(raw)))
    length = int(min(rng.choice([1, 2, 4, 8, 64]), len(raw) - where))
    way = rng.choice(["flip", "replace", "zero", "ones", "cut", "prolong"], p=[0.4, 0.2, 0.1, 0.1, 0.15, 0.05])
    if way == "flip":
        raw[where] ^= 1 << int(rng.integers(8))
    elif way == "replace":
        raw[where : where + length] = rng.bytes(length)
    elif way in ("zero", "ones"):
        raw[where : where + length] = (b"\0" if way == "zero" else b"\xff") * length
    elif way == "cut":
        del raw[where:]
    else:
        raw += rng.bytes(length)
    return bytes(raw)


def mutations_of_json(text):
    """Yield the document with each field deleted, or replaced by each of `VALUES`."""
    document = json.loads(text)
    for place in _places(document):
        for value in [..., *VALUES]:
            changed = copy.deepcopy(document)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            if value is ...:
                del inner[place[-1]]
            else:
                inner[place[-1]] = value
            yield json.dumps(changed)


def _places(node, above=()):
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from _places(value, (*above, key))


@contextlib.contextmanager
def replaced(path, raw):
    """Let a file hold `raw` inside the block; its time of change differs each time."""
    with open(path, "rb") as file:
        before = file.read()
    try:
        with open(path, "wb") as file:
            file.write(raw)
        yield
    finally:
        with open(path, "wb") as file:
            file.write(before)


def files_of(path):
    """Return the files of a store, sorted."""
    if os.path.isfile(path):
        return [path]
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
