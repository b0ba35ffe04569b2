"""LoRA: a frozen linear layer and a trained low-rank correction, added in the epilogue of one product.

Needs PyTorch: ``pip install torch``.
"""

import torch

import gemmule.torch


class LoraLinear(torch.nn.Module):
    """x Wᵀ + s (x Aᵀ) Bᵀ, where W is frozen and A and B have few rows and columns."""

    def __init__(self, frozen: torch.nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(frozen.weight.detach(), requires_grad=False)
        self.down = torch.nn.Parameter(torch.randn(rank, frozen.in_features, device=self.weight.device) / rank**0.5)
        self.up = torch.nn.Parameter(torch.zeros(frozen.out_features, rank, device=self.weight.device))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = gemmule.torch.matmul(x, self.down.T)
        base = gemmule.torch.matmul(x, self.weight.T)
        return gemmule.torch.addmm(base, low, self.up.T, alpha=self.scale)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layer = LoraLinear(torch.nn.Linear(64, 96).to(device), rank=4, scale=2.0)
x = torch.randn(512, 64, device=device)
with torch.no_grad():
    target = layer(x) + x @ torch.randn(64, 2, device=device) @ torch.randn(2, 96, device=device) / 8
optimizer = torch.optim.Adam([one for one in layer.parameters() if one.requires_grad], lr=2e-2)
losses = []
for _ in range(60):
    loss = torch.nn.functional.mse_loss(layer(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

assert losses[-1] < 0.3 * losses[0]
trained = sum(one.numel() for one in layer.parameters() if one.requires_grad)
print(f"{trained} of {trained + layer.weight.numel()} parameters trained; loss {losses[0]:.3f}, then {losses[-1]:.4f}")
