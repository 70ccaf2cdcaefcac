"""Fit a Gaussian mixture to a benchmark's data: eager, differentiated, read, compiled.

The objective is ADBench's: the log-likelihood of points under a mixture whose components have
precision factors Q (lower triangular, so that the precision is QᵀQ), plus a Wishart term. It is
written in torch's words. The run

1. checks value and gradient against the known answer,
2. prints the derivative by the mixture's weights as a formula,
3. compiles value and gradient into one function of NumPy arrays,
4. hands such a function to scipy.optimize, which fits the mixture,
5. times it next to the gradient derived by hand (gmm_by_hand.py).

Start reading at `log_likelihood`, then `main`.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import gmm_by_hand
import numpy as np
from scipy.optimize import minimize
from scipy.special import multigammaln

import symgrad as torch
from symgrad.timing import duration, medians

DATA = Path(__file__).parent / "data" / "gmm_d10_K25.txt"
BLOCKS = ("alphas", "means", "icf")


def read(path):
    """The parameters' three blocks, the points, and the prior's two numbers."""
    numbers = Path(path).read_text().split()
    d, k, n = map(int, numbers[:3])
    sizes = [k, k * d, k * d * (d + 1) // 2, n * d]
    *blocks, prior = np.split(np.array(numbers[3:], float), np.cumsum(sizes))
    alphas, means, factors, x = blocks
    return (alphas, means.reshape(k, d), factors.reshape(k, -1)), x.reshape(n, d), prior


def log_likelihood(alphas, means, factors, x):
    """Σᵢ log Σₖ softmax(α)ₖ N(xᵢ; μₖ, (QₖᵀQₖ)⁻¹)."""
    (n, d), k = x.shape, alphas.shape[0]
    rows, columns = gmm_by_hand.triangle(d)
    log_diagonal = factors[:, :d]
    q = torch.diag_embed(torch.exp(log_diagonal))
    q[:, rows, columns] = factors[:, d:]
    z = (x @ q.reshape(k * d, d).T).reshape(n, k, d) - (q @ means.unsqueeze(2)).squeeze(2)
    terms = alphas + log_diagonal.sum(1) - 0.5 * (z * z).sum(2)
    terms.name = "t"  # what formulas call it
    total = torch.logsumexp(terms, 1).sum() - n * torch.logsumexp(alphas, 0)
    return total - 0.5 * n * d * math.log(2 * math.pi)


def wishart(factors, d, gamma, m):
    """ADBench's prior term of the precision factors, with its constant."""
    log_diagonal, lower = factors[:, :d], factors[:, d:]
    squares = torch.exp(2 * log_diagonal).sum() + (lower * lower).sum()
    freedom = d + m + 1
    constant = freedom * d * math.log(gamma / math.sqrt(2)) - multigammaln(freedom / 2, d)
    return 0.5 * gamma**2 * squares - m * log_diagonal.sum() - len(factors) * constant


def objective(alphas, means, factors, x, gamma, m):
    """ADBench's objective."""
    return log_likelihood(alphas, means, factors, x) + wishart(factors, x.shape[1], gamma, m)


def relative_error(found, known):
    """The largest difference, relative to the largest known entry."""
    return float(np.max(np.abs(found - known)) / np.max(np.abs(known)))


def check(path):
    """Relative errors of the value and the three gradient blocks against the answer beside `path`."""
    blocks, x, (gamma, m) = read(path)
    answer = np.load(Path(path).with_suffix(".npz"))
    leaves = [torch.tensor(b, requires_grad=True) for b in blocks]
    value = objective(*leaves, torch.tensor(x), gamma, m)
    value.backward()
    errors = [relative_error(value.item(), answer["value"])]
    return errors + [
        relative_error(p.grad.numpy(), answer[f"d_{name}"])
        for p, name in zip(leaves, BLOCKS, strict=True)
    ]


def posterior(k, d, gamma, m):
    """What the fit minimises, as a function of all parameters in one vector, and of the points.

    ADBench adds its prior term to the log-likelihood, which rewards a component without points for
    shrinking for ever; as a penalty it keeps the fit bounded.
    """

    def loss(theta, x):
        alphas, means, factors = torch.split(theta, [k, k * d, k * d * (d + 1) // 2])
        means, factors = means.reshape(k, d), factors.reshape(k, -1)
        return wishart(factors, d, gamma, m) - log_likelihood(alphas, means, factors, x)

    return loss


def fit(function, theta, x, iterations):
    """Minimise with L-BFGS-B, showing how far it is; SciPy's result."""
    live = sys.stdout.isatty()
    done = 0

    def progress(intermediate_result):
        nonlocal done
        done += 1
        if live or done % 50 == 0:
            line = f"fit        iteration {done:4d}, loss per point {intermediate_result.fun / len(x):9.5f}"
            print(line, end="\r" if live else "\n", flush=True)

    options = {"maxiter": iterations, "maxfun": 10 * iterations}
    return minimize(
        function, theta, args=(x,), jac=True, method="L-BFGS-B", callback=progress, options=options
    )


def main(path=DATA, iterations=300, seconds=1.0):
    """Run all five steps and print what they find."""
    blocks, x, (gamma, m) = read(path)
    (n, d), k = x.shape, len(blocks[0])
    print(f"data       {Path(path).name}: {n} points in {d} dimensions, {k} components, "
          f"{sum(b.size for b in blocks)} parameters")  # fmt: skip

    errors = check(path)
    print(
        f"check      value within {errors[0]:.0e} of the known answer, gradient within {max(errors[1:]):.0e}"
    )

    alphas, means, factors = (
        torch.tensor(b, requires_grad=True, name=name)
        for b, name in zip(blocks, ("alpha", "mu", "factors"), strict=True)
    )
    value = objective(alphas, means, factors, torch.tensor(x, name="x"), gamma, m)
    (by_weights,) = torch.autograd.grad(value, alphas, create_graph=True)
    print(
        "formula    of the derivative by alpha, where t[i, k] is component k's log-density at point i:"
    )
    print("\n".join(f"           {line}" for line in by_weights.formula().splitlines()))

    def adbench(alphas, means, factors, x):
        return objective(alphas, means, factors, x, gamma, m)

    compiled = torch.compile(torch.func.value_and_grad(adbench, argnums=(0, 1, 2)))
    start = time.perf_counter()
    compiled(*blocks, x)
    print(
        f"compile    {duration(time.perf_counter() - start)} to trace, differentiate, compile and run once"
    )

    loss = torch.compile(torch.func.value_and_grad(posterior(k, d, gamma, m)))
    theta = np.concatenate([b.ravel() for b in blocks])
    before = loss(theta, x)[0]
    start = time.perf_counter()
    result = fit(loss, theta, x, iterations)
    elapsed = time.perf_counter() - start
    print(f"fit        loss per point {before / n:.5f} -> {result.fun / n:.5f} in {result.nit} iterations, "
          f"{result.nfev} gradients, {duration(elapsed)}")  # fmt: skip

    ours, by_hand = medians(
        [
            lambda: compiled(*blocks, x),
            lambda: gmm_by_hand.value_and_gradient(*blocks, x, gamma, m, 0.0),
        ],
        seconds,
    )
    print(f"time       {ours * 1e6:.0f} µs per gradient, by hand in NumPy {by_hand * 1e6:.0f} µs: "
          f"ratio {by_hand / ours:.2f}")  # fmt: skip
    return result


if __name__ == "__main__":
    main()
