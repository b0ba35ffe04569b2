"""`replace_experts`: the experts of a mixture layer, in the form that transformers 5 has them, against a loop."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import gemmule as gm  # noqa: E402
import gemmule.torch as gt  # noqa: E402
from gemmule.torch.experts import Experts, is_silu  # noqa: E402


class Mixture(torch.nn.Module):
    """Experts by a loop over tokens."""

    def __init__(self, experts=5, features=8, inner=12):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(experts, 2 * inner, features))
        self.down_proj = torch.nn.Parameter(torch.randn(experts, features, inner))
        self.act_fn = torch.nn.SiLU()

    def forward(self, hidden_states, top_k_index, top_k_weights):
        rows = []
        for x, experts, weights in zip(hidden_states, top_k_index.tolist(), top_k_weights, strict=True):
            total = torch.zeros_like(x)
            for slot, expert in enumerate(experts):
                if 0 <= expert < len(self.down_proj):
                    gate, up = (self.gate_up_proj[expert] @ x).chunk(2)
                    weight = weights[slot] if len(weights) == len(experts) else weights[expert]
                    total = total + weight * (self.down_proj[expert] @ (self.act_fn(gate) * up))
            rows.append(total)
        return torch.stack(rows)


class Clamped(Mixture):
    """Experts with a gate of their own."""

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, -1)
        return gate.clamp(max=0.5) * up


class Biased(Mixture):
    def __init__(self):
        super().__init__()
        self.down_proj_bias = torch.nn.Parameter(torch.zeros(5, 8))


@pytest.fixture
def both():
    loop = Mixture().double()
    grouped = copy.deepcopy(loop)
    assert gt.replace_experts(grouped) == ("",)
    return loop, grouped


def routed(tokens=23, slots=2, beyond=5):
    index = torch.stack([torch.randperm(beyond)[:slots] for _ in range(tokens)])
    return torch.randn(tokens, 8, dtype=torch.float64), index, torch.rand(tokens, slots, dtype=torch.float64)


@pytest.mark.parametrize(("tokens", "slots", "beyond"), [(23, 2, 5), (1, 1, 5), (1, 3, 6), (3, 5, 5), (9, 3, 6)])
def test_values_and_gradients(both, tokens, slots, beyond):
    """With one number beyond the last expert, too, which is no expert."""
    x, index, weights = routed(tokens, slots, beyond)
    results = []
    for module in both:
        given = x.clone().requires_grad_(), index, weights.clone().requires_grad_()
        got = module(*given)
        (got**2).sum().backward()
        results.append([got, given[0].grad, given[2].grad, module.gate_up_proj.grad, module.down_proj.grad])
    assert results[0][0].abs().max() > 1e-3
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("index", [[3, 1, 3], [6, 0, 6], [5, 6, 7], [4, 4, 4], [-1, 0, 3], [-(2**63), -1, 4]], ids=str)
def test_a_token_with_equal_numbers(both, index):
    """One expert for several slots, and several slots without an expert."""
    x, _, weights = routed(1, 3)
    torch.testing.assert_close(*(module(x, torch.tensor([index]), weights) for module in both))


def test_no_tokens(both):
    x, index, weights = routed()
    assert both[1](x[:0], index[:0], weights[:0]).shape == (0, 8)


@pytest.mark.parametrize("beyond", [5, 6])
def test_weights_of_all_experts(both, beyond):
    x, index, _ = routed(beyond=beyond)
    weights = torch.rand(len(x), 5, dtype=torch.float64)
    torch.testing.assert_close(*(module(x, index, weights) for module in both))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
@pytest.mark.parametrize("weighted", [2, 5], ids=["slots", "experts"])
def test_negative_numbers_are_no_experts(both, dtype, weighted):
    x, index, _ = routed()
    index[::2, 0], index[::3, 1] = -1, 6
    weights = torch.rand(len(x), weighted, dtype=torch.float64)
    # The loop has nothing to read where there is no expert.
    wanted = both[0](x, index, weights if weighted == 2 else weights.gather(1, index.clamp(0, 4)))
    torch.testing.assert_close(both[1](x, index.to(dtype), weights), wanted)


def test_as_many_slots_as_experts_have_weights_of_slots(both):
    x, index, weights = routed(slots=5)
    assert not torch.equal(index, torch.arange(5).expand_as(index))
    torch.testing.assert_close(*(module(x, index, weights) for module in both))


@pytest.mark.parametrize(
    "change",
    [
        {"top_k_weights": torch.ones(23, 1)}, {"top_k_weights": torch.ones(23, 3)}, {"top_k_weights": torch.ones(23)},
        {"top_k_weights": torch.ones(22, 2)}, {"top_k_index": torch.zeros(23, dtype=torch.int64)},
        {"top_k_index": torch.zeros(22, 2, dtype=torch.int64)}, {"hidden_states": torch.ones(23, 1, 8)},
        {"hidden_states": torch.ones(23, 7)},
    ],
    ids=lambda change: "-".join(f"{name}{tuple(x.shape)}" for name, x in change.items()),
)  # fmt: skip
def test_shapes_that_do_not_fit(both, change):
    names = ("hidden_states", "top_k_index", "top_k_weights")
    given = dict(zip(names, routed(), strict=True)) | change
    text = "hidden_states has shape {}, top_k_index {} and top_k_weights {};".format(
        *(tuple(given[name].shape) for name in names)
    )
    with pytest.raises(gm.ShapeError, match=re.escape(text)):
        both[1](**given)


def test_what_is_no_index(both):
    x, index, weights = routed()
    with pytest.raises(gm.DTypeError, match=r"top_k_index is torch\.float32; give numbers"):
        both[1](x, index.float(), weights)
    with pytest.raises(gm.ArgumentError, match="top_k_weights is of type NoneType"):
        both[1](x, index, None)


def test_it_is_the_same_object_by_another_class(both):
    loop, grouped = both
    parameters = [id(x) for x in loop.parameters()]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ModuleDict({"experts": loop}))
    assert gt.replace_experts(model) == ("1.experts",)
    assert gt.replace_experts(model) == ()
    assert isinstance(loop, Mixture)
    assert [id(x) for x in loop.parameters()] == parameters
    assert type(loop) is type(grouped)
    copied = pickle.loads(pickle.dumps(loop))
    x = routed()
    torch.testing.assert_close(copied(*x), loop(*x))


def test_what_is_not_known_is_left_alone():
    transposed = Mixture()
    transposed.is_transposed = True
    assert gt.replace_experts(torch.nn.ModuleList([Biased(), transposed, torch.nn.Linear(3, 4)])) == ()
    with pytest.raises(gm.ArgumentError, match=r"model is of type list, not a torch\.nn\.Module"):
        gt.replace_experts([])


class Doubled(Mixture):
    """Experts that compute something else."""

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return 2 * super().forward(hidden_states, top_k_index, top_k_weights)


def test_a_forward_that_overrides_another_stays():
    x, doubled = routed(), Doubled().double()
    wanted = doubled(*x)
    with pytest.warns(UserWarning, match="forward of Doubled overrides that of Mixture"):
        assert gt.replace_experts(torch.nn.Sequential(doubled)) == ()
    torch.testing.assert_close(doubled(*x), wanted)
    patched = Mixture()
    patched.forward = lambda *given: given
    with pytest.warns(UserWarning, match="this Mixture has a forward of its own"):
        assert gt.replace_experts(patched) == ()


def test_it_is_compiled_without_a_break(both):
    x = routed()
    compiled = torch.compile(both[1], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*x), both[0](*x))


def test_a_gate_of_its_own():
    plain = Clamped().double()
    grouped = copy.deepcopy(plain)
    gt.replace_experts(grouped)
    x, index, weights = routed()
    wanted = torch.zeros_like(x)
    for token, experts in enumerate(index):
        for slot, expert in enumerate(experts):
            inner = plain._apply_gate(plain.gate_up_proj[expert] @ x[token])
            wanted[token] += weights[token, slot] * (plain.down_proj[expert] @ inner)
    torch.testing.assert_close(grouped(x, index, weights), wanted)


def test_what_is_silu():
    own = torch.nn.SiLU()
    own.forward = torch.relu
    assert is_silu(torch.nn.SiLU())
    assert not any(map(is_silu, (torch.nn.GELU(), torch.nn.functional.silu, type("SiLU", (torch.nn.SiLU,), {})(), own)))


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_a_model_of_transformers(name):
    transformers = pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")
    config = getattr(transformers, f"{name}Config")(
        hidden_size=32, intermediate_size=48, moe_intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.5,
    )  # fmt: skip
    loop = getattr(transformers, f"{name}ForCausalLM")(config).double()
    loop.set_experts_implementation("eager")
    grouped = copy.deepcopy(loop)
    assert len(gt.replace_experts(grouped)) == 2
    # Without gradients SwiGLU is an epilogue on a GPU.
    assert all(is_silu(one.act_fn) for one in grouped.modules() if isinstance(one, Experts))
    tokens = torch.randint(64, (2, 9))
    torch.testing.assert_close(*(model(input_ids=tokens).logits for model in (loop, grouped)))
