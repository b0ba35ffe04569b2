"""The orthogonalised update of the Muon optimizer: Newton-Schulz iterations, whose X Xᵀ costs half of a product.

Needs PyTorch: ``pip install torch``.
"""

import torch

import gemmule as gm

#: Coefficients of the quintic, https://kellerjordan.github.io/posts/muon/.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalised(gradient: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Return U Vᵀ of a gradient's singular value decomposition, about, without computing one."""
    x = gradient.bfloat16() if gradient.is_cuda else gradient
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = gm.matmul(x, x.T)  # symmetric: one triangle is computed, and mirrored
        inner = gm.gemm(gram, gram, gram, alpha=C, beta=B)  # B gram + C gram²
        x = gm.gemm(inner, x, x, beta=A)  # A x + inner x
    return x.T if tall else x


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
update = orthogonalised(torch.randn(512, 256, device=device))
singular = torch.linalg.svdvals(update.float())
assert singular.min() > 0.5
assert singular.max() < 1.3
print(f"singular values from {singular.min():.2f} to {singular.max():.2f}")
