"""Specs of native kernels that run where the guard decided for them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import COMPLEX64
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Buildable, KernelSpec, Signature
from gemmule.kernels.emulation.guard_words import GUARDED, SHORTFALL, word_param
from gemmule.kernels.hopper.refusals import HOPPER


def guarded_native(whole: KernelSpec, name: str) -> KernelSpec:
    """Return the spec of a native kernel whose CTAs return at once unless the guard decided for it.

    Parameters
    ----------
    whole : KernelSpec
        The kernel; its ``buildable(config, types)`` takes the key ``guarded``.
    name : str
        As of `KernelSpec`.
    """
    return dataclasses.replace(
        whole,
        name=name,
        summary=f"{whole.name}, where the guard of precision='ozaki' decided for it",
        epilogues=False,
        absmax=False,
        archs=(HOPPER,),
        signatures=functools.partial(_signatures, whole),
        signature=functools.partial(_signature, whole),
        launch=functools.partial(_launch, whole),
        package=__package__,
        build=_build,
        why_not=whole.why_not,
        refuses=whole.refuses,
        refuses_types=None,
    )


def _signature(whole: KernelSpec, problem: GemmProblem, config: Any) -> Signature:
    return (*whole.signature(problem, config), *GUARDED)


def _signatures(whole: KernelSpec, arch: Arch) -> tuple[Signature, ...]:
    # A narrower result is written from one of the operands' type, in a workspace.
    return tuple((*one, *GUARDED) for one in whole.signatures(arch) if ("d", COMPLEX64.name) not in one)


def _launch(whole: KernelSpec, problem: GemmProblem, config: Any) -> Launch:
    """Return the kernel's launch recipe with the shortfall."""
    recipe = whole.launch(problem, config)
    return dataclasses.replace(recipe, params=(*recipe.params, word_param(SHORTFALL)), overlaps=True)


def _build(config: Any, signature: Signature) -> Buildable:
    from .kernel import buildable

    return buildable(config, dict(signature))
