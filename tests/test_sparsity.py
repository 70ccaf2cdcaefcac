"""Sparse Jacobians and Hessians: values against dense formulas, patterns and colours by definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import symgrad as sg
from symgrad.sparsity import distance_two, star

RNG = np.random.default_rng(8)


def tensor(value: Any) -> Any:
    return sg.tensor(np.asarray(value, float), dtype=sg.float64)


def random_pattern(rows: int, columns: int, density: float, rng: np.random.Generator) -> csr_array:
    return csr_array(rng.random((rows, columns)) < density)


def test_hessian_of_a_chain_is_tridiagonal_at_large_size() -> None:
    n = 20_000
    x = RNG.normal(size=n)
    h = sg.sparse_hessian(lambda v: ((v[1:] - v[:-1] ** 2) ** 2).sum(), tensor(x))
    assert h.shape == (n, n) and h.nnz == 3 * n - 2
    diagonal = np.zeros(n)
    diagonal[:-1] += 12 * x[:-1] ** 2 - 4 * x[1:]
    diagonal[1:] += 2
    np.testing.assert_allclose(h.diagonal(), diagonal, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(h.diagonal(1), -4 * x[:-1], rtol=1e-12)
    np.testing.assert_allclose(h.diagonal(-1), -4 * x[:-1], rtol=1e-12)


def test_hessian_of_an_arrow_needs_two_colours() -> None:
    n = 300
    x = RNG.normal(size=n)
    h = sg.sparse_hessian(lambda v: (v[0] ** 2 * v[1:] ** 2).sum(), tensor(x))
    want = np.diag(np.r_[2 * (x[1:] ** 2).sum(), np.full(n - 1, 2 * x[0] ** 2)])
    want[0, 1:] = want[1:, 0] = 4 * x[0] * x[1:]
    np.testing.assert_allclose(h.toarray(), want, rtol=1e-12)
    assert star(csr_array(want != 0)).max() == 1


def test_hessian_of_pair_energies_follows_the_pairs() -> None:
    n = 40
    x, i, j = RNG.normal(size=n), RNG.integers(0, n, 30), RNG.integers(0, n, 30)
    first, second = sg.tensor(i), sg.tensor(j)
    h = sg.sparse_hessian(lambda v: ((v[first] - v[second]) ** 4).sum(), tensor(x))
    want = np.zeros((n, n))
    for a, b in zip(i, j, strict=True):
        curvature = 12 * (x[a] - x[b]) ** 2
        want[a, a] += curvature
        want[b, b] += curvature
        want[a, b] -= curvature
        want[b, a] -= curvature
    np.testing.assert_allclose(h.toarray(), want, atol=1e-12)
    pairs = {(a, b) for a, b in zip(i, j, strict=True)} | {
        (b, a) for a, b in zip(i, j, strict=True)
    }
    assert h.nnz <= len(pairs | {(a, a) for p in pairs for a in p})


@pytest.mark.parametrize("density", [0.05, 0.2])
def test_hessian_through_a_constant_matrix_uses_its_zeros(density: float) -> None:
    a = RNG.normal(size=(15, 20)) * (RNG.random((15, 20)) < density)
    x = RNG.normal(size=20)
    matrix = tensor(a)
    h = sg.sparse_hessian(lambda v: sg.exp(matrix @ v).sum(), tensor(x))
    np.testing.assert_allclose(
        h.toarray(), a.T @ np.diag(np.exp(a @ x)) @ a, rtol=1e-11, atol=1e-13
    )
    assert h.nnz == ((np.abs(a).T @ np.abs(a)) != 0).sum()


def test_hessian_when_function_is_linear_or_constant_then_it_is_empty() -> None:
    assert sg.sparse_hessian(lambda v: (3 * v).sum(), tensor([1.0, 2.0])).nnz == 0
    assert sg.sparse_hessian(lambda v: sg.ones(()), tensor([1.0, 2.0])).nnz == 0


def test_jacobian_of_a_stencil_by_columns_and_of_a_gather_by_rows() -> None:
    n = 1000
    x = RNG.normal(size=n)
    j = sg.sparse_jacobian(lambda v: v[:-2] * v[1:-1] - v[2:] ** 2, tensor(x))
    assert j.shape == (n - 2, n) and j.nnz == 3 * (n - 2)
    np.testing.assert_array_equal(j.diagonal(), x[1:-1])
    np.testing.assert_array_equal(j.diagonal(1), x[:-2])
    np.testing.assert_array_equal(j.diagonal(2), -2 * x[2:])
    wide = sg.sparse_jacobian(lambda v: sg.stack([(v[:500] ** 2).sum(), v[500:].sum()]), tensor(x))
    want = np.zeros((2, n))
    want[0, :500], want[1, 500:] = 2 * x[:500], 1
    np.testing.assert_array_equal(wide.toarray(), want)
    assert wide.nnz == n


CASES: list[tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = [
    (lambda v: v.reshape(3, 4).flip(1).sum(0), lambda x: np.tile(np.eye(4)[::-1], 3)),
    (lambda v: v.cumsum(0), lambda x: np.tril(np.ones((12, 12)))),
    (lambda v: sg.where(v > 0, v, 0.0), lambda x: np.diag((x > 0) * 1.0)),
    (lambda v: sg.cat([v[::3], v[:2] * 5]), lambda x: np.r_[np.eye(12)[::3], 5 * np.eye(12)[:2]]),
    (lambda v: v.reshape(4, 3).T.diagonal(), lambda x: np.eye(12)[[0, 4, 8]]),
    (lambda v: v.reshape(3, 4) @ v.reshape(3, 4).T @ sg.ones(3, dtype=sg.float64),
     lambda x: gram_derivative(x.reshape(3, 4))),
    (lambda v: v.detach() * v[0] + sg.ones(12), lambda x: x[:, None] * np.eye(12)[:1]),
]  # fmt: skip


def gram_derivative(m: np.ndarray) -> np.ndarray:
    """The Jacobian of m mᵀ 1: entry i is Σ_jk m_ik m_jk."""
    total = m.sum(0)
    j = np.einsum("ij,k->ijk", np.eye(3), total) + m[:, None, :]
    return j.reshape(3, 12)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_jacobian_when_families_of_ops_are_used_then_equals_the_formula(number: int) -> None:
    f, formula = CASES[number]
    x = RNG.normal(size=12)
    np.testing.assert_allclose(
        sg.sparse_jacobian(f, tensor(x)).toarray(), formula(x), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("seed", range(20))
def test_star_colouring_when_pattern_is_random_then_is_valid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = random_pattern(25, 25, rng.uniform(0.02, 0.3), rng)
    pattern = csr_array(half + half.T)
    colours = star(pattern)
    dense = pattern.toarray()
    np.fill_diagonal(dense, False)
    neighbours = [np.flatnonzero(row) for row in dense]
    for b in range(25):
        assert all(colours[a] != colours[b] for a in neighbours[b])
        for c in neighbours[b]:
            for a in neighbours[b]:
                for d in neighbours[c]:
                    if len({a, b, c, d}) == 4:
                        assert not (colours[a] == colours[c] and colours[b] == colours[d])


@pytest.mark.parametrize("seed", range(10))
def test_distance_two_colouring_when_pattern_is_random_then_is_valid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pattern = random_pattern(20, 30, rng.uniform(0.02, 0.3), rng)
    colours = distance_two(pattern)
    for row in pattern.toarray():
        met = colours[np.flatnonzero(row)]
        assert len(set(met)) == len(met)
    assert ((colours < 0) == (pattern.toarray().sum(0) == 0)).all()


def test_sparse_when_called_wrongly_then_says_so() -> None:
    with pytest.raises(RuntimeError, match="one element"):
        sg.sparse_hessian(lambda v: v, tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match="must be a Tensor"):
        sg.sparse_hessian(lambda v: v, np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="return one Tensor"):
        sg.sparse_jacobian(lambda v: (v, v), tensor([1.0]))
