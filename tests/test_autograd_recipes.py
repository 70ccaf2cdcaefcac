"""Recipes as they are written for torch; only the import line is ours."""

from __future__ import annotations

import numpy as np

import symgrad as torch
from symgrad.autograd.checkpoint import checkpoint


def network(w1, b1, w2, x):
    return torch.tanh(x @ w1 + b1) @ w2


def parameters(seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(3, 4), (4,), (4, 1)]
    return [torch.tensor(rng.normal(size=s), requires_grad=True) for s in shapes]


def numpy_network(w1, b1, w2, x):
    return np.tanh(x @ w1 + b1) @ w2


def differences(function, arrays, place, step=1e-6):
    """The gradient of a NumPy function with respect to one of its arrays."""
    made = np.zeros_like(arrays[place])
    for k in np.ndindex(made.shape):
        sides = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[place][k] += sign * step
            sides.append(function(*moved))
        made[k] = (sides[0] - sides[1]) / (2 * step)
    return made


def test_gradient_penalty():
    w1, b1, w2 = params = parameters()
    x = torch.tensor(np.random.default_rng(1).normal(size=(5, 3)), requires_grad=True)
    score = network(w1, b1, w2, x)
    (g,) = torch.autograd.grad(
        outputs=score,
        inputs=x,
        grad_outputs=torch.ones_like(score),
        create_graph=True,
        retain_graph=True,
    )
    penalty = ((g.norm(2, dim=1) - 1) ** 2).mean()
    penalty.backward()

    def reference(w1, b1, w2):
        z = x.detach().numpy() @ w1 + b1
        inner = ((1 - np.tanh(z) ** 2) * w2[:, 0]) @ w1.T
        return ((np.linalg.norm(inner, axis=1) - 1) ** 2).mean()

    arrays = [p.detach().numpy().copy() for p in params]
    for place, p in enumerate(params):
        np.testing.assert_allclose(
            p.grad.numpy(), differences(reference, arrays, place), rtol=1e-5, atol=1e-7
        )


def test_double_backward_of_a_users_function():
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, i):
            result = i.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx, grad_output):
            (result,) = ctx.saved_tensors
            return grad_output * result

    x = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(Exp.apply(2 * x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    np.testing.assert_allclose(h.numpy(), 4 * np.exp([1.0, -2.0]), rtol=1e-12)


def test_gradients_per_sample():
    w1, b1, w2 = (p.detach() for p in parameters())
    rng = np.random.default_rng(2)
    xs, ys = torch.tensor(rng.normal(size=(6, 3))), torch.tensor(rng.normal(size=(6, 1)))

    def loss(w, x, y):
        return ((network(w, b1, w2, x) - y) ** 2).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(w1, xs, ys)
    assert per_sample.shape == (6, 3, 4)
    for k in range(6):
        z = np.tanh(xs[k].numpy() @ w1.numpy() + b1.numpy())
        error = 2 * (z @ w2.numpy() - ys[k].numpy())
        wanted = np.outer(xs[k].numpy(), error[0] * w2.numpy()[:, 0] * (1 - z**2))
        np.testing.assert_allclose(per_sample[k].numpy(), wanted, rtol=1e-10, atol=1e-12)


def test_gradient_checkpointing():
    params = parameters()
    x = torch.tensor(np.random.default_rng(3).normal(size=(5, 3)), requires_grad=True)
    out = checkpoint(network, *params, x, use_reentrant=False)
    (out**2).sum().backward()

    def reference(w1, b1, w2, x):
        return (numpy_network(w1, b1, w2, x) ** 2).sum()

    arrays = [p.detach().numpy().copy() for p in [*params, x]]
    for place, p in enumerate([*params, x]):
        np.testing.assert_allclose(
            p.grad.numpy(), differences(reference, arrays, place), rtol=1e-5, atol=1e-7
        )


def test_hooks_that_clip_and_record():
    norms = []

    def clip(g):
        norms.append(g.norm().item())
        return g.clamp(-0.1, 0.1)

    w = torch.tensor([3.0, -4.0], dtype=torch.float64, requires_grad=True)
    handle = w.register_hook(clip)
    (w**2).sum().backward()
    assert norms == [10.0]
    assert w.grad.tolist() == [0.1, -0.1]
    handle.remove()
    w.grad = None
    (w**2).sum().backward()
    assert w.grad.tolist() == [6.0, -8.0]
    assert len(norms) == 1


def test_training_loop_of_the_tutorial():
    rng = np.random.default_rng(4)
    x = torch.tensor(rng.uniform(-1, 1, 50))
    y = 2.0 - 3.0 * x
    a = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        loss = ((a + b * x - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            a -= 0.5 * a.grad
            b -= 0.5 * b.grad
            a.grad = None
            b.grad = None
    np.testing.assert_allclose([a.item(), b.item()], [2.0, -3.0], atol=1e-6)


def test_a_cotangent_that_comes_back_unchanged_is_the_same_memory():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        g = torch.ones(2)
        (back,) = torch.autograd.grad(x.clone(), x, g)
        assert back.data_ptr() == g.data_ptr()
