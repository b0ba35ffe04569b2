"""Products and forms of results whose costs are measured: layers of models, random products, and batches."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from gemmule.api.epilogues.ending import ending_of
from gemmule.core.dtype import dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.lab.products import LAYOUTS, gemm_problem

#: Rows, and weights (N, K), of layers.
_ROWS = (16, 48, 64, 96, 128, 200, 256, 384, 512, 777, 1024, 2048, 3000, 4096)
_WEIGHTS = (
    (2560, 2560), (10240, 2560), (2560, 10240), (3072, 3072), (8192, 3072), (3072, 8192), (5120, 5120), (13824, 5120),
    (1536, 8960), (6144, 2048), (8192, 8192), (2304, 9216),
)  # fmt: skip
#: Batches: matrices, M, N, K.
BATCHES = ((64, 2048, 2048, 128), (32, 1024, 1024, 64), (96, 512, 640, 128), (16, 1536, 1024, 384))


@dataclasses.dataclass(frozen=True)
class Form:
    """A result of a product: its type, whether it reads C or a bias, and its function."""

    name: str
    out: str = ""  #: Type of D; that of A by default.
    c: bool = False
    bias: bool = False
    function: Any = None  #: As `epilogue` of `gemm`.
    gated: bool = False
    absmax: bool = False


PLAIN = Form("plain")
FORMS = (
    Form("beta_c", c=True),
    Form("bias", bias=True),
    Form("bias_gelu", bias=True, function="gelu"),
    Form("bias_residual", bias=True, c=True, function=lambda acc, c: acc + c),
    Form("swiglu", function="swiglu", gated=True),
    Form("bias_relu", bias=True, function="relu"),
    Form("bias_relu_absmax", bias=True, function="relu", absmax=True),
    Form("float32", out="float32"),
    Form("float8", out="float8_e4m3fn"),
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A product of compact matrices."""

    m: int
    n: int
    k: int
    layout: str
    dtype: str = "bfloat16"
    batch: tuple[int, ...] = ()

    def problem(self, form: Form) -> GemmProblem:
        """Return the product with a form; of a gated one B's columns are two matrices."""
        n = self.n // 2 if form.gated else self.n
        found = gemm_problem(self.m, n, self.k, self.dtype, form.out or self.dtype, self.layout, batch=self.batch)
        c = contiguous(found.d.dtype, self.m, n, self.batch) if form.c else None
        ending, _ = ending_of(
            form.function, form.bias or None, form.c or None, None, gated=form.gated, absmax=form.absmax
        )
        if ending is None:
            return dataclasses.replace(found, c=c, beta=1 if form.c else 0)
        zeros = (0,) * len(self.batch)
        bias = (StridedMatrix(dtype_named(self.dtype), self.m, n, 0, 1, zeros),) if form.bias else ()
        epilogue = Epilogue(ending.expression, bias, absmax=form.absmax, second=found.b if form.gated else None)
        return dataclasses.replace(found, c=c, epilogue=epilogue)


def shape_of(text: str) -> Shape:
    """Return the product of a text such as ``1024x2048x512xnt``."""
    *extents, layout = text.split("x")
    m, n, k = map(int, extents)
    return Shape(m, n, k, layout)


def shapes(seed: int, layers: int, draws: int, batches: int) -> list[Shape]:
    """Return layers of models, random products and batches."""
    numbers = random.Random(seed)  # noqa: S311  # sizes, no secrets
    every = [(m, *weights) for m in _ROWS for weights in _WEIGHTS]
    found = [Shape(*one, "nt") for one in numbers.sample(every, layers)]
    while len(found) < layers + draws:
        m, n, k = (8 * round(math.exp(numbers.uniform(math.log(64), math.log(8192))) / 8) for _ in range(3))
        if 2.0 * m * n * k <= 1e12:
            found.append(Shape(m, n // 16 * 16, k, numbers.choice(LAYOUTS), numbers.choice(("bfloat16", "float16"))))
    return found + [Shape(*one[1:], "nt" if one[3] < 256 else "nn", batch=one[:1]) for one in BATCHES[:batches]]
