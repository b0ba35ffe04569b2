"""Configs of kernels: frozen dataclasses of integers, and which of them a GPU takes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from gemmule.core.dataclass import dataclass

from .arch import Arch
from .errors import ArgumentError
from .last_call_cache import cache_for_configs

#: CTAs of a cluster that every GPU with clusters takes.
PORTABLE_CLUSTER = 8
#: CTAs of the largest cluster.
LARGEST_CLUSTER = 16
# SMs of the smallest whole GPU of compute capability 9.0, the H100 PCIe.
_WHOLE_GPU = 114


@dataclass(frozen=True)
class Config:
    """Base of the kernels' configs: frozen dataclasses of integers from 1 on.

    Fields in `switches` are 0 or 1, fields in `from_zero` are 0 or more.
    """

    switches: ClassVar[frozenset[str]] = frozenset()
    from_zero: ClassVar[frozenset[str]] = frozenset()
    #: Fields that some kernels had before, as records and tables have them.
    former: ClassVar[frozenset[str]] = frozenset({"stream_k"})

    def __post_init__(self) -> None:
        # Files may hold any number: with an empty grid, a result would stay unwritten.
        for name, value in vars(self).items():
            if name in self.switches and value not in (0, 1):
                raise ArgumentError(f"config {self}: {name} must be 0 or 1")
            least = 0 if name in self.switches | self.from_zero else 1
            if value < least:
                raise ArgumentError(f"config {self}: {name} must be {least} or more")

    @property
    def tile_elements(self) -> int:
        """Elements of the result that a CTA computes; 1 where configs do not differ in them."""
        return 1

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster: those that split K, unless a config has others too."""
        count: int = vars(self).get("cluster_k", 1)
        return count

    def on(self, multiprocessors: int) -> Self:
        """Return the config with one CTA an SM, if it is persistent, i.e. has the field `ctas`."""
        ctas = vars(self).get("ctas", multiprocessors)
        if ctas == multiprocessors:
            return self
        changed: dict[str, Any] = {"ctas": multiprocessors}
        return dataclasses.replace(self, **changed)

    def as_dict(self) -> dict[str, int]:
        """Return the config's fields."""
        return dict(vars(self))

    def compiled_fields(self) -> dict[str, int]:
        """Return the fields that compiled code depends on: all but `ctas`, which only the launch recipe reads."""
        return {name: value for name, value in vars(self).items() if name != "ctas"}

    @classmethod
    def of_record(cls, fields: Mapping[str, int]) -> Self:
        """Return the config of a record's or table's fields; newer ones have their defaults, former ones must be 0."""
        return cls(**cls._without_former(fields))

    @classmethod
    def _without_former(cls, fields: Mapping[str, int]) -> dict[str, int]:
        """Return fields without former ones of 0."""
        former = cls.former - cls.__dataclass_fields__.keys()
        return {name: value for name, value in fields.items() if value or name not in former}

    def is_recorded(self, fields: Mapping[str, int]) -> bool:
        """Whether fields of a record are those of this config; fields newer than the record have their defaults."""
        return self.as_dict() == type(self)().as_dict() | self._without_former(fields)

    def __str__(self) -> str:
        return _text(self)


@functools.lru_cache(maxsize=1024)
def _text(config: Config) -> str:
    # Cached: every choice formats the configs that kernels refuse.
    return " ".join(f"{name}={value}" for name, value in config.as_dict().items()) or "default"


@cache_for_configs
def configs_on(configs: tuple[Config, ...], multiprocessors: int) -> tuple[Config, ...]:
    """Return the configs for a number of SMs, without those whose clusters may not fit.

    More than `PORTABLE_CLUSTER` CTAs fit into a GPC of a whole GPU; a part of one (MIG) need not have such a GPC.
    """
    most = multiprocessors if multiprocessors >= _WHOLE_GPU else min(multiprocessors, PORTABLE_CLUSTER)
    found = tuple(one.on(multiprocessors) for one in configs if one.cluster_size <= most)
    return configs if found == configs else found


def why_not_cluster(config: Config, cluster: int, arch: Arch) -> str | None:
    """Say why an architecture has no clusters of `cluster` CTAs along K, or None where it has them."""
    if arch.major < 9 and cluster > 1:
        return f"config {config}: {arch} has no clusters, which sm_90 and newer have"
    if arch.major != 9 and cluster > PORTABLE_CLUSTER:
        return (
            f"config {config}: clusters of more than {PORTABLE_CLUSTER} CTAs are known to fit on sm_90 only, not {arch}"
        )
    return None
