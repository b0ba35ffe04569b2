"""The error of a PTX text."""

from __future__ import annotations

from gemmule.core.errors import UnsupportedError


class PtxError(UnsupportedError):
    """A PTX text holds a statement that the virtual GPU does not model; the message has the line and its text."""

    def __init__(self, line: int, text: str, rule: str) -> None:
        super().__init__(f"PTX line {line}: {' '.join(text.split())!r}: {rule}")
        self.line = line
        self.text = text
        self.rule = rule

    def __reduce__(self) -> tuple[type[PtxError], tuple[int, str, str]]:
        """Let the error pass between processes."""
        return type(self), (self.line, self.text, self.rule)
