"""Specs of the Hopper ladder's rungs, which share their problems, signatures and launches."""

from __future__ import annotations

import functools

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, DType
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, Param
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import row_result, why_not_grid
from gemmule.core.signature import adds_key, major_keys, majors_of
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_types
from gemmule.kernels.hopper.tile_config import EPI_TILE_M, EPI_TILE_N
from gemmule.kernels.hopper.tma_tiles import operand_params, result_params, row_params, scale_params, why_not_stored

from .hopper_rung_config import ClusterConfig, PersistentConfig, PingpongConfig, RolesConfig, RungConfig, StoreConfig

DTYPES = (BFLOAT16, FLOAT16)


def _rung(name: str, summary: str, *configs: RungConfig) -> KernelSpec:
    """Return the spec of a rung: float16 or bfloat16, A and B row- or column-major, C and D both one or the other."""
    return KernelSpec(
        name=name,
        operation="gemm",
        summary=f"float16 and bfloat16, leading dimensions of whole 16 bytes: {summary}",
        package=f"{__package__}.{name}",
        archs=(HOPPER,),
        configs=configs,
        signatures=_signatures,
        why_not=_why_not,
        signature=_problem_signature,
        launch=_launch,
        batch_dims=0,
        refuses=functools.partial(_refuses, stored=configs[0].epi_tiles > 0),
        refuses_types=functools.partial(refuse_types, DTYPES),
    )


def _why_not(problem: GemmProblem, arch: Arch, config: RungConfig) -> str | None:
    del arch
    inner = inner_problem(problem, 0)
    oriented, _, _ = row_result(inner)
    return why_not_grid((_grid(oriented, config), 1, 1))


def _refuses(problem: GemmProblem, arch: Arch, *, stored: bool) -> str | None:
    """Say why no config takes `problem`, of a rung in which TMA stores D or threads do."""
    if reason := _refuses_any(problem, arch):
        return reason
    if stored:
        inner = inner_problem(problem, 0)
        oriented, _, _ = row_result(inner)
        return why_not_stored(oriented.d)
    return None


@cache_last_call
def _refuses_any(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no rung takes `problem`: cached, as a choice evaluates every rung in turn."""
    return refuse_hopper(problem, arch, tma="abcd", batch_dims=0)


def _grid(problem: GemmProblem, config: RungConfig) -> int:
    # The tiles of whole clusters.
    tiles_m = -(-problem.m // (config.tile_m * config.cluster_size)) * config.cluster_size
    return config.grid(tiles_m * -(-problem.n // config.tile_n))


def _problem_signature(problem: GemmProblem, config: RungConfig) -> Signature:
    del config
    oriented, _, _ = row_result(problem)
    return _signature(problem.a.dtype, majors_of(oriented), problem.c is not None)


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    every = tuple(_signature(BFLOAT16, (a, b), adds) for a in "km" for b in "nk" for adds in (False, True))
    # The types differ in two words of the code.
    return (*every, _signature(FLOAT16, ("k", "n"), False))


def _signature(element: DType, majors: tuple[str, str], adds: bool) -> Signature:
    return (("element", element.name), *major_keys(*majors), *adds_key(adds))


def _launch(problem: GemmProblem, config: RungConfig) -> Launch:
    problem, first, second = row_result(problem)
    params = (
        *operand_params(first, problem.a, (), config.tile_m),
        # The one place where B turns from (K, N), as the API has it, to (N, K), as CuTe has it.
        *operand_params(second, problem.b.transposed(), (), config.tile_n, config.cluster_size),
        *_result_params(problem, config),
        *scale_params(problem),
    )
    return Launch(
        grid=(_grid(problem, config), 1, 1),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes,
        cluster=(config.cluster_size, 1, 1),
        params=params,
    )


def _result_params(problem: GemmProblem, config: RungConfig) -> tuple[Param, ...]:
    if not config.epi_tiles:
        return row_params(problem, ())
    c = ("d", problem.d) if problem.c is None else ("c", problem.c)
    return tuple(param for one in (c, ("d", problem.d)) for param in result_params(*one, (), (EPI_TILE_N, EPI_TILE_M)))


def _two_widths(config: type[RungConfig]) -> tuple[RungConfig, RungConfig]:
    return config(), config(tile_n=128)


H02 = _rung("h02_wgmma_tma", "wgmma, TMA; one stage", RungConfig())
H03 = _rung("h03_stages", "wgmma, TMA; several stages", *(RungConfig(stages=stages) for stages in (3, 2, 6)))
H04 = _rung("h04_warp_specialised", "wgmma, TMA; producer and consumer warpgroups", *_two_widths(RolesConfig))
H05 = _rung("h05_persistent", "wgmma, TMA, warp roles; persistent CTAs", *_two_widths(PersistentConfig))
H06 = _rung("h06_cluster_multicast", "wgmma, TMA, persistent CTAs; multicast in clusters", *_two_widths(ClusterConfig))
H07 = _rung("h07_tma_store", "wgmma, persistent CTAs, clusters; TMA loads and stores", *_two_widths(StoreConfig))
H08 = _rung("h08_pingpong", "wgmma, TMA, clusters; ping-pong", PingpongConfig(), PingpongConfig(tile_n=192, stages=4))
