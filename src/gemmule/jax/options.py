"""Options of a call of the product, besides its arrays."""

from __future__ import annotations

import dataclasses
import functools
import json


@dataclasses.dataclass(frozen=True)
class Options:
    """A product as XLA carries it from the program to the handler.

    Attributes
    ----------
    alpha, beta : float
        Scalars.
    transpose_a, transpose_b : bool
        Whether A is stored as (k, m), and B as (n, k).
    precision : str or None
        Type that float32 operands may be rounded to.
    """

    alpha: float = 1.0
    beta: float = 0.0
    transpose_a: bool = False
    transpose_b: bool = False
    precision: str | None = None

    def text(self) -> str:
        """Return the options as text, with every bit of the scalars."""
        return json.dumps(
            [self.alpha.hex(), self.beta.hex(), self.transpose_a, self.transpose_b, self.precision],
            separators=(",", ":"),
        )

    @staticmethod
    @functools.cache
    def parse(text: str) -> Options:
        """Return the options of that text."""
        alpha, beta, *others = json.loads(text)
        return Options(float.fromhex(alpha), float.fromhex(beta), *others)
