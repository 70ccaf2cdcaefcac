"""Streams: steps run block by block over shared rows give the values of NumPy and the bits of steps alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import pool, stream

ROWS = [32, 383, 384, 385, 1000]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run with this many threads."""
    before = pool.get_num_threads()
    pool.set_num_threads(request.param)
    yield request.param
    pool.set_num_threads(before)


def compiled(
    f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, streams: bool, block: int = 64
) -> Any:
    """`f` with streams wherever they are possible, or with none."""
    monkeypatch.setattr(stream, "CHUNKS_PER_THREAD", 0)
    monkeypatch.setattr(stream, "BLOCKS", (block,))
    monkeypatch.setattr(stream, "WORTH_BYTES", -(1 << 60) if streams else 1 << 60)
    return sg.compile(f)


def both(
    f: Callable[..., Any],
    args: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    block: int = 64,
) -> list[np.ndarray]:
    """The results of a streamed `f`, once they are found to be those of steps alone to the bit."""
    alone = compiled(f, monkeypatch, False)
    expected = alone(*args)
    assert "stream" not in alone.schedule()
    streamed = compiled(f, monkeypatch, True, block)
    found = streamed(*args)
    assert "stream" in streamed.schedule()
    again = streamed(*args)
    for a, b, c in zip(expected, found, again, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes() == np.asarray(c).tobytes()
    return list(found)


def with_gradients(loss: Callable[..., Any], count: int) -> Callable[..., Any]:
    def outputs(*args: Any) -> Any:
        for a in args[:count]:
            a.requires_grad_()
        value = loss(*args)
        return value, *sg.autograd.grad(value, args[:count])

    return outputs


# -- a network ---------------------------------------------------------------------------


def network(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, x: Any, y: Any) -> Any:
    h = sg.tanh(x @ w1 + b1)
    h = sg.tanh(h @ w2 + b2)
    return ((h @ w3 - y) ** 2).mean()


def network_in_numpy(args: list[np.ndarray]) -> list[np.ndarray]:
    """Loss and gradient by the chain rule, written out."""
    w1, b1, w2, b2, w3, x, y = (a.astype(np.float64) for a in args)
    h1 = np.tanh(x @ w1 + b1)
    h2 = np.tanh(h1 @ w2 + b2)
    e = h2 @ w3 - y
    g3 = 2 * e / e.size
    g2 = (g3 @ w3.T) * (1 - h2 * h2)
    g1 = (g2 @ w2.T) * (1 - h1 * h1)
    return [np.mean(e * e), x.T @ g1, g1.sum(0), h1.T @ g2, g2.sum(0), h2.T @ g3]


def network_args(rows: int, dtype: type) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    shapes = [(3, 21), (21,), (21, 17), (17,), (17, 5), (rows, 3), (rows, 5)]
    return [rng.normal(size=s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_network(rows: int, dtype: type, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    args = network_args(rows, dtype)
    found = both(with_gradients(network, 5), args, monkeypatch)
    bound = 1e-12 if dtype is np.float64 else 2e-5
    for result, reference in zip(found, network_in_numpy(args), strict=True):
        assert np.abs(result - reference).max() <= bound * np.abs(reference).max()


def test_bits_are_those_of_an_eager_run(monkeypatch: pytest.MonkeyPatch) -> None:
    args = network_args(1000, np.float64)
    found = both(with_gradients(network, 5), args, monkeypatch)
    tensors = [sg.tensor(a, requires_grad=k < 5) for k, a in enumerate(args)]
    loss = network(*tensors)
    loss.backward()
    eager = [loss.detach(), *[t.grad for t in tensors[:5]]]
    for a, b in zip(found, eager, strict=True):
        assert np.asarray(a).tobytes() == b.numpy().tobytes()


def test_many_units_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    args = network_args(384 * 13 + 7, np.float64)
    blocks = iter(stream.BLOCKS)
    before = pool.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3, 5):
            pool.set_num_threads(count)
            block = next(blocks)
            results.append(both(with_gradients(network, 5), args, monkeypatch, block))
    finally:
        pool.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# -- kinds of steps ----------------------------------------------------------------------


def logistic(w: Any, x: Any, y: Any) -> Any:
    z = x @ w
    return (sg.nn.functional.softplus(z) - y * z).sum()


@pytest.mark.parametrize("rows", ROWS)
def test_products_with_vectors(rows: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=40), rng.normal(size=(rows, 40))
    y = rng.integers(0, 2, rows).astype(float)
    value, gradient = both(with_gradients(logistic, 1), [w, x, y], monkeypatch)
    z = x @ w
    np.testing.assert_allclose(value, np.sum(np.logaddexp(0, z) - y * z), rtol=1e-12)
    np.testing.assert_allclose(gradient, x.T @ (1 / (1 + np.exp(-z)) - y), rtol=1e-9, atol=1e-11)


def reductions(x: Any, w: Any) -> Any:
    h = x @ w
    e = sg.exp(h - h.amax(1, keepdim=True))
    p = e / e.sum(1, keepdim=True)
    return (
        p.sum(0), p.amax(0), h.amin(0), (0.5 + p).prod(0), (p > 0.2).any(0), (p > 0.0).all(0),
        p.cumsum(1).sum(0), sg.cat([p, h], 1).sum(0), p.T @ h, h.mean(),
    )  # fmt: skip


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_reductions(rows: int, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 4)).astype(dtype)
    w = rng.normal(size=(4, 9)).astype(dtype)
    found = both(reductions, [x, w], monkeypatch)
    h = (x @ w).astype(np.float64)
    e = np.exp(h - h.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    expected = [
        p.sum(0), p.max(0), h.min(0), np.prod(0.5 + p, 0), (p > 0.2).any(0), (p > 0.0).all(0),
        np.cumsum(p, 1).sum(0), np.concatenate([p, h], 1).sum(0), p.T @ h, h.mean(),
    ]  # fmt: skip
    bound = 1e-10 if dtype is np.float64 else 2e-3
    for result, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=bound, atol=bound)


def whitened(x: Any, w: Any) -> Any:
    h = sg.tanh(x @ w)
    centred = h - h.mean(0)
    return (centred.T @ centred, (centred * centred).sum(1))


@pytest.mark.parametrize("rows", [385, 1000])
def test_rows_that_wait_for_all_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs a mean over the rows runs in a stream of its own, behind the first."""
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(rows, 4)), rng.normal(size=(4, 11))
    gram, norms = both(whitened, [x, w], monkeypatch)
    h = np.tanh(x @ w)
    centred = h - h.mean(0)
    np.testing.assert_allclose(gram, centred.T @ centred, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(norms, (centred**2).sum(1), rtol=1e-11, atol=1e-11)


def shifted(x: Any, w: Any) -> Any:
    h = sg.tanh(x @ w)
    return (sg.exp(h[1:] - h[:-1]) @ w.T).sum(0), h.flip(0).cumsum(0)[-1], (h @ h.T)[0]


@pytest.mark.parametrize("rows", [384, 500])
def test_rows_that_meet_other_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that reads a neighbour's row, or all rows, cannot join the stream that makes them."""
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(rows, 4)), rng.normal(size=(4, 6))
    f = compiled(shifted, monkeypatch, True)
    alone = compiled(shifted, monkeypatch, False)
    for a, b in zip(f(x, w), alone(x, w), strict=True):
        assert a.tobytes() == b.tobytes()
    h = np.tanh(x @ w)
    first, second, third = f(x, w)
    np.testing.assert_allclose(first, (np.exp(h[1:] - h[:-1]) @ w.T).sum(0), rtol=1e-10)
    np.testing.assert_allclose(second, h.sum(0), rtol=1e-10)
    np.testing.assert_allclose(third, h @ h[0], rtol=1e-10, atol=1e-12)


# -- cost --------------------------------------------------------------------------------


def physics(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, x: Any) -> Any:
    """A residual with a second derivative, as in physics-informed networks."""
    h = sg.tanh(x[:, None] @ w1 + b1)
    h = sg.tanh(h @ w2 + b2)
    u = (h @ w3)[:, 0]
    (ux,) = sg.autograd.grad(u.sum(), x, create_graph=True)
    (uxx,) = sg.autograd.grad(ux.sum(), x, create_graph=True)
    return ((uxx + u * ux) ** 2).mean()


def physics_args(rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = [(1, 50), (50,), (50, 50), (50,), (50, 1), (rows,)]
    return [rng.normal(size=s) / 3 for s in shapes]


def test_memory_hardly_grows_with_the_batch() -> None:
    def outputs(*args: Any) -> Any:
        for a in args:
            a.requires_grad_()
        loss = physics(*args)
        return loss, *sg.autograd.grad(loss, args[:5])

    peaks = []
    for rows in (4096, 16384):
        f = sg.compile(outputs)
        f(*physics_args(rows))
        assert "stream" in f.schedule()
        peaks.append(f.memory().peak)
    # A dozen values of a hidden layer take 1.6 MB each for the smaller batch and 6.5 for the larger.
    assert peaks[0] < 4e6
    assert peaks[1] < 6.5e6


def test_report_of_a_stream() -> None:
    f = sg.compile(with_gradients(network, 5))
    args = network_args(20_000, np.float64)
    f(*args)
    found = [s for s in f.report(*args).steps if s.kind == "stream"]
    assert found
    products = 2 * 20_000 * (3 * 21 * 2 + 21 * 17 * 3 + 17 * 5 * 3)
    assert found[0].flops is not None
    assert products < found[0].flops < 2 * products
    assert found[0].read_bytes < 2 * sum(a.nbytes for a in args)


def test_small_programs_stay_as_they_are() -> None:
    f = sg.compile(with_gradients(network, 5))
    f(*network_args(1000, np.float64))
    assert "stream" not in f.schedule()


def test_streams_that_fill_what_an_earlier_one_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros and what is written over them may end up in two streams."""
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(2, 7)), rng.normal(size=(4, 1, 2))

    def loss(x: Any, w: Any) -> Any:
        return (sg.nn.functional.conv1d(x, w, None, 2, 1, 2, 2) ** 2).sum()

    value, gx, gw = both(with_gradients(loss, 2), [x, w], monkeypatch)
    padded = np.pad(x, ((0, 0), (1, 1)))
    # Output o at place p adds up weight k times input 2p + 2k of the channel of its group.
    taps = np.stack([padded[:, 2 * k : 2 * k + 8 : 2][:, :4] for k in (0, 1)], 2)
    y = np.einsum("ok,opk->op", w[:, 0], taps[[0, 0, 1, 1]])
    expected = np.zeros_like(padded)
    for o in range(4):
        for k in (0, 1):
            expected[o // 2, 2 * k : 2 * k + 7 : 2] += 2 * y[o] * w[o, 0, k]
    np.testing.assert_allclose(value, np.sum(y * y), rtol=1e-12)
    np.testing.assert_allclose(gx, expected[:, 1:-1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        gw[:, 0], 2 * np.einsum("op,opk->ok", y, taps[[0, 0, 1, 1]]), rtol=1e-12
    )


def paths(start: Any, pull: Any, noise: Any) -> Any:
    """Walks with a variance that walks too: a row of `noise` is a step of all of them."""
    x, v = 0.0, start
    for k in range(noise.shape[0]):
        s = 0.1 * sg.sqrt(v) * noise[k]
        x, v = x - 0.005 * v + s, v + 0.01 * pull * (0.5 - v) + 0.05 * s
    return (sg.exp(x) * x).mean()


def paths_in_numpy(start: float, pull: float, noise: np.ndarray) -> list[float]:
    """The value, and its derivatives by tangents."""
    x, v = 0.0, np.full(noise.shape[1], start)
    dx, dv = np.zeros((2, 1)), np.array([[1.0], [0.0]])
    own = np.array([[0.0], [1.0]])
    for row in noise:
        s = 0.1 * np.sqrt(v) * row
        ds = 0.05 / np.sqrt(v) * row * dv
        dx = dx - 0.005 * dv + ds
        dv = dv - 0.01 * pull * dv + 0.01 * own * (0.5 - v) + 0.05 * ds
        x, v = x - 0.005 * v + s, v + 0.01 * pull * (0.5 - v) + 0.05 * s
    return [(np.exp(x) * x).mean(), *(np.exp(x) * (1 + x) * dx).mean(axis=1)]


@pytest.mark.parametrize("rows", [384, 1000])
def test_rows_that_lie_across_memory(
    rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(rows).normal(size=(100, rows))
    found = both(with_gradients(paths, 2), [0.4, 0.7, noise], monkeypatch)
    np.testing.assert_allclose(found, paths_in_numpy(0.4, 0.7, noise), rtol=1e-10)


def test_data_that_passes_by_is_no_burden_of_a_block() -> None:
    noise = np.random.default_rng(0).normal(size=(100, 20_000))
    f = sg.compile(with_gradients(paths, 2))
    found = f(0.4, 0.7, noise)
    np.testing.assert_allclose(found, paths_in_numpy(0.4, 0.7, noise), rtol=1e-10)
    assert "stream of 20000 rows" in f.schedule()
    assert f.memory().temporaries < noise.nbytes
