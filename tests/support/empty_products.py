"""Products of nothing, and what they must give: K, M, N, alpha or the batch is 0. For the tests of every executor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from support.kernel_kinds import FAMILIES, is_float, poison, rounded, whole_numbers

#: Types of A, B and the result, and the precision, of the products of every kernel in the registry.
KINDS = tuple(
    dict.fromkeys((types, one.precision) for family in FAMILIES.values() for one in family for types in one.types)
)
#: Those of which every form is compiled: two of 8-bit floats, alone and mixed, and one of others.
THOROUGH = tuple(
    (types, None)
    for types in (
        ("bfloat16",) * 3,
        ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
        ("float16", "float8_e4m3fn", "float16"),
    )
)
#: M, N, K and the batch; without a 0 among them alpha is 0. The last ones are compiled by themselves.
EXTENTS = (
    (16, 48, 0, ()),
    (16, 48, 32, ()),
    (0, 48, 32, ()),
    (16, 0, 32, ()),
    (0, 0, 0, ()),
    (16, 48, 32, (0,)),
    (16, 48, 0, (2, 0)),
)
ODD_EXTENTS = ((5, 7, 0, (3,)), (5, 7, 9, (2, 3)), (1, 1, 0, ()))


def kind_id(kind: Any) -> str:
    types, precision = kind
    return "-".join((*types, precision or "ieee"))


@dataclasses.dataclass
class Empty:
    """A product: operands and options of `gemm`, among which there is no output, and what it must give.

    `absmax` is what the largest absolute value must be; None where it is not to be asked for.
    """

    operands: tuple[np.ndarray, np.ndarray]
    options: dict[str, Any]
    expected: np.ndarray
    absmax: float | None = None

    def out(self) -> np.ndarray:
        """Return an output in which what is not written shows."""
        return poison(self.expected.dtype.name, self.expected.shape)

    def __str__(self) -> str:
        (a, b), given = self.operands, {name: getattr(x, "shape", x) for name, x in self.options.items()}
        return f"{a.dtype}{a.shape} @ {b.dtype}{b.shape} {given}"


def empty_products(rng: np.random.Generator, kind: Any, *, thorough: bool = True) -> Iterator[Empty]:
    """Yield products of a kind: alone, and with all that is added to a product and done to it.

    Thorough ones have odd extents, a largest value and gated activations too, all of which is compiled.
    """
    (a_type, b_type, d_type), precision = kind
    floats = is_float(a_type)
    for m, n, k, batch in EXTENTS + (ODD_EXTENTS if thorough else ()):
        nothing = 0 in (m, n, k, *batch)
        # With alpha=0 A and B are not read: NaN there is none in the result.
        make = (lambda dtype, shape: whole_numbers(rng, dtype, shape)) if nothing else poison
        operands = make(a_type, (*batch, m, k)), make(b_type, (*batch, k, n))
        # By the rules of BLAS alpha scales nothing where K is 0: not even infinity makes NaN of it.
        alpha: Any = 0 if not nothing else np.inf if floats else -3
        options = {"precision": precision, "out_dtype": d_type, "alpha": alpha}
        zeros = np.zeros((*batch, m, n))
        yield Empty(operands, options, rounded(zeros, d_type))
        c = whole_numbers(rng, d_type, zeros.shape)
        exact = -2 * c.astype(np.result_type(c, np.float64) if np.iscomplexobj(c) else np.float64)
        further: dict[str, Any] = {"c": c, "beta": -2}
        if floats:
            bias = whole_numbers(rng, "bfloat16" if "float8" in d_type else d_type, (n,))
            exact = np.maximum(exact + bias.astype(np.float64), 0)
            further |= {"bias": bias, "epilogue": "relu"}
        largest = float(exact.max(initial=0)) if thorough and floats and d_type != "float64" else None
        yield Empty(operands, options | further, rounded(exact, d_type), largest)
        if thorough and floats:
            both = whole_numbers(rng, "bfloat16" if "float8" in d_type else d_type, (2 * n,))
            gate, up = np.split(both.astype(np.float64), 2)
            exact = zeros + np.maximum(gate, 0) * up
            twice = operands[0], np.concatenate([operands[1]] * 2, axis=-1)
            yield Empty(twice, options | {"bias": both, "epilogue": "reglu"}, rounded(exact, d_type))
