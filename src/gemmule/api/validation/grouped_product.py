"""A grouped product whose arguments have passed validation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmule.core.block_scales import SCALES
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.epilogue import MATRIX, Epilogue
from gemmule.core.epilogue import SECOND as OPERAND
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.core.grouped_problem import AXES, MATRICES, OFFSETS, GroupedProblem
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.runtime.arrays import ArrayView, check_output

from ..epilogues.ending import Ending, ending_of
from ..epilogues.gated import SECOND, storage_of, with_halves
from ..epilogues.scaling import Scaling
from .group_numbers import check_ends, check_matrices, check_numbers
from .operands import Operands, gather
from .rules import result_dtype
from .scales import FLOAT8, as_read, check_factors

#: Bytes of the shortest rows that TMA loads.
_ROW_BYTES = 16
#: Roles of the factors that have a matrix for each group of rows.
FACTORS_B = ("b", SECOND)
#: The divided dimension by the number of dimensions of A and B.
_AXIS_OF = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}


@dataclass(frozen=True)
class GroupedArguments:
    """The arguments of `grouped_gemm` as the caller gives them."""

    a: Any
    b: Any
    offsets: Any
    bias: Any
    epilogue: Any
    out: Any
    out_dtype: Any
    precision: Any
    stream: Any
    executor: Any
    scale_a: Any = None
    scale_b: Any = None
    matrices: Any = None
    epilogue_args: Any = None

    @property
    def divider(self) -> tuple[str, Any]:
        """Role and array of what divides the work: the groups' ends, or the rows' matrices."""
        return (OFFSETS, self.offsets) if self.matrices is None else (MATRICES, self.matrices)

    @property
    def scales(self) -> dict[str, Any]:
        """The scales by role, if there are any."""
        return {} if self.scale_a is None else dict(zip(SCALES, (self.scale_a, self.scale_b), strict=True))

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of A and B; of what is no array ()."""
        a, b = (tuple(getattr(x, "shape", ())) for x in (self.a, self.b))
        return a, b

    def check_rows(self, what: str) -> None:
        """Refuse operands that have no groups of rows, for what is for these only."""
        a, b = self.shapes
        if (len(a), len(b)) != (2, 3):
            raise ShapeError(f"a has shape {a} and b {b}; {what} of 2 and b of 3 dimensions")


@dataclass(frozen=True)
class GroupedProduct:
    """A grouped product whose arguments have passed validation."""

    operands: Operands  #: The arrays.
    axis: str  #: The dimension that the offsets divide: ``m``, ``n`` or ``k``; ``row`` where rows name their matrices.
    #: m, n, k, groups: As of `GroupedProblem`.
    m: int
    n: int
    k: int
    groups: int
    out_dtype: str  #: Element type of the result.
    out: Any  #: Array or None. The caller's output.
    views: Mapping[str, ArrayView]  #: The arrays by role; of a gated activation `b` and the bias are cut in two.
    ending: Ending | None  #: Epilogue of the product before it is rounded.
    epilogue: Any  #: Str, callable, Scaling or None. The same as the call names it.
    precision: Precision  #: Precision of 8-bit floats.
    epilogue_args: Any = None  #: Mapping or None. Its numbers by the names of a function's parameters.

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (self.groups, self.m, self.n) if self.axis == "k" else (self.m, self.n)

    @property
    def divider(self) -> str:
        """Role of what divides the work."""
        return MATRICES if self.axis == "row" else OFFSETS

    @property
    def multiplies(self) -> bool:
        """Whether there is anything to compute; else the result has no elements, or is zero."""
        return all((self.m, self.n, self.groups)) and (self.k > 0 or self.ending is not None)

    def check_numbers(self, numbers: Any) -> None:
        """Hold offsets, or numbers of matrices, against the operands, where the host sees them.

        Raises
        ------
        ArgumentError
            If offsets decrease, begin below 0, or go past the end, or a number names no matrix.
        """
        if self.axis == "row":
            check_matrices(numbers, self.groups)
        else:
            check_ends(numbers, self.axis, getattr(self, self.axis))

    def new_output(self, stream: int | None = None) -> tuple[ArrayView, Callable[[], Any]]:
        """Return the output's memory, and what gives the caller's array."""
        if self.out is not None:
            return self.operands.views["out"], lambda: self.out
        new = self.operands.new(self.result, self.out_dtype, stream)
        return new.view, new.finish

    @property
    def roles(self) -> dict[str, str]:
        """The role of each operand of a launch, but the result."""
        own = {name: name for name in ("a", "b", self.divider)}
        if self.ending is None:
            return own
        second = {OPERAND: SECOND} if self.ending.gated else {}
        return own | {f"{MATRIX}{place}": role for place, role in enumerate(self.ending.roles)} | second

    def of_zeros(self) -> GroupedProduct:
        """Return a product that adds up nothing as one of zeros, which kernels take; on a GPU without their memory."""
        a, b = self.views["a"], self.views["b"]
        depth = _ROW_BYTES // a.itemsize
        rows, lines = (self.m, depth), (self.groups, self.n, depth)
        host_a, host_b = (
            None if x.host is None else np.zeros(shape, x.host.dtype) for x, shape in ((a, rows), (b, lines))
        )
        a = dataclasses.replace(a, shape=rows, host=host_a, address=0, strides=(depth, 1))
        b = dataclasses.replace(
            b, shape=(self.groups, depth, self.n), address=0, strides=(self.n * depth, 1, depth),
            host=None if host_b is None else host_b.swapaxes(-1, -2),
        )  # fmt: skip
        return dataclasses.replace(self, k=depth, views=dict(self.views) | {"a": a} | dict.fromkeys(FACTORS_B, b))

    def problem(self, views: Mapping[str, ArrayView]) -> GroupedProblem:
        """Return the problem for arrays with their layout in memory."""
        a, b = _matrix(views["a"]), _matrix(views["b"])
        batch = (self.groups,) if AXES[self.axis] == "d" else ()
        if "out" in views:
            d = _matrix(views["out"])
        else:
            d = contiguous(dtype_named(self.out_dtype, "out_dtype"), self.m, self.n, batch)
        epilogue = None
        if self.ending is not None:
            second = _matrix(views[SECOND]) if self.ending.gated else None
            inputs = tuple(_input(role, views[role], self.m, self.n) for role in self.ending.roles)
            epilogue = Epilogue(self.ending.expression, inputs, self.ending.numbers, second)
        return GroupedProblem(self.axis, self.m, self.n, self.k, self.groups, a, b, d, epilogue, self.precision)


def _input(role: str, view: ArrayView, m: int, n: int) -> StridedMatrix:
    """Return an epilogue's input as a matrix for each group: of scales of A the same, of others with equal rows."""
    strides = tuple(0 if extent == 1 else step for extent, step in zip(view.shape, view.strides, strict=True))
    if role == SCALES[0] or math.prod(view.shape) == 1:
        group, (row, col) = 0, (strides[0], 0)
    else:
        group, row, col = strides[0], 0, strides[-1]
    return StridedMatrix(dtype_named(view.dtype_name), m, n, row, col, (group,), view.alignment)


def _matrix(view: ArrayView) -> StridedMatrix:
    (rows, cols), (row_stride, col_stride) = view.shape[-2:], view.strides[-2:]
    dtype = dtype_named(view.dtype_name)
    return StridedMatrix(dtype, rows, cols, row_stride, col_stride, view.strides[:-2], view.alignment)


def checked(call: GroupedArguments, *, specs: bool = False) -> GroupedProduct:
    """Hold the arguments of a grouped product, which has offsets or numbers of matrices, against each other.

    `specs` is whether arrays may be specs, which have no memory.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError
        If they do not fit.
    """
    if call.scale_a is not None or call.scale_b is not None:
        call = _scaled(call)
    out, precision = call.out, Precision.parse(call.precision)
    scales = call.scales
    storage = storage_of(call.epilogue, None)
    given = scales or call.epilogue_args
    ending, inputs_by_role = ending_of(call.epilogue, call.bias, None, given, gated=storage is not None)
    if further := inputs_by_role.keys() - {"bias", *scales}:
        role = min(further)
        raise ArgumentError(
            f"{role} is of type {type(inputs_by_role[role]).__name__}; epilogues of groups take numbers and a bias: "
            "pass a number, or apply it to the result"
        )
    biased = {} if call.bias is None else {"bias": call.bias}
    role, numbers = call.divider
    arrays = {"a": call.a, "b": call.b, role: numbers, **biased, **scales, "out": out}
    operands = gather(arrays, call.stream, specs=specs)
    views: Mapping[str, ArrayView] = operands.views
    if ending is not None:
        views = _with_bias_of_groups(ending, views, storage)
    first, second = views["a"], views["b"]
    axis = _AXIS_OF.get((len(first.shape), len(second.shape)))
    if axis is None:
        raise ShapeError(
            f"a has shape {first.shape} and b {second.shape}; with {role} both must have 2 dimensions, or one of "
            "them 3: for a batch of products leave them out"
        )
    if first.shape[-1] != second.shape[-2]:
        raise ShapeError(
            f"a has {first.shape[-1]} columns and b {second.shape[-2]} rows; the last dimension of a and the one "
            "before the last of b must be equal"
        )
    check_numbers(role, views[role], operands.library.name)
    groups = views[role].shape[0]
    if role == MATRICES:
        call.check_rows("matrices are for rows, a")
        if groups != first.shape[0]:
            raise ShapeError(f"matrices has {groups} numbers and a {first.shape[0]} rows; give one for each row")
        axis, groups = "row", second.shape[0]
    for name, view in (("a", first), ("b", second)):
        if len(view.shape) == 3 and view.shape[0] != groups:
            raise ShapeError(
                f"offsets has {groups} ends and {name} {view.shape[0]} matrices; each group has one of each"
                + ("; leave out the leading 0" if groups == view.shape[0] + 1 else "")
            )
    inputs = (first.dtype_name, second.dtype_name)
    wanted = result_dtype(inputs, views.get("out"), call.out_dtype)
    float8 = set(inputs) <= set(FLOAT8)
    if precision is not Precision.IEEE and not (float8 and precision is Precision.FLOAT8):
        names, other = " x ".join(dict.fromkeys(inputs)), ", or pass 'float8'" if float8 else ""
        raise DTypeError(f"precision={precision.value!r} is not for grouped products of {names}; leave it out{other}")
    product = GroupedProduct(
        operands, axis, first.shape[-2], second.shape[-1], first.shape[-1], groups, wanted, out, views, ending,
        call.epilogue, precision, call.epilogue_args,
    )  # fmt: skip
    if out is not None:
        if views["out"].shape != product.result:
            raise ShapeError(f"out has shape {views['out'].shape}, the product has {product.result}; give that shape")
        check_output(views["out"], {role: view for role, view in operands.views.items() if role != "out"})
    return product


def _scaled(call: GroupedArguments) -> GroupedArguments:
    """Return a call with scales as one with what they do as its epilogue.

    Raises
    ------
    ArgumentError, DTypeError, ShapeError
        If operands, scales and the other arguments do not fit together.
    """
    if call.scale_a is None or call.scale_b is None:
        raise ArgumentError("one of scale_a and scale_b is missing; pass both: one element of 1.0 scales nothing")
    if call.epilogue is not None or call.epilogue_args is not None:
        raise ArgumentError(f"epilogue={call.epilogue!r} is none of scaled products; apply it to the result")
    if call.precision not in (None, Precision.FLOAT8.value):
        raise ArgumentError(f"precision={call.precision!r} is none of scaled products; leave it away")
    check_factors(a=call.a, b=call.b)
    call.check_rows("scales are for groups of rows, a")
    (rows, depth), (groups, _, cols) = call.shapes
    shapes: dict[str, list[tuple[int, ...]]] = {SCALES[0]: [(rows, 1)], SCALES[1]: [(groups, 1, cols), (groups, 1, 1)]}
    for role, x in call.scales.items():
        shape = tuple(getattr(x, "shape", ()))
        if shape not in shapes[role] and math.prod(shape) != 1:
            one = "row of a" if role == SCALES[0] else "column of each matrix of b"
            raise ShapeError(f"{role} has shape {shape}; give one element, or {shapes[role][0]}, one for each {one}")
    scales = {role: as_read(role, x) for role, x in call.scales.items()}
    wanted = "bfloat16" if call.out is None and call.out_dtype is None else call.out_dtype
    call = dataclasses.replace(call, precision=Precision.FLOAT8.value, out_dtype=wanted)
    if not depth:
        # Nothing is scaled, by an infinity neither.
        return dataclasses.replace(call, scale_a=None, scale_b=None)
    scales = {role: x if x.shape else x.reshape(1) for role, x in scales.items()}
    return dataclasses.replace(call, epilogue=Scaling(None, True, call.bias is not None, False), **scales)


def _with_bias_of_groups(ending: Ending, views: Mapping[str, ArrayView], storage: str | None) -> dict[str, ArrayView]:
    """Return the arrays, those of a gated activation cut in two, if there is an epilogue for them.

    Raises
    ------
    ArgumentError
        If the offsets do not divide rows.
    ShapeError
        If the bias has not one row for each group.
    """
    a, b = views["a"], views["b"]
    if (len(a.shape), len(b.shape)) != (2, 3):
        raise ArgumentError(
            f"a has shape {a.shape} and b {b.shape}; a bias or an epilogue is for groups of rows, a of 2 and b of 3 "
            "dimensions"
        )
    if "bias" in views and views["bias"].shape != (shape := (b.shape[0], b.shape[-1])):
        raise ShapeError(f"bias has shape {views['bias'].shape}; it must be {shape}, a value for each group and column")
    cut = with_halves(views, storage) if storage is not None else dict(views)
    of_a_group = {
        role: dataclasses.replace(cut[role], shape=(1, 1) if role == SCALES[0] else (1, cut[role].shape[-1]))
        for role in ending.roles
    }
    ending.check(of_a_group, (a.shape[0], cut["b"].shape[-1]), (a.dtype_name, b.dtype_name), 0)
    return cut
