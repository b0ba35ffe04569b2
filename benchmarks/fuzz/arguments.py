"""Arguments of the public functions for a random problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from problems import FuzzProblem

import gemmule as gm

#: The function to call, its positional arguments and its options.
Arguments = tuple[str, tuple[Any, ...], dict[str, Any]]


def residual(acc: Any, c: Any, bias: Any, scale: Any) -> Any:
    """Return what a function with an input of every kind makes."""
    return scale * gm.epilogue.relu(acc + bias) + c


def two_matrices(acc: Any, x: Any, y: Any) -> Any:
    """Return a continuous function of two matrices."""
    return gm.epilogue.where(acc > x, (acc - x) * y, x - acc)


def scaled_reglu(gate: Any, up: Any, scale: Any) -> Any:
    """Return a gated form of the caller's own."""
    return scale * (gm.epilogue.relu(gate) * up)


#: What `gemm` is given for each epilogue, beside its arrays.
EPILOGUES: dict[str, dict[str, Any]] = {
    "bias": {},
    "relu": {"epilogue": "relu"},
    "gelu": {"epilogue": "gelu"},
    "silu": {"epilogue": "silu"},
    "gelu_tanh": {"epilogue": "gelu_tanh"},
    "residual": {"epilogue": residual},
    "two_matrices": {"epilogue": two_matrices},
    "swiglu": {"epilogue": "swiglu"},
    "pairs": {"epilogue": scaled_reglu, "gated": "pairs"},
    "second": {"epilogue": "reglu"},
    "absmax": {},
}


def arguments_of(problem: FuzzProblem, given: Mapping[str, Any], absmax: Any) -> Arguments:
    """Return the function's name and what it is given, made of arrays by name."""
    options = dict(problem.options)
    if problem.target != "new":
        options["out"] = given[problem.target if problem.target in ("c", "x") else "out"]
    if "x" in given and "a" not in given:
        return problem.operation, (given["x"],), options
    if problem.target == "new":
        options["out_dtype"] = problem.dtypes["out"]
    a, b = given["a"], given["a"].swapaxes(-1, -2) if problem.gram else given["b"]
    # Of PyTorch, which conjugates when it reads.
    a, b = (x.conj() if name in problem.lazy else x for name, x in (("a", a), ("b", b)))
    if problem.operation == "scaled_gemm":
        options |= {name: given[name] for name in ("bias", "scale_result") if name in given}
        options |= {"absmax": absmax} if problem.epilogue == "absmax" else {}
        return "scaled_gemm", (a, b, given["scale_a"], given["scale_b"]), options
    options["precision"] = problem.precision
    if problem.operation == "grouped_gemm":
        options |= {
            name: given[name] for name in ("bias", "scale_a", "scale_b", "offsets", "matrices") if name in given
        }
        options |= EPILOGUES[problem.epilogue] if problem.epilogue is not None else {}
        return "grouped_gemm", (a, b), options
    if problem.operation == "matmul":
        return "matmul", (a, b), options
    positional: tuple[Any, ...] = (a, b, given["c"]) if "c" in given else (a, b)
    options |= {"alpha": problem.alpha, "beta": problem.beta}
    if problem.epilogue is not None:
        options |= _epilogue(problem, given, absmax)
    return "gemm", positional, options


def _epilogue(problem: FuzzProblem, given: Mapping[str, Any], absmax: Any) -> dict[str, Any]:
    """Return the options of `gemm` that an epilogue needs."""
    assert problem.epilogue is not None
    options = dict(EPILOGUES[problem.epilogue])
    options |= {"bias": given["bias"]} if "bias" in given else {}
    further: dict[str, Any] = {name: given[name] for name in ("x", "y") if name in given}
    if problem.epilogue in ("residual", "pairs"):
        further["scale"] = 0.75
    options |= {"epilogue_args": further} if further else {}
    options |= {"gated": given["up"]} if problem.epilogue == "second" else {}
    return options | ({"absmax": absmax} if problem.epilogue == "absmax" else {})


def called_by_torch(problem: FuzzProblem, positional: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Call the function of `gemmule.torch` that computes the same, and return its result."""
    import torch

    import gemmule.torch as gt
    from gemmule.torch.scaled import quantize_operator

    if problem.operation == "quantize":
        return quantize_operator(*positional, options["by"], getattr(torch, options["dtype"]))
    dtype = getattr(torch, problem.dtypes["out"])
    if problem.operation == "scaled_gemm":
        return gt.scaled_mm(
            *positional, bias=options.get("bias"), scale_result=options.get("scale_result"), out_dtype=dtype
        )
    ends = options["offsets"]
    if "scale_a" not in options:
        return gt.grouped_mm(*positional, offs=ends)
    scales = (options["scale_a"], options["scale_b"])
    # One for each row, and for each column of each matrix, as PyTorch has them.
    scales = tuple(x.squeeze(axis) if x.ndim > 1 else x for x, axis in zip(scales, (-1, 1), strict=True))
    return gt.scaled_grouped_mm(*positional, *scales, ends, bias=options.get("bias"), out_dtype=dtype)
