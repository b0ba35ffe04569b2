"""One sentence: what to change next. It follows from the figures alone, whatever the kernel is called.

The unit that takes the longest is the one to relieve, and which part of its work could be saved says how. Where nothing
but the instructions themselves, or device memory at its full rate, is left, waiting comes next.
"""

from __future__ import annotations

import dataclasses

from .limits import ARITHMETIC, ISSUE, L1, L2, MEMORY

# Shares that are worth a change: of the time, waiting; of L1's work, lines that need not be touched, and conflicts; of
# the bytes of device memory, those that were read before.
_WAITING, _SCATTERED, _CONFLICTS, _AGAIN = 0.1, 0.4, 0.2, 0.2
# Multiprocessors that have work, at the least.
_FULL = 0.6


@dataclasses.dataclass(frozen=True)
class Figures:
    """What the sentence is made from.

    Attributes
    ----------
    seconds : tuple of (str, float)
        The least time of each unit.
    exposed_seconds : float
        Waiting for device memory, if all wait at once.
    distance : int
        Instructions between a request and its use.
    ctas, multiprocessors : int
        CTAs, and what they run on.
    balance : float
        Work of the multiprocessors on average, as a share of the busiest one's.
    product : bool
        Whether it is a product; else elements are only moved.
    memory_bytes, least_bytes : int
        What passes through device memory, and each operand once.
    global_passes, needed_passes : int
        Passes of requests to global memory through L1, and the fewest that would do.
    shared_passes, conflicts : int
        Passes of shared memory, and those of them that conflicts of banks add.
    multiply_adds : int
        Instructions of warps that multiply.
    instructions : int
        All instructions of warps.
    tensor_cores, registers_between, asynchronous : bool
        Whether tensor cores multiply; whether elements pass through registers on their way into shared memory;
        whether there are asynchronous copies.
    occupancy : str
        How many warps run at a time and what allows no more.
    worst_access, worst_conflict : str
        The place with the most passes beyond what is needed, and the one with the most conflicts of banks.
    """

    seconds: tuple[tuple[str, float], ...]
    exposed_seconds: float = 0.0
    distance: int = 0
    ctas: int = 1
    multiprocessors: int = 1
    balance: float = 1.0
    product: bool = True
    memory_bytes: int = 0
    least_bytes: int = 0
    global_passes: int = 0
    needed_passes: int = 0
    shared_passes: int = 0
    conflicts: int = 0
    multiply_adds: int = 0
    instructions: int = 0
    tensor_cores: bool = False
    registers_between: bool = False
    asynchronous: bool = False
    occupancy: str = ""
    worst_access: str = ""
    worst_conflict: str = ""


def advice(figures: Figures) -> str:
    """Return the sentence."""
    if figures.balance < _FULL:
        return (
            f"Give every multiprocessor work: {figures.ctas} CTAs keep {figures.balance:.0%} of "
            f"{figures.multiprocessors} multiprocessors busy, so take smaller tiles or split K among CTAs."
            if figures.product
            else f"Give every multiprocessor work: {figures.ctas} CTAs keep {figures.balance:.0%} of "
            f"{figures.multiprocessors} multiprocessors busy, so take smaller tiles."
        )
    unit, longest = max(figures.seconds, key=lambda item: item[1])
    if unit == L1:
        return _relieve_l1(figures)
    waits = figures.exposed_seconds > _WAITING * longest
    if unit == L2:
        return (
            "Ask less of the L2 cache, which takes the longest: larger tiles of the result read each element for more "
            "multiply-adds."
            if figures.product
            else "Ask less of the L2 cache, which takes the longest: touch each sector with one request."
        )
    if unit == MEMORY and figures.memory_bytes > (1 + _AGAIN) * figures.least_bytes:
        return (
            f"Read less from device memory, which takes the longest: {figures.memory_bytes / figures.least_bytes:.1f} "
            "times what the operands have; let CTAs that run together lie in a block that shares rows and columns, "
            "or make their tiles larger."
        )
    if waits:
        return _hide(figures)
    if unit == MEMORY:
        return (
            "Nothing in the kernel: device memory takes the longest, and each operand passes through it once; only "
            "fewer bytes help, by a narrower type or by joining this with what comes before or after."
        )
    return _feed(figures, unit)


def _relieve_l1(figures: Figures) -> str:
    work = figures.global_passes + figures.shared_passes
    multiply_adds = max(figures.multiply_adds, 1)
    if figures.global_passes - figures.needed_passes > _SCATTERED * work:
        times = figures.global_passes / max(figures.needed_passes, 1)
        end = "." if figures.product else ", and exchange rows with columns in shared memory."
        return (
            f"Coalesce: requests to global memory touch {times:.1f} times the lines that would do, most of them at "
            f"{figures.worst_access}; let neighbouring threads access neighbouring elements{end}"
        )
    if figures.conflicts > _CONFLICTS * work:
        return (
            f"Remove the bank conflicts: {figures.conflicts / work:.0%} of the passes through shared memory and L1, "
            f"most of them at {figures.worst_conflict}; change the layout there, or which elements a thread owns."
        )
    if not figures.product:
        return "Move more bytes with each instruction: what L1 and shared memory pass on is limited by their requests."
    if figures.global_passes > figures.shared_passes:
        return (
            f"Share what is loaded: {figures.global_passes / multiply_adds:.2g} lines of L1 for one multiply-add of a "
            "warp; let a CTA copy tiles of A and B into shared memory, and take each element from there as often as "
            "the tile is wide."
        )
    who, what = ("warp", "matrix instruction") if figures.tensor_cores else ("thread", "multiply-add of a warp")
    return (
        f"Keep more in registers: {figures.shared_passes / multiply_adds:.2g} passes of shared memory for one {what}; "
        f"let each {who} compute a larger rectangle of the result, so that a value which is loaded once serves a "
        "whole row or column of it."
    )


def _hide(figures: Figures) -> str:
    where = f" ({figures.occupancy})" if figures.occupancy else ""
    if not figures.product:
        return (
            f"Keep more requests on their way: a thread uses what it asked for after {figures.distance} instructions"
            f"{where}; let it load several elements before it stores the first."
        )
    return (
        f"Hide the latency: what a slice loads is used {figures.distance} instructions after it was asked for, and few "
        f"warps can step in{where}; fetch the next slice while this one is multiplied, with two buffers in shared "
        "memory."
    )


def _feed(figures: Figures, unit: str) -> str:
    share = figures.multiply_adds / max(figures.instructions, 1)
    if not figures.product:
        return "Move more bytes with each instruction: issuing them takes longer than the bytes do."
    if figures.tensor_cores:
        return (
            f"Give each instruction more to do: {share:.0%} of them multiply matrices, and {unit} takes the longest; "
            "larger tiles of a warp load less for each of them."
        )
    if unit == ISSUE and share < 0.5:
        return (
            f"Spend fewer instructions on what does not multiply, which is {1 - share:.0%} of them: wider loads and "
            "a larger rectangle of the result for each thread."
        )
    if figures.registers_between and not figures.asynchronous:
        return (
            f"Take the copies out of the instruction stream: {share:.0%} of the instructions are multiply-adds, no "
            "memory stands in their way, and slices still pass through registers; copy with cp.async into three or "
            "more buffers, and use the registers for larger tiles."
        )
    assert unit in (ARITHMETIC, ISSUE)
    return (
        f"Little is left on these units: {share:.0%} of the instructions are multiply-adds; give each thread a larger "
        "rectangle of the result, or leave them for tensor cores."
    )
