"""Names of kernels and configs in tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
#: A kernel and its config.
Key = tuple[str, tuple[tuple[str, int], ...]]

#: Kinds of records that name a kernel and its config.
NAMED = ("gemm", "yardstick", "skipped", "failed", "check", "counts", "transpose")
_LIBRARIES = {"cublaslt": "cuBLASLt", "torch": "PyTorch"}


def key_of(record: Record) -> Key:
    """Return the kernel and config of a record."""
    return record["kernel"], tuple(record.get("config", {}).items())


def labels(records: Iterable[Record]) -> dict[Key, str]:
    """Return a short name for every kernel and config of the records."""
    return labels_of(key_of(one) for one in records if one["record"] in NAMED and "config" in one)


def labels_of(keys: Iterable[Key]) -> dict[Key, str]:
    """Return a short name for every kernel and config, in brackets the fields that distinguish a kernel's configs."""
    configs: dict[str, dict[Key, None]] = {}
    for key in keys:
        configs.setdefault(key[0], {})[key] = None
    found = {}
    for name, alike in configs.items():
        fields = telling_fields([dict(key[1]) for key in alike])
        for key in alike:
            values = ",".join(f"{field}={dict(key[1]).get(field)}" for field in fields)
            found[key] = f"{name}[{values}]" if values else name
    return found


def telling_fields(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return fields, in their order, that together distinguish all configs: each adds to those before it."""
    chosen: list[str] = []
    groups = 1
    for field in dict.fromkeys(field for config in configs for field in config):
        split = len({tuple(config.get(name) for name in (*chosen, field)) for config in configs})
        if split > groups:
            chosen.append(field)
            groups = split
    return chosen


def name_of(record: Record, names: Mapping[Key, str]) -> str:
    """Return the name of a record's kernel by `labels`, or of the library; serialized launches are marked."""
    name = record.get("kernel") or record["library"]
    if name in _LIBRARIES:
        return _LIBRARIES[name]
    return names.get(key_of(record), name) + (", in order" if record.get("in_order") else "")
