"""The order of waits and memory accesses in the PTX of dependent launches."""

from __future__ import annotations

import re

from gemmule.kernels.hopper.repack_config import NONE, OPERANDS

MEMORY = re.compile(r"\b(ld|st|cp\.async|prefetch)\S*\.global")
_ACCESS = re.compile(r"\b(ld|st|red|atom|cp\.async|cp\.reduce|prefetch)\S*\.global")
_LOAD = re.compile(r"\bcp\.async\.bulk\.tensor\S*\.shared::\w+\.global")
_LABEL, _BRANCH = re.compile(r"^\{?\s*([$\w]+):\s*"), re.compile(r"^(@!?%?\w+\s+)?bra(?:\.uni)?\s+([$\w]+)")
#: The kernels that load an operand before they wait, which the grid in front has not written.
LOADS_AHEAD = ("hopper_gemm_unaligned_a",)


def assert_waits_first(code, waits=1):
    assert len(re.findall(r"griddepcontrol\.wait", code)) == waits
    assert code.index("griddepcontrol.wait") < MEMORY.search(code).start()


def accesses_without_waits(code):
    """Return the instructions that access device memory on some path from the beginning without a wait."""
    statements, labels = _statements(code)
    found, seen, left = [], set(), [0]
    while left:
        at = left.pop()
        while at < len(statements) and at not in seen:
            seen.add(at)
            statement = statements[at]
            if statement.startswith(("griddepcontrol.wait", "ret", "exit", "trap")):
                break
            if _ACCESS.search(statement):
                found.append(statement)
            if branch := _BRANCH.match(statement):
                # Labels of instructions in braces are not the only ones of their name: the nearest is theirs.
                target = min(labels[branch[2]], key=lambda place: abs(place - at))
                if not branch[1]:
                    at = target
                    continue
                between = statements[at + 1 : target]
                # A wait is skipped where a number that never is negative were that (pdl.py).
                if not between or any(not one.startswith("griddepcontrol.") for one in between):
                    left.append(target)
            at += 1
    return found


def _statements(code):
    """Return the instructions, and for each label the numbers of those behind it."""
    statements, labels = [], {}
    body = re.sub(r"//.*", "", code[code.index(".entry") :] if ".entry" in code else code)
    for part in re.split(r"[;\n]", body):
        statement = part.strip()
        while label := _LABEL.match(statement):
            labels.setdefault(label[1], []).append(len(statements))
            statement = statement[label.end() :]
        statement = statement.strip("{} \t")
        if statement and not statement.startswith("."):
            statements.append(statement)
    return statements, labels


def assert_reads_a_word_before_it_waits(code):
    """The decision of the guard, which had ended when the grid in front let this one launch."""
    before = code[: code.index("griddepcontrol.wait")]
    assert [found[0] for found in MEMORY.finditer(before)] == ["ld.relaxed.gpu.global"]


def waits_of(name, types):
    """How often the code of a kernel waits at most: for each operand that it copies; in producer and consumers."""
    if name in ("hopper_gemm", "hopper_gemm_unaligned", "hopper_gemm_unaligned_a"):
        return 2
    if name in ("hopper_gemm_repacked", "hopper_gemm_small_repacked"):
        return int(types.get("operands", 1))
    if name.endswith("gemm_upcast") and "wide" in types:
        return sum(types.get(key, NONE) != NONE for key in OPERANDS)
    return 1


def assert_in_order(code, arch, *, overlaps, waits=1, ahead=False):
    """A kernel that waits for the launch in front does so first; it does where launches overlap.

    With `ahead` loads by TMA may come first.
    """
    if "griddepcontrol" in code:
        assert arch.major >= 9, "before Hopper launches are in order"
        found = len(re.findall(r"griddepcontrol\.wait", code))
        assert found <= waits
        assert_waits_first(code, found)
        assert [one for one in accesses_without_waits(code) if not (ahead and _LOAD.search(one))] == []
    else:
        assert not overlaps or arch.major < 9
