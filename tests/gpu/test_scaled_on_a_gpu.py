"""Scaled products of 8-bit floats on a GPU, against float64."""

import itertools

import pytest

import gemmule as gm
from support.scaled_products import FORMS, reference, scales_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SHAPES = ((70, 80, 272), (1, 16, 128), (257, 272, 1040), (129, 8, 16), (640, 384, 512))
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def operands(shape, kinds=(E4M3, E4M3)):
    m, n, k = shape
    a, b = (torch.randn(sides, device="cuda").to(kind) for sides, kind in zip(((m, k), (n, k)), kinds, strict=True))
    return a, b.T


def on_gpu(scales):
    return [torch.from_numpy(x.copy()).cuda() for x in scales]


def assert_close(got, exact, size):
    exact, size = (torch.from_numpy(x).cuda() for x in (exact, size))
    info = torch.finfo(got.dtype)
    exact = exact.clamp(info.min, info.max)
    error = (got.double() - exact).abs()
    bound = 1.01 * info.eps / 2 * exact.abs() + info.smallest_normal * info.eps + 2**-9 * size
    assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, shape, rng):
    a, b = operands(shape)
    scales = scales_of(form, shape, rng)
    out = torch.full((shape[0], shape[1]), float("nan"), device="cuda", dtype=torch.bfloat16)
    got = gm.scaled_gemm(a, b, *on_gpu(scales), out=out)
    assert_close(got, *reference(a.float().cpu().numpy(), b.float().cpu().numpy(), *scales))


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((3088, 1040, 2736), {"tile_m": 256, "tile_n": 112}),
        ((1360, 2432, 4080), {"tile_m": 256, "tile_n": 112}),
        ((128, 14336, 4096), {"tile_m": 128, "tile_n": 128}),
        ((16, 12320, 6864), {"tile_m": 128, "tile_n": 16, "stages": 6}),
    ],
    ids=str,
)
def test_a_scale_for_each_column(shape, config):
    """Tall tiles, those whose launches overlap, and those with few loads in flight; each call reads other operands."""
    m, n, k = shape
    blocks, rows = -(-k // 128), torch.arange(0, m, max(m // 64, 1), device="cuda")
    of_k = torch.arange(k, device="cuda") // 128
    sets = [(*operands(shape), torch.rand(blocks, m, device="cuda").T + 0.5, torch.rand(blocks, n, device="cuda") + 0.5)
            for _ in range(3)]  # fmt: skip
    plan = gm.scaled_gemm.plan(*sets[0])
    assert {name: plan.config[name] for name in config} == config
    for (a, b, scale_a, scale_b), got in zip(sets, [gm.scaled_gemm(*one) for one in sets], strict=True):
        first, second = (a.double() * scale_a[:, of_k])[rows], b.double() * scale_b[of_k]
        exact, size = first @ second, first.abs() @ second.abs()
        assert_close(got[rows], exact.cpu().numpy(), size.cpu().numpy())


@pytest.mark.parametrize("form", ["tensor", "row", "block"])
def test_results_bias_and_absmax(form, rng):
    shape = (150, 208, 400)
    a, b = operands(shape, (E5M2, E4M3))
    scales, bias = scales_of(form, shape, rng), torch.randn(shape[1], device="cuda", dtype=torch.bfloat16)
    exact, size = reference(a.float().cpu().numpy(), b.float().cpu().numpy(), *scales)
    exact, scale = exact + bias.double().cpu().numpy(), torch.tensor([0.25], device="cuda")
    for dtype in (torch.float32, torch.float16, E4M3, E5M2):
        largest = torch.full((1,), float("nan"), device="cuda")
        got = gm.scaled_gemm(a, b, *on_gpu(scales), bias=bias, scale_result=scale, absmax=largest, out_dtype=dtype)
        assert got.dtype == dtype
        assert_close(got, exact * 0.25, size * 0.25)
        assert abs(float(largest) - abs(exact * 0.25).max()) <= 2**-9 * size.max()


def test_exponents_and_layouts(rng):
    shape = (136, 144, 656)
    a, b = operands(shape)
    scales = [torch.randint(120, 134, x.shape, dtype=torch.uint8, device="cuda").view(torch.float8_e8m0fnu)
              for x in on_gpu(scales_of("block", shape, rng))]  # fmt: skip
    known = [x.float().double().cpu().numpy() for x in scales]
    for one, other in itertools.product((a, a.T.contiguous().T), (b, b.contiguous())):
        got = gm.scaled_gemm(one, other, *scales, out_dtype="float32")
        assert_close(got, *reference(a.float().cpu().numpy(), b.float().cpu().numpy(), *known))


@pytest.mark.parametrize("form", ["tensor", "row", "block"])
@pytest.mark.parametrize("shape", [(64, 32, 0), (0, 32, 128), (64, 0, 128)], ids=str)
def test_nothing_to_add_up(form, shape, rng):
    a, b = operands(shape)
    out = torch.full(shape[:2], float("nan"), device="cuda", dtype=torch.bfloat16)
    gm.scaled_gemm(a, b, *on_gpu(scales_of(form, shape, rng)), out=out)
    assert (out == 0).all()


def test_scales_far_apart_along_k(rng):
    """More than 2**31 elements from the first block of K to the last."""
    shape, step = (16, 32, 130 * 128), 1 << 24
    a, b = operands(shape)
    scale_a, scale_b = scales_of("block", shape, rng)
    far = torch.empty(129 * step + 16, device="cuda").as_strided((16, 130), (1, step))
    far.copy_(torch.from_numpy(scale_a))
    got = gm.scaled_gemm(a, b, far, torch.from_numpy(scale_b.copy()).cuda())
    assert_close(got, *reference(a.float().cpu().numpy(), b.float().cpu().numpy(), scale_a, scale_b))


@pytest.mark.parametrize("of_all", [False, True])
def test_groups_of_rows(of_all):
    """Empty groups, and ends within tiles; planned, then found with other arrays; beside PyTorch's."""
    import gemmule.torch as gt

    for _ in range(3):
        a, b = torch.randn(900, 272, device="cuda").to(E4M3), torch.randn(7, 144, 272, device="cuda").to(E4M3).mT
        ends = torch.randint(0, 880, (7,), device="cuda").sort().values.int()
        ends[3] = ends[2]
        sides = ((1,), (1,)) if of_all else ((900,), (7, 144))
        scales = [torch.rand(shape, device="cuda") + 0.5 for shape in sides]
        got = gt.scaled_grouped_mm(a, b, *scales, ends)
        first, second = a.double() * scales[0].double().view(-1, 1), b.double()
        second = second * (scales[1].double().view(7, 1, 144) if not of_all else scales[1].double())
        start = 0
        for group, end in enumerate(ends.tolist()):
            part = slice(start, end)
            exact, size = first[part] @ second[group], first[part].abs() @ second[group].abs()
            assert_close(got[part], exact.cpu().numpy(), size.cpu().numpy())
            start = end
        assert (got[start:] == 0).all()


def test_groups_of_rows_as_torch():
    import gemmule.torch as gt

    a, b = torch.randn(512, 256, device="cuda").to(E4M3), torch.randn(4, 128, 256, device="cuda").to(E4M3).mT
    ends = torch.tensor([128, 128, 300, 512], device="cuda", dtype=torch.int32)
    scales = torch.rand(512, device="cuda"), torch.rand(4, 128, device="cuda")
    got, theirs = (f(a, b, *scales, offs=ends, out_dtype=torch.bfloat16)
                   for f in (gt.scaled_grouped_mm, torch._scaled_grouped_mm))  # fmt: skip
    assert (got.float() - theirs.float()).norm() < 0.005 * theirs.float().norm()


@pytest.mark.parametrize("by", ["tensor", "row", "block"])
def test_stacks(by):
    """Contiguous ones, others, and one whose matrices begin at less aligned places; by each matrix alone."""
    wide = torch.randn(5, 33, 656, device="cuda").bfloat16()
    for x in (wide, wide[:, :30], wide[:, :, 1:], wide.mT):
        values, scales = gm.quantize(x, by=by)
        assert values.shape == x.shape
        for matrix, *found in zip(x, values, scales, strict=True):
            for got, wanted in zip(found, gm.quantize(matrix, by=by), strict=True):
                assert torch.equal(got.float(), wanted.float())
