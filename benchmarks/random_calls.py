"""One random problem: its arrays, the call, the result held against the reference. Nothing waits for a GPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from random_arrays import Placed, dtype_of, values_for
from random_draw import RandomProblem
from random_expected import expected, verdict
from random_lies import Lie

import gemmule as gm


def residual(acc: Any, c: Any, bias: Any, scale: Any) -> Any:
    """Return what a function with an input of every kind makes."""
    return scale * gm.relu(acc + bias) + c


def two_matrices(acc: Any, x: Any, y: Any) -> Any:
    """Return a function without a step, of two matrices."""
    return gm.where(acc > x, (acc - x) * y, x - acc)


def scaled_reglu(gate: Any, up: Any, scale: Any) -> Any:
    """Return a gated form of the caller's own."""
    return scale * (gm.relu(gate) * up)


#: What `gemm` is given for each epilogue, beside its arrays.
ENDINGS: dict[str, dict[str, Any]] = {
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


class Call:
    """A problem with its arrays.

    Parameters
    ----------
    problem : RandomProblem
        What is to be computed.
    device : str
        PyTorch's name of the device.
    executor : str, optional
        As of `gemm`.
    """

    def __init__(self, problem: RandomProblem, device: str, executor: str | None = None) -> None:
        self.problem, self.device, self.executor = problem, device, executor
        lies = dict(problem.lies)
        self.placed = {
            name: Placed(shape, problem.dtypes[name], lies[name], device) for name, shape in problem.shapes.items()
        }
        self.absmax: Any = None
        if problem.ending == "absmax":
            self.absmax = Placed((1,), "float32", Lie((0,)), device)

    def fill(self) -> None:
        """Write fresh values; NaN into what is not to be read."""
        problem = self.problem
        generator = torch.Generator(self.device).manual_seed(problem.seed * 1_000_003 + problem.index)
        for name, placed in self.placed.items():
            if name == "out":
                continue
            values = values_for(problem, name, generator, self.device)
            unread = name == "c" and problem.beta == 0 and problem.ending != "residual"
            unread = unread or (name in "ab" and problem.alpha == 0)
            if unread and values.is_floating_point():
                values = torch.full_like(values, math.nan)
            placed.fill(values)

    def arguments(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """Return the function's name and what it is given."""
        problem, library = self.problem, self.problem.library
        given = {name: placed.given(library) for name, placed in self.placed.items()}
        positional: tuple[Any, ...] = (given["a"], given["b"])
        options: dict[str, Any] = {"precision": problem.precision, "executor": self.executor}
        if problem.target == "new":
            options["out_dtype"] = problem.dtypes["out"]
        else:
            options["out"] = given["c" if problem.target == "c" else "out"]
        if problem.operation == "matmul":
            return "matmul", positional, options
        if "c" in given:
            positional += (given["c"],)
        options |= {"alpha": problem.alpha, "beta": problem.beta}
        if problem.ending is not None:
            options |= ENDINGS[problem.ending]
            options |= {"bias": given["bias"]} if "bias" in given else {}
            further: dict[str, Any] = {name: given[name] for name in ("x", "y") if name in given}
            if problem.ending in ("residual", "pairs"):
                further["scale"] = 0.75
            options |= {"epilogue_args": further} if further else {}
            options |= {"gated": given["up"]} if problem.ending == "second" else {}
            options |= {"absmax": self.absmax.given(library)} if self.absmax is not None else {}
        return "gemm", positional, options

    def plan(self) -> Any:
        """Return the plan of the call."""
        operation, positional, options = self.arguments()
        return gm.plan(*positional, operation=operation, **options)

    def run(self, spoil: Callable[[Any], None] | None = None) -> torch.Tensor:
        """Call, and return wrong elements, the worst error in bounds, bytes written astray and inputs changed.

        Parameters
        ----------
        spoil : callable, optional
            Does something to the result before it is looked at: a check must see it.
        """
        problem = self.problem
        target = "c" if problem.target == "c" else "out"
        # What C was, which the result may replace.
        arrays = {name: one.logical() for name, one in self.placed.items() if name != "out"}
        y, error = expected(problem, arrays)
        before = [one.sum() for name, one in self.placed.items() if name != target]
        operation, positional, options = self.arguments()
        function = gm.matmul if operation == "matmul" else gm.gemm
        for _ in range(calls_before(problem)):
            function(*positional, **options)
            # Poisoned anew.
            self.placed["out"].strayed()
        result = function(*positional, **options)
        got = result
        if problem.library == "cupy" and problem.target == "new":
            got = torch.as_tensor(result, device=self.device)
        elif problem.library == "cupy":
            got = self.placed[target].logical()
        if spoil is not None:
            spoil(got)
        assert tuple(got.shape) == problem.result, f"the result has shape {tuple(got.shape)}"
        assert got.dtype == dtype_of(problem.dtypes["out"]), f"the result is {got.dtype}"
        found = verdict(problem, got, y, error)
        if self.absmax is not None:
            found[0] += self._wrong_absmax(y, error)
        after = [one.sum() for name, one in self.placed.items() if name != target]
        changed = sum(((x != z).double() for x, z in zip(before, after, strict=True)), torch.zeros_like(found[0]))
        strayed = self.placed[target].strayed().double() if problem.target != "new" else torch.zeros_like(found[0])
        if self.absmax is not None:
            strayed = strayed + self.absmax.strayed()
        return torch.cat((found, torch.stack((strayed, changed))))

    def _wrong_absmax(self, y: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        got = self.absmax.view[0].double()
        if not y.numel():
            return (got != 0).double()
        largest = y.abs().max()
        near = (got - largest).abs() <= error.max() + 2.0**-23 * largest
        return (~(near | (got == largest) | (got.isnan() & largest.isnan()))).double()


def calls_before(problem: RandomProblem) -> int:
    """Return how often the same is called before the call that is checked: later calls repeat what was decided."""
    return 0 if problem.target == "c" else (0, 0, 1, 2)[problem.index % 4]


def on_stream(problem: RandomProblem, device: str) -> contextlib.AbstractContextManager[Any]:
    """Return what makes the problem's stream the current one: for its arrays too, whose memory is given back there."""
    if device == "cpu" or problem.stream == 0:
        return contextlib.nullcontext()
    return torch.cuda.stream(_stream(problem.stream))


_streams: dict[int, Any] = {}


def _stream(number: int) -> Any:
    if number not in _streams:
        _streams[number] = torch.cuda.Stream()
    return _streams[number]


def labels(problem: RandomProblem) -> dict[str, str]:
    """Return what problems are counted by."""
    a, b = problem.dtypes["a"], problem.dtypes["b"]
    types = a if a == b else f"{a} x {b}"
    return {
        "dtype": f"{types} (tf32)" if problem.precision == "tf32" else types,
        "epilogue": problem.ending or "none",
        "batch": "batched" if len(problem.result) > 2 else "one product",
        "alpha": _kind(problem.alpha),
        "beta": _kind(problem.beta),
        "target": problem.target,
        "library": problem.library,
        "values": problem.values,
        "calls": str(calls_before(problem) + 1),
        **{f"{name} lies": _lies(problem, name) for name in ("a", "b", "out")},
    }


def _kind(number: float) -> str:
    """Return a scalar, where it is one of the special ones."""
    if isinstance(number, float) and 0 < abs(number) < 2.0**-126:
        return "subnormal"
    return str(number) if number in (0, 1, -1) or not math.isfinite(number) else "other"


def _lies(problem: RandomProblem, name: str) -> str:
    """Return in which order an array lies, and whether its lines are of whole 16 bytes."""
    lie, axes = problem.lies[name], len(problem.shapes[name])
    if axes < 2:
        return "vector"
    order = "columns" if lie.order[-1] == axes - 2 else "rows" if lie.order[-1] == axes - 1 else "batch first"
    size = dtype_of(problem.dtypes[name]).itemsize
    pitch = (problem.shapes[name][lie.order[-1]] * lie.step + (lie.pads[0] if lie.pads else 0)) * size
    words = [order, "with gaps" if lie.step > 1 else "", "backwards" if lie.flipped else ""]
    words += ["repeated" if lie.repeated else "", "" if pitch % 16 == lie.offset % 16 == 0 else "misaligned"]
    return " ".join(word for word in words if word)
