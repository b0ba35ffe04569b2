"""An A of 16-bit elements whose lines begin anywhere: TMA loads it as it lies, and wgmma takes it from registers.

Lines whose numbers are equal modulo 8 lie a multiple of 16 bytes apart, so that each class of them has a tensor map,
from the multiple of 16 bytes before its first line on: its elements are 0 to 7 places further on than in an aligned
matrix. Each lane reads the elements of its fragments from its line's shift on. Where A is K-major, a tile has its rows
in the order of their classes; where it is MN-major, a k-tile has its k in that order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Uint32, cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import hopper_helpers

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.gemm_line_classes.config import CLASSES
from gemmule.kernels.hopper.tile_config import K_BYTES, MMA_M
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages, TmaTensor, partitioned
from .register_operand import RegisterOperandMainloop

#: Elements of a line that a k-tile has beyond its own; bytes of an element.
_BEYOND, _ITEM = 8, 2
#: Chunks of a row of a K-major k-tile, and bytes of one.
_CHUNKS, _CHUNK = 8, 16
#: Parts of a k-tile that are read together, wgmma of each, and words of one.
_PARTS, _STEPS, _WORDS = 2, 2, 4


class ClassTensors(NamedTuple):
    """The TMA loads of all classes of rows."""

    atoms: tuple[Any, ...]
    tensors: tuple[Any, ...]

    @property
    def atom(self) -> Any:
        """The first class's."""
        return self.atoms[0]

    @property
    def tensor(self) -> Any:
        """That of the first class, of which K is the second extent."""
        return self.tensors[0]


class ClassStages(NamedTuple):
    """Stages of A in shared memory (rows, 72, class, stage), and by how many elements a row's shift grows with it."""

    smem: Any
    shift: Any


@dataclass(frozen=True)
class ClassLoads:
    """The TMA loads of a k-tile of all classes, or of this CTA's share of them."""

    tensors: ClassTensors
    smem: Any  #: Tensor. The stages.
    box: tuple[int, int]  #: Lines of a class in a k-tile, and elements of each.
    k_major: bool  #: Whether lines are rows.
    cta: Any = 0  #: This CTA's number among those that share the loads.
    share: int = CLASSES  #: Classes that a CTA loads.
    multicast_ctas: Any = None  #: As of `TmaLoad`.

    #: Int32. Number of the last k-tile, which is loaded first where A is K-major.
    last: Any = 0

    @cute.jit
    def issue(self, coord, stage, full):
        """Issue the loads of the k-tile at (tile, k-tile, batch); the stage's barrier counts their bytes."""
        for number in cutlass.range_constexpr(CLASSES):
            if cutlass.const_expr(self.share == CLASSES):  # noqa: SIM114, one when compiled
                self.issue_class(number, coord, stage, full)
            elif self.cta == number // self.share:
                self.issue_class(number, coord, stage, full)

    def issue_class(self, number: int, coord: Any, stage: Any, full: Any) -> None:
        """Issue the load of a class."""
        atom, tensor = self.tensors.atoms[number], self.tensors.tensors[number]
        tile, k_tile, batch = coord
        if self.k_major:
            k_tile = self.last - k_tile
        # MN-major boxes overlap: each has a chunk of the next tile.
        line, element = (tile, k_tile) if self.k_major else (k_tile, tile)
        lines, length = self.box
        begin = cute.domain_offset(
            (line * lines, element * (length if self.k_major else length - _BEYOND), batch), tensor
        )
        box = cute.local_tile(begin, self.box, (0, 0, 0))
        smem = (
            self.smem[None, None, number, stage]
            if not self.k_major
            else cute.local_tile(self.smem, self.box, (number, 0, stage))
        )
        target, source = partitioned(atom, smem, box)
        if self.multicast_ctas is None:
            cute.copy(atom, source, target, tma_bar_ptr=full + stage)
        else:
            first, stride, num_ctas = self.multicast_ctas
            mask = cutlass.Int16(sum(1 << stride * cta for cta in range(num_ctas))) << first.to(cutlass.Int16)
            cute.copy(atom, source, target, tma_bar_ptr=full + stage, mcast_mask=mask)


@dataclass(frozen=True)
class ReversedLoad:
    """A load of k-tiles from the last one on."""

    load: Any  #: TmaLoad.
    last: Any  #: Int32. Number of the last k-tile.

    def issue(self, coord: tuple[Any, ...], stage: Any, full: Any) -> None:
        """Issue the load of a k-tile, as `TmaLoad.issue`."""
        tile, k_tile, *batch = coord
        self.load.issue((tile, self.last - k_tile, *batch), stage, full)


class ClassOperands(OperandStages):
    """As `OperandStages`, with A in classes of rows."""

    @property
    def box(self) -> tuple[int, int]:
        """Lines of a class in a k-tile, and elements of each."""
        m, _, k = self.cta_tile_mnk
        return (m // CLASSES, k) if self.k_major[0] else (k // CLASSES, m + _BEYOND)

    @property
    def a_bytes(self) -> int:
        lines, length = self.box
        return CLASSES * lines * length * _ITEM

    def class_layout(self) -> Any:
        """Return the layout of a class's lines in shared memory: K-major ones swizzled, others with a chunk between."""
        if not self.k_major[0]:
            return cute.make_layout(self.box, stride=(self.box[1], 1))
        layout = self.layout_a(CLASSES)
        return cute.make_composed_layout(layout.inner, 0, cute.select(layout.outer, [0, 1]))

    def tma_a(self, mA: Any) -> Any:
        """Return the TMA loads of all classes of A."""
        kind = cpasync.CopyBulkTensorTileG2SOp
        if self.multicast_size_a > 1:
            kind = cpasync.CopyBulkTensorTileG2SMulticastOp
        layout = self.class_layout()
        found = [TmaTensor(*cpasync.make_tiled_tma_atom(kind(), matrix, layout, self.box)) for matrix in mA]
        return ClassTensors(tuple(one.atom for one in found), tuple(one.tensor for one in found))

    def stages(self, smem: Any, operands: Any) -> tuple[Any, Any]:
        """Allocate the stages, `ClassStages` of A and a tensor of B."""
        first, second = operands[0].tensors[:2]
        shift = second.shape[1] - first.shape[1]
        if self.k_major[0]:
            a, b = self.allocate(smem)
            return ClassStages(a, shift), b
        lines, length = self.box
        shape = (lines, length, CLASSES, self.num_stages)
        strides = (length, 1, lines * length, CLASSES * lines * length)
        layout_b = self.layout_b()
        b = smem.allocate_tensor(self.elements[1], layout_b.outer, 1024, swizzle=layout_b.inner)
        a = smem.allocate_tensor(self.elements[0], cute.make_layout(shape, stride=strides), 128)
        return ClassStages(a, shift), b

    def load_a(self, a: Any, sA: Any, multicast_slice: Any = 0, multicast_ctas: Any = None, index: int = 0) -> Any:
        """Return this CTA's loads of A's k-tiles: with multicast its share of the classes, to all that share them."""
        del index
        share = CLASSES // self.multicast_size_a
        last = self.num_k_tiles(a) - 1
        return ClassLoads(a, sA.smem, self.box, self.k_major[0], multicast_slice, share, multicast_ctas, last)

    def load_b(
        self, b: TmaTensor, sB: Any, multicast_slice: Any = 0, multicast_ctas: Any = None, index: int = 0
    ) -> Any:
        """Return this CTA's load of B's k-tiles, in the order of A's."""
        load = super().load_b(b, sB, multicast_slice, multicast_ctas, index)
        return ReversedLoad(load, self.num_k_tiles(b) - 1) if self.k_major[0] else load

    def num_k_tiles(self, operand: Any) -> Any:
        """Return how many k-tiles there are: of a K-major A they hold what the largest shift moves beyond K."""
        if not self.k_major[0]:
            return super().num_k_tiles(operand)
        return cute.ceil_div(operand.tensor.shape[1] + CLASSES - 1, self.cta_tile_mnk[2])


class MnMajorClassMainloop(RegisterOperandMainloop):
    """As `RegisterOperandMainloop`, for `ClassOperands` with an MN-major A: a k-tile has classes of k in turn."""

    def starts(self, operands: Any, stages: Any, warpgroup_idx: Any, mma_tiles: int) -> Any:
        """Return where this lane's first element of the first stage is, for each wgmma tile, and the lines' shift."""
        tile_m, _, _ = operands.cta_tile_mnk
        self.line_bytes = operands.box[1] * _ITEM
        tid, _, _ = cute.arch.thread_idx()
        lane, found = tid % 32, []
        for mma_tile in range(mma_tiles):
            row = first_row(mma_tile, warpgroup_idx, tile_m // MMA_M // mma_tiles)
            start = stages.smem.iterator.toint() + lane % 4 * (2 * self.line_bytes) + (row + lane // 4) * _ITEM
            found.append((Int32(start), stages.shift))
        return tuple(found)

    @cute.jit
    def fill(self, fragment: cute.Tensor, starts, stage, part: cutlass.Constexpr[int]):
        """Read this lane's elements of a part of a k-tile: eight halves of words a wgmma."""
        for mma_tile in cutlass.range_constexpr(cute.size(fragment, mode=[1])):
            start, shift = starts[mma_tile]
            for step in cutlass.range_constexpr(_STEPS):
                words = cute.recast_tensor(fragment[None, mma_tile, step], Uint32)
                for word in cutlass.range_constexpr(_WORDS):
                    number = cutlass.const_expr((part * _STEPS + step) * 2 + word // 2)
                    address = start + stage + (number * shift & (CLASSES - 1)) * _ITEM
                    offset = cutlass.const_expr(number * (self.tile_bytes // CLASSES) + word % 2 * 8 * _ITEM)
                    words[word] = two_lines_at(address, offset, self.line_bytes)


@cute.jit
def two_lines_at(address, offset: cutlass.Constexpr[int], line_bytes: cutlass.Constexpr[int]):
    """Return an element in shared memory, and the one a line further on."""
    return cute.arch.inline_ptx(
        f"{{\n.reg .b16 low, high;\nld.shared.b16 low, [{{$r0}} + {offset}];\n"
        f"ld.shared.b16 high, [{{$r0}} + {offset + line_bytes}];\nmov.b32 {{$w0}}, {{low, high}};\n}}",
        write_only_types=[Uint32],
        read_only_args=[address],
    )


class KMajorClassMainloop(RegisterOperandMainloop):
    """As `RegisterOperandMainloop`, for `ClassOperands` with a K-major A, whose k-tiles come in reverse.

    What reaches beyond a k-tile is of the one before. A k-tile has the 64 elements of a row from a multiple of 64 in
    its class's map on: up to 7 before its own ones. A fragment's last ones are in the first chunk of the next k-tile;
    they are carried in registers.
    """

    # What is carried is multiplied before the k-tile that it comes from is released.
    order = (1, 0)

    def starts(self, operands: Any, stages: Any, warpgroup_idx: Any, mma_tiles: int) -> Any:
        """Return for each wgmma tile where this lane's words are, and what is carried."""
        tile_m, _, _ = operands.cta_tile_mnk
        lane, found = cute.arch.lane_idx(), []
        for mma_tile in range(mma_tiles):
            row = first_row(mma_tile, warpgroup_idx, tile_m // MMA_M // mma_tiles)
            shift = class_of(row, tile_m) * stages.shift & (CLASSES - 1)
            line = stages.smem.iterator.toint() + (row + lane // 4) * K_BYTES
            carried = cute.make_rmem_tensor(cute.make_layout(2), Uint32)
            found.append(LaneWords(Int32(line), lane % 4 + shift // 2, shift & 1, lane // 4, carried))
        return tuple(found)

    @cute.jit
    def multiply(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release):
        """Multiply k-tiles as `RegisterOperandMainloop.multiply` does, the first one without any beyond it."""
        for words in fragments.starts:
            words.carried.fill(Uint32(0))
        return super().multiply(fragments, barriers, state, num_k_tiles, warpgroup_idx, release)

    @cute.jit
    def fill(self, fragment: cute.Tensor, starts, stage, part: cutlass.Constexpr[int]):
        """Read this lane's elements of a part of a k-tile: four pairs a wgmma."""
        for mma_tile in cutlass.range_constexpr(cute.size(fragment, mode=[1])):
            lane = starts[mma_tile]
            low, high = lane.bases(lane.word, stage), lane.bases(lane.word + 1, stage)
            for step in cutlass.range_constexpr(_STEPS):
                words = cute.recast_tensor(fragment[None, mma_tile, step], Uint32)
                for word in cutlass.range_constexpr(_WORDS):
                    chunk = cutlass.const_expr((part * _STEPS + step) * 2 + word // 2)
                    offset = cutlass.const_expr(word % 2 * 8 * K_BYTES)
                    places = chunk_of(low, chunk), chunk_of(high, chunk)
                    if cutlass.const_expr(chunk < _CHUNKS - 1):
                        words[word] = pair_at(*places, lane.odd, offset)
                    else:
                        words[word] = last_pair_at(*places, lane, lane.carried[word % 2], offset)
            if cutlass.const_expr(part == 0):
                first = lane.line + stage + lane.group * _CHUNK
                for half in cutlass.range_constexpr(2):
                    lane.carried[half] = carried_from(first, lane, cutlass.const_expr(half * 8 * K_BYTES))


class LaneWords(NamedTuple):
    """Where a lane's words of a wgmma tile are: its row's line, the first word in it, whether pairs are odd."""

    line: Any
    word: Any
    odd: Any
    group: Any  #: The line's number modulo 8, by which chunks are swizzled.
    carried: Any  #: Tensor. Of each half, what the k-tile beyond has of the last pair.

    def bases(self, word: Any, stage: Any) -> tuple[Any, Any, Any]:
        """Return where a word from the start of a chunk on is, for chunks as of `chunk_of`, with the chunk left out."""
        start = self.line + stage + (word & 3) * 4
        beyond = word >> 2
        return tuple(start + ((self.group ^ beyond * bits) << 4) for bits in (1, 3, 7))


def chunk_of(bases: tuple[Any, Any, Any], chunk: int) -> Any:
    """Return where the word is in a chunk, or in the next one, where it lies beyond 4 words."""
    # A chunk's number and the next one's differ in one bit, two or three.
    return bases[{0: 0, 1: 1, 2: 0, 3: 2, 4: 0, 5: 1, 6: 0, 7: 0}[chunk]] ^ chunk << 4


@cute.jit
def pair_at(low, high, odd, offset: cutlass.Constexpr[int]):
    """Return two elements in shared memory: a word, or where `odd` is not 0 its second half and the first of `high`."""
    return cute.arch.inline_ptx(
        "{\n.reg .pred odd;\n.reg .b32 low, high, bits;\nsetp.ne.s32 odd, {$r2}, 0;\nshl.b32 bits, {$r2}, 4;\n"
        f"ld.shared.b32 low, [{{$r0}} + {offset}];\nmov.b32 high, 0;\n"
        f"@odd ld.shared.b32 high, [{{$r1}} + {offset}];\nshf.r.wrap.b32 {{$w0}}, low, high, bits;\n}}",
        write_only_types=[Uint32],
        read_only_args=[low, high, odd],
    )


@cute.jit
def last_pair_at(low, high, lane, carried, offset: cutlass.Constexpr[int]):
    """Return the last pair of a k-tile, of which a word or two are beyond it, and carried."""
    return cute.arch.inline_ptx(
        "{\n.reg .pred here, odd;\n.reg .b32 low, high, bits;\nsetp.lt.s32 here, {$r3}, 3;\n"
        "setp.ne.and.s32 odd, {$r2}, 0, here;\nsetp.lt.s32 here, {$r3}, 4;\nshl.b32 bits, {$r2}, 4;\n"
        "mov.b32 low, {$r4};\nmov.b32 high, {$r4};\n"
        f"@here ld.shared.b32 low, [{{$r0}} + {offset}];\n@odd ld.shared.b32 high, [{{$r1}} + {offset}];\n"
        "shf.r.wrap.b32 high, low, high, bits;\nselp.b32 {$w0}, high, {$r4}, here;\n}",
        write_only_types=[Uint32],
        read_only_args=[low, high, lane.odd, lane.word, carried],
    )


@cute.jit
def carried_from(first, lane, offset: cutlass.Constexpr[int]):
    """Return what the last pair of the k-tile before has in the first chunk of this one: a pair, or its second word."""
    return cute.arch.inline_ptx(
        "{\n.reg .pred all;\n.reg .b32 low, high, bits, place;\nsetp.gt.s32 all, {$r2}, 3;\nshl.b32 bits, {$r1}, 4;\n"
        "sub.s32 place, {$r2}, 3;\nmax.s32 place, place, 0;\nmad.lo.s32 place, place, 4, {$r0};\n"
        f"ld.shared.b32 high, [place + {offset}];\nmov.b32 low, high;\n"
        f"@all ld.shared.b32 low, [place + {offset - 4}];\nshf.r.wrap.b32 low, low, high, bits;\n"
        "selp.b32 {$w0}, low, high, all;\n}",
        write_only_types=[Uint32],
        read_only_args=[first, lane.odd, lane.word],
    )


def first_row(mma_tile: int, warpgroup_idx: Any, warpgroups: int) -> Any:
    """Return the first row of this warp in a wgmma tile, of warpgroups whose tiles alternate."""
    tid, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(tid % WARPGROUP // 32)
    return (mma_tile * warpgroups + warpgroup_idx) * MMA_M + warp * 16


def class_of(row: Any, tile_m: int) -> Any:
    """Return the class of a tile's row."""
    return row // (tile_m // CLASSES)


def class_instruction(element: Any, b_major_k: bool, warpgroups: int, mma_shape_mn: tuple[int, int]) -> cute.TiledMma:
    """Return the instruction with A in registers, for warpgroups whose wgmma tiles of 64 rows alternate."""
    b = OperandMajorMode.K if b_major_k else OperandMajorMode.MN
    return hopper_helpers.make_trivial_tiled_mma(
        element, element, OperandMajorMode.K, b, cutlass.Float32, (warpgroups, 1, 1), mma_shape_mn,
        warpgroup.OperandSource.RMEM,
    )  # fmt: skip
