"""wgmma: every type, both majors of the operands, all swizzles, A in registers; and what is wrong with its use."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu import CheckError, DeadlockError, FaultError, Options
from support.ptx.hopper import SCHEDULES, run
from support.ptx.wgmma import A_AT, B_AT, SHARED, SUMS, TYPES, body_of, fragment_of_d, product


def numbers(rng, kind, shape):
    """Small integers: every sum of them is exact, in every type."""
    low = 0 if kind == "u8" else -3
    return rng.integers(low, 4, shape).astype(TYPES[kind])


def multiply(rng, n, types, a_k_major=True, b_k_major=True, swizzles=(128, 128), registers=False, signs=(1, 1),
             scale=1, change=("", ""), values=numbers, twice=True, **options):  # fmt: skip
    """Multiply, hold the result against NumPy's where numbers are small integers, and return operands and result."""
    d_type, a_type, b_type = types
    k = 32 // TYPES[a_type].itemsize
    a, b, c = values(rng, a_type, (64, k)), values(rng, b_type, (n, k)), np.zeros((64, n), SUMS[d_type])
    c[...] = rng.integers(-9, 9, c.shape)
    body, arrays = product(a, b, c, types, a_k_major=a_k_major, b_k_major=b_k_major, swizzles=swizzles,
                           registers=registers, signs=signs, scale=scale, twice=twice)  # fmt: skip
    assert change[0] in body
    run(body.replace(*change), arrays, threads=128, shared=SHARED, options=Options(**{"checks": True, **options}))
    d = arrays["d"]
    if values is numbers:
        wide = [x.astype(np.float64) for x in (a, b, c)]
        exact = signs[0] * signs[1] * wide[0] @ wide[1].T
        expected = (1 + twice) * exact + (wide[2] if scale else 0)
        np.testing.assert_array_equal(d, fragment_of_d(expected.astype(SUMS[d_type])))
    return a, b, c, d


FORMS = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e4m3"), ("f32", "e5m2", "e4m3"), ("f16", "e4m3", "e5m2"), ("s32", "s8", "s8"), ("s32", "u8", "s8"),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["exact", "hopper"])
@pytest.mark.parametrize("types", FORMS, ids="-".join)
def test_types(rng, types, mode):
    multiply(rng, 32, types, mma=mode)


@pytest.mark.parametrize("n", [8, 24, 96, 256])
def test_columns(rng, n):
    multiply(rng, n, ("f32", "bf16", "bf16"))
    multiply(rng, n, ("s32", "s8", "s8"))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("a_k_major", "b_k_major"), [(True, True), (False, True), (True, False), (False, False)])
def test_directions_and_swizzles(rng, a_k_major, b_k_major, swizzle):
    multiply(rng, 64, ("f32", "f16", "f16"), a_k_major, b_k_major, (swizzle, swizzle))


@pytest.mark.parametrize("b_k_major", [True, False])
@pytest.mark.parametrize("types", [("f32", "bf16", "bf16"), ("f16", "f16", "f16")], ids="-".join)
def test_a_in_registers(rng, types, b_k_major):
    multiply(rng, 64, types, True, b_k_major, registers=True)


@pytest.mark.parametrize("types", [("f32", "tf32", "tf32"), ("s32", "s8", "u8"), ("f32", "e4m3", "e5m2")], ids="-".join)
def test_a_in_registers_of_other_sizes(rng, types):
    multiply(rng, 32, types, registers=True)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)], ids=str)
def test_signs(rng, signs):
    multiply(rng, 32, ("f32", "f16", "f16"), signs=signs)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("scale", [0, 1])
def test_schedules_and_the_first_product(rng, scale, schedule):
    multiply(rng, 32, ("f32", "bf16", "bf16"), scale=scale, schedule=schedule)


def any_bits(rng, kind, shape):
    """Numbers whose exponents are far apart, zeros among them; no NaN, whose sums are another matter."""
    dtype = TYPES[kind]
    spread = {"e4m3": 4, "e5m2": 8, "f16": 8}.get(kind, 20)
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread // 2, shape))
    return np.where(rng.random(shape) < 0.1, 0, values).astype(dtype)


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("types", FORMS[:7], ids="-".join)
def test_sums_are_cut_as_the_hardware_cuts_them(rng, types, registers):
    """One product into zeros, of numbers of all sizes: what is lost is below the largest term, by 25 or 13 bits."""
    a, b, _, d = multiply(rng, 32, types, registers=registers, values=any_bits, scale=0, twice=False, mma="hopper")
    wide = [x.astype(np.float64) for x in (a, b)]
    if types[1] == "tf32":
        wide = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b)]
    terms = wide[0][:, None, :] * wide[1][None, :, :]
    exact, largest = terms.sum(axis=2), np.abs(terms).max(axis=2)
    bits = 13 if types[1][0] == "e" else 25
    got = np.empty((64, 32))
    fragments = fragment_of_d(np.arange(64 * 32, dtype=np.float32).reshape(64, 32)).view(np.float32)
    if types[0] == "f32":
        got.reshape(-1)[fragments.astype(np.int64).reshape(-1)] = d.view(np.float32).reshape(-1)
        bound = terms.shape[2] * largest * 2.0 ** -(bits - 1) + np.abs(exact) * 2.0 ** -min(bits - 1, 22) + 2.0**-120
        assert (np.abs(got - exact) <= bound).all()
        assert (got != exact).any()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("wgmma.fence.sync.aligned;", ""), "no wgmma.fence"),
        (("wgmma.wait_group.sync.aligned 0;", ""), "before wgmma.wait_group completes"),
        (("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"), "before wgmma.wait_group completes"),
        (("wgmma.commit_group.sync.aligned;", ""), "before wgmma.wait_group completes"),
        (("fence.proxy.async.shared::cta;", ""), "no fence.proxy.async makes it visible"),
        (("fence.proxy.async.shared::cta;\n    bar.sync 0;", "fence.proxy.async.shared::cta;"), "wgmma reads"),
    ],
)
@pytest.mark.differs_on_hardware("it reads what is not there yet")
def test_what_is_missing_is_found_in_every_schedule(rng, change, what, schedule):
    with pytest.raises(CheckError, match=what) as caught:
        multiply(rng, 32, ("f32", "f16", "f16"), change=change, schedule=schedule)
    assert {finding.kind for finding in caught.value.findings} <= {"race", "unfinished"}


@pytest.mark.differs_on_hardware("shared memory changes while it is read")
def test_shared_memory_must_stay_until_the_product_is_done(rng):
    change = ("wgmma.wait_group.sync.aligned 0;", "st.shared.b32 [%r1+-40960], %r3;\nwgmma.wait_group.sync.aligned 0;")
    with pytest.raises(CheckError, match="a bulk copy or wgmma may still read it"):
        multiply(rng, 32, ("f32", "f16", "f16"), change=change)


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (("mov.u64 %d3, 0x10240;", "mov.u64 %d3, 0x13ff0;"), FaultError, "outside of the CTA's shared memory"),
        (("mov.u64 %d3", "@%p1 bra NEVER;\nNEVER:\nadd.u64 %d3, %d3, %d1;\nmov.u64 %d4"), FaultError, "different"),
        (("setp.ne.u32 %p2", "setp.eq.u32 %p4, %warp, 2;\n@%p4 bra END;\nsetp.ne.u32 %p2"), FaultError, "all 128"),
        (("setp.ne.u32 %p2", "setp.eq.u32 %p4, %warp, 2;\n@%p4 bar.sync 3, 64;\nsetp.ne.u32 %p2"), DeadlockError,
         "waits for the other warps of its warpgroup"),
    ],
)  # fmt: skip
def test_faults(rng, change, error, what):
    text = body_of(32, 16, ("f32", "f16", "f16"), [1 << 16 | A_AT >> 4, 1 << 16 | B_AT >> 4], ", 1, 1, 0, 0")
    assert change[0] in text
    arrays = {
        name: np.zeros(size, np.uint32) for name, size in (("image", 10240), ("c", 2048), ("a", 512), ("d", 2048))
    }
    arrays["again"] = np.zeros(1, np.uint64)
    with pytest.raises(error, match=what):
        run(text.replace(*change) + "END:", arrays, threads=128, shared=SHARED)


def test_halves_of_two_warpgroups_are_no_warpgroup():
    """Warps 2 to 5 are 128 neighbours, and yet each two of them wait for two others."""
    text = body_of(32, 16, ("f32", "f16", "f16"), [1 << 16 | A_AT >> 4, 1 << 16 | B_AT >> 4], ", 1, 1, 0, 0")
    away = "sub.u32 %r8, %warp, 2;\nsetp.gt.u32 %p4, %r8, 3;\n@%p4 bar.sync 3, 256;\nsetp.ne.u32 %p2"
    arrays = {"image": np.zeros(11264, np.uint32), "again": np.zeros(1, np.uint64)}
    arrays |= {name: np.zeros(2304, np.uint32) for name in ("c", "a", "d")}
    with pytest.raises(DeadlockError) as caught:
        run(text.replace("setp.ne.u32 %p2", away), arrays, threads=256, shared=SHARED.replace("40960", "45056"))
    waiting = {f.warp for f in caught.value.findings if "the other warps of its warpgroup" in f.message}
    assert waiting == {2, 3, 4, 5}
