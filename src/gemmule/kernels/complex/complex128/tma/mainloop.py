"""Mainloop of the complex128 GEMM whose k-tiles TMA loads: that of float64, with products of whole elements."""

from __future__ import annotations

from gemmule.kernels.float64.config import DmmaConfig
from gemmule.kernels.float64.tma.mainloop import TmaMainloop

from .element_products import ElementProducts
from .stage import ElementStage


class TmaComplex128Mainloop(ElementProducts, TmaMainloop):
    """The loop over K, as of `TmaMainloop`; `conj` is as in the signature."""

    stage_type = ElementStage

    def __init__(self, config: DmmaConfig, k_major: tuple[bool, bool], conj: str) -> None:
        super().__init__(config, k_major)
        self.mixed = conj in ("a", "b")
