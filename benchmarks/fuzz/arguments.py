"""What the public functions are given for a random problem."""

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
    if "x" in given and "a" not in given:
        options = {} if problem.target == "new" else {"out": given["x" if problem.target == "x" else "out"]}
        return problem.operation, (given["x"],), options
    a = given["a"]
    positional: tuple[Any, ...] = (a, a.swapaxes(-1, -2) if problem.gram else given["b"])
    options = {"precision": problem.precision}
    if problem.target == "new":
        options["out_dtype"] = problem.dtypes["out"]
    else:
        options["out"] = given["c" if problem.target == "c" else "out"]
    if problem.operation == "matmul":
        return "matmul", positional, options
    if "c" in given:
        positional += (given["c"],)
    options |= {"alpha": problem.alpha, "beta": problem.beta}
    if problem.epilogue is not None:
        options |= EPILOGUES[problem.epilogue]
        options |= {"bias": given["bias"]} if "bias" in given else {}
        further: dict[str, Any] = {name: given[name] for name in ("x", "y") if name in given}
        if problem.epilogue in ("residual", "pairs"):
            further["scale"] = 0.75
        options |= {"epilogue_args": further} if further else {}
        options |= {"gated": given["up"]} if problem.epilogue == "second" else {}
        options |= {"absmax": absmax} if problem.epilogue == "absmax" else {}
    return "gemm", positional, options
