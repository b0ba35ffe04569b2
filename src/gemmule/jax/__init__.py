"""gemmule in JAX: products that `jit`, `grad` and `vmap` take, through XLA's foreign function interface.

`gemmule.matmul` and the other functions also take JAX arrays, outside of JAX's transformations.
"""

try:
    import jax as _jax
except ModuleNotFoundError as _error:
    if _error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "gemmule.jax needs JAX, which is not installed; install it, e.g. with pip install jax", name="jax"
    ) from None

if not hasattr(_jax, "ffi"):
    raise ImportError(f"gemmule.jax needs JAX 0.5 or newer, and {_jax.__version__} is installed; upgrade it")

from .grouped import ragged_dot
from .handlers import register
from .product import gemm, matmul

register()

__all__ = ["gemm", "matmul", "ragged_dot"]
