"""The examples run, and their numbers are right."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp, multigammaln
from scipy.stats import multivariate_normal

import symgrad as sg

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import gmm  # noqa: E402
import gmm_by_hand  # noqa: E402


def small(seed=0, n=7, d=3, k=2):
    """A small mixture with points and a prior."""
    rng = np.random.default_rng(seed)
    blocks = rng.normal(size=k), rng.normal(size=(k, d)), rng.normal(size=(k, d * (d + 1) // 2))
    return blocks, rng.normal(size=(n, d)), (0.7, 2.0)


def density_by_scipy(alphas, means, factors, x):
    """The log-likelihood by SciPy's multivariate normal."""
    d = x.shape[1]
    terms = []
    for alpha, mean, factor in zip(alphas, means, factors, strict=True):
        q = np.diag(np.exp(factor[:d]))
        place = iter(factor[d:])
        for column in range(d):
            for row in range(column + 1, d):
                q[row, column] = next(place)
        covariance = np.linalg.inv(q.T @ q)
        terms.append(alpha + multivariate_normal(mean, covariance).logpdf(x))
    return np.sum(logsumexp(terms, axis=0)) - len(x) * logsumexp(alphas)


def test_mixture_agrees_with_the_known_answer():
    assert max(gmm.check(gmm.DATA)) <= 1e-10


def test_gradient_by_hand_agrees_with_the_known_answer():
    blocks, x, (gamma, m) = gmm.read(gmm.DATA)
    answer = np.load(gmm.DATA.with_suffix(".npz"))
    _, *found = gmm_by_hand.value_and_gradient(*blocks, x, gamma, m, 0.0)
    for array, name in zip(found, gmm.BLOCKS, strict=True):
        assert gmm.relative_error(array, answer[f"d_{name}"]) <= 1e-10


def test_log_likelihood_is_scipys():
    blocks, x, _ = small()
    found = gmm.log_likelihood(*map(sg.tensor, blocks), sg.tensor(x)).item()
    assert found == pytest.approx(density_by_scipy(*blocks, x), rel=1e-12)


def test_prior_has_the_wishart_constant():
    (_, _, factors), x, (gamma, m) = small()
    d = x.shape[1]
    freedom = d + m + 1
    squares = np.sum(np.exp(2 * factors[:, :d])) + np.sum(factors[:, d:] ** 2)
    constant = freedom * d * (np.log(gamma) - 0.5 * np.log(2)) - multigammaln(0.5 * freedom, d)
    expected = 0.5 * gamma**2 * squares - m * factors[:, :d].sum() - len(factors) * constant
    assert gmm.wishart(sg.tensor(factors), d, gamma, m).item() == pytest.approx(expected, rel=1e-13)


def test_gradient_is_central_differences():
    blocks, x, _ = small()
    leaves = [sg.tensor(b, requires_grad=True) for b in blocks]
    gmm.log_likelihood(*leaves, sg.tensor(x)).backward()
    for place, leaf in enumerate(leaves):
        for k in range(blocks[place].size):
            ends = []
            for sign in (1, -1):
                moved = [b.copy() for b in blocks]
                moved[place].flat[k] += sign * 1e-5
                ends.append(density_by_scipy(*moved, x))
            expected = (ends[0] - ends[1]) / 2e-5
            assert leaf.grad.numpy().flat[k] == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_example_runs_and_improves_the_fit(capsys):
    result = gmm.main(iterations=20, seconds=0.001)
    shown = capsys.readouterr().out
    titles = {line.split()[0] for line in shown.splitlines() if line[:1] != " "}
    assert titles == {"data", "check", "formula", "compile", "fit", "time"}
    blocks, x, (gamma, m) = gmm.read(gmm.DATA)
    k, d = blocks[1].shape
    start = np.concatenate([b.ravel() for b in blocks])
    loss = gmm.posterior(k, d, gamma, m)
    before = loss(sg.tensor(start), sg.tensor(x)).item()
    assert result.fun < before
    assert result.fun == pytest.approx(loss(sg.tensor(result.x), sg.tensor(x)).item(), rel=1e-12)


def test_example_data_is_small():
    assert all(p.stat().st_size <= 200_000 for p in (EXAMPLES / "data").iterdir())
