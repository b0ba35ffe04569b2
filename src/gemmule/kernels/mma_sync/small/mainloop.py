"""Mainloop that waits for device memory once for several k-tiles, loaded while those before are multiplied."""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.mma_sync.mainloop import MmaSyncMainloop
from gemmule.kernels.parts.pdl import launch_dependents

from .config import SmallMmaConfig
from .copies import ElementCopies


class SmallMainloop(MmaSyncMainloop):
    """The loop over K: elements wait in registers, for the other half of the stages; the warps of a slice share steps.

    Parameters
    ----------
    config : SmallMmaConfig
        Tiles and warps.
    types : dict
        Types, major modes and widths of copies.
    """

    def __init__(self, config: SmallMmaConfig, types: dict[str, str]) -> None:
        # It has the fields that mma_sync_gemm's config has, and that are read.
        tiles: Any = config
        super().__init__(tiles, types, 1)
        self.together, self.slice_warps = config.k_tiles, config.warps_m * config.warps_n
        # Each slice multiplies consecutive steps of every k-tile.
        self.steps //= config.warps_k
        self.copyA, self.copyB = (
            ElementCopies(one.stage, one.copy_bytes, self.threads, 1, whole=False, in_flight=self.together)
            for one in (self.copyA, self.copyB)
        )
        self.asynchronous = not (self.copyA.by_element and self.copyB.by_element)

    @cute.jit
    def corner(self):
        """Return the first row and column of this warp's part of the tile."""
        warp = self.warp() % self.slice_warps
        return warp // self.warps_n * self.warp_m, warp % self.warps_n * self.warp_n

    @cute.jit
    def slice_idx(self):
        """Return which steps of a k-tile this warp multiplies."""
        return self.warp() // self.slice_warps

    @cute.jit
    def warp(self):
        """Return the number of this warp."""
        tid, _, _ = cute.arch.thread_idx()
        # The same for all threads of a warp, and not negative, which the compiler would not know.
        return cutlass.Uint32(cute.arch.make_warp_uniform(tid // 32))

    @cute.jit
    def accumulate(self, tile, sources, k_tiles):
        """Multiply `k_tiles` k-tiles; `sources` are those of the first."""
        launch_dependents()
        tile = self.of_slice(tile)
        half = cutlass.const_expr(self.together * self.stride)
        stage = Int32(0)
        sources = self.load_first(tile, sources, stage, k_tiles)
        for first in cutlass.range(0, k_tiles, self.together, unroll=1):
            self.store_loaded(tile, stage, k_tiles - first)
            if cutlass.const_expr(self.asynchronous):
                cute.arch.cp_async_wait_group(0)
            # Stages of the other half were read before they were stored.
            cute.arch.sync_threads()
            if first + self.together < k_tiles:
                sources = self.load_round(tile, sources, half - stage, first + self.together)
            for number in cutlass.range_constexpr(self.together):
                if first + number < k_tiles:
                    self.multiply_k_tile(tile, stage + number * self.stride)
            stage = half - stage

    def of_slice(self, tile: Any) -> Any:
        """Return the tile with fragments that begin at the first step of this warp's slice."""
        moved = {}
        for name, stage in (("start_a", self.stageA), ("start_b", self.stageB)):
            change, plus = stage.fragment_step(0, self.steps, 0)
            if self.threads > 32 * self.slice_warps:
                index = Int32(self.slice_idx())
                moved[name] = (getattr(tile, name) ^ index * change) + index * plus
        return dataclasses.replace(tile, **moved)

    @cute.jit
    def load_first(self, tile, sources, stage, k_tiles):
        """Load a round of up to `k_tiles` k-tiles into registers, or asynchronously into stages from `stage` on.

        Returns
        -------
        tuple
            The sources of the k-tile after the round.
        """
        for number in cutlass.range_constexpr(self.together):
            if number < k_tiles:
                self.issue(tile, sources, stage, 0, number)
            sources = self.advance(tile, sources)
        self.commit()
        return sources

    @cute.jit
    def load_round(self, tile, sources, stage, first):
        """Load the round of k-tiles from `first` on, zeros beyond the last one; otherwise as `load_first`.

        Without a branch for each k-tile: its registers may be written once loads of the round before are complete, by
        a scoreboard that the loads of this round have, too. With branches each k-tile waited for the one before.
        """
        for number in cutlass.range_constexpr(self.together):
            self.issue(tile, sources, stage, first, number)
            sources = self.advance(tile, sources)
        self.commit()
        return sources

    def commit(self) -> None:
        """Make a group of the asynchronous copies of a round."""
        if self.asynchronous:
            cute.arch.cp_async_commit_group()

    def issue(self, tile: Any, sources: Any, stage: Any, first: Any, number: int) -> None:
        """Issue the loads of one of the k-tiles from `first` on."""
        for one, source in zip(_with_registers(tile, number), sources, strict=True):
            one.issue(source, stage + number * self.stride, first + number, 0)

    @cute.jit
    def store_loaded(self, tile, stage, k_tiles):
        """Store up to `k_tiles` k-tiles that were loaded into registers."""
        if cutlass.const_expr(self.stores):
            for number in cutlass.range_constexpr(self.together):
                if number < k_tiles:
                    for one in _with_registers(tile, number):
                        one.store(stage + number * self.stride, 0)

    @cute.jit
    def multiply_k_tile(self, tile, stage):
        """Add the products of this warp's steps of a k-tile."""
        self.read(tile, stage, 0)
        for step in cutlass.range_constexpr(self.steps):
            if cutlass.const_expr(step + 1 < self.steps):
                self.read(tile, stage, step + 1)
            self.multiply(tile, stage, step)


def _with_registers(tile: Any, number: int) -> tuple[Any, ...]:
    """Return the copies of A and B with the registers of a k-tile in flight."""
    return tuple(dataclasses.replace(x, registers=x.registers[None, None, number]) for x in (tile.a, tile.bs[0][0]))
