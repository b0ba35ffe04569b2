"""The products that each kernel of the registry is for, and random ones of them: the kernel is drawn first."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gemmule.core.dtype import Kind, dtype_named

_BF, _F16, _F32, _F64 = "bfloat16", "float16", "float32", "float64"
_E4, _E5 = "float8_e4m3fn", "float8_e5m2"
_SINGLE, _DOUBLE = ((_F32, _F32, _F32),), ((_F64, _F64, _F64),)
_HALVES = ((_BF, _BF, _BF), (_F16, _F16, _F16))


@dataclasses.dataclass(frozen=True)
class Family:
    """Products that a kernel is for.

    Attributes
    ----------
    types : tuple of (str, str, str)
        Types of A, B and the result.
    precision : str or None
        What the caller allows.
    units : tuple of int
        What extents, pitches and offsets are odd multiples of: the alignment of lines, in elements.
    layouts : tuple of str
        How A, B and the result lie: r in rows, c in columns, s in every other row and third column of a matrix.
    own : bool
        Whether B is A transposed, and nothing is added.
    ragged : bool
        Whether N and the result's lines have no alignment.
    """

    types: tuple[tuple[str, str, str], ...]
    precision: str | None = None
    units: tuple[int, ...] = (1,)
    layouts: tuple[str, ...] = ("rrr", "rcr", "crr", "ccr")
    own: bool = False
    ragged: bool = False


_LADDER = (Family(_SINGLE, units=(1, 4), layouts=("rrr", "rcr", "crr")),)
_ALIGNED = (Family(_HALVES, units=(16,)),)
_INT8, _INT32, _INT8_INT32 = (("int8", "int8", "int32"),), (("int32",) * 3,), ("int8", "int32", "int32")
_STRIDED = ("srr", "rsr", "ssr")
_WITH_STRIDED = ("rrr", "rcr", "crr", "ccr", *_STRIDED)
#: For each GEMM kernel of the registry. A new kernel says here what it multiplies.
FAMILIES: dict[str, tuple[Family, ...]] = {
    "hopper_syrk": (Family(_HALVES, units=(16,), layouts=("rcr", "crr"), own=True),),
    "hopper_gemm": (
        Family((*_HALVES, (_F16, _F16, _F32)), units=(16,)),
        Family(((_E4, _E4, _BF),), "float8", (16,), ("rcr",)),
        Family(_SINGLE, "tf32", (4,), ("rrr", "rcr", "ccr")),
        Family((*_INT8, ("int8",) * 3), units=(16,), layouts=("rcr",)),
    ),
    "hopper_gemm_unaligned": (
        Family((*_HALVES, (_BF, _BF, _F32)), units=(16,), layouts=("rcr", "ccr"), ragged=True),
        Family(_SINGLE, "tf32", (4,), ("rcr",), ragged=True),
    ),
    "hopper_gemm_small_repacked": (Family(_HALVES),),
    "hopper_gemm_repacked": (
        Family(_HALVES),
        Family(((_E4, _E4, _BF),), "float8", layouts=("rcr",)),
        Family(_SINGLE, "tf32", layouts=("rcr",)),
        Family(_SINGLE, layouts=("crr",)),
        Family(_INT8, layouts=_WITH_STRIDED),
        Family(_HALVES, layouts=_STRIDED),
    ),
    "hopper_gemm_w8a16": (Family(((_BF, _E4, _BF), (_F16, _E5, _F16)), units=(16,), layouts=("rcr",)),),
    "hopper_gemm_k_major": (
        Family((*_INT8, ("int8",) * 3), units=(16,), layouts=("rrr", "crr")),
        Family(((_E4, _E4, _BF), (_E5, _E4, _F32)), "float8", (16,), ("rrr", "crr")),
        Family(_SINGLE, "tf32", (1, 4), ("rrr", "crr")),
    ),
    "hopper_gemm_upcast": (
        Family(((_E4, _E4, _BF), (_E4, _E5, _F32), (_E5, _BF, _BF), (_F16, _E4, _F16), (_E4, _E4, _E4))),
        Family(((_F32, _BF, _F32), (_F16, _BF, _F32), ("int8", _F16, _F16), (_BF, "int8", _BF)), layouts=_WITH_STRIDED),
        Family((("int8", _F32, _F32), (_F64, _F32, _F64), _INT8_INT32), layouts=_WITH_STRIDED),
        Family((*_SINGLE, *_DOUBLE, *_INT32), layouts=_STRIDED),
        Family(_SINGLE, "tf32", layouts=_STRIDED),
    ),
    "gemm_upcast": (
        Family(((_E4, _E4, _BF), (_E4, _E5, _F32), (_E5, _BF, _BF), (_F16, _E4, _F16), (_E4, _E4, _E4))),
        Family(((_F32, _BF, _F32), (_F16, _BF, _F32), ("int8", _F16, _F16), (_BF, "int8", _BF)), layouts=_WITH_STRIDED),
        Family((("int8", _F32, _F32), (_F64, _F32, _F64), _INT8_INT32), layouts=_WITH_STRIDED),
        Family((*_HALVES, *_SINGLE, *_DOUBLE, *_INT8, *_INT32), layouts=_STRIDED),
        Family(_SINGLE, "tf32", layouts=_STRIDED),
    ),
    "mma_sync_gemm": (Family((*_HALVES, *_INT8)), Family(_SINGLE, "tf32", layouts=("rcr", "rrr"))),
    "mma_sync_small": (Family((*_HALVES, (_BF, _BF, _F32))), Family(_SINGLE, "tf32", layouts=("rrr", "ccr"))),
    "bf16x6_gemm": (Family(_SINGLE, "bf16x6"),),
    "ozaki_gemm": (Family(_DOUBLE, "ozaki-15", layouts=("rrr", "ccr")),),
    "ozaki_complex": (Family((("complex64",) * 3, ("complex128",) * 3), "ozaki", layouts=("rrr", "ccr")),),
    "h08_pingpong": _ALIGNED,
    "h07_tma_store": _ALIGNED,
    "h06_cluster_multicast": _ALIGNED,
    "h05_persistent": _ALIGNED,
    "h04_warp_specialised": _ALIGNED,
    "h03_stages": _ALIGNED,
    "h02_wgmma_tma": _ALIGNED,
    "simt_syrk": (Family(_SINGLE, own=True, layouts=("rcr", "crr")),),
    "g07_cp_async": _LADDER,
    "simt_batched": (Family(_SINGLE, units=(1, 4)), Family(_DOUBLE, units=(1, 2))),
    "simt_gemm_mn_major": (Family((*_SINGLE, *_INT32), units=(1, 4), layouts=("rrr", "rcr", "ccr")),),
    "simt_gemm": (Family((*_SINGLE, *_INT32, ("int32", "int32", "int8")), units=(1, 4)),),
    "g06_double_buffer": _LADDER,
    "g05_conflict_free": _LADDER,
    "g04_register_tile": _LADDER,
    "g03_shared_tile": _LADDER,
    "g02_naive_coalesced": _LADDER,
    "g01_naive_uncoalesced": _LADDER,
    "float64_syrk": (Family(_DOUBLE, own=True, layouts=("rcr", "crr")),),
    "float64_gemm": (Family(_DOUBLE, units=(1, 2)),),
    "d02_b_in_registers": (Family(_DOUBLE),),
    "d01_shared_ab": (Family(_DOUBLE),),
    **{f"{name}_gemm": (Family(((name,) * 3,)),) for name in ("complex64", "complex128")},
    **{
        f"{name}_syrk": (Family(((name,) * 3,), own=True, layouts=("rcr", "crr")),)
        for name in ("complex64", "complex128")
    },
    "complex_gemm_upcast": (
        Family((("complex64", "complex128", "complex128"),), layouts=_WITH_STRIDED),
        Family((("complex64", "complex64", "complex128"),)),
        Family((("complex64",) * 3, ("complex128",) * 3), layouts=_STRIDED),
    ),
    "mma_sync_batched": (Family((*_HALVES, (_BF, _BF, _F32))),),
    "simt_dot": (Family((*_SINGLE, *_DOUBLE, (_BF, _BF, _F32), ("complex64",) * 3)),),
    "gemm_reference": (
        Family((("complex128", "complex128", "complex64"), ("int32",) * 3, (_F16, _BF, _F32), ("int32", _F32, _F64))),
    ),
}
#: Architecture of the virtual GPU that a kernel is run on, where not Hopper.
ARCHS = {"gemm_upcast": "sm_89"}
#: Half of a result: dispatch takes them where not all of it is needed, as streamed products of a matrix and its own
#: transpose say on a GPU. No other product does, so that no public function comes to them on the virtual GPU.
TRIANGLES = ("simt_syrk", "float64_syrk")


def check_on_its_gpu(monkeypatch: Any, request: Any) -> None:
    """Run a test on the virtual GPU with its checks on, of the architecture of its parameter `kernel`, if any."""
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    kernel = request.getfixturevalue("kernel") if "kernel" in request.fixturenames else ""
    monkeypatch.setenv("GEMMULE_VGPU_ARCH", ARCHS.get(kernel, "sm_90a"))


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, as far as a product decides that."""

    family: Family
    types: tuple[str, str, str]
    unit: int
    layout: str
    adds_c: bool = False
    relu: bool = False


@dataclasses.dataclass
class Product:
    """A product: the arguments of `gemm`, and what it must give, exactly."""

    operands: tuple[np.ndarray, np.ndarray]
    options: dict[str, Any]
    expected: np.ndarray


def plainest(kernel: str) -> Variant:
    """Return the first variant of a kernel."""
    family = FAMILIES[kernel][0]
    return Variant(family, family.types[0], family.units[0], family.layouts[0])


def draw_variant(rng: np.random.Generator, kernel: str, *, epilogues: bool) -> Variant:
    """Draw what is compiled."""
    family = FAMILIES[kernel][rng.integers(len(FAMILIES[kernel]))]
    types = family.types[rng.integers(len(family.types))]
    adds_c = not family.own and rng.random() < 0.3
    relu = epilogues and not family.own and is_float(types[0]) and rng.random() < 0.3
    return Variant(family, types, int(rng.choice(family.units)), str(rng.choice(family.layouts)), adds_c, relu)


def draw_product(rng: np.random.Generator, variant: Variant, most: int = 140) -> Product:
    """Draw extents, a batch, pitches and numbers: whole ones, of which sums are exact."""
    family, layout, (a_type, b_type, d_type) = variant.family, variant.layout, variant.types
    units = (variant.unit, 1 if family.ragged else variant.unit, variant.unit)
    m, n, k = (unit * (2 * int(rng.integers(0, max(most // (2 * unit), 1))) + 1) for unit in units)
    batch = tuple(int(x) for x in rng.integers(1, 4, rng.choice((0, 0, 0, 1, 2))))
    a = laid_out(rng, whole_numbers(rng, a_type, (*batch, m, k)), layout[0], variant.unit)
    if family.own:
        b, n = a.swapaxes(-1, -2), m
    else:
        shared = bool(batch) and rng.random() < 0.1
        whole = whole_numbers(rng, b_type, (*(() if shared else batch), k, n))
        b = laid_out(rng, whole, layout[1], variant.unit)
    alpha = int(rng.choice((1, 1, 1, 2, -1)))
    options: dict[str, Any] = {"precision": family.precision, "alpha": alpha, "out_dtype": d_type}
    wide = {Kind.INTEGER: np.int64, Kind.FLOAT: np.float64, Kind.COMPLEX: np.complex128}[dtype_named(d_type).kind]
    expected = alpha * (a.astype(wide) @ b.astype(wide))
    if variant.adds_c:
        beta = int(rng.choice((1, -2)))
        c = laid_out(rng, whole_numbers(rng, d_type, (*batch, m, n)), layout[2], units[1])
        options |= {"c": c, "beta": beta}
        expected = expected + beta * c.astype(wide)
    if variant.relu:
        bias = whole_numbers(rng, "bfloat16" if dtype_named(d_type).is_float8 else d_type, (n,))
        options |= {"bias": bias, "epilogue": "relu"}
        expected = np.maximum(expected + bias.astype(wide), 0)
    if rng.random() < 0.7:
        options |= {"out": laid_out(rng, poison(d_type, (*batch, m, n)), layout[2], units[1]), "out_dtype": None}
    return Product((a, b), options, rounded(expected, d_type))


def is_float(dtype: str) -> bool:
    """Return whether a type is one of real floating-point numbers."""
    return dtype_named(dtype).kind is Kind.FLOAT


def whole_numbers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return small whole numbers, which every type holds."""
    # Made first and filled then: without elements NumPy's functions return strides of 0.
    found = np.zeros(shape, dtype_named(dtype).numpy())
    found[...] = rng.integers(-4, 5, shape)
    if np.iscomplexobj(found):
        found.imag = rng.integers(-4, 5, shape)
    return found


def rounded(exact: np.ndarray, dtype: str) -> np.ndarray:
    """Return numbers as a result holds them: 8-bit floats saturate."""
    kind = dtype_named(dtype)
    return (np.clip(exact, -kind.max_value, kind.max_value) if kind.is_float8 else exact).astype(kind.numpy())


def poison(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an output in which an element that was not written shows."""
    kind = dtype_named(dtype)
    return np.full(shape, -77 if kind.kind is Kind.INTEGER else np.nan, kind.numpy())


def laid_out(rng: np.random.Generator, values: np.ndarray, way: str, unit: int) -> np.ndarray:
    """Return an array in rows or columns, of any pitch and offset that keep lines at multiples of `unit` elements.

    Or as the elements of a larger one.
    """
    if way == "s":
        *outer, rows, cols = values.shape
        view = poison(values.dtype.name, (*outer, 2 * rows, 3 * cols))[..., :: int(rng.choice((2, -2))), ::3]
        view[...] = values
        return view
    turned = values.swapaxes(-1, -2) if way == "c" else values
    pad, before = (2 * unit * int(rng.integers(0, 2)) for _ in range(2))
    room = poison(dtype_named(values.dtype.name).name, (*turned.shape[:-1], before + turned.shape[-1] + pad))
    view = room[..., before : before + turned.shape[-1]]
    view[...] = turned
    return view.swapaxes(-1, -2) if way == "c" else view
