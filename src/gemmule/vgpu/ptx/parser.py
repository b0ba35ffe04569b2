"""PTX text to a kernel: every statement is understood or refused with its line, none is lost."""

from __future__ import annotations

import re

from gemmule.core.errors import UnsupportedError

from .errors import PtxError
from .module import Address, Instruction, Kernel, Negated, Operand, Register, SourceLine, Symbol, Variable
from .operands import OperandReader, split
from .scopes import Scope
from .statements import LINE_DIRECTIVES, Statement, count_semicolons, inline_assembly, statements

_OPCODE = re.compile(r"(?:@\s*(?P<guard>!?\s*[\w$%]+)\s+)?(?P<opcode>[A-Za-z_][\w.:]*)\s*(?P<operands>.*)$", re.DOTALL)
_ENTRY = re.compile(
    r"(?:\.\w+\s+)*\.entry\s+(?P<name>[\w$]+)\s*(?:\((?P<params>.*)\))?\s*(?P<directives>.*)$", re.DOTALL
)
#: The only function that kernels may call: declared, and called with a format and its arguments.
_PRINTS = re.compile(r"\.extern\s+\.func\s*\([^)]*\)\s*vprintf\b")
_CALL = re.compile(r"\(\s*\w+\s*\)\s*,\s*vprintf\s*,\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)$")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?(?:.*\binlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
#: Headers of the CUDA toolkit, whose functions, such as atomicCAS, are inlined.
_TOOLKIT = re.compile(r"/targets/[^/]+/include/")

#: File, line and column; of code that was inlined, then those of the call, and so on outwards.
_Place = tuple[int, int, int]
_Places = tuple[_Place, ...]
_FILE = re.compile(r'\.file\s+(\d+)\s+"((?:\\.|[^"\\])*)"')
_TUNING = re.compile(r"\.(\w+)[ \t]*([\d, \t]*)")
_IGNORED = (".version", ".address_size", ".pragma", ".branchtargets", ".callprototype")


def parse(text: str, entry: str | None = None) -> Kernel:
    """Parse a kernel of a PTX text.

    Parameters
    ----------
    entry : str, optional
        Name of the kernel; not needed where the text holds one. The bodies of the others are skipped.

    Raises
    ------
    PtxError
        If a statement is not understood; with its line and text.
    UnsupportedError
        If there is no such kernel, or no name and more than one.
    """
    return _Parser(text, entry).kernel()


def entries(text: str) -> tuple[str, ...]:
    """Return the names of a PTX text's kernels in order."""
    matches = (_ENTRY.match(item.text) for item in statements(text) if item.kind == "header")
    return tuple(match["name"] for match in matches if match is not None)


class _Parser:
    def __init__(self, text: str, entry: str | None) -> None:
        self._entry = entry
        self._items = list(statements(text))
        self._inline = inline_assembly(text)
        ended = sum(item.kind in ("instruction", "empty") or _takes_semicolon(item) for item in self._items)
        lost = count_semicolons(text) - ended
        if lost:
            # A statement is where none is expected: stop rather than lose code.
            raise UnsupportedError(
                f"the PTX text has {lost} semicolons more than statements that end with one; its grammar has changed"
            )
        self._target = ""
        self._files: dict[int, str] = {}
        self._registers: dict[str, Register] = {}
        self._params: list[Variable] = []
        self._variables: list[Variable] = []
        self._directives: dict[str, str] = {}
        self._code: list[tuple[Statement, Scope, _Places]] = []
        self._of_calls: set[str] = set()
        self._others: list[str] = []
        self._scopes = 0

    def kernel(self) -> Kernel:
        name = self._collect()
        instructions = tuple(self._instruction(index, *code) for index, code in enumerate(self._code))
        return Kernel(
            name=name,
            target=self._target,
            params=tuple(self._params),
            variables=tuple(self._variables),
            registers=tuple(self._registers.values()),
            instructions=instructions,
            directives=self._directives,
        )

    def _new_scope(self, parent: Scope | None) -> Scope:
        scope = Scope(parent, self._scopes)
        self._scopes += 1
        return scope

    def _collect(self) -> str:
        """Collect declarations and labels, and the instructions with their scopes for a second pass."""
        scope = outermost = self._new_scope(None)
        names: list[str] = []
        place: _Places = ()
        # The last place with a column since a label, which is what code in a row of blocks comes from.
        written: _Places = ()
        calls: dict[_Place, _Places] = {}
        # Depth of braces within a kernel that is skipped.
        skipped: int | None = None
        for item in self._items:
            if skipped is not None and item.kind != "directive":
                skipped += {"open": 1, "close": -1}.get(item.kind, 0)
                if item.kind == "close" and skipped == 0:
                    skipped = None
            elif skipped is not None:
                self._file(item)
            elif item.kind == "header" and _PRINTS.match(item.text):
                continue
            elif item.kind == "header" and self._is_other(item):
                skipped = 0
            elif item.kind == "header":
                names.append(self._header(item, outermost))
            elif item.kind == "open":
                # The body of the kernel shares the numbering of the outermost scope: its names are unchanged.
                scope = self._new_scope(scope)
                if scope.parent is outermost:
                    scope.number = 0
            elif item.kind == "close":
                if scope.parent is None:
                    raise PtxError(item.line, item.text, "this brace closes nothing")
                scope = scope.parent
            elif item.kind == "label":
                if item.text in scope.labels:
                    raise PtxError(item.line, item.text, "this label stands twice in one scope")
                scope.labels[item.text] = len(self._code)
                if item.line not in self._inline:
                    written = ()
            elif item.kind == "empty":
                continue
            elif item.kind == "instruction":
                self._code.append((item, scope, place))
            else:
                loc = _LOC.match(item.text)
                if loc is None:
                    self._directive(item, scope)
                elif item.line in self._inline:
                    # The compiler counts the lines of the assembly on from the source line that it stands in.
                    continue
                elif int(loc[3] or 0):
                    inner = int(loc[1]), int(loc[2]), int(loc[3])
                    call = (int(loc[4]), int(loc[5]), int(loc[6])) if loc[4] else None
                    place = written = calls[inner] = (inner, *(calls.get(call, (call,)) if call else ()))
                else:
                    # A place without a column is the function's, where the compiler has lost the statement's.
                    place = written or ((int(loc[1]), int(loc[2]), 0),)
        if scope is not outermost:
            raise UnsupportedError("the PTX text ends inside a function; it is cut off")
        if not names and self._entry is not None:
            raise UnsupportedError(
                f"the PTX text has no kernel {self._entry}; it has {', '.join(self._others) or 'none'}"
            )
        if len(names) != 1:
            several = f"{', '.join(names)}; name one, entry={names[0]!r}" if names else "none"
            raise UnsupportedError(f"the PTX text must hold one kernel, but holds {several}")
        return names[0]

    def _is_other(self, item: Statement) -> bool:
        """Say whether a function is a kernel other than the one that was named."""
        match = _ENTRY.match(item.text)
        other = self._entry is not None and match is not None and match["name"] != self._entry
        if other and match is not None:
            self._others.append(match["name"])
        return other

    def _file(self, item: Statement) -> None:
        match = _FILE.match(item.text)
        if match is not None:
            self._files[int(match[1])] = match[2]

    def _header(self, item: Statement, scope: Scope) -> str:
        match = _ENTRY.match(item.text)
        if match is None:
            raise PtxError(item.line, item.text, "only kernels are run, and functions that they call are not modelled")
        for param in split(match["params"] or ""):
            self._params.append(scope.declare_variable(param, item.line))
        self._directives.update(_TUNING.findall(match["directives"]))
        return match["name"]

    def _directive(self, item: Statement, scope: Scope) -> None:
        word, _, rest = item.text.partition(" ")
        word, _, tail = word.partition("\t")
        rest = f"{tail} {rest}".strip()
        if word == ".reg":
            scope.declare_registers(item.text, item.line)
        elif word == ".param":
            # A call's parameters: a thread's own, like local memory.
            variable = scope.declare_variable(item.text.replace(".param", ".local", 1), item.line)
            self._variables.append(variable)
            self._of_calls.add(variable.name)
        elif word in (".shared", ".local", ".global", ".const", ".extern", ".visible", ".weak", ".common"):
            self._variables.append(scope.declare_variable(item.text, item.line))
        elif word == ".target":
            self._target = rest.split(",")[0].strip()
        elif word == ".file":
            match = _FILE.match(item.text)
            if match is None:
                raise PtxError(item.line, item.text, "this .file is not understood")
            self._files[int(match[1])] = match[2]
        elif word in (".reqntid", ".maxntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".reqnctapercluster",
                      ".explicitcluster", ".maxclusterrank", ".blocksareclusters", ".noreturn"):  # fmt: skip
            self._directives[word[1:]] = rest
        elif word not in _IGNORED:
            raise PtxError(item.line, item.text, "this directive is not known")

    def _instruction(self, index: int, item: Statement, scope: Scope, place: _Places) -> Instruction:
        match = _OPCODE.match(item.text)
        if match is None:
            raise PtxError(item.line, item.text, "this is no instruction")
        reader = OperandReader(scope, self._register, item.line, item.text)
        guard: Register | Negated | None = None
        if match["guard"]:
            name = match["guard"].replace(" ", "")
            guard = Negated(reader.register(name[1:])) if name.startswith("!") else reader.register(name)
        name, *modifiers = re.split(r"\.", match["opcode"])
        given = split(match["operands"])
        if name == "call":
            call = _CALL.match(match["operands"])
            if call is None:
                raise PtxError(item.line, item.text, "functions that kernels call are not modelled, but for vprintf")
            given = [f"[{call[1]}]", f"[{call[2]}]"]
        operands: tuple[Operand, ...] = tuple(map(reader.read, given))
        if modifiers[:1] == ["param"] and any(map(self._is_of_call, operands)):
            modifiers[0] = "local"
        source = None
        places = [(self._files.get(file, f"file {file}"), line, column) for file, line, column in place if line > 0]
        if places:
            # A line of a toolkit's header says little: the call is named instead.
            source = SourceLine(*next((one for one in places if not _TOOLKIT.search(one[0])), places[0]))
        text = " ".join(item.text.split())
        return Instruction(index, name, tuple(modifiers), operands, guard, item.line, text, source)

    def _is_of_call(self, operand: Operand) -> bool:
        return isinstance(operand, Address) and isinstance(operand.base, Symbol) and operand.base.name in self._of_calls

    def _register(self, name: str, kind: str) -> Register:
        found = self._registers.get(name)
        if found is None:
            found = self._registers[name] = Register(name, kind, len(self._registers))
        return found


def _takes_semicolon(item: Statement) -> bool:
    """Say whether a statement that is no instruction ended with a semicolon."""
    if item.kind != "directive":
        return False
    return item.text.split()[0] not in LINE_DIRECTIVES
