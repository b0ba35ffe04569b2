"""A PyTorch model with gemmule's linear layers: replaced in place, trained, compiled.

Needs PyTorch: ``pip install torch``.
"""

import torch

import gemmule.torch

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 1)).to(device)
print("replaced:", ", ".join(gemmule.torch.replace_linear(model)))  # same parameters, hooks and names

x = torch.randn(256, 32, device=device)
target = torch.sin(x.sum(dim=1, keepdim=True))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for _ in range(60):
    loss = torch.nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

assert losses[-1] < 0.5 * losses[0]
print(f"loss {losses[0]:.3f} before, {losses[-1]:.3f} after 60 steps")
