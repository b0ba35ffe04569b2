"""The products that ``gemmule bench gemm`` measures, as its options name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.name_suggestions import unknown_name

from ..core.dtype import Precision
from ..core.errors import ArgumentError
from ..core.problem import GemmProblem
from ..lab.draws import Draw, without_draws
from ..lab.products import gemm_problem, output_type, own_product
from ..lab.sizes import parse_sizes

# M = N = K of the product for `why_not` before a GPU is opened.
_PROBE_EDGE = 4096


@dataclasses.dataclass(frozen=True)
class ElementTypes:
    """Element types and precision of a product."""

    #: dtype, out_dtype: Type of A and B, and of D.
    dtype: str
    out_dtype: str
    precision: Precision  #: Arithmetic of the product.

    @property
    def probe(self) -> GemmProblem:
        """A large product of these types, for `why_not`; 8-bit floats in the layout of wgmma."""
        layout = "nt" if self.precision is Precision.FLOAT8 else "nn"
        edges = (_PROBE_EDGE,) * 3
        return dataclasses.replace(gemm_problem(*edges, self.dtype, self.out_dtype, layout), precision=self.precision)


def parse_types(words: Sequence[str], out_dtype: str | None, precision: str) -> tuple[ElementTypes, ...]:
    """Return the types that ``--dtype`` names, each ``DTYPE[:PRECISION[:OUT_DTYPE]]``.

    Parameters
    ----------
    words : sequence of str
        Each one or several, with commas between them.
    out_dtype, precision
        Default layout or type of lines without one.

    Raises
    ------
    ArgumentError
        If a type or a precision is not one that is measured.
    """
    known = [one.value for one in Precision]
    found: dict[ElementTypes, None] = {}
    for word in (part.strip() for one in words for part in one.split(",")):
        dtype, *rest = word.split(":")
        named = rest[0] if rest else precision
        if len(rest) > 2:
            raise ArgumentError(f"dtype {word!r} has more than DTYPE:PRECISION:OUT_DTYPE; give float32:tf32, for one")
        if named not in known:
            raise ArgumentError(f"{unknown_name('precision', named, known)} (in --dtype {word})")
        out = output_type(dtype, rest[1] if len(rest) == 2 else out_dtype)
        found[ElementTypes(dtype, out, Precision(named))] = None
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes, layouts and addresses of the products of a measurement."""

    sizes: Sequence[str]  #: Words of ``--sizes``.
    layout: str | None = None  #: Layout of all products; None is nn for named sizes, and drawn for draws.
    batch: int | None = None  #: Products in a batch; None is one product without batch dimensions.
    #: For each of these a product: whether its matrices begin one element after an aligned address.
    misaligned: tuple[bool, ...] = (False,)
    own_transpose: bool = False  #: Whether B is A transposed, in the same memory.

    @property
    def draws(self) -> tuple[Draw, ...]:
        """The draws among the sizes."""
        return without_draws(self.sizes)[1]

    def problems(self, types: Sequence[ElementTypes]) -> tuple[GemmProblem, ...]:
        """Return the products, those of each type together."""
        named, draws = without_draws(self.sizes)
        found = []
        for one in types:
            sizes = [(size, self.layout or "nn") for size in (parse_sizes(named) if named else ())]
            itemsize = one.probe.a.dtype.itemsize
            sizes += [(size, self.layout or drawn) for draw in draws for size, drawn in draw.products(itemsize)]
            for size, layout in sizes:
                for misaligned in self.misaligned:
                    problem = gemm_problem(
                        *size,
                        one.dtype,
                        one.out_dtype,
                        layout,
                        misaligned=misaligned,
                        batch=() if self.batch is None else (self.batch,),
                    )
                    found.append(dataclasses.replace(problem, precision=one.precision))
        return tuple(own_product(problem) if self.own_transpose else problem for problem in found)
