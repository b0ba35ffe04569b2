"""The kernels and configs that a measurement is asked for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice, Config, KernelSpec
from gemmule.dispatch.registry import LADDER, REGISTRY
from gemmule.lab.name_suggestions import unknown_name

# A comma inside brackets belongs to a config.
_WORD = re.compile(r"(?P<name>[^,\[\]]+)(?:\[(?P<config>[^\[\]]*)\])?(?:,|$)")


def parse_kernels(
    words: Sequence[str],
    probe: Problem,
    arch: Arch | None,
    registry: Sequence[KernelSpec] = REGISTRY,
    ladder: Sequence[str] = LADDER,
) -> tuple[Choice, ...]:
    """Return the kernels that are asked for, each with a config and each once, in the order given.

    Parameters
    ----------
    words : sequence of str
        Each a list of names with commas between them; ``ladder`` and ``all`` stand for several. A name may carry a
        config: its number, some of its fields for all that have them, or ``*`` for all, as in ``g07_cp_async[1]`` or
        ``g07_cp_async[tile_m=128,tile_n=256]``.
    probe : GemmProblem or TransposeProblem
        A problem of the types that will be measured: kernels of its operation are known. ``ladder`` of products has
        rungs for float32 and others for float64: those that refuse this one are left out. Rungs for float64 stand in
        it with all their configs.
    arch : Arch or None
        The GPU's; None asks no kernel.
    registry, ladder
        The kernels, and the names of the rungs.

    Raises
    ------
    ArgumentError
        If a name or a config is not known.
    """
    operation = "gemm" if isinstance(probe, GemmProblem) else "transpose"
    specs = {spec.name: spec for spec in registry if spec.operation == operation}
    chosen: dict[tuple[str, Config], Choice] = {}

    def add(spec: KernelSpec, configs: Sequence[Config]) -> None:
        for config in configs:
            chosen.setdefault((spec.name, config), Choice(spec, config))

    for name, config_text in (part for word in words for part in _split(word)):
        if name in ("all", "ladder") and config_text is not None:
            raise ArgumentError(f"{name!r} takes no config; give it to a kernel, as in g07_cp_async[{config_text}]")
        if name == "all":
            for spec in specs.values():
                add(spec, [spec.default])
        elif name == "ladder":
            for rung in ladder:
                spec = _named(rung, specs, ())
                if arch is None or spec.why_not(probe, arch, spec.default) is None:
                    every = isinstance(probe, GemmProblem) and probe.a.dtype.name == "float64"
                    add(spec, spec.configs if every else [spec.default])
        else:
            spec = _named(name, specs, ("ladder", "all") if ladder else ())
            add(spec, _configs(spec, config_text))
    return tuple(chosen.values())


def on_gpu(choices: Iterable[Choice], gpu: GpuRates) -> tuple[Choice, ...]:
    """Return choices as calls run them on a GPU.

    Persistent configs of the registry have one CTA an SM; next kernels are chosen by the GPU's rates.
    """
    return tuple(
        dataclasses.replace(
            one, config=one.config.on(gpu.multiprocessors) if one.config in one.spec.configs else one.config, gpu=gpu
        )
        for one in choices
    )


def without_chosen(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words without ``chosen``, what a call would run, and whether that was among them."""
    left = [",".join(part for part in word.split(",") if part.strip() != "chosen") for word in words]
    return [word for word in left if word], left != list(words)


def _split(word: str) -> list[tuple[str, str | None]]:
    found, end = [], 0
    for match in _WORD.finditer(word):
        if match.start() != end:
            break
        found.append((match["name"].strip(), match["config"]))
        end = match.end()
    if end != len(word) or not found:
        raise ArgumentError(
            f"{word!r} does not name kernels, as g02_naive_coalesced,g07_cp_async[1] does; mind the brackets"
        )
    return found


def _named(name: str, specs: dict[str, KernelSpec], words: Sequence[str]) -> KernelSpec:
    if name not in specs:
        raise ArgumentError(unknown_name("kernel", name, [*words, *specs]))
    return specs[name]


def _configs(spec: KernelSpec, text: str | None) -> Sequence[Config]:
    """Return the configs that a text in brackets stands for."""
    if text is None:
        return [spec.default]
    if text.strip() == "*":
        return spec.configs
    numbered = "; ".join(f"{number}: {config}" for number, config in enumerate(spec.configs))
    unknown = ArgumentError(f"{spec.name} has no config [{text}]; it has {numbered}")
    if text.strip().isdecimal():
        if int(text) >= len(spec.configs):
            raise unknown
        return [spec.configs[int(text)]]
    try:
        wanted = {name.strip(): int(value) for name, value in (item.split("=") for item in text.split(","))}
    except ValueError:
        raise unknown from None
    fitting = [config for config in spec.configs if wanted.items() <= config.as_dict().items()]
    if not fitting and spec.further is not None and wanted.keys() <= spec.default.as_dict().keys():
        # A kernel with more configs than are registered checks by itself which there can be.
        return [type(spec.default)(**wanted)]
    if not fitting:
        raise unknown
    return fitting
