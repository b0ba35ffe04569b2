"""gemmule in PyTorch: operators with a backward, which `torch.compile` and CUDA graphs take.

`gemmule.matmul` and the other functions also take tensors, without gradients.
"""

try:
    import torch as _torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gemmule.torch needs PyTorch, which is not installed; install it, e.g. with pip install torch", name="torch"
    ) from None

if not hasattr(_torch.library, "register_vmap"):
    raise ImportError(f"gemmule.torch needs PyTorch 2.5 or newer, and {_torch.__version__} is installed; upgrade it")

from . import inductor as _inductor  # noqa: F401 (adds the lowering)
from .experts import replace_experts
from .functions import addmm, baddbmm, linear, matmul
from .grouped import grouped_mm
from .layers import Linear, replace_linear
from .quantized import QuantizedLinear, quantize_linear
from .scaled import scaled_grouped_mm, scaled_mm

__all__ = [
    "Linear",
    "QuantizedLinear",
    "addmm",
    "baddbmm",
    "grouped_mm",
    "linear",
    "matmul",
    "quantize_linear",
    "replace_experts",
    "replace_linear",
    "scaled_grouped_mm",
    "scaled_mm",
]

# Called as this module's, functions are nodes of a symbolic trace.
for _name in ("addmm", "baddbmm", "grouped_mm", "linear", "matmul", "scaled_grouped_mm", "scaled_mm"):
    _torch.fx.wrap(_name)
