"""Streams over matrices of a batch, over the rows of all of them, and over parts side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_stream import both, compiled, threads, with_gradients

import symgrad as sg
from symgrad.codegen import stream
from symgrad.codegen.rows import Cut

__all__ = ["threads"]


def only(monkeypatch: pytest.MonkeyPatch, *cuts: Cut) -> None:
    """Let streams be made over these rows alone."""
    monkeypatch.setattr(stream, "_cuts", lambda tasks: [(cut, 1 << 60) for cut in cuts])


# -- attention ---------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return sg.softmax(scores, -1) @ v


def squared(q: Any, k: Any, v: Any) -> Any:
    o = attention(q, k, v)
    return (o * o).sum()


def attention_in_numpy(args: list[np.ndarray]) -> list[np.ndarray]:
    """The sum of squares and its gradient by the chain rule, written out."""
    q, k, v = (a.astype(np.float64) for a in args)
    scale = q.shape[-1] ** -0.5
    scores = scale * np.einsum("...id,...jd->...ij", q, k)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    o = np.einsum("...ij,...jd->...id", p, v)
    dp = np.einsum("...id,...jd->...ij", 2 * o, v)
    ds = scale * p * (dp - np.sum(p * dp, -1, keepdims=True))
    return [
        np.sum(o * o), np.einsum("...ij,...jd->...id", ds, k), np.einsum("...ij,...id->...jd", ds, q),
        np.einsum("...ij,...id->...jd", p, 2 * o),
    ]  # fmt: skip


def attention_args(batch: int, heads: int, rows: int, keys: int, dtype: type) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    shapes = [(batch, heads, n, d) for n, d in ((rows, 8), (keys, 8), (keys, 5))]
    return [rng.normal(size=s).astype(dtype) for s in shapes]


def check_attention(
    args: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, block: int = 32
) -> None:
    found = both(with_gradients(squared, 3), args, monkeypatch, block)
    bound = 1e-12 if args[0].dtype == np.float64 else 2e-5
    for result, reference in zip(found, attention_in_numpy(args), strict=True):
        assert np.abs(result - reference).max() <= bound * np.abs(reference).max()


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_head_at_a_time(
    block: int, dtype: type, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches of two heads and one more: blocks that divide them and blocks that do not."""
    only(monkeypatch, Cut(6, 1, False, 1))
    check_attention(attention_args(3, 2, 40, 33, dtype), monkeypatch, block)


@pytest.mark.parametrize("rows", [32, 96, 384, 448, 1152])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_of_all_heads(
    rows: int, dtype: type, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients for keys and values are sums over the rows of a head, in units of its own."""
    only(monkeypatch, Cut(6 * rows, 6, True, 32))
    check_attention(attention_args(3, 2, rows, 33, dtype), monkeypatch)


def test_scores_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a value and a gradient take beside inputs and results, next to 33.5 MB of scores."""
    args = attention_args(1, 4, 1024, 1024, np.float64)
    value = sg.compile(attention)
    value(*args)
    assert "stream of 4096 rows" in value.schedule()
    assert value.memory().temporaries < 3e6
    gradient = sg.compile(with_gradients(squared, 3))
    gradient(*args)
    assert gradient.memory().temporaries < 8e6


def test_attention_is_that_of_an_eager_run(monkeypatch: pytest.MonkeyPatch) -> None:
    args = attention_args(1, 2, 448, 448, np.float64)
    only(monkeypatch, Cut(896, 2, True, 32))
    found = both(with_gradients(squared, 3), args, monkeypatch)
    monkeypatch.undo()
    tensors = [sg.tensor(a, requires_grad=True) for a in args]
    loss = squared(*tensors)
    loss.backward()
    for a, b in zip(found, [loss.detach(), *[t.grad for t in tensors]], strict=True):
        assert np.asarray(a).tobytes() == b.numpy().tobytes()


def test_operands_that_all_heads_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that does not vary with the batch is neither a row's own nor an entry's."""

    def outputs(a: Any, b: Any, c: Any) -> Any:
        h = sg.tanh(a @ b)
        return h @ c, (h.transpose(-1, -2) @ a).sum(0), h.amax(-1)

    rng = np.random.default_rng(7)
    a, b, c = rng.normal(size=(4, 64, 6)), rng.normal(size=(6, 9)), rng.normal(size=(4, 9, 3))
    h = np.tanh(a @ b)
    expected = h @ c, np.einsum("bij,bik->jk", h, a), h.max(-1)
    for cut in (Cut(256, 4, True, 32), Cut(256, 1, True, 32), Cut(4, 1, False, 1)):
        only(monkeypatch, cut)
        found = both(outputs, [a, b, c], monkeypatch)
        for result, reference in zip(found, expected, strict=True):
            np.testing.assert_allclose(result, reference, rtol=1e-12, atol=1e-12)


# -- a mixture ---------------------------------------------------------------------------


def mixture(weights: Any, means: Any, factors: Any, x: Any) -> Any:
    (n, d), parts = x.shape, means.shape[0]
    z = (x @ factors.reshape(parts * d, d).T).reshape(n, parts, d) - means
    return sg.logsumexp(weights - 0.5 * (z * z).sum(2), 1).sum()


def mixture_in_numpy(args: list[np.ndarray]) -> list[np.ndarray]:
    """The likelihood and its gradient by the chain rule, written out."""
    weights, means, factors, x = args
    z = np.einsum("kij,nj->nki", factors, x) - means
    terms = weights - 0.5 * np.sum(z * z, 2)
    top = terms.max(1, keepdims=True)
    total = np.log(np.sum(np.exp(terms - top), 1, keepdims=True)) + top
    share = np.exp(terms - total)
    dz = -share[:, :, None] * z
    return [np.sum(total), share.sum(0), -dz.sum(0), np.einsum("nki,nj->kij", dz, x)]


def mixture_args(rows: int, parts: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(parts)
    shapes = [(parts,), (parts, size), (parts, size, size), (rows, size)]
    return [rng.normal(size=s) for s in shapes]


@pytest.mark.parametrize("block", [1, 2, 8])
@pytest.mark.parametrize("rows", [40, 400])
def test_parts_side_by_side(
    block: int, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven components lie side by side in each row of points; streams take some of them at a time."""
    args = mixture_args(rows, 7, 24)
    only(monkeypatch, Cut(7, 1, False, 1))
    found = both(with_gradients(mixture, 3), args, monkeypatch, block)
    for result, reference in zip(found, mixture_in_numpy(args), strict=True):
        assert np.abs(result - reference).max() <= 1e-11 * np.abs(reference).max()


def test_points_first_and_parts_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for all points is a stream over components."""
    args = mixture_args(1000, 40, 40)
    f = sg.compile(with_gradients(mixture, 3))
    alone = compiled(with_gradients(mixture, 3), monkeypatch, False)
    expected = alone(*args)
    monkeypatch.undo()
    for a, b in zip(f(*args), expected, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert "stream of 1000 rows" in f.schedule()
    assert "stream of 40 rows" in f.schedule()
    # Of the values of 12.8 MB one is whole at a time.
    assert f.memory().temporaries < 1.3 * 12.8e6
