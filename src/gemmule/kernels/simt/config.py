"""Tiles of the float32 kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gemmule.core.config import LARGEST_CLUSTER
from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.core.errors import ArgumentError
from gemmule.kernels.parts.warp_tile_config import WarpTileConfig

#: Elements of the vectors that a thread moves: 16 bytes of float32.
VECTOR = 4
#: The same in bytes.
VECTOR_BYTES = VECTOR * FLOAT32.itemsize
#: Lanes of a warp along M and N; of float32's tall warp tiles the other way round.
LANES_M, LANES_N = 4, 8
#: Elements of a sector of device memory; divides tile_k.
SECTOR = 8
#: Rows of a panel of a stage.
PANEL = 32
#: Copies that a mask of 32 bits is enough for.
MOST_COPIES = 32
#: Percent of shared memory for CTAs of so few threads with so many accumulators each: 100 KiB.
_CARVE_OUT, _FEW_THREADS, _MANY_OUTPUTS = 44, 64, 32
#: Elements of the largest tiles, one CTA an SM.
LARGEST = 128 * 256
#: Least rows and columns of tiles whose K-major operands are loaded by vectors; and elements that a thread copies
#: of an operand, from which vectors pay for it alone.
LEAST_SIDE, _MANY_COPIES = 64, 16
#: Elements of the largest tiles whose lanes are interleaved.
_INTERLEAVED = 64 * 128
#: Elements of tiles of which one K-major operand alone may wait in slots, of larger ones in one group of warps, and of
#: small ones whose loop is shorter by columns then.
_SLOTTED_ALONE, _SLOTTED_LARGE, _SLOTTED_SMALL = 64 * 128, 128 * 128, 32 * 64
#: Parts that copies into slots are issued in where warps are one group, and in small tiles of so many k.
_PARTS, _LONG = 3, 64
#: Steps in which vectors of A, and of B, are stored, and those in which the next ones are loaded, by rows, columns and
#: k-tile, where both pass through registers: the best of drawn orders.
_VECTOR_STEPS = {
    (128, 256, 16): (((7, 9), (8, 14)), ((5, 6), (10, 10), (10, 10), (10, 11))),
    (256, 128, 16): (((4, 5), (7, 7), (8, 9), (10, 13)), ((4, 5), (4, 5))),
}
#: Registers of an SM, and those that a thread needs besides accumulators and fragments: with up to so many
#: copies for a k-tile, and more with more.
_REGISTERS, _OTHERS, _MOST_COPIES, _ADDRESSES = 65536, 40, 8, 32


def _is_copied(extent: int, threads: int) -> bool:
    """Return whether all warps can copy lines of an operand at once: of one panel, or of all (`stage`)."""
    if threads % 3:
        return extent % (threads // 8) == 0
    panels, warps = extent // PANEL, threads // 32
    return panels % 3 == 0 and warps % panels == 0 and SECTOR % (warps // panels) == 0


@dataclass(frozen=True)
class CpAsyncConfig(WarpTileConfig):
    """Tile of C that a CTA computes, the warps that share it, and the k-tiles in flight."""

    #: tile_m, tile_n, tile_k: Elements; tile_k is a multiple of 8.
    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 8
    #: warps_m, warps_n: Warps along M and N. A warp tile is a multiple of 16 x 32.
    warps_m: int = 2
    warps_n: int = 4
    stages: int = 4  #: Stages in shared memory, at least 2.
    group: int = 8  #: Tiles that CTAs take downwards before they go to the right.

    def __post_init__(self) -> None:
        super().__post_init__()
        warp_m, warp_n = LANES_M * VECTOR * self.warps_m, LANES_N * VECTOR * self.warps_n
        copied = VECTOR * self.threads
        if self.tile_m % warp_m or self.tile_n % warp_n or self.tile_k % SECTOR or self.stages < 2:
            raise ArgumentError(
                f"config {self}: tile_m must be a multiple of {warp_m}, tile_n of {warp_n}, tile_k of {SECTOR}, and "
                "stages 2 or more"
            )
        if self.tile_m * self.tile_k % copied or self.tile_n * self.tile_k % copied:
            raise ArgumentError(f"config {self}: a k-tile must be a multiple of {copied} elements, {VECTOR} a thread")

    def leading_dimension(self, extent: int, k_major: bool) -> int:
        """Return the elements from one k to the next in shared memory: the leading dimension of a stage.

        Columns of a K-major operand are transposed on the way, by threads along K, and padded, so that these meet
        different banks.
        """
        return extent + VECTOR if k_major else extent

    def shared_bytes(self, a_k_major: bool, b_k_major: bool) -> int:
        """Return the shared memory of a CTA."""
        sides = self.leading_dimension(self.tile_m, a_k_major) + self.leading_dimension(self.tile_n, b_k_major)
        return sides * self.tile_k * self.stages * FLOAT32.itemsize


@dataclass(frozen=True)
class SimtConfig(WarpTileConfig):
    """Tile of C that a CTA computes, the warps that share it, and the k-tiles in flight."""

    #: tile_m, tile_n, tile_k: Elements; the first two are multiples of 32, tile_k is 8 or 16 for each group of warps.
    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 8
    #: warps_m, warps_n: Warps along M and N. A warp tile is 16 x 32, or a multiple of 32 x 32.
    warps_m: int = 4
    warps_n: int = 2
    stages: int = 4  #: Stages in shared memory, at least 2.
    group: int = 8  #: Tiles that CTAs take downwards before they go to the right.
    #: CTAs of a cluster that share a tile: each takes a part of K, and the first `writers` write a part of the rows. 1,
    #: or from sm_90 on up to 16.
    cluster_k: int = 1
    #: Groups of warps, each of which takes a part of the k of each k-tile for the whole tile.
    warps_k: int = 1
    #: 1: aligned K-major operands are loaded by vectors, whatever the tile. Float32 only.
    wide_copies: int = 0
    switches: ClassVar[frozenset[str]] = frozenset({"wide_copies"})
    itemsize: ClassVar[int] = FLOAT32.itemsize

    def __post_init__(self) -> None:
        super().__post_init__()
        rows, rest = divmod(self.tile_m, LANES_M * VECTOR * self.warps_m)
        if rest or self.tile_m % PANEL or (rows > 1 and rows % 2) or self.tile_n % (PANEL * self.warps_n):
            raise ArgumentError(
                f"config {self}: a warp tile must be 16 x 32 or a multiple of 32 x 32, and tile_m a multiple of {PANEL}"
            )
        if self.tile_k not in (8 * self.warps_k, 16 * self.warps_k) or self.stages < 2:
            raise ArgumentError(f"config {self}: tile_k must be 8 or 16 times warps_k, and stages 2 or more")
        copied = self.vector * self.threads
        if self.tile_m * self.tile_k % copied or self.tile_n * self.tile_k % copied:
            raise ArgumentError(
                f"config {self}: a k-tile must be a multiple of {copied} elements, {self.vector} a thread"
            )
        if not (_is_copied(self.tile_m, self.threads) and _is_copied(self.tile_n, self.threads)):
            raise ArgumentError(
                f"config {self}: tile_m and tile_n must be multiples of the {self.threads // 8} rows that all warps "
                f"copy at once; where warps are a multiple of three, panels of {PANEL} must be one too, and divide them"
            )
        if max(self.tile_m, self.tile_n) * self.tile_k // self.threads > MOST_COPIES:
            raise ArgumentError(
                f"config {self}: a thread may copy at most {MOST_COPIES} elements of an operand for a k-tile, one for "
                "each bit of a mask; give smaller tiles or more warps"
            )
        if self.cluster_k > LARGEST_CLUSTER or (
            self.cluster_k * self.warps_k > 1
            and self.tile_elements * self.warps_k * self.itemsize > self.shared_bytes(False, False)
        ):
            raise ArgumentError(
                f"config {self}: cluster_k must be at most {LARGEST_CLUSTER}, and the partial sums fit into the stages"
            )
        if self.wide_copies and (self.itemsize != FLOAT32.itemsize or self.tile_k == SECTOR):
            raise ArgumentError(f"config {self}: wide_copies is for float32, and for a tile_k of more than {SECTOR}")
        if self.thread_m % self.warps_k:
            raise ArgumentError(f"config {self}: warps_k must divide the rows of a thread tile, {self.thread_m}")

    @property
    def vector(self) -> int:
        """Elements of the vectors that a thread reads from shared memory."""
        return VECTOR_BYTES // self.itemsize

    @property
    def summed_m(self) -> int:
        """Rows of a thread tile that a thread has once the groups of warps have added theirs."""
        return self.thread_m // self.warps_k

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of a warp along M and along N: more along the longer side of a warp tile."""
        tall = self.tile_m // self.warps_m > self.tile_n // self.warps_n
        return (LANES_N, LANES_M) if tall else (LANES_M, LANES_N)

    @property
    def thread_m(self) -> int:
        """Rows of a thread tile."""
        return self.tile_m // (self.warps_m * self.lanes[0])

    @property
    def thread_n(self) -> int:
        """Columns of a thread tile."""
        return self.tile_n // (self.warps_n * self.lanes[1])

    def by_vectors(self, k_major: tuple[bool, bool]) -> tuple[bool, bool]:
        """Return which aligned K-major operands pass through registers, in vectors; others are copied by element.

        The narrower operand of a tile is not worth it alone. A CTA that is alone in its SM, as those of clusters of the
        smallest tiles often are, waits longer for loads than for copies; `wide_copies` is for those that are not, and
        for a short K.
        """
        if any(self.by_slots(k_major)):
            return False, False
        if self.wide_copies:
            return k_major
        square = self.tile_m == self.tile_n == LEAST_SIDE
        if self.itemsize != FLOAT32.itemsize or min(self.tile_m, self.tile_n) < LEAST_SIDE or self.tile_k == SECTOR:
            return False, False
        if square and self.cluster_k > 1:
            return False, False
        wide = [
            self.tile_elements == LARGEST or extent * self.tile_k >= _MANY_COPIES * self.threads
            for extent in (self.tile_m, self.tile_n)
        ]
        return k_major[0] and (k_major[1] or wide[0]), k_major[1] and (k_major[0] or wide[1])

    def by_slots(self, k_major: tuple[bool, bool]) -> tuple[bool, bool]:
        """Return which aligned K-major operands wait in slots of shared memory until they are stored transposed.

        All or none. In one group of warps any of 64 x 128, 128 x 64 and 128 x 128; in two the narrow one alone of the
        first two. Where warps are a multiple of three, which leaves the fewest registers, all but a narrow one alone.
        Both of smaller tiles, in groups of warps or of 64 x 64. Elsewhere one stage less in flight costs more, and of
        two stages none would be.
        """
        if self.itemsize != FLOAT32.itemsize or self.tile_k == SECTOR or self.wide_copies or self.stages == 2:
            return False, False
        square, narrow = self.tile_m == self.tile_n, (self.tile_m < self.tile_n, self.tile_m > self.tile_n)
        if self.threads % 3 == 0:
            slots = square or k_major != narrow
        elif self.tile_elements in (_SLOTTED_ALONE, _SLOTTED_LARGE):
            slots = self.warps_k == 1 or (not square and k_major == narrow)
        else:
            grouped = self.warps_k > 1 or min(self.tile_m, self.tile_n) == LEAST_SIDE
            slots = all(k_major) and grouped and self.tile_elements < _SLOTTED_ALONE
        return (k_major[0], k_major[1]) if slots else (False, False)

    @property
    def slot_parts(self) -> int:
        """Parts that a k-tile's copies into slots are issued in."""
        long = self.tile_elements == _SLOTTED_SMALL and self.tile_k == _LONG
        return _PARTS if self.warps_k == 1 or long else 1

    def vector_steps(self, count: int, second: bool, both: bool) -> Sequence[tuple[int, int]]:
        """Return the steps in which each of `count` vectors of a k-tile is stored, and that of the next one loaded.

        `second` says whether they are of B, `both` whether A and B pass through registers.
        """
        found = _VECTOR_STEPS.get((self.tile_m, self.tile_n, self.tile_k))
        if both and found is not None and len(found[second]) == count:
            return found[second]
        steps = self.tile_k // self.warps_k
        first, last = steps // 4, steps - 2
        if self.tile_elements == LARGEST:
            # Few warps: what follows a store is loaded behind it, in the order that the compiler schedules best.
            stores = [-(-(p + 1) * last // count) - 1 for p in range(count)]
            return [(step, step + 1) for step in stores]
        return [(first + p * (last - first) // count, last) for p in range(count)]

    def own_stages(self, k_major: tuple[bool, bool], unaligned: bool) -> bool:
        """Return whether each group of warps has stages of its own, and waits for no other group's copies.

        `k_major` says which operands are K-major and aligned, `unaligned` whether rows of one begin anywhere. Groups of
        one warp are faster so, but where vectors along K would be half as long, and in 32 x 64 with aligned operands.
        Those that are copied by element into larger tiles than 32 x 32 have too many addresses.
        """
        if self.itemsize != FLOAT32.itemsize or self.warps_k == 1 or self.warps_m * self.warps_n > 1:
            return False
        if self.tile_k // self.warps_k > SECTOR or any(self.by_slots(k_major)) or any(self.by_vectors(k_major)):
            return False
        if self.tile_elements == PANEL * PANEL:
            return True
        return not any(k_major) and (unaligned or self.tile_m > self.tile_n)

    def holds_columns(self, slots: bool) -> bool:
        """Return whether successive FMAs share a column and not a row, where the compiler then makes the shorter loop.

        `slots` says whether operands wait in slots.
        """
        if self.threads % 3 == 0:
            return self.thread_n > self.thread_m
        if slots and self.warps_k > 1 and self.tile_elements in (_SLOTTED_SMALL, _SLOTTED_ALONE):
            return self.tile_elements == _SLOTTED_SMALL or self.tile_m > self.tile_n
        return self.lanes[0] > self.lanes[1]

    def shares_mask(self, k_major: bool) -> bool:
        """Return whether the copies of A and B have one mask: where registers are few, or an SM has a CTA more so.

        `k_major` says whether an operand is K-major. In other tiles a mask each is as fast.
        """
        return self.threads % 3 == 0 or (self.warps_k > 2 and self.tile_elements == _SLOTTED_SMALL and not k_major)

    def interleaved(self, transposes: bool, slots: bool) -> bool:
        """Return whether lanes are interleaved (`lane_row`), where that was measured to be faster.

        `transposes` says whether K-major operands are copied by element, `slots` whether they wait in slots: these
        copies and reads share a pipe. Of few CTAs an SM with larger tiles the order in which the compiler puts
        instructions decides.
        """
        if self.itemsize != FLOAT32.itemsize or self.tile_k == SECTOR or self.tile_elements > _INTERLEAVED:
            return False
        if min(self.tile_m, self.tile_n) < LEAST_SIDE:
            return self.warps_k > 1
        if self.tile_m == self.tile_n:
            return transposes or slots or self.cluster_k > 1
        return transposes and self.cluster_k > 1

    @property
    def carve_out(self) -> int | None:
        """Percent of an SM's largest shared memory that the kernel is given, or None where the driver decides.

        As many CTAs of two warps as fit would leave the first-level cache, through which copies of 4 bytes go, no room.
        """
        return (
            _CARVE_OUT if self.threads == _FEW_THREADS and self.tile_elements >= _MANY_OUTPUTS * self.threads else None
        )

    @property
    def writers(self) -> int:
        """CTAs of the cluster that write: as many as divide the rows of a thread."""
        return max(count for count in range(1, self.cluster_k + 1) if self.summed_m % count == 0)

    def resident(self, copies: int) -> int:
        """Return the CTAs of an SM that the compiler leaves registers for, with copies of a thread."""
        elements = self.thread_m * self.thread_n + 2 * (self.thread_m + self.thread_n)
        registers = elements * self.itemsize // FLOAT32.itemsize + _OTHERS
        # Many copies need registers for their addresses.
        registers += _ADDRESSES * (copies > _MOST_COPIES)
        return max(_REGISTERS // (registers * self.threads), 1)

    def shared_bytes(self, a_k_major: bool, b_k_major: bool, slots: bool = False) -> int:
        """Return the shared memory of a CTA: K-major operands are padded, and with `slots` there is a stage more."""
        sides = (self.tile_m, a_k_major), (self.tile_n, b_k_major)
        pitches = [extent // PANEL * (PANEL + self.vector * k_major) for extent, k_major in sides]
        return max(sum(pitches) * self.tile_k * (self.stages + slots) * self.itemsize, self.staging_bytes)

    @property
    def staging_bytes(self) -> int:
        """Bytes that all warps exchange results in at once: 4 rows of each thread tile."""
        return self.lanes[0] * VECTOR * self.warps_m * self.warps_k * self.tile_n * FLOAT32.itemsize
