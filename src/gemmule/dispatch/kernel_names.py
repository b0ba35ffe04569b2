"""Kernels and configs by the words of a user, as in ``g07_cp_async[tile_m=128]``."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Sequence

from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.name_suggestions import did_you_mean, similar_names, unknown_name
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice, KernelSpec

from .former_names import KERNELS
from .registry import LADDER, REGISTRY

#: The word for the kernel that a call runs.
CHOSEN = "chosen"
#: Remedy for a kernel name that is similar to none.
_KERNELS_LISTED = "`gemmule info --kernels` lists all"
_CONFIGS_LISTED = "`gemmule info --kernels --json` lists all"
#: Nouns for the results of each operation.
_COMPUTES = {"gemm": "a product", "transpose": "a transpose"}
# Configs that a message shows.
_MOST_SHOWN = 3
# A comma inside brackets belongs to a config.
_WORD = re.compile(r"(?P<name>[^,\[\]]+)(?:\[(?P<config>[^\[\]]*)\])?(?:,|$)")


def parse_kernels(
    words: Sequence[str],
    probe: Problem,
    arch: Arch | None,
    registry: Sequence[KernelSpec] = REGISTRY,
    ladder: Sequence[str] = LADDER,
    others: Sequence[str] = (),
) -> tuple[Choice, ...]:
    """Return the requested kernels, each with a config and each once, in the order given.

    Parameters
    ----------
    words : sequence of str
        Each a list of names with commas between them; ``ladder`` and ``all`` stand for several. A name may carry a
        config: its number, some of its fields for all that have them, or ``*`` for all, as in ``g07_cp_async[1]``,
        ``g07_cp_async[tile_m=128,tile_n=256]`` or, as plans print it, ``g07_cp_async [tile_m=128 tile_n=256]``.
    probe : GemmProblem or TransposeProblem
        A problem of the types that will be measured: kernels of its operation are known. ``ladder`` of products has
        rungs for float32 and others for float64: those that refuse this one are left out. Rungs for float64 stand in
        it with all their configs.
    arch : Arch or None
        The GPU's; None checks no kernel's limits.
    registry, ladder
        The kernels, and the names of the rungs.
    others : sequence of str
        Further words of the caller, suggested for an unknown name.

    Raises
    ------
    ArgumentError
        If a name or a config is not known, or a kernel is of the other operation.
    """
    operation = "gemm" if isinstance(probe, GemmProblem) else "transpose"
    specs = {spec.name: spec for spec in registry if spec.operation == operation}
    chosen: dict[tuple[str, Config], Choice] = {}

    def add(spec: KernelSpec, configs: Sequence[Config]) -> None:
        for config in configs:
            chosen.setdefault((spec.name, config), Choice(spec, config))

    for name, config_text in (part for word in words for part in _split(word)):
        several = name in ("all", "ladder") and bool(ladder)
        if several and config_text is not None:
            raise ArgumentError(f"{name!r} takes no config; give it to a kernel, as in g07_cp_async[{config_text}]")
        if several and name == "all":
            for spec in specs.values():
                add(spec, [spec.default])
        elif several:
            for rung in ladder:
                spec = _named(rung, specs, ())
                if arch is None or spec.why_not(probe, arch, spec.default) is None:
                    every = isinstance(probe, GemmProblem) and probe.a.dtype.name == "float64"
                    add(spec, spec.configs if every else [spec.default])
        else:
            if elsewhere := next((spec for spec in registry if spec.name == name and name not in specs), None):
                does = elsewhere.operation
                raise ArgumentError(f"{name} is {_COMPUTES[does]}; `gemmule bench {does}` measures it")
            spec = _named(name, specs, ("ladder", "all", *others) if ladder else others)
            add(spec, _configs(spec, config_text))
    return tuple(chosen.values())


def on_gpu(choices: Iterable[Choice], gpu: GpuRates, arch: Arch) -> tuple[Choice, ...]:
    """Return choices as calls run them on a GPU.

    Persistent configs of the registry have one CTA an SM; next kernels are chosen by the GPU's rates and architecture.
    """
    rates, count = gpu.on(arch), gpu.multiprocessors
    return tuple(
        dataclasses.replace(
            one, config=one.config.on(count) if one.config in one.spec.configs else one.config, gpu=rates
        )
        for one in choices
    )


def without_chosen(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words without ``chosen``, what a call would run, and whether that was among them."""
    left = [",".join(part for part in word.split(",") if part.strip() != CHOSEN) for word in words]
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
        raise unknown_kernel(name, [*words, *specs])
    return specs[name]


def unknown_kernel(name: str, known: Collection[str]) -> ArgumentError:
    """Return the error for an unknown kernel: the current name of a former one, else similar names, or how to list."""
    former = {old: current for old, current in KERNELS.items() if current in known}
    if name in former:
        return ArgumentError(f"kernel {name!r} is now {former[name]!r}; give that name")
    if (operation := {spec.name: spec.operation for spec in REGISTRY}.get(name)) is not None:
        return ArgumentError(
            f"kernel {name!r} computes {_COMPUTES.get(operation, operation)}; give one of the call's own"
        )
    from .compiled_kernels import FOLLOWERS

    if name in {spec.name for spec in FOLLOWERS}:
        return ArgumentError(
            f"kernel {name!r} runs only after others; give the one whose plan lists it under `followed by:`"
        )
    # Pages call h01 so, a kernel that had that number.
    if not similar_names(name, known) and (near := similar_names(name, former)):
        suggested = did_you_mean(list(dict.fromkeys(former[one] for one in near)))
        return ArgumentError(f"kernel {name!r} is not known; {suggested}")
    return ArgumentError(unknown_name("kernel", name, known, _KERNELS_LISTED))


def named_configs(word: str, registry: Sequence[KernelSpec]) -> tuple[KernelSpec, tuple[Config, ...]]:
    """Return the kernel of a registry that a word names, and the configs that it names: none stands for any.

    Raises
    ------
    ArgumentError
        If a name or a config is not known, or several kernels are meant.
    """
    specs = {spec.name: spec for spec in registry}
    named = [(_named(name, specs, ()), text) for name, text in _split(word)]
    names = list(dict.fromkeys(spec.name for spec, _ in named))
    if len(names) > 1:
        raise ArgumentError(f"{word!r} names {len(names)} kernels; give one of them: {' or '.join(names)}")
    configs = [config for spec, text in named if text is not None for config in _configs(spec, text)]
    return named[0][0], tuple(dict.fromkeys(configs))


def only_choice(word: str, registry: Sequence[KernelSpec]) -> Choice:
    """Return the kernel of a registry that a word names, in one config, by default its first.

    Raises
    ------
    ArgumentError
        If a name or a config is not known, or several are meant.
    """
    spec, configs = named_configs(word, registry)
    if len(configs) > 1:
        shown = _few_configs(spec, configs)
        raise ArgumentError(f"{word!r} names {len(configs)} configs; give one by its number, e.g. {shown}")
    return Choice(spec, configs[0] if configs else spec.default)


def _few_configs(spec: KernelSpec, configs: Sequence[Config], fields: Collection[str] = ()) -> str:
    """Return the numbers of the first of some configs, with those fields, and how to list all."""
    shown = [
        " ".join([f"[{spec.configs.index(one)}]", *(f"{name}={one.as_dict()[name]}" for name in fields)])
        for one in configs[:_MOST_SHOWN]
    ]
    return f"{', '.join(shown)}; {_CONFIGS_LISTED}"


def _configs(spec: KernelSpec, text: str | None) -> Sequence[Config]:
    """Return the configs that a text in brackets stands for."""
    if text is None:
        return [spec.default]
    if text.strip() == "*":
        return spec.configs
    fields, unknown = spec.default.as_dict(), f"{spec.name} has no config [{text}]; "
    if not fields and text.strip() == str(spec.default):
        return [spec.default]
    try:
        if text.strip().isdecimal():
            return [spec.configs[int(text)]]
        given = [(name.strip(), int(value)) for name, value in (item.split("=") for item in _fields_of(text))]
    except (IndexError, ValueError):
        last = len(spec.configs) - 1
        numbers = f"a number from 0 to {last}" if last else "0 (it has one)"
        example = "".join(f", or fields such as {name}={value}" for name, value in [*fields.items()][:1])
        raise ArgumentError(f"{unknown}give {numbers}{example}; {_CONFIGS_LISTED}") from None
    wanted = dict(given)
    if twice := [name for name, value in given if wanted[name] != value]:
        raise ArgumentError(f"{unknown}it names {twice[0]} twice; give it once")
    if strange := [name for name in wanted if name not in fields]:
        raise ArgumentError(f"{unknown}its configs have no field {strange[0]!r}; {_have(fields)}")
    fitting = [config for config in spec.configs if wanted.items() <= config.as_dict().items()]
    if not fitting and (resized := _resized(spec, wanted)):
        return resized
    if not fitting and spec.extra_configs is not None:
        return [_unregistered(spec, wanted)]
    if not fitting:
        for name, value in wanted.items():
            known = sorted({config.as_dict()[name] for config in spec.configs})
            if value not in known:
                one = f"one of {', '.join(map(str, known))}" if len(known) > 1 else f"{known[0]} in all of them"
                raise ArgumentError(f"{unknown}{name} is {one}; {_CONFIGS_LISTED}")
        nearest = sorted(spec.configs, key=lambda config: _distance(config.as_dict(), wanted))
        raise ArgumentError(f"{unknown}the nearest are {_few_configs(spec, nearest, wanted)}")
    return fitting


def _fields_of(text: str) -> list[str]:
    """Return the fields of a config's text, between commas or spaces: ``name=value`` each."""
    return re.split(r"\s*,\s*|\s+", re.sub(r"\s*=\s*", "=", text.strip()))


def _resized(spec: KernelSpec, wanted: dict[str, int]) -> list[Config]:
    """Return the config of all of those fields but the CTAs, which plans have for their GPU, with these CTAs."""
    ctas = {"ctas": wanted["ctas"]} if "ctas" in wanted else {}
    found = [config for config in spec.configs if ctas and {**config.as_dict(), **ctas} == wanted]
    return [type(config)(**wanted) for config in found]


def _unregistered(spec: KernelSpec, wanted: dict[str, int]) -> Config:
    """Return a config of a kernel that validates unregistered ones itself."""
    try:
        return type(spec.default)(**wanted)
    except ArgumentError as error:
        if wanted.keys() == spec.default.as_dict().keys():
            raise
        raise ArgumentError(f"{error} (fields that are not given have their defaults)") from None


def _have(fields: Iterable[str]) -> str:
    names = ", ".join(fields)
    return f"they have {names}" if names else "they have none"


def _distance(fields: dict[str, int], wanted: dict[str, int]) -> tuple[int, float]:
    """Return how many fields differ from the wanted ones, and by how much, in factors."""
    differ = [(fields[name], value) for name, value in wanted.items() if fields[name] != value]
    return len(differ), sum(abs(math.log2(one + 1) - math.log2(max(value, 0) + 1)) for one, value in differ)
