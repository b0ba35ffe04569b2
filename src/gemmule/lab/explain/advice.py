"""One sentence: what to change next. It follows from the figures alone, whatever the kernel is called.

The unit that takes the longest is the one to relieve, and which part of its work could be saved says how. Where nothing
but the instructions themselves, or device memory at its full rate, is left, waiting comes next.
"""

from __future__ import annotations

import dataclasses

from .limits import ARITHMETIC, ISSUE, L1, L2, MEMORY
from .timeline import Timeline
from .timeline_advice import keep_busy, read_less

# Shares that are worth a change: of the time, waiting; of L1's work, lines that need not be touched, and conflicts; of
# the bytes of device memory, those that were read before.
_WAITING, _SCATTERED, _CONFLICTS, _AGAIN = 0.1, 0.4, 0.2, 0.2
# SMs that have work, at the least.
_FULL = 0.6


@dataclasses.dataclass(frozen=True)
class Figures:
    """The facts that the sentence is made from."""

    seconds: tuple[tuple[str, float], ...]  #: The least time of each unit.
    exposed_seconds: float = 0.0  #: Waiting for device memory, if all wait at once.
    distance: int = 0  #: Instructions between a request and its use.
    #: ctas, multiprocessors: CTAs, and what they run on.
    ctas: int = 1
    multiprocessors: int = 1
    product: bool = True  #: Whether it is a product; else elements are only moved.
    #: memory_bytes, least_bytes: What passes through device memory, and each operand once.
    memory_bytes: int = 0
    least_bytes: int = 0
    #: global_passes, needed_passes: Passes of requests to global memory through L1, and the fewest that would do.
    global_passes: int = 0
    needed_passes: int = 0
    #: shared_passes, conflicts: Passes of shared memory, and those of them that conflicts of banks add.
    shared_passes: int = 0
    conflicts: int = 0
    multiply_adds: int = 0  #: Instructions of warps that multiply.
    instructions: int = 0  #: All instructions of warps.
    #: tensor_cores, registers_between, asynchronous: Whether tensor cores multiply; whether elements pass through
    #: registers on their way into shared memory; whether there are asynchronous copies.
    tensor_cores: bool = False
    registers_between: bool = False
    asynchronous: bool = False
    #: registers, most_registers, spill_bytes: Registers of a thread, the most that it may have, and bytes that did not
    #: fit into them.
    registers: int = 0
    most_registers: int = 255
    spill_bytes: int = 0
    occupancy: str = ""  #: Occupancy, and the resource that limits it.
    #: worst_access, worst_conflict: The place with the most passes beyond what is needed, and the one with the most
    #: conflicts of banks.
    worst_access: str = ""
    worst_conflict: str = ""
    stay: bool = False  #: Whether CTAs stay and compute tile after tile; `ctas` are tiles then.
    timeline: Timeline | None = None  #: The pipeline of a kernel whose k-tiles TMA loads.
    k_tiles: int = 0  #: K-tiles of a tile, of such a kernel.

    @property
    def balance(self) -> float:
        """Work of the SMs on average, as a share of the busiest one's."""
        return self.ctas / (-(-self.ctas // self.multiprocessors) * self.multiprocessors)

    @property
    def room(self) -> bool:
        """Whether a thread has registers for a rectangle of the result that is half as large again."""
        return not self.spill_bytes and self.registers * 3 // 2 <= self.most_registers

    @property
    def no_room(self) -> str:
        """Why there is none."""
        if self.spill_bytes:
            return f"{self.spill_bytes} bytes a thread already spill"
        return f"{self.registers} of {self.most_registers} registers per thread leave no room for a larger rectangle"


def advice(figures: Figures) -> str:
    """Return the sentence; a second one where some SMs have much less to do than others."""
    if figures.balance < _FULL and figures.ctas < figures.multiprocessors:
        split = " or split K among CTAs" if figures.product else ""
        return (
            f"Give every SM work: {_plural(figures.ctas, 'CTA')} leave"
            f"{'s' if figures.ctas == 1 else ''} {figures.multiprocessors - figures.ctas} of "
            f"{figures.multiprocessors} SMs idle, so take smaller tiles{split}."
        )
    return _relieve(figures) + (_tail(figures) if figures.balance < _FULL else "")


def _tail(figures: Figures) -> str:
    less, more = divmod(figures.ctas, figures.multiprocessors)
    what = "tile" if figures.stay else "CTA"
    return (
        f" Besides, {more} of {figures.multiprocessors} SMs have {_plural(less + 1, what)}, the others "
        f"{less}; the launch takes as long as {less + 1}: another size of the tile may share them out better."
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _relieve(figures: Figures) -> str:
    unit, longest = max(figures.seconds, key=lambda item: item[1])
    if figures.timeline is not None and unit in (ARITHMETIC, L1):
        return _of_pipeline(figures.timeline, figures, unit)
    if unit == L1:
        return _relieve_l1(figures)
    waits = figures.exposed_seconds > _WAITING * longest
    if unit == L2:
        return (
            "Load less from L2, which takes the longest: larger tiles of the result read each element for more "
            "multiply-adds."
            if figures.product
            else "Load less from L2, which takes the longest: touch each sector with one request."
        )
    if unit == MEMORY and figures.memory_bytes > (1 + _AGAIN) * figures.least_bytes:
        return (
            f"Read less from device memory, which takes the longest: {figures.memory_bytes / figures.least_bytes:.1f} "
            "times the operands' bytes; let concurrent CTAs form a block that shares rows and columns, "
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


def _of_pipeline(line: Timeline, figures: Figures, unit: str) -> str:
    """Return the advice on a pipeline: on its wait, if that is long, else on its slowest unit."""
    if (sentence := keep_busy(line, figures.k_tiles, _WAITING)) or unit == ARITHMETIC:
        return sentence or keep_busy(line, figures.k_tiles) or _feed(figures, unit)
    return read_less(figures.conflicts / max(figures.shared_passes, 1), figures.shared_passes / figures.multiply_adds)


def _relieve_l1(figures: Figures) -> str:
    work = figures.global_passes + figures.shared_passes
    if figures.global_passes - figures.needed_passes > _SCATTERED * work:
        times = figures.global_passes / max(figures.needed_passes, 1)
        end = "." if figures.product else ", and exchange rows with columns in shared memory."
        return (
            f"Coalesce: requests to global memory touch {times:.1f} times the lines that would do, most of them at "
            f"{figures.worst_access}; let neighbouring threads access neighbouring elements{end}"
        )
    if figures.conflicts > _CONFLICTS * work:
        return (
            f"Remove the bank conflicts: {figures.conflicts / work:.0%} of the wavefronts of shared memory and L1, "
            f"most of them at {figures.worst_conflict}; change the layout there, or which elements a thread owns."
        )
    if not figures.product:
        return "Move more bytes with each instruction: L1 and shared memory are limited by requests."
    if figures.global_passes > figures.shared_passes:
        return (
            f"Share what is loaded: {_each(figures.global_passes, figures)} lines of L1 for one multiply-add of a "
            "warp; let a CTA copy tiles of A and B into shared memory, and take each element from there as often as "
            "the tile is wide."
        )
    who, what = ("warp", "matrix instruction") if figures.tensor_cores else ("thread", "multiply-add of a warp")
    passes = f"{_each(figures.shared_passes, figures)} wavefronts of shared memory for one {what}"
    if not figures.room:
        return (
            f"Load less from shared memory: {passes}, and {figures.no_room}; let each {who} read wider, or less often."
        )
    return (
        f"Keep more in registers: {passes}; let each {who} compute a larger rectangle of the result, so that a value "
        "which is loaded once serves a whole row or column of it."
    )


def _each(passes: int, figures: Figures) -> str:
    return f"{passes / figures.multiply_adds:.2g}" if figures.multiply_adds else f"{passes} (and no multiply-adds)"


def _hide(figures: Figures) -> str:
    where = f" ({figures.occupancy})" if figures.occupancy else ""
    if not figures.product:
        return (
            f"Keep more loads in flight: a thread uses a loaded value after {figures.distance} instructions"
            f"{where}; let it load several elements before it stores the first."
        )
    if figures.asynchronous:
        return (
            f"Hide the latency: a load is waited for {figures.distance} instructions later, and few other "
            f"warps can run{where}; the copies are asynchronous, so issue them earlier, with more k-tiles in flight, "
            "or let more warps run at a time."
        )
    return (
        f"Hide the latency: a k-tile is used {figures.distance} instructions after its load, and few "
        f"other warps can run{where}; fetch the next k-tile while this one is multiplied, with two buffers in "
        "shared memory."
    )


def _feed(figures: Figures, unit: str) -> str:
    share = figures.multiply_adds / max(figures.instructions, 1)
    if not figures.product:
        return "Move more bytes with each instruction: issuing them takes longer than the bytes do."
    if figures.tensor_cores:
        if unit == ARITHMETIC:
            return (
                "Little is left: the tensor cores take the longest; only a narrower type, or an instruction that "
                "multiplies larger matrices at a higher rate, is faster."
            )
        return (
            f"Give each instruction more to do: {share:.0%} of them multiply matrices, and {unit} takes the longest; "
            + ("larger tiles of a warp load less for each of them." if figures.room else f"{figures.no_room}, so load "
               "more with each instruction.")
        )  # fmt: skip
    rectangle = "a larger rectangle of the result for each thread" if figures.room else ""
    if unit == ISSUE and share < 0.5:
        return f"Spend fewer instructions on what does not multiply, which is {1 - share:.0%} of them: wider loads" + (
            f" and {rectangle}." if rectangle else f" and fewer addresses; {figures.no_room}."
        )
    if figures.registers_between and not figures.asynchronous:
        return (
            f"Take the copies out of the instruction stream: {share:.0%} of the instructions are multiply-adds, no "
            "memory stands in their way, and k-tiles still pass through registers; copy with cp.async into three or "
            "more buffers" + (", and use the registers for larger tiles." if figures.room else ".")
        )
    assert unit in (ARITHMETIC, ISSUE)
    if not figures.room:
        return (
            f"Little is left on these units: {share:.0%} of the instructions are multiply-adds, and {figures.no_room}; "
            "only tensor cores multiply faster."
        )
    return (
        f"Little is left on these units: {share:.0%} of the instructions are multiply-adds; give each thread a larger "
        "rectangle of the result, or leave them for tensor cores."
    )
