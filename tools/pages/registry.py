"""Tables of what the kernels take."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import DTYPES, DType, accumulator
from gemmule.dispatch.registry import EVERY_KERNEL
from gemmule.dispatch.select import why_no_gemm

from .markdown import markdown

_LADDER = "gemmule.kernels.ladder."
_ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a")


def kernel_table() -> str:
    """Return the kernels that calls choose as a table, in the order in which they are tried."""
    rows = [
        [
            f"`{spec.name}`",
            spec.operation,
            spec.summary,
            f"{spec.archs[0]}{'' if len(spec.archs) == 1 else ' and newer'}",
        ]
        for spec in EVERY_KERNEL
        if not spec.package.startswith(_LADDER)
    ]
    return markdown(["kernel", "operation", "takes", "compiled for"], rows)


def dtype_table() -> str:
    """Return, for every input type on a GPU, its accumulator, the outputs and the architectures."""
    rows = []
    for dtype in DTYPES:

        def runs(out: DType, arch: str, dtype: DType = dtype) -> bool:
            return why_no_gemm((dtype.name, dtype.name, out.name), Arch.parse(arch)) is None

        outputs = [out for out in DTYPES if runs(out, "sm_90a")]
        archs = [arch for arch in _ARCHS if runs(dtype, arch)]
        rows.append([str(dtype), str(accumulator(dtype, dtype)), ", ".join(map(str, outputs)), f"{archs[0]} and newer"])
    return markdown(["inputs", "summed in", "outputs", "runs on"], rows)
