"""Host arrays through a GPU: the whole batch at once where it fits; else matrix by matrix, or streamed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmule.core.batch_folding import fold_batch
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.outofcore.calls.device_engine import Limits, memory_beside_workspaces, plan_device_engine
from gemmule.outofcore.calls.devices import accumulator_dtype, threads_for_copies, usual_staging
from gemmule.outofcore.calls.request import Request
from gemmule.outofcore.device.engine.streaming import Settings
from gemmule.outofcore.device.planner.budgets import Budgeted, Budgets, Staging, choose_within
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.stores.mapped_sink import array_sink
from gemmule.outofcore.stores.mapped_source import array_source
from gemmule.outofcore.tiles.memory_budget import memory_limit
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.outofcore.tiles.problem import StreamProblem
from gemmule.runtime.device import current, get_device
from gemmule.runtime.round_trip import link_of

from .choice import choose_compiling, execute
from .host_rates import link_times
from .plan import Execution

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes a second of a link between host and GPU, where it is stated and not measured: PCIe 5.0 x16, as seen.
LINK_RATE = 50e9
#: Alignment of operands in device memory, in bytes.
_ALIGNMENT = 256


@dataclass(frozen=True)
class _Place:
    """Place of an operand in a call's device memory."""

    matrix: StridedMatrix  #: The operand there.
    begin: int  #: Bytes behind the beginning.
    nbytes: int  #: Its size.
    transposed: bool  #: Whether its matrices are transposed in C order there, as on the host.

    def sent(self, x: Array) -> Array:
        """Return the part of an array to copy: in the order of its memory, and no matrix of a batch twice."""
        batch = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides[:-2])
        x = x[batch] if 0 in x.strides[:-2] else x
        return x.swapaxes(-1, -2) if self.transposed else x


class RoundTrip:
    """A product of host arrays by way of a GPU, for any arrays of the same types, shapes and strides.

    Parameters
    ----------
    arrays : mapping of str to numpy.ndarray
        A, B, the output, called ``d``, and C if it is read: (..., m, k), (..., k, n) and (..., m, n).
    alpha, beta : number
        Scalars.
    precision : Precision
        Type that float32 operands may be rounded to.

    Attributes
    ----------
    problem : GemmProblem
        The product on the GPU, of the whole batch.
    choice : Choice
        Its kernel.
    sent, received : int
        Bytes that go there, and that come back.
    """

    def __init__(
        self, arrays: Mapping[str, Array], alpha: Any, beta: Any, precision: Precision, ordinal: int = 0
    ) -> None:
        out = arrays["d"]
        batch, (m, n), k = out.shape[:-2], out.shape[-2:], arrays["a"].shape[-1]
        self._places: dict[str, _Place] = {}
        self._bytes = 0
        for role, x in arrays.items():
            self._places[role] = place = _place(x, batch, self._bytes, factor=role in "ab")
            self._bytes += -(-place.nbytes // _ALIGNMENT) * _ALIGNMENT
        matrices = {role: place.matrix for role, place in self._places.items()}
        self.problem = fold_batch(
            GemmProblem(
                m=m, n=n, k=k, batch=batch, a=matrices["a"], b=matrices["b"], c=matrices.get("c"), d=matrices["d"],
                alpha=alpha, beta=beta if "c" in matrices else 0, precision=precision,
            )
        )  # fmt: skip
        self._device = get_device(ordinal)
        self.choice = choose_compiling(self.problem, self._device)
        self.received = self._places["d"].nbytes
        self.sent = sum(place.nbytes for place in self._places.values()) - self.received
        self._execution = Execution()

    def run(self, a: Array, b: Array, out: Array, c: Array | None) -> None:
        """Write the product into `out`, which shares no memory with `a` or `b`; `c` is None where it is not read."""
        ordinal = self._device.ordinal
        # Measured once: from which size arrays are staged.
        link_times(ordinal)
        link = link_of(ordinal)
        with link.lock, current(ordinal):
            if link.has_room(self._bytes):
                link.prefault(out)
                with link.room(self._bytes) as base:
                    pointers = {role: base + place.begin for role, place in self._places.items()}
                    given = {"a": a, "b": b, "c": c}
                    link.send(
                        [
                            (self._places[role].sent(x), pointers[role])
                            for role, x in given.items()
                            if role in self._places and x is not None
                        ]
                    )
                    execute(self.problem, self.choice, self._device, pointers, link.stream, self._execution)
                    link.receive(out, pointers["d"])
                return
        self._run_in_parts(a, b, out, c)

    def _run_in_parts(self, a: Array, b: Array, out: Array, c: Array | None) -> None:
        """Multiply matrix by matrix, and stream one that does not fit."""
        problem, batch = self.problem, out.shape[:-2]
        a, b = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
        c = None if c is None or "c" not in self._places else np.broadcast_to(c, out.shape)
        for index in np.ndindex(batch):
            added = None if c is None else c[index]
            if batch:
                given = {"a": a[index], "b": b[index], "d": out[index]} | ({} if added is None else {"c": added})
                one = RoundTrip(given, problem.alpha, problem.beta, problem.precision, self._device.ordinal)
                one.run(a[index], b[index], out[index], added)
            else:
                request = Request(a, b, out, added, problem.alpha, problem.beta, precision=problem.precision)
                stream_arrays(request, Limits())


def _place(x: Array, batch: tuple[int, ...], begin: int, *, factor: bool) -> _Place:
    """Return where an array is put, whose batch dimensions are broadcast to `batch`; a factor in its own order."""
    rows, cols = x.shape[-2:]
    transposed = factor and rows > 1 and cols > 1 and abs(x.strides[-2]) < abs(x.strides[-1])
    steps: list[int] = []
    count = rows * cols
    for extent, stride in zip(reversed(x.shape[:-2]), reversed(x.strides[:-2]), strict=True):
        repeated = extent == 1 or stride == 0
        steps.insert(0, 0 if repeated else count)
        count *= 1 if repeated else extent
    steps = [0] * (len(batch) - len(steps)) + steps
    dtype = dtype_named(x.dtype.name)
    down, along = (1, rows) if transposed else (cols, 1)
    matrix = StridedMatrix(dtype, rows, cols, down, along, tuple(steps), _ALIGNMENT)
    return _Place(matrix, begin, count * dtype.itemsize, transposed)


def stream_arrays(request: Request, limits: Limits, device: str = "gpu") -> None:
    """Write ``alpha * a @ b + beta * c`` into `out`, all matrices of a request, through a device's memory by tiles."""
    sink = array_sink(request.out, "out")
    precision = Precision.IEEE if request.precision is None else Precision(request.precision)

    with contextlib.ExitStack() as stack:
        left, right, added = (
            None if array is None else stack.enter_context(contextlib.closing(array_source(array, name)))
            for array, name in ((request.a, "a"), (request.b, "b"), (request.c, "c"))
        )
        assert left is not None
        assert right is not None

        problem = StreamProblem(left, right, added, sink.shape, sink.dtype, request.alpha, request.beta)
        engine = plan_device_engine(device, problem, sink, limits, precision=precision)
        engine.run(problem, sink, engine.plan)


def streaming_plan(problem: GemmProblem, memory: int, seconds: float | None) -> Budgeted | None:
    """Return how a product of pageable arrays would be streamed, at the chip's peak rate; None if it fits `memory`.

    Parameters
    ----------
    problem : GemmProblem
        One matrix product of contiguous matrices; its batch is left out of account.
    memory : int
        Bytes of device memory that may be taken.
    seconds : float or None
        Least time of the whole problem on the chip, from which its rate is taken; None where that is not known.
    """
    operands, memory = problem.operands(), memory_beside_workspaces(memory, problem.precision)
    sizes = {name: matrix.rows * matrix.cols * matrix.dtype.itemsize for name, matrix in operands.items()}
    if sum(sizes.values()) <= memory or not seconds:
        return None
    a, b, d = (operands[name].dtype.numpy() for name in "abd")
    c = operands.get("c")
    product = Product(
        problem.m, problem.n, problem.k, Operand(a), Operand(b), Operand(d), Operand(c.dtype.numpy()) if c else None
    )
    rate = problem.flop / seconds
    budgets = Budgets(memory, Settings().pinned, memory_limit(None))
    staging = Staging(("a", "b", *(["c"] if c else []), "out"), threads_for_copies())
    rates = usual_staging(Rates(rate, rate, LINK_RATE, LINK_RATE))
    return choose_within(1, product, accumulator_dtype("gpu", a, b, d), budgets, staging, rates)
