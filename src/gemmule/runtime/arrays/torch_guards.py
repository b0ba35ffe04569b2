"""PyTorch's guards in C++, made for torch.compile, where they are as known; and the rules of what is traced."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

#: Returns, for tensors, a guard: a predicate that compares types, devices, shapes, strides and kinds with theirs.
Guards = Callable[..., Callable[..., bool]]


def tensor_guards(torch: Any) -> Guards | None:
    """Return the maker of guards; None where this PyTorch has none that pass the test.

    The class is PyTorch's own affair, so that it is tried on tensors that must not be taken for one another.
    """

    def tried(*tensors: Any) -> Callable[..., bool]:
        # Without dimensions that may change.
        guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        check: Callable[..., bool] = guards.check
        return check

    def made(*tensors: Any) -> Callable[..., bool]:
        check = tried(*tensors)
        # Some modes, which may hand out tensors of their own, it does not see: that of fake tensors.
        modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
        # Nor tangents, which a kernel would lose.
        forward_ad = torch.autograd.forward_ad
        return lambda *given: not modes() and forward_ad._current_level < 0 and check(*given)

    try:
        # A first product may be one of a trace, in whose modes tensors are none that a guard knows.
        with torch.utils._python_dispatch._disable_current_modes():
            return made if _tells_tensors_apart(torch, tried) else None
    except (TypeError, ValueError, AttributeError, RuntimeError, SystemError):
        # It is missing, has another signature, or cannot be evaluated now.
        return None


def _tells_tensors_apart(torch: Any, made: Guards) -> bool:
    def tensor(shape: tuple[int, ...] = (2, 3), strides: tuple[int, ...] = (3, 1), **facts: Any) -> Any:
        return torch.empty_strided(shape, strides, **{"dtype": torch.float32, "device": "cpu"} | facts)

    first, second = tensor(), tensor()
    others = [
        tensor((2, 4), (4, 1)),
        tensor((6,), (1,)),
        tensor(strides=(1, 2)),
        tensor(dtype=torch.int32),
        tensor(device="meta"),
        tensor(requires_grad=True),
        torch._neg_view(tensor()),
        torch.nn.Parameter(tensor(), requires_grad=False),
    ]
    check = made(first, second)
    return (
        check(second, first) is True
        and not any(check(first, other) or check(other, second) for other in others)
        and not any(made(first, other)(first, second) for other in others)
    )


def quick_maker(torch: Any, like: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes tensors like a C-contiguous one faster than torch.empty; None where nothing does.

    It is given a tensor, which it does not look at.

    On GPUs it makes them on the current one, so that it is of use where there is one only.
    """
    facts = shape, strides, dtype = (tuple(like.shape), tuple(like.stride()), like.dtype)
    try:
        if like.get_device() < 0:
            make = torch._C._dynamo.guards._empty_strided_cpu
        elif torch.cuda.device_count() == 1:
            make = torch._C._dynamo.guards._empty_strided_cuda
        else:
            return None
        made = make(*facts)
    except (TypeError, AttributeError, RuntimeError):
        return None
    found = (type(made), tuple(made.shape), tuple(made.stride()), made.dtype, made.device, made.requires_grad)
    if found != (torch.Tensor, *facts, like.device, False):
        return None
    return lambda _: make(shape, strides, dtype)


def stay_out_of_dynamo() -> None:
    """Let `torch.compile` call what computes on the host, instead of tracing NumPy's functions as operators."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or _skipped_by:
        return
    _skipped_by.append(dynamo)
    with contextlib.suppress(AttributeError):
        # Not the whole package: the functions of gemmule.torch are traced.
        for room in ("api", "dispatch", "host", "runtime", "vgpu"):
            dynamo.trace_rules.add(f"gemmule.{room}")


_skipped_by: list[Any] = []
