"""The gradient of the mixture's log-likelihood derived and vectorised by hand, in NumPy alone.

What a careful person writes when there is no autograd; `gmm.py` checks it against the known answer
and times it next to the compiled formula. Start reading at `value_and_gradient`.
"""

from __future__ import annotations

import numpy as np


def triangle(d):
    """Rows and columns of the strictly lower triangle, column by column."""
    columns, rows = np.triu_indices(d, 1)
    return rows, columns


def value_and_gradient(alphas, means, factors, x, gamma, m, constant):
    """The objective of `gmm.py` and its derivatives by alphas, means and factors.

    With rᵢₖ the responsibilities (the softmax of component k's log-density at point i) and
    zᵢₖ = Qₖ (xᵢ - μₖ), the derivative by Qₖ is -Σᵢ rᵢₖ zᵢₖ (xᵢ - μₖ)ᵀ and that by μₖ is
    Qₖᵀ Σᵢ rᵢₖ zᵢₖ.
    """
    (n, d), k = x.shape, len(alphas)
    rows, columns = triangle(d)
    log_diagonal, lower = factors[:, :d], factors[:, d:]
    diagonal = np.exp(log_diagonal)
    q = np.zeros((k, d, d))
    q[:, rows, columns] = lower
    q[:, np.arange(d), np.arange(d)] = diagonal

    z = (x @ q.reshape(k * d, d).T).reshape(n, k, d)
    z -= np.matmul(q, means[:, :, None])[:, :, 0]
    terms = alphas + log_diagonal.sum(1) - 0.5 * np.einsum("nkd,nkd->nk", z, z)
    top = terms.max(1, keepdims=True)
    shares = np.exp(terms - top)
    total = shares.sum(1, keepdims=True)
    shares /= total
    weights = np.exp(alphas - alphas.max())
    log_weights = np.log(weights.sum()) + alphas.max()
    weights /= weights.sum()
    value = constant + (np.log(total) + top).sum() - n * log_weights
    value += 0.5 * gamma**2 * ((diagonal**2).sum() + (lower**2).sum()) - m * log_diagonal.sum()

    counts = shares.sum(0)
    z *= shares[:, :, None]
    pulled = z.sum(0)
    d_means = np.matmul(q.transpose(0, 2, 1), pulled[:, :, None])[:, :, 0]
    d_q = pulled[:, :, None] * means[:, None, :] - (z.reshape(n, k * d).T @ x).reshape(k, d, d)
    d_factors = np.empty_like(factors)
    d_factors[:, :d] = np.diagonal(d_q, axis1=1, axis2=2) * diagonal
    d_factors[:, :d] += counts[:, None] + gamma**2 * diagonal**2 - m
    d_factors[:, d:] = d_q[:, rows, columns] + gamma**2 * lower
    return value, counts - n * weights, d_means, d_factors
