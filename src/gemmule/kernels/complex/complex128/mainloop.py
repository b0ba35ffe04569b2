"""Mainloops of the complex128 GEMM: those of float64 with products of whole elements, by cp.async and by TMA."""

from __future__ import annotations

from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.mainloop import Float64Mainloop
from gemmule.kernels.float64.tma.mainloop import TmaMainloop

from .element_products import ElementProducts
from .stage import Complex128Stage, TmaComplex128Stage


class Complex128Mainloop(ElementProducts, Float64Mainloop):
    """The loop over K; parameters as of `Float64Mainloop`."""

    stage_type = Complex128Stage

    def __init__(self, config: DmmaConfig, types: dict[str, str], *, chained: bool = False) -> None:
        super().__init__(config, types, chained=chained)
        self.mixed = types["conj"] in ("a", "b")


class TmaComplex128Mainloop(ElementProducts, TmaMainloop):
    """The loop over K of k-tiles that TMA loads, as of `TmaMainloop`; `conj` is as in the signature."""

    stage_type = TmaComplex128Stage

    def __init__(self, config: DmmaConfig, k_major: tuple[bool, bool], conj: str) -> None:
        super().__init__(config, k_major)
        self.mixed = conj in ("a", "b")
