"""The table of GPUs: how each was tested, and which kernels calls run there."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.errors import GemmuleError
from gemmule.dispatch.select import choose
from gemmule.lab.products import gemm_problem

from .markdown import markdown

#: Architecture, GPUs, how kernels for it were tested, and the SMs of the first GPU.
_GPUS = (
    ("sm_90a", "H100, H200", "the hardware", 132),
    ("sm_80", "A100, A30", "virtual GPU", 108),
    ("sm_86", "RTX 30, A10, A40", "virtual GPU", 82),
    ("sm_89", "RTX 40 (RTX 4090), L4, L40", "virtual GPU", 128),
    ("sm_100a", "B200", "virtual GPU", 148),
    ("sm_120a", "RTX 50", "virtual GPU", 170),
)
#: Type of the inputs and of the result, with A in rows and B in columns.
_TYPES = (
    ("bfloat16", "bfloat16"),
    ("float32", "float32"),
    ("float64", "float64"),
    ("int8", "int32"),
    ("float8_e4m3fn", "bfloat16"),
)
#: How the host multiplies these types.
_HOST = ("host, in float32", "host's BLAS", "host's BLAS", "host, exactly", "host, in float32")


def gpus_table() -> str:
    """Return the GPUs, how they were tested, and the kernel of a large product in every type."""
    rows = []
    for arch, gpus, tested, sms in _GPUS:
        kernels = []
        for dtype, out in _TYPES:
            try:
                problem = gemm_problem(4096, 4096, 4096, dtype, out, "nt")
                chosen = choose(problem, Arch.parse(arch), multiprocessors=sms, tuned=False)
                kernels.append(chosen.spec.name)
            except GemmuleError:
                kernels.append("unsupported")
        speed = "measured" if tested == "the hardware" else "not measured"
        kernels = [f"`{kernel}`" if kernel != "unsupported" else kernel for kernel in kernels]
        rows.append([gpus, arch, tested, speed, *kernels])
    rows.append(["older, or none: host arrays", "", "", "", *_HOST])
    return markdown(["GPU", "compiled for", "tested on", "speed", *(dtype for dtype, _ in _TYPES)], rows)
