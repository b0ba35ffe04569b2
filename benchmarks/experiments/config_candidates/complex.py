"""Configs of complex kernels to time."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.spec import KernelSpec
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.config import Complex64Config, Complex128Config

#: Candidates of `complex64_gemm`: rows, columns, k-tile, warps along M and N, stages, and further fields.
_COMPLEX64 = (
    (64, 64, 16, 2, 1, 4, 8, 2, 2),
    (64, 64, 16, 2, 1, 4, 8, 4, 2),
    (32, 64, 32, 1, 1, 4, 8, 1, 4),
    (32, 64, 32, 1, 1, 4, 8, 2, 4),
    (32, 64, 32, 1, 1, 4, 8, 4, 4),
    (64, 128, 16, 2, 2, 6, 8, 1, 2),
    (128, 64, 16, 4, 1, 6, 8, 1, 2),
    (64, 128, 16, 2, 2, 4),
)
#: Candidates of `complex128_gemm`, as what differs from the default.
_COMPLEX128: tuple[dict[str, int], ...] = (
    {"tile_n": 128, "warps_m": 4, "stages": 3},
    *({"tile_m": 128, "warps_m": 8, "warps_n": 1, "stages": 3, "stream_k": shared} for shared in (0, 1)),
    *({"tile_n": 128, "warps_m": 4, "tile_k": 16, "stages": 3, "stream_k": shared} for shared in (0, 1)),
    # Others were slower: one more stage, other warps and 128 rows with deeper k-tiles, 64 x 64 with stream-K.
)


def complex_candidates(spec: KernelSpec) -> tuple[Config, ...]:
    """Return the registered configs of a complex kernel, and the candidates."""
    further: tuple[Config, ...] = tuple(Complex128Config(**one) for one in _COMPLEX128)
    if spec is COMPLEX64_GEMM:
        further = tuple(Complex64Config(*fields) for fields in _COMPLEX64)
    return tuple(dict.fromkeys([*spec.configs, *further]))
