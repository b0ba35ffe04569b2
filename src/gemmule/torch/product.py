"""The operator ``gemmule::gemm``: what PyTorch needs to know of it to trace, compile, differentiate and batch it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

import gemmule as gm

from .shapes import check_addend, check_devices, check_dtypes, result_shape

#: Functions that are called with the operator whenever it is traced.
TRACED: list[Callable[[Any], object]] = []
_NAME = "gemmule::gemm"
_SCHEMA = "(Tensor a, Tensor b, Tensor? c, float alpha, float beta, ScalarType? out_dtype, str? precision) -> Tensor"


def compute(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, precision: str | None) -> Any:
    """Compute what the operator does, for tensors with memory of their own, without a gradient."""
    shape, dtype = _checked(a, b, c, out_dtype)
    a, b = _plain(a), _plain(b)
    if c is None or beta == 0:
        return gm.gemm(a, b, alpha=alpha, out_dtype=out_dtype, precision=precision)
    addend, role = _plain(c), bias_role(a.is_cuda, a.dtype, precision)
    if beta == 1 and addend.shape != shape and role == "bias":
        return gm.gemm(a, b, alpha=alpha, out_dtype=out_dtype, precision=precision, bias=addend)
    if addend.is_cuda and addend.dtype == dtype and (dtype.is_floating_point or dtype.is_complex):
        return gm.gemm(a, b, addend.expand(shape), alpha=alpha, beta=beta, out_dtype=out_dtype, precision=precision)
    # A broadcast addend on the host is expanded into the output and read there as C: the sum is rounded once.
    out = torch.empty(shape, dtype=dtype, device=a.device)
    if addend.shape != out.shape or not addend.is_contiguous():
        # A copy would cross devices.
        check_devices(a=a, c=addend)
        addend = out.copy_(addend)
    return gm.gemm(a, b, addend, alpha=alpha, beta=beta, out=out, precision=precision)


def bias_role(is_cuda: bool, dtype: Any, precision: str | None) -> Literal["bias", "c", ""]:
    """Return as what the kernels for a type read a bias: as one, or as a C whose rows are one row; empty as neither.

    Kernels of 16-bit types and TF32 load C by TMA, which takes no stride of 0: it would be an input of the epilogue.
    """
    if is_cuda and (dtype.itemsize == 2 or (dtype == torch.float32 and precision == "tf32")):
        return "bias"
    return "c" if is_cuda and (dtype in (torch.float32, torch.float64) or dtype.is_complex) else ""


def _plain(x: Any) -> Any:
    """Return a tensor without gradient: this code is below PyTorch's autograd."""
    return x.detach() if x.requires_grad else x


def _checked(a: Any, b: Any, c: Any, out_dtype: Any) -> tuple[tuple[Any, ...], Any]:
    dtype = a.dtype if out_dtype is None else out_dtype
    check_dtypes(a=a, b=b)
    shape = result_shape(a, b)
    if c is not None:
        check_addend("c", c, shape)
    return shape, dtype


# As `torch.library.custom_op`, without its check at every call that the result shares no memory with an input:
# that is what the tests have `torch.library.opcheck` for.
torch.library.define(_NAME, _SCHEMA)
torch.library.impl(_NAME, "default", compute)
#: alpha * a @ b + beta * c for tensors of two or more dimensions, c broadcast to the shape of the product.
gemm = torch.ops.gemmule.gemm.default


@register_flop_formula(torch.ops.gemmule.gemm)
def _flop(a_shape: Any, *_: Any, out_shape: Any) -> int:
    """Count operations for `torch.utils.flop_counter.FlopCounterMode`, as PyTorch does for its own products."""
    return 2 * int(math.prod(out_shape)) * int(a_shape[-1])


@torch.library.register_fake(_NAME)
def _describe(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, precision: str | None) -> Any:
    del alpha, beta, precision
    for call in TRACED:
        call(gemm)
    check_devices(a=a, b=b) if c is None else check_devices(a=a, b=b, c=c)
    shape, dtype = _checked(a, b, c, out_dtype)
    return a.new_empty(shape, dtype=dtype)


class _Gemm(torch.autograd.function._SingleLevelFunction):
    """The product's derivatives, backward and forward.

    What `torch.library.register_autograd` makes has no tangents, and returns zeros for them without a word; nor does
    `torch.func.grad` take it. This is called where PyTorch differentiates its own operators: at one level of
    `torch.func`, the other levels below it.
    """

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return compute_or_redispatch(gemm, compute, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, c, ctx.alpha, ctx.beta, ctx.out_dtype, ctx.precision, _, _ = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        # A factor without tangent drops its term, instead of a product with zeros.
        ctx.set_materialize_grads(False)
        ctx.addend = None if c is None else (c.shape, c.dtype)
        ctx.result = output.shape, output.dtype

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        return _backward(ctx, grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _forward_mode(ctx, *tangents[:3])


class FormerMemory(torch.autograd.function._SingleLevelFunction):
    """The memory that a leaf had in a forward, with the leaf's gradient: for a backward that is differentiated."""

    @staticmethod
    def forward(ctx: Any, leaf: Any, memory: Any) -> Any:
        del ctx, leaf
        return memory.view_as(memory)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
        del ctx
        return grad, None


def multiply(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, precision: str | None) -> Any:
    """Compute what the operator does, past PyTorch's dispatcher where nothing would hear of its being called.

    Dispatching an operator that is defined in Python costs more than launching a small product.
    """
    given = (a, b) if c is None else (a, b, c)
    if not may_skip_operator(given):
        return gemm(a, b, c, alpha, beta, out_dtype, precision)
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*given):
        return _Gemm.apply(a, b, c, alpha, beta, out_dtype, precision, None, None)
    return compute(a, b, c, alpha, beta, out_dtype, precision)


#: Subclasses may mean something else by the operator.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_is_batched_for_gradients = torch._C._functorch.is_legacy_batchedtensor


def may_skip_operator(given: tuple[Any, ...]) -> bool:
    """Return whether nothing would see a call of the operator with these tensors, so that it can be left out."""
    if torch.compiler.is_compiling() or operators_are_seen():
        return False
    for x in given:
        # The vmap that batched gradients go through is no transform of functorch: its tensors alone show it.
        if type(x) not in PLAIN or _is_batched_for_gradients(x):
            return False
    return bool(given[0].is_cuda or given[0].is_cpu)


def operators_are_seen() -> bool:
    """Return whether a mode, a transform, a trace or a profiler sees each operator, or there are tangents."""
    return bool(torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0 or is_seen_past_guards())


# Read once: each attribute of a module is a lookup, and a layer makes all of these calls twice.
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._are_functorch_transforms_active
_profiler = torch._C._autograd._profiler_enabled
_trace = torch._C._get_tracing_state


def is_seen_past_guards() -> bool:
    """Return whether something sees each operator that PyTorch's guards of tensors (`tensor_guards`) let pass."""
    return bool(_function_modes() or _transforms() or _profiler() or _trace() is not None)


def compute_or_redispatch(operator: Any, compute: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Return what a function computes that `differentiated` calls: below PyTorch's derivatives, if it comes from there.

    Parameters
    ----------
    operator
        The operator.
    compute : callable
        What it does with memory.
    inputs : tuple
        Its arguments, the dispatcher's keys, and whether gradients are recorded at the levels below; both None where
        the operator is left out.
    """
    *operands, keys, grad = inputs
    if keys is None:
        return compute(*operands)
    if grad is None:
        return _below(operator, keys, *operands)
    # PyTorch has switched off gradients and tangents, those of the levels below too.
    with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(True):
        return _below(operator, keys, *operands)


def _below(operator: Any, keys: Any, *inputs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


def differentiate(operator: Any, function: Any) -> None:
    """Let a function of one level be an operator's derivative, where PyTorch differentiates its own operators."""

    def differentiated(keys: Any, *inputs: Any) -> Any:
        grad = torch.is_grad_enabled()
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                return function.apply(*inputs, keys, grad)
        # To ask every tensor for its tangent takes longer than to differentiate where there is none. A compiled program
        # opens the level of tangents without Python's knowing of it; it is traced in a mode.
        tangents = forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() > 0
        if tangents or (grad and torch._C._any_requires_grad(*inputs)):
            return function.apply(*inputs, keys, None)
        return _below(operator, keys, *inputs)

    _library.impl(operator._schema.name.partition("::")[2], differentiated, "Autograd", with_keyset=True)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 9
    a, b = ctx.saved_tensors
    factor = as_factor(grad, a.dtype)
    options = ctx.alpha, ctx.precision
    grad_a = grad_b = grad_c = None
    if ctx.needs_input_grad[0]:
        grad_a = product_like(lies_in_columns(a), factor, adjoint(b), *options).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        if math.prod(b.shape[:-2]) == 1 and a.shape[:-2] == grad.shape[:-2]:
            # The gradient of a broadcast b is one sum over the whole batch.
            grad_b = product_like(lies_in_columns(b), adjoint(rows_of(a)), rows_of(factor), *options).reshape(b.shape)
        else:
            grad_b = product_like(lies_in_columns(b), adjoint(a), factor, *options).sum_to_size(b.shape)
    if ctx.addend is not None and ctx.needs_input_grad[2]:
        shape, dtype = ctx.addend
        grad_c = (grad.sum_to_size(shape) * ctx.beta).to(dtype)
    return grad_a, grad_b, grad_c, None, None, None, None, None, None


def adjoint(x: Any) -> Any:
    """Return the transposes, conjugated where they are complex: views, without a copy."""
    return x.mH if x.is_complex() else x.mT


def rows_of(x: Any) -> Any:
    """Return the matrices of a batch as one; not by `flatten`, which the vmap of batched gradients does not know."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _forward_mode(ctx: Any, tangent_a: Any, tangent_b: Any, tangent_c: Any) -> Any:
    """Return ``alpha * (da @ b + a @ db) + beta * dc``: each product adds to what there is of the sum."""
    a, b = (forward_ad.unpack_dual(x, level=0).primal for x in ctx.saved_tensors)
    total, beta = tangent_c, ctx.beta
    for left, right in ((tangent_a, b), (a, tangent_b)):
        if left is not None and right is not None:
            x, y = as_factor(left, a.dtype), as_factor(right, a.dtype)
            total = gemm(x, y, total, ctx.alpha, 0.0 if total is None else beta, ctx.out_dtype, ctx.precision)
            beta = 1.0
    if total is tangent_c:
        shape, dtype = ctx.result
        total = (tangent_c * ctx.beta).to(dtype).expand(shape)
    return total


def as_factor(x: Any, dtype: Any) -> Any:
    """Return a tensor as the fast kernels take it: of the type of the other, and with no element repeated."""
    x = x.to(dtype)
    return x.contiguous() if 0 in x.stride() else x


def lies_in_columns(x: Any) -> bool:
    """Return whether a matrix, or each of a batch, is column-major."""
    return bool(x.stride(-2) == 1 and x.stride(-1) != 1)


def product_like(columns: bool, a: Any, b: Any, alpha: float, precision: str | None) -> Any:
    """Return a product in the row- or column-major order of its tensor: PyTorch copies gradients in another order."""
    if columns:
        return multiply(b.mT, a.mT, None, alpha, 0.0, None, precision).mT
    return multiply(a, b, None, alpha, 0.0, None, precision)


_library = torch.library.Library("gemmule", "FRAGMENT")
differentiate(gemm, _Gemm)


@torch.library.register_vmap(_NAME)
def _over_a_batch(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
    (a, b, c), options, (of_a, of_b, of_c) = inputs[:3], inputs[3:], in_dims[:3]
    if of_a is None and of_b is None:
        # The product has the batch, even where it is the same in all of it.
        a, of_a = a.expand(info.batch_size, *a.shape), 0
    mapped = ((a, of_a), (b, of_b), (c, of_c))
    rank = max(x.ndim - (dim is not None) for x, dim in mapped if x is not None)
    return gemm(*(_in_front(x, dim, rank) for x, dim in mapped), *options), 0


def _in_front(x: Any, dim: int | None, rank: int) -> Any:
    """Return a tensor with the dimension that is mapped over before `rank` others."""
    if x is None or dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
