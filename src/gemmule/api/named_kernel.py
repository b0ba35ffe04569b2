"""A kernel that the caller names, with its config: to look at it on the virtual GPU, where no time is lost by it."""

from __future__ import annotations

import dataclasses

from gemmule.core.errors import ArgumentError, shown
from gemmule.core.spec import KernelSpec
from gemmule.dispatch.registry import REGISTRY


def only_kernel(word: str | None, operation: str, executor: str | None) -> tuple[KernelSpec, ...] | None:
    """Return what a plan may choose from on the virtual GPU: the kernel that is named, or None for all.

    Parameters
    ----------
    word : str or None
        A name, which may carry a config: its number, or some of its fields, as in ``simt_gemm[tile_m=128]``.
    operation : str
        ``gemm`` or ``transpose``.
    executor : str or None
        What the caller asks for.

    Raises
    ------
    ArgumentError
        If there is no such kernel or config, more than one, or the executor is not the virtual GPU.
    """
    if word is None:
        return None
    if not isinstance(word, str):
        raise ArgumentError(f"kernel={shown(word)} is no name; give one, as kernel='simt_gemm'")
    if executor != "vgpu":
        raise ArgumentError(
            f"kernel={word!r} is for the virtual GPU; give executor='vgpu', or leave kernel out, for the fastest"
        )
    from gemmule.lab.candidates import parse_kernels
    from gemmule.lab.products import gemm_problem
    from gemmule.lab.transposes import transpose_of

    probe = gemm_problem(1, 1, 1, "float32", "float32", "nn") if operation == "gemm" else transpose_of(1, 1, 4)
    found = parse_kernels([word], probe, None, REGISTRY, ())
    if len(found) != 1:
        configs = "; ".join(str(choice.config) for choice in found)
        raise ArgumentError(
            f"kernel={word!r} names {len(found)} configs, of which one runs; give one of them: {configs}"
        )
    spec, config = found[0].spec, found[0].config
    return (dataclasses.replace(spec, configs=(config,)),)
