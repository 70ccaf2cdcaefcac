"""Two spirals told apart by a small network, in a script that is written for torch.

    python -m symgrad run examples/spirals.py

runs it on symgrad without a change: training with AdamW and a rate that rises and falls, clipped
gradients, a checkpoint, and which points the network finds hardest, by the norm of each point's own
gradient. Start reading at `main`.
"""

import math
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two spirals that wind around each other, and which one each is on."""
    way = torch.sqrt(torch.rand(count)) * 1.75 * 2 * math.pi
    side = torch.arange(count) % 2
    turned = way + math.pi * side
    points = torch.stack([way * torch.cos(turned), way * torch.sin(turned)], dim=1) / 10
    return points + 0.01 * torch.randn(count, 2), side


def network() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )


def train(model: nn.Module, points: torch.Tensor, sides: torch.Tensor, steps: int) -> float:
    """Fit the network; the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps + 1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(points), sides)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return loss.item()


def difficulty(model: nn.Module, points: torch.Tensor, sides: torch.Tensor) -> torch.Tensor:
    """The norm of the gradient of each point's own loss."""
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, point, side):
        return functional.cross_entropy(functional_call(model, weights, (point[None],)), side[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, points, sides)
    return torch.sqrt(sum((g * g).flatten(1).sum(1) for g in each.values()))


def main(steps: int = 600) -> None:
    """Train, save, load, and look."""
    torch.manual_seed(0)
    points, sides = spirals(400)
    model = network()
    print(f"loss        {train(model, points, sides, steps):.4f}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "spirals"
        torch.save(model.state_dict(), place)
        model = network()
        model.load_state_dict(torch.load(place))
    right = (model(points).argmax(1) == sides).float().mean().item()
    print(f"accuracy    {right:.3f}")
    hardest = difficulty(model, points, sides).argsort(descending=True)[:3]
    distance = points[hardest].norm(dim=1)
    print("hardest at  " + ", ".join(f"{r:.2f}" for r in distance.tolist()) + " from the centre")


if __name__ == "__main__":
    main()
