"""A pack of a search's results: the table, the kernels in it, and cached kernels for other calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..compiler.pack import Pack
    from ..core.arch import Arch
    from ..core.config import Config
    from ..core.gpu_rates import GpuRates
    from ..core.problem import Problem
    from ..core.spec import KernelSpec
    from ..dispatch.tuned_file import Entry


def write_tuned_pack(out: Path, table: Path, gpu: str, multiprocessors: int, arch: Arch) -> Pack:
    """Write the pack of a table of tuned configurations, and return it.

    It has the kernels of the table's entries for a GPU's chip, compiled where they are not in the cache, and those of
    the cache in registered configs: products that the table lacks take these.
    """
    from ..api.packs import TUNED
    from ..compiler.artifact import Artifact
    from ..compiler.cache import cache_folder, cached_kernels
    from ..compiler.pack import write_pack
    from ..dispatch.compiled_kernels import COMPILED_KERNELS
    from ..dispatch.rates_table import rates_for, uncalibrated_rates
    from ..dispatch.tuned_file import tuned_entries
    from ..dispatch.tuned_table import chip_name

    content, chip = table.read_bytes(), chip_name(gpu)
    entries = [entry for entry in tuned_entries(content, str(table)) if entry.chip == chip]
    # Machines that take the pack may have this one's measured rates, or none.
    rates = dict.fromkeys(one(gpu, multiprocessors).on(arch) for one in (rates_for, uncalibrated_rates))
    kernels = tuned_kernels(entries, arch, tuple(rates))
    registered = {name: [one.compiled_fields() for one in spec.configs] for name, spec in COMPILED_KERNELS.items()}
    for key, kernel in cached_kernels(cache_folder(), COMPILED_KERNELS, arch):
        if key not in kernels:
            artifact = Artifact.from_bytes(kernel, key)
            config = type(COMPILED_KERNELS[artifact.kernel].default)(**artifact.config)
            if config.compiled_fields() in registered[artifact.kernel]:
                kernels[key] = kernel
    return write_pack(out, kernels.items(), {TUNED: content})


def tuned_kernels(entries: Iterable[Entry], arch: Arch, rates: Sequence[GpuRates]) -> dict[str, bytes]:
    """Return the compiled kernels that tuned entries need, by key; entries of other versions are left out.

    The next kernel of one that prepares operands is chosen by each of `rates`.
    """
    from ..compiler.cache import artifact_for
    from ..compiler.key import artifact_key
    from ..core.problem import split_batch
    from ..dispatch.problem_key import problem_of
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
            chains = (spec.next_kernel(problem, config, one).chain() for one in rates)
            parts += [(one.spec, one.config, one.problem) for chain in chains for one in chain]
        for part, part_config, part_problem in parts:
            what = (part, part_config, part.signature(part_problem, part_config), arch)
            found[artifact_key(*what)] = artifact_for(*what).as_bytes()
    return found
