"""Recipes: which problems a kernel of a Hopper GPU is likely to be chosen for, and how often each comes."""

from __future__ import annotations

import dataclasses

#: Types that a product may be rounded to, for types of A and B.
RESULTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("bfloat16", "bfloat16"): ("bfloat16",) * 6 + ("float32", "float32", "float16", "float8_e4m3fn"),
    ("float16", "float16"): ("float16",) * 4 + ("float32", "bfloat16", "float8_e5m2"),
    ("float32", "float32"): ("float32",) * 8 + ("bfloat16",),
    ("float64", "float64"): ("float64",) * 6 + ("float32",),
    ("int8", "int8"): ("int32", "int32", "int8"),
    ("int32", "int32"): ("int32",),
    ("float8_e4m3fn", "float8_e4m3fn"): ("float32", "float8_e4m3fn", "bfloat16"),
    ("float8_e4m3fn", "float8_e5m2"): ("float32", "float8_e5m2", "float16"),
    ("float8_e5m2", "float8_e5m2"): ("float32", "float8_e5m2"),
    ("bfloat16", "float16"): ("float32",),
    ("bfloat16", "float32"): ("float32",),
    ("float32", "float64"): ("float64",),
    ("int8", "float32"): ("float32",),
    ("int8", "float16"): ("float16", "float32"),
    ("bfloat16", "int8"): ("bfloat16",),
    ("int32", "float32"): ("float64",),
    ("int32", "int8"): ("int32",),
    ("bfloat16", "float8_e4m3fn"): ("bfloat16", "float32"),
    ("float8_e4m3fn", "bfloat16"): ("bfloat16", "float32"),
    ("float16", "float8_e5m2"): ("float16", "float32"),
    ("float8_e5m2", "float16"): ("float16", "float32"),
    ("complex64", "complex64"): ("complex64",),
    ("complex128", "complex128"): ("complex128",) * 4 + ("complex64",),
    ("complex64", "float32"): ("complex64",),
    ("float64", "complex64"): ("complex128",),
}
#: Types of grouped and of scaled products: 8-bit floats have results of their own there.
GROUP_RESULTS = {
    "bfloat16": ("bfloat16", "bfloat16", "float32"), "float16": ("float16", "float16", "float32"),
    "float32": ("float32", "float32", "float16", "bfloat16"),
}  # fmt: skip
FLOAT8_GROUP_RESULTS = ("bfloat16", "bfloat16", "float16", "float32")
SCALED_RESULTS = (*FLOAT8_GROUP_RESULTS, "float8_e4m3fn", "float8_e5m2")
HALF = (("bfloat16", "bfloat16"), ("float16", "float16"))
FLOAT8 = (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e5m2"))
MIXED = (
    ("bfloat16", "float8_e4m3fn"), ("float8_e4m3fn", "bfloat16"), ("float16", "float8_e5m2"),
    ("float8_e5m2", "float16"),
)  # fmt: skip
CONVERTED = (
    ("bfloat16", "float16"), ("bfloat16", "float32"), ("float32", "float64"), ("int8", "float32"), ("int8", "float16"),
    ("bfloat16", "int8"), ("int32", "float32"), ("int32", "int8"),
)  # fmt: skip
INT32 = ("int32", "int32")
SINGLE, DOUBLE, INT8 = ("float32", "float32"), ("float64", "float64"), ("int8", "int8")
COMPLEX64, COMPLEX128 = ("complex64", "complex64"), ("complex128", "complex128")
#: The precision of guarded emulation, with the bound of native products.
GUARDED = "ozaki"
INT8_PRODUCTS = ("ozaki-14", "ozaki-15", "ozaki-16")
#: Epilogues of floats, by name; see `arguments.EPILOGUES`.
EPILOGUES = (
    "bias", "relu", "gelu", "silu", "gelu_tanh", "residual", "two_matrices", "swiglu", "pairs", "second", "absmax",
)  # fmt: skip
#: Those of two products, and those that may have beta * C.
GATED, WITH_BETA = frozenset({"swiglu", "pairs", "second"}), frozenset({"relu", "gelu_tanh", "absmax"})


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Which problems a kernel is likely to be chosen for.

    Attributes
    ----------
    types : tuple of (str, str, str or None)
        Types of A and B, and the precision that is allowed.
    sides : tuple of (int, int)
        Least and greatest M, N and K.
    majors : str
        ``any``, ``along K``, or ``across K``: one operand at least is not K-major.
    aligned : str
        Which arrays have lines of whole 16 bytes: ``all``, ``operands``, ``some``, ``any``.
    epilogues : bool
        Whether there may be epilogues.
    gram : bool
        Whether B is A transposed.
    own_only : bool
        Whether the result has the type of A, or float32.
    free : bool
        Whether gaps and negative and zero strides may come.
    operation : str
        ``product``, ``transpose``, ``grouped``, ``scaled``, ``quantize``, or ``staircase`` (so records name it), a
        product of which a block lower triangle is needed.
    edges : float
        Share of extents that are 0 or 1.
    sizes : tuple of int
        Bytes of the elements of transposes.
    forms : tuple of str
        Of groups, what is divided; of quantisation, what has a scale of its own; of transposes, the permutations of
        more than two axes, if there are only these.
    elements : int
        Most elements of a permutation.
    kernels : tuple of str
        The kernels, where they have another name than the recipe.
    """

    types: tuple[tuple[str, str, str | None], ...] = ()
    sides: tuple[tuple[int, int], ...] = ((8, 400),) * 3
    majors: str = "any"
    aligned: str = "any"
    epilogues: bool = False
    gram: bool = False
    own_only: bool = False
    free: bool = False
    operation: str = "product"
    edges: float = 0.03
    sizes: tuple[int, ...] = ()
    elements: int = 2**22
    forms: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


def _of(pairs: tuple[tuple[str, str], ...], precision: str | None = None) -> tuple[tuple[str, str, str | None], ...]:
    return tuple((*pair, precision) for pair in pairs)


_TF32 = _of((SINGLE,), "tf32")
RECIPES: dict[str, Recipe] = {
    "mma_sync_gemm": Recipe(
        _of(HALF) * 2 + _TF32 * 2 + _of((INT8,)), ((4, 420),) * 3, aligned="some", epilogues=True, edges=0.04
    ),
    "mma_sync_small": Recipe(
        _of(HALF), ((4, 300), (4, 300), (4, 1500)), aligned="some", epilogues=True, edges=0.04
    ),
    "hopper_gemm": Recipe(
        _of(HALF) * 3 + _TF32 + _of((INT8,)) + _of(FLOAT8, "float8"), ((8, 640),) * 3, "along K", "all", epilogues=True
    ),
    "hopper_gemm_unaligned": Recipe(
        _of(HALF), ((200, 900), (200, 900), (8, 900)), aligned="operands", own_only=True, epilogues=True
    ),
    "hopper_gemm_repacked": Recipe(_of(HALF), ((60, 900),) * 3, aligned="some", epilogues=True),
    "bf16x6_gemm": Recipe(_of((SINGLE,), "bf16x6") + _of((SINGLE,), GUARDED), ((300, 1100),) * 3),
    "hopper_gemm_upcast": Recipe(
        _of(FLOAT8) + _of(FLOAT8, "float8") + _of(MIXED + CONVERTED), ((8, 500),) * 3, epilogues=True, edges=0.08
    ),
    "ozaki_gemm": Recipe(
        tuple((*DOUBLE, one) for one in (*INT8_PRODUCTS, GUARDED, GUARDED, GUARDED)),
        ((2300, 2800), (2300, 2800), (2600, 4000)),
    ),
    "ozaki_complex": Recipe(_of((COMPLEX64, COMPLEX64, COMPLEX128), GUARDED), ((900, 2300),) * 3, edges=0.01),
    "hopper_syrk": Recipe(_of(HALF) * 2 + _TF32, ((500, 1900), (500, 1900), (100, 1200)), "any", "some", gram=True),
    "hopper_gemm_w8a16": Recipe(
        _of(MIXED) + _of(FLOAT8), ((1, 90), (64, 1200), (64, 1600)), "along K", "all", epilogues=True
    ),
    "hopper_gemm_k_major": Recipe(_of((INT8,)) + _TF32 + _of(FLOAT8, "float8"), ((300, 1700),) * 3, "across K"),
    "simt_gemm": Recipe(_of((SINGLE, SINGLE, SINGLE, INT32)), ((1, 420),) * 3, epilogues=True, edges=0.04),
    "simt_gemm_mn_major": Recipe(_of((SINGLE,)), ((700, 2600), (700, 2600), (300, 2600)), epilogues=True),
    "simt_batched": Recipe(_of((SINGLE, DOUBLE)), ((1, 70),) * 3, free=True, edges=0.08),
    "simt_dot": Recipe(
        _of((SINGLE, DOUBLE, COMPLEX64, COMPLEX128)), ((1, 6), (1, 6), (20000, 70000)), free=True, edges=0.02
    ),
    "simt_syrk": Recipe(_of((SINGLE,)), ((1, 600), (1, 700), (1, 200)), operation="staircase"),
    "float64_gemm": Recipe(
        _of((DOUBLE,)) * 3 + tuple((*DOUBLE, one) for one in (*INT8_PRODUCTS, GUARDED)), ((1, 300),) * 3,
        epilogues=True, edges=0.04,
    ),
    "float64_syrk": Recipe(_of((DOUBLE,)), ((1, 600), (1, 700), (1, 200)), operation="staircase"),
    "complex64_gemm": Recipe(
        _of((COMPLEX64, COMPLEX64, ("complex64", "float32"), ("float64", "complex64"))) + _of((COMPLEX64,), GUARDED),
        ((1, 300),) * 3, free=True, edges=0.04, kernels=("complex64_gemm", "complex_gemm_upcast"),
    ),
    "complex128_gemm": Recipe(_of((COMPLEX128,)) * 3 + _of((COMPLEX128,), GUARDED), ((1, 240),) * 3, edges=0.04),
    "complex64_syrk": Recipe(_of((COMPLEX64,)), ((300, 1200), (300, 1200), (4, 400)), gram=True),
    "complex128_syrk": Recipe(_of((COMPLEX128,)), ((300, 1000), (300, 1000), (4, 300)), gram=True),
    "gemm_reference": Recipe(
        _of(tuple(RESULTS)) + _TF32, ((1, 200),) * 3, epilogues=True, free=True, edges=0.08
    ),
    "hopper_grouped": Recipe(
        _of(HALF) * 2 + _of(FLOAT8, "float8"), ((1, 700), (8, 500), (8, 400)), operation="grouped", aligned="all",
        epilogues=True, forms=("m", "m", "m", "row"),
    ),
    "hopper_grouped_n_k": Recipe(
        _of(HALF) * 2 + _of(FLOAT8, "float8"), ((8, 500), (1, 500), (1, 900)), operation="grouped", aligned="all",
        forms=("n", "k", "k"), kernels=("hopper_grouped",),
    ),
    "grouped_gemv": Recipe(
        _of(HALF), ((1, 40), (8, 500), (8, 400)), operation="grouped", aligned="all", forms=("row",)
    ),
    "simt_grouped": Recipe(
        _of((SINGLE,)), ((1, 600), (1, 300), (1, 300)), operation="grouped", epilogues=True, forms=("m",)
    ),
    "simt_grouped_n_k": Recipe(
        _of((SINGLE,)), ((1, 300), (1, 500), (1, 600)), operation="grouped", forms=("n", "k"),
        kernels=("simt_grouped",),
    ),
    "scaled": Recipe(
        _of(FLOAT8, "float8"), ((1, 500), (8, 500), (8, 900)), operation="scaled", aligned="all",
        kernels=("hopper_gemm", "hopper_gemm_k_major"),
    ),
    "scaled_any": Recipe(
        _of(FLOAT8, "float8"), ((1, 200), (1, 200), (1, 300)), operation="scaled",
        kernels=("gemm_reference", "hopper_gemm_upcast"),
    ),
    "quantize": Recipe(
        _of((("bfloat16", "float8_e4m3fn"), ("float16", "float8_e5m2"), ("float32", "float8_e4m3fn"))),
        ((1, 500), (1, 2600)), operation="quantize", forms=("row", "block"), aligned="some",
    ),
    "quantize_tensor": Recipe(
        _of((("bfloat16", "float8_e5m2"), ("float16", "float8_e4m3fn"), ("float32", "float8_e4m3fn"))),
        ((1, 500), (1, 1200)), operation="quantize", forms=("tensor",), aligned="some",
    ),
    "transpose_tiled": Recipe(sides=((1, 700),) * 2, operation="transpose", sizes=(1, 2, 4, 8, 16), aligned="some"),
    "transpose_in_place": Recipe(sides=((1, 500),) * 2, operation="transpose", sizes=(1, 2, 4, 8, 16)),
    "transpose_whole_sectors": Recipe(sides=((16, 700),) * 2, operation="transpose", sizes=(4, 8), aligned="some"),
    "transpose_rows": Recipe(
        sides=((1, 90),) * 5, operation="transpose", sizes=(1, 2, 4, 8, 16), forms=("permutation", "rows"), edges=0.01
    ),
    "transpose_blocks": Recipe(
        sides=((2, 120),) * 5, operation="transpose", sizes=(1, 2, 4, 8, 16), forms=("permutation",), free=True,
        edges=0.0,
    ),
    "transpose_word_blocks": Recipe(
        sides=((33, 90),) * 4, operation="transpose", sizes=(1, 2), forms=("permutation",), edges=0.0, elements=2**25
    ),
    "transpose_merged": Recipe(
        sides=((40, 160),) * 4, operation="transpose", sizes=(1, 2, 4, 8), forms=("permutation",), elements=2**24
    ),
    "transpose_in_registers": Recipe(sides=((4, 900),) * 2, operation="transpose", sizes=(1, 2), aligned="all"),
    "transpose_gathered": Recipe(sides=((30, 1200),) * 2, operation="transpose", sizes=(1, 2)),
    "transpose_word_aligned": Recipe(sides=((100, 2000),) * 2, operation="transpose", sizes=(1, 2)),
    "transpose_skinny": Recipe(sides=((2, 30), (1000, 9000)), operation="transpose", sizes=(1, 2, 4, 8)),
    "transpose_reference": Recipe(
        sides=((1, 300),) * 2, operation="transpose", sizes=(1, 2, 4, 8, 16), free=True, edges=0.3
    ),
    # The last, so that what is drawn for the others first is as it was.
    "transpose_whole_rows": Recipe(
        sides=((60, 110), (20_000, 40_000)), operation="transpose", sizes=(1, 2), edges=0.0, elements=2**23
    ),
}  # fmt: skip
#: What problems are drawn for, each kernel once at least; products five times for each three of transposes.
KINDS: tuple[str, ...] = tuple(RECIPES)
SCHEDULE: tuple[str, ...] = tuple(
    kind
    for turn in range(5)
    for kind, recipe in RECIPES.items()
    if turn < (3 if recipe.operation == "transpose" else 5)
)


def kernels_for(kind: str) -> tuple[str, ...]:
    """Return the kernels that problems of a recipe are to run."""
    return RECIPES[kind].kernels or (kind,)


#: Every kernel that dispatch can choose on a Hopper GPU.
KERNELS: tuple[str, ...] = tuple(dict.fromkeys(name for kind in KINDS for name in kernels_for(kind)))
