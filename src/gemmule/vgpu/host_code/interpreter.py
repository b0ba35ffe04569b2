"""Interpreter of a host function in MLIR's LLVM dialect: every launch that it makes is yielded as data.

The function comes from the compiler as its IR. Nothing is compiled, linked or called:
where the IR launches a kernel, the interpreter reads the configuration and the parameters out of its own memory.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from gemmule.core.errors import KernelFailedError, UnsupportedError

from ..printf import formatted
from .arithmetic import COMPARISONS, FLOAT, FLOAT_COMPARISONS, SIGNED, UNSIGNED, signed
from .llvm_types import Type, type_of
from .memory import HostMemory

_DYNAMIC = -(1 << 31)
#: Executed operations after which host code counts as endless.
_MOST_STEPS = 10_000_000
#: cudaLaunchAttributeID of the attributes that change what a launch does (CUDA runtime API).
_CLUSTER, _OVERLAP = 4, 6
_NONE = type_of("!llvm.struct<()>")
_WORD = type_of("i32")
_POINTER = type_of("!llvm.ptr")
_CONFIG = type_of("!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>")
_ATTRIBUTE = type_of("!llvm.struct<(i32, array<4 x i8>, array<64 x i8>)>")
_EXTENTS = type_of("!llvm.array<3 x i32>")


@dataclasses.dataclass(frozen=True)
class LaunchCall:
    """A launch that host code makes."""

    symbol: str  #: Symbol of the kernel in the host code.
    #: grid, block, cluster: Extents.
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int  #: Dynamic shared memory of a CTA.
    params: tuple[tuple[bytes, Type], ...]  #: Parameters in order: their bytes and their type.
    overlaps: bool  #: Whether it is a dependent launch (PDL).


@dataclasses.dataclass(frozen=True)
class _Step:
    """An operation, its operands' values and its result's type."""

    op: Any
    operands: list[Any]
    result: Type


class Interpreter:
    """The host part of one compiled module.

    Parameters
    ----------
    module : cutlass._mlir.ir.Module
        The module in the LLVM dialect.
    printed : callable
        Receives each text that the host code prints.
    """

    def __init__(self, module: Any, printed: Callable[[str], None]) -> None:
        self.memory = HostMemory()
        self.launches: list[LaunchCall] = []
        self._printed = printed
        self._functions: dict[str, Any] = {}
        self._globals: dict[str, Any] = {}
        self._addresses: dict[str, int] = {}
        self._handles: dict[int, str] = {}
        self._steps = 0
        for op in module.body.operations:
            name = op.operation.name
            if name in ("llvm.func", "llvm.mlir.global"):
                kept = self._functions if name == "llvm.func" else self._globals
                kept[_text(op, "sym_name")] = op.operation

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Interpret a function, and return its value.

        Raises
        ------
        UnsupportedError
            If it has an operation that is not modelled.
        KernelFailedError
            If it stops itself.
        """
        function = self._functions[name]
        region = function.regions[0]
        blocks = list(region.blocks)
        if not blocks:
            raise UnsupportedError(f"the host code calls {name}, which is not modelled")
        # By their hashes, which are those of their places in memory: the compiler's package gives values another ==.
        values: dict[int, Any] = {}
        block, given = blocks[0], list(arguments)
        while True:
            values.update(zip(map(hash, block.arguments), given, strict=True))
            for each in block.operations:
                op = each.operation
                self._steps += 1
                if self._steps > _MOST_STEPS:
                    raise KernelFailedError(f"the host code of {name} has not ended after {_MOST_STEPS} operations")
                kind = op.name.removeprefix("llvm.")
                if kind == "return":
                    return values[hash(op.operands[0])] if len(op.operands) else None
                if kind in ("br", "cond_br", "switch"):
                    block, given = self._jump(kind, op, values)
                    break
                found = self._value(kind, op, [values[hash(operand)] for operand in op.operands])
                if len(op.results):
                    values[hash(op.results[0])] = found

    def _jump(self, kind: str, op: Any, values: dict[int, Any]) -> tuple[Any, list[Any]]:
        operands = [values[hash(operand)] for operand in op.operands]
        if kind == "br":
            return op.successors[0], operands
        sizes = list(op.attributes["operandSegmentSizes"])
        if kind == "cond_br":
            if operands[0]:
                return op.successors[0], operands[1 : 1 + sizes[1]]
            return op.successors[1], operands[1 + sizes[1] :]
        cases = [int(case) for case in op.attributes["case_values"]] if "case_values" in op.attributes else []
        bits = type_of(str(op.operands[0].type)).bits
        rest = operands[1 + sizes[1] :]
        for number, (case, count) in enumerate(zip(cases, op.attributes["case_operand_segments"], strict=True)):
            if case % (1 << bits) == operands[0]:
                return op.successors[1 + number], rest[:count]
            rest = rest[count:]
        return op.successors[0], operands[1 : 1 + sizes[1]]

    def _value(self, kind: str, op: Any, operands: list[Any]) -> Any:
        result = type_of(str(op.results[0].type)) if len(op.results) else None
        if result is not None and result.name == "vector":
            raise UnsupportedError(f"the host code has {op}, which is not modelled")
        if kind in UNSIGNED or kind in SIGNED:
            assert result is not None
            bits = result.bits
            if kind in UNSIGNED:
                return UNSIGNED[kind](*operands) % (1 << bits)
            first = signed(operands[0], bits)
            second = operands[1] if kind == "ashr" else signed(operands[1], bits)
            return SIGNED[kind](first, second) % (1 << bits)
        if kind in FLOAT:
            assert result is not None
            return result.rounded(FLOAT[kind](*operands))
        action = getattr(self, "_" + re.sub(r"\W", "_", kind), None)
        if action is None:
            raise UnsupportedError(f"the host code has the operation {op.name}, which is not modelled")
        return action(_Step(op, operands, _NONE if result is None else result))

    def _mlir_constant(self, step: _Step) -> Any:
        return _attribute(step.op.attributes["value"], step.result)

    def _mlir_zero(self, step: _Step) -> Any:
        return step.result.zero()

    _mlir_poison = _mlir_undef = _mlir_zero

    def _mlir_addressof(self, step: _Step) -> int:
        name = _text(step.op, "global_name")
        if name not in self._addresses:
            found = self._globals.get(name)
            if found is None:
                raise UnsupportedError(f"the host code uses the address of {name}, which is not modelled")
            kind = type_of(str(_type_attribute(found, "global_type")))
            address = self._addresses[name] = self.memory.reserve(kind)
            if "value" in found.attributes:
                self.memory.write(kind, _attribute(found.attributes["value"], kind), address)
            elif kind.kind == "ptr":
                # A kernel: what the host code loads from here is its handle.
                self.memory.write(kind, address, address)
                self._handles[address] = name
        return self._addresses[name]

    def _alloca(self, step: _Step) -> int:
        return self.memory.reserve(type_of(str(_type_attribute(step.op, "elem_type"))), step.operands[0])

    def _load(self, step: _Step) -> Any:
        return self.memory.read(step.result, step.operands[0])

    def _store(self, step: _Step) -> None:
        self.memory.write(type_of(str(step.op.operands[0].type)), step.operands[0], step.operands[1])

    def _intr_memcpy(self, step: _Step) -> None:
        self.memory.copy(*step.operands[:3])

    def _getelementptr(self, step: _Step) -> int:
        kind = type_of(str(_type_attribute(step.op, "elem_type")))
        address, dynamic = step.operands[0], iter(zip(step.operands[1:], list(step.op.operands)[1:], strict=True))
        for number, constant in enumerate(step.op.attributes["rawConstantIndices"]):
            index = constant
            if index == _DYNAMIC:
                value, operand = next(dynamic)
                index = signed(value, type_of(str(operand.type)).bits)
            if number == 0:
                address += index * kind.size
            elif kind.kind == "array":
                kind = kind.parts[0]
                address += index * kind.size
            else:
                address += kind.offsets[index]
                kind = kind.parts[index]
        return int(address % (1 << 64))

    def _extractvalue(self, step: _Step) -> Any:
        found = step.operands[0]
        for index in step.op.attributes["position"]:
            found = found[index]
        return found

    def _insertvalue(self, step: _Step) -> Any:
        return _replaced(step.operands[0], list(step.op.attributes["position"]), step.operands[1])

    def _icmp(self, step: _Step) -> int:
        predicate = int(step.op.attributes["predicate"])
        if 2 <= predicate <= 5:
            bits = type_of(str(step.op.operands[0].type)).bits
            return int(COMPARISONS[predicate](*(signed(operand, bits) for operand in step.operands)))
        return int(COMPARISONS[predicate](*step.operands))

    def _fcmp(self, step: _Step) -> int:
        predicate = int(step.op.attributes["predicate"])
        if any(map(math.isnan, step.operands)):
            return int(predicate >= 8)
        found = FLOAT_COMPARISONS.get(predicate)
        return int(found(*step.operands)) if found is not None else int(predicate in (7, 15))

    def _select(self, step: _Step) -> Any:
        return step.operands[1] if step.operands[0] else step.operands[2]

    def _same(self, step: _Step) -> Any:
        return step.operands[0]

    _zext = _ptrtoint = _inttoptr = _addrspacecast = _freeze = _same

    def _trunc(self, step: _Step) -> int:
        return int(step.operands[0]) % (1 << step.result.bits)

    def _sext(self, step: _Step) -> int:
        return signed(step.operands[0], type_of(str(step.op.operands[0].type)).bits) % (1 << step.result.bits)

    def _bitcast(self, step: _Step) -> Any:
        source = type_of(str(step.op.operands[0].type))
        data = bytearray(source.size)
        source.write(step.operands[0], data)
        return step.result.read(data)

    def _sitofp(self, step: _Step) -> float:
        return step.result.rounded(signed(step.operands[0], type_of(str(step.op.operands[0].type)).bits))

    def _uitofp(self, step: _Step) -> float:
        return step.result.rounded(step.operands[0])

    def _fpext(self, step: _Step) -> float:
        return step.result.rounded(step.operands[0])

    _fptrunc = _fpext

    def _fptosi(self, step: _Step) -> int:
        return int(step.operands[0]) % (1 << step.result.bits)

    _fptoui = _fptosi

    def _fneg(self, step: _Step) -> float:
        return -float(step.operands[0])

    def _intr_abs(self, step: _Step) -> int:
        return abs(signed(step.operands[0], step.result.bits)) % (1 << step.result.bits)

    def _intr_ctpop(self, step: _Step) -> int:
        return int(step.operands[0]).bit_count()

    def _intr_ctlz(self, step: _Step) -> int:
        return step.result.bits - int(step.operands[0]).bit_length()

    def _intr_cttz(self, step: _Step) -> int:
        value = int(step.operands[0])
        return (value & -value).bit_length() - 1 if value else step.result.bits

    def _nothing(self, step: _Step) -> int:
        del step
        return 0

    _intr_stacksave = _intr_stackrestore = _intr_assume = _intr_lifetime_start = _intr_lifetime_end = _nothing

    def _intr_trap(self, step: _Step) -> None:
        del step
        raise KernelFailedError("the host code stops itself; its output gives the reason")

    _unreachable = _intr_trap

    def _call(self, step: _Step) -> Any:
        if "callee" not in step.op.attributes:
            raise UnsupportedError("the host code calls a function by its address, which is not modelled")
        name = _text(step.op, "callee")
        if name == "_cudaLaunchKernelEx":
            self._launch(*step.operands)
            return 0
        if name == "printf":
            self._print(step.op, step.operands)
            return 0
        return self.call(name, step.operands)

    def _launch(self, config: int, handle: int, params: int) -> None:
        """Read one launch: its configuration, the attributes of that, and the parameters."""
        read = self.memory.read
        found: Any = read(_CONFIG, config)
        *shape, shared, _, attributes, count = found
        # A number below zero is shown as its author computed it.
        grid, block = ((signed(x, 32), signed(y, 32), signed(z, 32)) for x, y, z in shape)
        cluster: Any = (1, 1, 1)
        overlaps = False
        for number in range(count):
            address = attributes + number * _ATTRIBUTE.size
            kind, value = read(_WORD, address), address + _ATTRIBUTE.offsets[2]
            if kind == _CLUSTER:
                cluster = read(_EXTENTS, value)
            elif kind == _OVERLAP:
                overlaps = bool(read(_WORD, value))
        pointers, _ = self.memory.block(params)
        addresses = [_POINTER.read(pointers, start) for start in range(0, len(pointers), _POINTER.size)]
        symbol = self._handles[handle]
        values = tuple(self.memory.block(address) for address in addresses)
        self.launches.append(LaunchCall(symbol, grid, block, cluster, signed(shared, 64), values, overlaps))

    def _print(self, op: Any, operands: list[Any]) -> None:
        values: list[Any] = []
        for value, operand in zip(operands[1:], list(op.operands)[1:], strict=True):
            kind = type_of(str(operand.type))
            values.append(signed(value, kind.bits) if kind.kind == "int" else value)
        self._printed(formatted(self.memory.text(operands[0]), values, self.memory.text))


def _text(op: Any, name: str) -> str:
    found: str = op.attributes[name].value
    return found


def _type_attribute(op: Any, name: str) -> Any:
    return op.attributes[name].value


def _replaced(value: Any, path: list[int], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    return (*value[:first], _replaced(value[first], rest, new), *value[first + 1 :])


def _attribute(attribute: Any, kind: Type) -> Any:
    """Return the value of a constant's attribute."""
    if kind.kind == "array":
        if hasattr(attribute, "value_bytes"):
            data = attribute.value_bytes.ljust(kind.size, b"\0")
            return kind.read(data)
        return tuple(_attribute(item, part) for item, part in zip(attribute, kind.parts, strict=True))
    if kind.kind == "float":
        return float(attribute.value)
    return int(attribute.value) % (1 << kind.bits)
