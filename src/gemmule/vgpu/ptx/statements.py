"""PTX text to statements: directives, labels, braces and instructions, each with its line.

``.loc`` and its like end with their line, everything else with a semicolon: a reader that splits at semicolons only
loses every instruction that follows a ``.loc``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Set

from .errors import PtxError

#: Directives that end with their line.
LINE_DIRECTIVES = frozenset(
    {
        ".version", ".target", ".address_size", ".file", ".loc", ".reqntid", ".maxntid", ".minnctapersm",
        ".maxnctapersm", ".maxnreg", ".reqnctapercluster", ".explicitcluster", ".maxclusterrank",
        ".blocksareclusters", ".noreturn",
    }
)  # fmt: skip
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.DOTALL)
_INLINE = re.compile(r"// begin inline asm\b.*?// end inline asm\b", re.DOTALL)
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"\.?[\w$%.:]+")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_HEADER = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?:entry|func)\b")


@dataclasses.dataclass(frozen=True)
class Statement:
    """One statement."""

    #: ``directive``, ``header`` (of a function), ``label``, ``open``, ``close``, ``instruction`` or ``empty``.
    kind: str
    text: str  #: Its text, without the semicolon or colon.
    line: int  #: Line that it starts in.


def without_comments(text: str) -> str:
    """Return the text with its comments blanked, line numbers and strings unchanged."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _COMMENT.sub(blank, text)


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a PTX text in order.

    Raises
    ------
    PtxError
        If the text is cut off, or holds a character that starts no statement.
    """
    text = without_comments(text)
    position, line = 0, 1
    while True:
        space = _SPACE.match(text, position)
        if space is not None:
            line += space[0].count("\n")
            position = space.end()
        if position >= len(text):
            return
        statement, end = _one(text, position, line)
        if statement is not None:
            yield statement
        line += text.count("\n", position, end)
        position = end


def _one(text: str, position: int, line: int) -> tuple[Statement | None, int]:
    """Return the statement that starts at `position`, None for one without meaning, and where it ends."""
    first = text[position]
    if first in "{}":
        return Statement("open" if first == "{" else "close", first, line), position + 1
    if first == ";":
        return Statement("empty", first, line), position + 1
    label = _LABEL.match(text, position)
    if label is not None:
        return Statement("label", label[1], line), label.end()
    if first == ".":
        header = _HEADER.match(text, position)
        if header is not None:
            # The body's brace, or the semicolon of a declaration without one.
            end = _find(text, position, line, "{;")
            return Statement("header", text[position:end].strip(), line), end
        word = _WORD.match(text, position)
        name = word[0] if word is not None else first
        if name in LINE_DIRECTIVES:
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            return Statement("directive", text[position:end].strip(), line), end
        if name == ".section":
            end = _find(text, position, line, "}")
            return None, end + 1
        end = _find(text, position, line, ";")
        return Statement("directive", text[position:end].strip(), line), end + 1
    if not (first.isalpha() or first in "@_"):
        end = text.find("\n", position)
        raise PtxError(line, text[position : end if end >= 0 else len(text)], "no statement starts like this")
    end = _find(text, position, line, ";")
    return Statement("instruction", text[position:end].strip(), line), end + 1


def _find(text: str, position: int, line: int, wanted: str) -> int:
    """Return the next position of one of the characters, outside of strings."""
    pattern = re.compile(f'"(?:\\\\.|[^"\\\\])*"|[{re.escape(wanted)}]')
    for match in pattern.finditer(text, position):
        if not match[0].startswith('"'):
            return match.start()
    raise PtxError(line, text[position : position + 80], f"the text ends before the {' or '.join(wanted)} of this")


def inline_assembly(text: str) -> Set[int]:
    """Return the lines of a PTX text that its author, not the compiler, has written."""
    found: set[int] = set()
    line, position = 1, 0
    for match in _INLINE.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        found.update(range(line, line + match[0].count("\n") + 1))
    return found


def count_semicolons(text: str) -> int:
    """Return the number of semicolons outside of comments, strings and sections: an independent count."""
    bare = _STRING.sub('""', without_comments(text))
    bare = re.sub(r"\.section\b[^{]*\{[^}]*\}", "", bare)
    return bare.count(";")
