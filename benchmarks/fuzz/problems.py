"""What a random problem is: a sketch, of which its compiled kernel depends, and all that makes the problem itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from layouts import Alignment, Layout, Shape


@dataclasses.dataclass(frozen=True)
class Sketch:
    """What a compiled kernel depends on.

    Attributes
    ----------
    kind : str
        The kernel that is wanted.
    extents : tuple of int
        M, N and K, about; rows and columns of a transpose.
    unit : int
        What extents other than 0 and 1 are multiples of.
    parts : tuple of (tuple of int)
        Batches of A and B, which broadcast.
    alignments : mapping of str to Alignment
        By array.
    addend : str
        Whether there is a C: ``none``, ``read``, or ``unread``, where beta is 0.
    gram : bool
        Whether B is A transposed.
    vector : str
        Which operand is a vector: ``a``, ``b`` or neither.
    lazy, options, divided, groups
        As of `FuzzProblem`; how many groups there are.
    """

    kind: str
    operation: str
    a: str
    b: str
    out: str
    precision: str | None
    epilogue: str | None
    extents: tuple[int, ...]
    unit: int
    parts: tuple[Shape, Shape]
    alignments: Mapping[str, Alignment]
    addend: str
    target: str
    library: str
    gram: bool = False
    vector: str = ""
    lazy: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    divided: str = ""
    groups: int = 0


@dataclasses.dataclass(frozen=True)
class FuzzProblem:
    """A problem, with all that makes it.

    Attributes
    ----------
    seed, index : int
        The run, and the problem in it: where values come from.
    shapes, dtypes, layouts : dict
        By the arrays' names: a, b, c, out, x, and the inputs of epilogues.
    result : tuple of int
        Shape of the result.
    values : str
        What operands are made of: normal, whole, wide or special numbers; numbers that span many powers of two, each
        element for itself (spans) or along K, A against B (opposed); or subnormal ones.
    target : str
        new, given, c, or x (in place): where the result goes.
    first : int
        Of a block triangle, the columns before the first step.
    lazy : str
        The operands that are lazily conjugated tensors of PyTorch.
    options : mapping
        What else the function is given.
    divided : str
        The dimension that groups divide: m, n or k; row, where each row has the number of its matrix.
    numbers : tuple of int
        Where the groups end, or the rows' matrices.
    frontend : str
        ``torch`` if a function of `gemmule.torch` is called, which has no executor.
    """

    seed: int
    index: int
    kind: str
    operation: str
    m: int
    n: int
    k: int
    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    layouts: dict[str, Layout]
    result: Shape
    precision: str | None = None
    alpha: Any = 1
    beta: Any = 0
    epilogue: str | None = None
    values: str = "normal"
    target: str = "new"
    library: str = "torch"
    stream: int = 0
    gram: bool = False
    first: int = 0
    lazy: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    divided: str = ""
    numbers: tuple[int, ...] = ()
    frontend: str = ""

    @property
    def conjugated(self) -> str:
        """The operands whose conjugates are multiplied: a flag conjugates a lazy conjugate back."""
        return "".join(name for name in "ab" if (name in self.lazy) != bool(self.options.get(f"conj_{name}")))

    @property
    def is_complex(self) -> bool:
        """Whether the result is."""
        return self.dtypes["out"].startswith("complex")

    @property
    def extent(self) -> int:
        """What groups divide, or the matrices that rows choose from."""
        return self.groups if self.divided == "row" else {"m": self.m, "n": self.n}.get(self.divided, self.k)

    @property
    def groups(self) -> int:
        """How many groups, or matrices, there are."""
        return self.shapes["b"][0] if self.divided == "row" else len(self.numbers)

    def describe(self) -> str:
        """Return it in a line."""
        arrays = ", ".join(
            f"{name} {self.dtypes[name]}{list(shape)} {self.layouts[name]}" for name, shape in self.shapes.items()
        )
        special = {name: getattr(self, name) for name in ("lazy", "options", "divided", "numbers", "frontend")}
        further = "".join(f" {name}={value}" for name, value in special.items() if value)
        return (
            f"{self.operation} {self.m}x{self.n}x{self.k} precision={self.precision} alpha={self.alpha} "
            f"beta={self.beta} epilogue={self.epilogue} values={self.values} target={self.target} gram={self.gram} "
            f"library={self.library} stream={self.stream}{further}: {arrays}"
        )
