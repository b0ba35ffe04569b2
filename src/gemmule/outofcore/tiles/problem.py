"""The product of open matrices, as planners and engines take it."""

from __future__ import annotations

from typing import Any

from gemmule.core.dataclass import dataclass

from ..device.engine.host_memory import is_transpose
from ..stores.matrix import AnyDType, MatrixSource
from .plan import Operand, Product
from .result_rules import check_product


@dataclass(frozen=True)
class StreamProblem:
    """The product ``alpha * a @ b + beta * c`` of open matrices."""

    #: a, b: The operands, transposed and converted as requested.
    a: MatrixSource
    b: MatrixSource
    c: MatrixSource | None  #: The matrix to add.
    shape: tuple[int, int]  #: Rows and columns of the result.
    dtype: AnyDType  #: Element type of the result.
    #: alpha, beta: Number. Scalars.
    alpha: Any = 1
    beta: Any = 0

    @property
    def inputs(self) -> dict[str, MatrixSource]:
        """The matrices by role."""
        return {"a": self.a, "b": self.b} | ({} if self.c is None else {"c": self.c})

    @property
    def addend(self) -> MatrixSource | None:
        """The matrix that is added; None where `beta` is 0."""
        return self.c if self.beta != 0 else None

    @property
    def dtype_names(self) -> tuple[tuple[str, str, str], str | None]:
        """Names of the types of A, B and the result; and that of the matrix that is added, if there is one."""
        addend = self.addend
        return (self.a.dtype.name, self.b.dtype.name, self.dtype.name), None if addend is None else addend.dtype.name

    def product(self, block_shape: tuple[int, int]) -> Product:
        """Check the product, and describe it for a planner; `block_shape` is that of the result's store.

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If the matrices or scalars do not fit together.
        """
        a, b = self.a, self.b
        check_product(a, b, self.c, self.shape, self.dtype, self.alpha, self.beta)
        addend = self.addend
        return Product(
            m=a.shape[0],
            n=b.shape[1],
            k=a.shape[1] if self.alpha != 0 else 0,
            a=_operand(a),
            b=_operand(b),
            out=Operand(self.dtype, block_shape=block_shape),
            c=_operand(addend) if addend is not None else None,
        )

    def is_symmetric(self, product: Product) -> bool:
        """Whether one triangle of the product is enough: `b` is the transpose of `a`, and nothing is added."""
        return product.c is None and product.k > 0 and is_transpose(self.a, self.b)


def _operand(source: MatrixSource) -> Operand:
    return Operand(source.dtype, source.order, source.stored_itemsize, source.block_shape)
