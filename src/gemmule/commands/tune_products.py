"""The searches of ``gemmule tune``: products, and the candidates of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import ArgumentError, UnsupportedError
from .json_output import echo_json
from .tables import echo_text, print_table

if TYPE_CHECKING:
    from ..core.arch import Arch
    from ..core.problem import GemmProblem
    from ..dispatch.problem_key import ProblemKey
    from ..dispatch.tuned_table import TunedTable
    from ..lab.tuning.tuner import Search


def kernel_names(text: str | None) -> tuple[str, ...]:
    """Return the kernel names of the option ``--kernels``."""
    from ..dispatch import registry
    from ..dispatch.kernel_names import unknown_kernel

    known = [spec.name for spec in registry.REGISTRY if spec.operation == "gemm"]
    names = tuple(name.strip() for name in text.split(",")) if text is not None else ()
    for name in names:
        if name not in known:
            raise unknown_kernel(name, known)
    return names


def asked_problems(
    shapes: Path | None, preset: str | None, sizes: Sequence[str], dtype: str, out_dtype: str | None, layout: str
) -> tuple[GemmProblem, ...]:
    """Return the requested products, each once; print those that cannot be measured."""
    from ..dispatch.problem_key import key_of
    from ..lab.products import gemm_problem, output_type
    from ..lab.sizes import parse_sizes
    from ..lab.tuning.cells import preset as sizes_of
    from ..lab.tuning.shapes import read_shapes, why_not_measured

    if shapes is None and preset is None and not sizes:
        raise ArgumentError(
            "there is nothing to tune; give products with --shapes FILE, --preset cells or --sizes M,N,K"
        )
    found = list(read_shapes(shapes, dtype, layout)) if shapes is not None else []
    named = (*(sizes_of(preset) if preset is not None else ()), *(parse_sizes(sizes) if sizes else ()))
    out = output_type(dtype, out_dtype)
    found += [gemm_problem(*size, dtype, out, layout) for size in named]
    taken: dict[Any, GemmProblem] = {}
    for problem in found:
        if reason := why_not_measured(problem):
            click.echo(f"left out: {problem.m} x {problem.n} x {problem.k}: {reason}", err=True)
        else:
            taken.setdefault(key_of(problem), problem)
    if not taken:
        raise UnsupportedError("no product is left to tune")
    return tuple(taken.values())


def of_chip(name: str) -> tuple[Arch, int, str]:
    """Return architecture, SMs and name of a chip that is not here."""
    from ..core.arch import Arch as Architecture
    from ..core.chips import chip_named

    chip = chip_named(name)
    return Architecture.for_device(*chip.capability), chip.sms, chip.name


def searches(
    problems: Iterable[GemmProblem], arch: Arch, multiprocessors: int, chip: str, table: TunedTable, **pruned: Any
) -> list[Search]:
    """Return the candidates of every product on a chip; print products that no kernel takes."""
    from ..core.spec import Choice as Chosen
    from ..dispatch import registry
    from ..dispatch.rates_table import rates_for
    from ..dispatch.select import choose, tuned_choice
    from ..lab.tuning.search import candidates
    from ..lab.tuning.tuner import Search as Searched

    gpu = rates_for(chip, multiprocessors).on(arch)
    found = []
    for problem in problems:
        tried = candidates(problem, arch, registry.REGISTRY, gpu, **pruned)
        if not tried:
            click.echo(f"left out: {problem.m} x {problem.n} x {problem.k}: no kernel takes it", err=True)
            continue
        taken = choose(problem, arch, registry.REGISTRY, multiprocessors=multiprocessors, chip=chip, tuned=False)
        present = tuned_choice(problem, arch, registry.REGISTRY, table)
        kept = Chosen(present.spec, present.config, gpu=gpu) if present is not None else None
        found.append(Searched(problem, tried, Chosen(taken.spec, taken.config, gpu=gpu), kept))
    if not found:
        raise UnsupportedError("no kernel takes any of the products")
    return found


def key(search: Search) -> ProblemKey:
    """Return the key of the product in a table."""
    from ..dispatch.problem_key import key_of

    found = key_of(search.problem)
    assert found is not None
    return found


def print_dry_run(searches: Sequence[Search], arch: Arch, table: Path, *, as_json: bool) -> None:
    """Print the products of a search, and the number of kernels to compile."""
    from .tune_compile import jobs

    count = len(jobs(searches, arch))
    if as_json:
        products = [
            {
                **key(search).as_dict(),
                "candidates": [{"kernel": c.spec.name, "config": c.config.as_dict()} for c in search.choices()],
            }
            for search in searches
        ]
        echo_json({"products": products, "kernels": count, "table": str(table)})
        return
    rows = []
    for search in searches:
        problem = search.problem
        names = ", ".join(dict.fromkeys(choice.spec.name for choice in search.choices()))
        size = f"{problem.m} x {problem.n} x {problem.k}"
        rows.append([size, f"{problem.a.dtype} {problem.layout}", names, str(len(search.choices()))])
    plural = "" if len(searches) == 1 else "s"
    echo_text(f"{len(searches)} product{plural} to measure, {count} kernels to compile; table: {table}")
    print_table("products", ["M x N x K", "operands", "kernels", "candidates"], rows, 3)
