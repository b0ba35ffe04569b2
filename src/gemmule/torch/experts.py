"""The experts of a mixture layer, by grouped products."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

import gemmule as gm
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

from .grouped import grouped_mm
from .product import may_skip_operator
from .shapes import check_tensors

#: Bytes of the types of which SwiGLU is an epilogue.
_HALF = 2
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
#: Module and name of the classes that compute SiLU: transformers has one of its own.
_SILUS = frozenset((("torch.nn.modules.activation", "SiLU"), ("transformers.activations", "SiLUActivation")))


class Experts:
    """A base class that `replace_experts` puts first: two grouped GEMMs compute a layer of experts."""

    def forward(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        """Return for each token the weighted sum of what its experts make of it.

        Parameters
        ----------
        hidden_states : Tensor, shape (tokens, features)
            The tokens.
        top_k_index : Tensor of integers, shape (tokens, slots)
            Each token's experts; a negative number, or one beyond the last expert, is none.
        top_k_weights : Tensor, shape (tokens, slots) or (tokens, experts)
            Their weights; of slots where there are as many slots as experts, as in transformers.

        Returns
        -------
        Tensor, shape (tokens, features)
            The sums.

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If shapes do not fit together, the experts are no integers, or something is no tensor.
        """
        up, down = self.gate_up_proj, self.down_proj
        _check(hidden_states, top_k_index, top_k_weights, down)
        tokens, slots = top_k_index.shape
        top_k_index = top_k_index.long()
        in_one_pass = self._in_one_pass(hidden_states, up, down, top_k_index)
        if top_k_weights.shape[1] != slots:
            # A number that is no expert's has no weight of its own.
            top_k_weights = top_k_weights.gather(1, top_k_index.clamp(0, top_k_weights.shape[1] - 1))
        if in_one_pass and tokens == 1:
            # Each row names its expert: nothing is sorted, which would take more of the host than the products.
            rows, chosen = hidden_states.expand(slots, -1), top_k_index.reshape(-1).int()
            inner = gm.grouped_gemm(rows, up.detach().mT, matrices=chosen, epilogue="swiglu")
            found = gm.grouped_gemm(inner, down.detach().mT, matrices=chosen)
            return top_k_weights.to(found.dtype) @ found
        experts = torch.arange(down.shape[0], device=top_k_index.device)
        # Groups begin at the first row, so that rows of no expert come last.
        chosen = torch.where(top_k_index < 0, down.shape[0], top_k_index)
        chosen, order = chosen.reshape(-1).sort(stable=True)
        ends = torch.searchsorted(chosen, experts, right=True, out_int32=True)
        rows = hidden_states.index_select(0, order // slots)
        if in_one_pass:
            inner = gm.grouped_gemm(rows, up.detach().mT, ends, epilogue="swiglu")
            found = gm.grouped_gemm(inner, down.detach().mT, ends)
        else:
            found = grouped_mm(self._gated(grouped_mm(rows, up.mT, offs=ends)), down.mT, offs=ends)
        weights = top_k_weights.to(found.dtype)
        # Each slot of a token reads its own row again, so that the sum has one order.
        found = found.index_select(0, order.argsort())
        return torch.bmm(weights.unsqueeze(1), found.view(tokens, slots, found.shape[1])).squeeze(1)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the reduction that pickles the module: its class is made here, from the one it had before."""
        del protocol
        return _restored, (type(self).__bases__[1],), self.__dict__

    def _in_one_pass(self: Any, rows: Any, *others: Any) -> bool:
        """Return whether SwiGLU is an epilogue: on a GPU, where no gradient and no operator is looked at."""
        return (
            rows.is_cuda
            and not torch.is_grad_enabled()
            and is_silu(self.act_fn)
            and rows.dtype == others[0].dtype == others[1].dtype
            and rows.dtype.itemsize == _HALF
            and self._gates_plainly
            and may_skip_operator((rows, *others))
        )

    @property
    def _gates_plainly(self: Any) -> bool:
        own = getattr(type(self), "_apply_gate", None)
        return own is None or bool(own.__qualname__ == "_default_apply_gate" and self.is_concatenated)

    def _gated(self: Any, gate_up: Any) -> Any:
        if not self._gates_plainly:
            return self._apply_gate(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return self.act_fn(gate) * up


def _check(rows: Any, index: Any, weights: Any, down: Any) -> None:
    check_tensors(hidden_states=rows, top_k_index=index, top_k_weights=weights)
    if index.dtype not in _INTEGERS:
        raise DTypeError(f"top_k_index is {index.dtype}; give numbers of experts as torch.int64: top_k_index.long()")
    experts, features, _ = down.shape
    fits = rows.ndim == index.ndim == weights.ndim == 2 and rows.shape[0] == index.shape[0] == weights.shape[0]
    if not (fits and rows.shape[1] == features and weights.shape[1] in (index.shape[1], experts)):
        raise ShapeError(
            f"hidden_states has shape {tuple(rows.shape)}, top_k_index {tuple(index.shape)} and top_k_weights "
            f"{tuple(weights.shape)}; {experts} experts of {features} features take (tokens, {features}), "
            f"(tokens, slots), and (tokens, slots) or (tokens, {experts})"
        )


def is_silu(activation: Any) -> bool:
    """Return whether an activation is a known SiLU without a `forward` of its own."""
    kind = type(activation)
    return (kind.__module__, kind.__name__) in _SILUS and "forward" not in vars(activation)


@functools.cache
def _with_grouped_products(kind: type) -> type:
    return type(f"Grouped{kind.__name__}", (Experts, kind), {"__module__": kind.__module__})


def _restored(kind: type) -> Any:
    return object.__new__(_with_grouped_products(kind))


def replace_experts(model: Any) -> tuple[str, ...]:
    """Let the experts of a model's mixture layers compute by grouped products, in place.

    A module is taken for experts if it has the parameters ``gate_up_proj`` (experts, 2 * inner, features) and
    ``down_proj`` (experts, features, inner) and an ``act_fn``, without biases, as the experts of Hugging Face's
    transformers 5: Mixtral, Qwen-MoE and others. It stays the same object with the same parameters, on a GPU float16,
    bfloat16 or float32; its router is left alone. Lists of experts that are modules each, as in transformers 4, are not
    replaced; nor are, with a warning, those whose class overrides the `forward` of another one, or that have one of
    their own.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it may itself be the experts.

    Returns
    -------
    tuple of str
        Names of the modules that were replaced.

    Raises
    ------
    ArgumentError
        If `model` is no module.

    Examples
    --------
    >>> import torch, gemmule.torch
    >>> gemmule.torch.replace_experts(torch.nn.Linear(4, 8))
    ()
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is of type {type(model).__name__}, not a torch.nn.Module; pass one, e.g. a layer")
    found = []
    for name, module in model.named_modules():
        if _are_experts(module):
            if reason := _own_forward(module):
                warnings.warn(f"experts {name!r} stay as they are: {reason}", stacklevel=2)
            else:
                found.append((name, module))
    for _, module in found:
        kind: type = type(module)
        module.__class__ = _with_grouped_products(kind)
    return tuple(name for name, _ in found)


def _own_forward(module: Any) -> str | None:
    """Say whose `forward` is not the one that experts of this form were made with, or None."""
    if "forward" in vars(module):
        return f"this {type(module).__name__} has a forward of its own; delete it to have them replaced"
    named = [kind.__name__ for kind in type(module).__mro__ if "forward" in vars(kind) and kind is not torch.nn.Module]
    if len(named) > 1:
        return f"forward of {named[0]} overrides that of {named[1]}; make them of {named[1]} to have them replaced"
    return None


def _are_experts(module: Any) -> bool:
    """Return whether a module is a known equivalent of `Experts`, not replaced yet."""
    if isinstance(module, Experts) or not callable(getattr(module, "act_fn", None)):
        return False
    if any(getattr(module, name, False) for name in ("has_bias", "is_transposed", "has_post_expert_norm")):
        return False
    parameters: dict[str, Any] = dict(module.named_parameters(recurse=False))
    up, down = (parameters.get(name) for name in ("gate_up_proj", "down_proj"))
    if up is None or down is None or up.ndim != 3 or down.ndim != 3:
        return False
    if any(name.endswith("bias") for name in parameters):
        return False
    return bool(up.shape[0] == down.shape[0] and up.shape[1] == 2 * down.shape[2] and up.shape[2] == down.shape[1])
