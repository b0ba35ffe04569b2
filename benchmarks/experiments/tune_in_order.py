"""``gemmule tune`` with every launch in order: none is a dependent launch (PDL) that overlaps its predecessor.

``python benchmarks/experiments/tune_in_order.py tune --shapes FILE …``. Layers of a model stand behind kernels that
trigger no dependent launch, where a config does not gain by the next launch's beginning in its last wave.
"""

from __future__ import annotations

from typing import Any

from gemmule.cli import gemmule
from gemmule.kernels.hopper.gemm import spec


def in_order(*_: Any) -> bool:
    """Stand for the rule of hopper_gemm by which a launch is a dependent one."""
    return False


if __name__ == "__main__":
    spec.uses_pdl = in_order
    gemmule(prog_name="tune_in_order.py")
