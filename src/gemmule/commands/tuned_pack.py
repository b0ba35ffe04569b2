"""A pack of a search's results: the table, the kernels in it, and cached kernels for other calls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .gpu import known_chip

if TYPE_CHECKING:
    from ..compiler.pack import Pack
    from ..core.arch import Arch
    from ..core.problem import Problem
    from ..core.spec import Config, KernelSpec
    from ..dispatch.tuned_file import Entry


def write_tuned_pack(out: Path, table: Path, chip: str, arch: Arch) -> Pack:
    """Write the pack of a table of tuned configurations, and return it.

    It has the kernels of the table's entries for a chip, compiled where they are not in the cache, and those of the
    cache that are registered: products that the table lacks take these.

    Parameters
    ----------
    out : Path
        The pack.
    table : Path
        The table.
    chip : str
        Name of the chip.
    arch : Arch
        Its architecture.
    """
    from ..api.packs import TUNED
    from ..compiler.artifact import Artifact
    from ..compiler.cache import cache_folder
    from ..compiler.pack import cached_kernels, write_pack
    from ..dispatch.registry import REGISTRY
    from ..dispatch.tuned_file import tuned_entries

    content = table.read_bytes()
    entries = [entry for entry in tuned_entries(content, str(table)) if entry.chip == chip]
    kernels = tuned_kernels(entries, arch)
    specs = {spec.name: spec for spec in REGISTRY}
    registered = {spec.name: [config.as_dict() for config in spec.configs] for spec in REGISTRY}
    for key, kernel in cached_kernels(cache_folder(), specs, arch):
        if key not in kernels:
            artifact = Artifact.from_bytes(kernel, key)
            if artifact.config in registered[artifact.kernel]:
                kernels[key] = kernel
    return write_pack(out, kernels.items(), {TUNED: content})


def tuned_kernels(entries: Iterable[Entry], arch: Arch) -> dict[str, bytes]:
    """Return the compiled kernels that tuned entries need, by key; entries of other versions are left out."""
    from ..compiler.cache import artifact_for
    from ..compiler.key import artifact_key
    from ..core.gpu_rates import H200_RATES
    from ..core.problem import split_batch
    from ..dispatch.problem_key import problem_of
    from ..dispatch.rates_table import rates_for
    from ..dispatch.registry import REGISTRY
    from ..dispatch.select import tuned_config

    specs = {spec.name: spec for spec in REGISTRY}
    found: dict[str, bytes] = {}
    for entry in entries:
        spec = specs.get(entry.kernel)
        if spec is None:
            continue
        problem, _, _ = split_batch(problem_of(entry.key), spec.batch_dims)
        config = tuned_config(spec, entry, problem, arch)
        if config is None:
            continue
        parts: list[tuple[KernelSpec, Config, Problem]] = [(spec, config, problem)]
        if spec.next_kernel is not None:
            chip = known_chip(entry.chip)
            gpu = rates_for(entry.chip, chip.sms if chip is not None else H200_RATES.multiprocessors)
            parts += [(one.spec, one.config, one.problem) for one in spec.next_kernel(problem, config, gpu).chain()]
        for part, part_config, part_problem in parts:
            what = (part, part_config, part.signature(part_problem, part_config), arch)
            found[artifact_key(*what)] = artifact_for(*what).as_bytes()
    return found
