"""Programs over pairs: rows and columns of n² values are reduced in one pass, and none is stored."""

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import layout, pool

SIZES = [(64, 64), (97, 401), (385, 384), (1200, 70), (70, 1200), (800, 900)]


def lennard_jones(X, eye):
    d = X[:, None, :] - X[None, :, :]
    r2 = (d * d).sum(2) + eye
    i2 = 1.0 / r2
    i6 = i2 * i2 * i2
    return 2.0 * (i6 * (i6 - 1.0)).sum()


def forces(X, eye):
    X.requires_grad_()
    energy = lennard_jones(X, eye)
    return energy, -sg.autograd.grad(energy, X)[0]


def hessian_product(X, V, eye):
    X.requires_grad_()
    (g,) = sg.autograd.grad(lennard_jones(X, eye), X, create_graph=True)
    return sg.autograd.grad(g, X, V)[0]


def particles(n):
    rng = np.random.default_rng(3)
    grid = np.stack(np.meshgrid(*[np.arange(8.0)] * 3, indexing="ij"), -1).reshape(-1, 3)[:n]
    return 1.12 * grid + 0.05 * rng.normal(size=(n, 3)), rng.normal(size=(n, 3)), np.eye(n)


def pair_terms(X, eye):
    d = X[:, None] - X[None]
    return d, (d * d).sum(2) + eye


def test_forces_store_no_pairs():
    X, _, eye = particles(400)
    f = sg.compile(forces)
    energy, found = f(X, eye)
    d, r2 = pair_terms(X, eye)
    s = (48.0 * r2**-7 - 24.0 * r2**-4) * (1.0 - eye)
    np.testing.assert_allclose(energy, 2.0 * np.sum(r2**-6 - r2**-3), rtol=1e-12)
    np.testing.assert_allclose(found, (s[..., None] * d).sum(1), rtol=1e-10, atol=1e-9)
    assert f.memory().temporaries < 400 * 400 * 8 / 2
    assert f.schedule().count("[400, 400]") == 1


def test_hessian_product_stores_no_pairs():
    X, V, eye = particles(400)
    f = sg.compile(hessian_product)
    found = f(X, V, eye)
    d, r2 = pair_terms(X, eye)
    dv = V[:, None] - V[None]
    a = (24.0 * r2**-4 - 48.0 * r2**-7) * (1.0 - eye)
    b = (-192.0 * r2**-5 + 672.0 * r2**-8) * (1.0 - eye)
    expected = (a[..., None] * dv + (b * (d * dv).sum(2))[..., None] * d).sum(1)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-8)
    assert f.memory().temporaries < 400 * 400 * 8 / 2
    assert f.schedule().count("[400, 400") == 1


def kernel_values(x, y, w):
    """Something dear for each pair, of any symmetry."""
    return sg.exp(-((x[:, None] - y[None, :]) ** 2)) * w + sg.sin(w)


DIRECTIONS = {
    "sum of columns": lambda v: v.sum(0),
    "sum of rows": lambda v: v.sum(1),
    "largest of columns": lambda v: v.amax(0),
    "smallest of rows": lambda v: v.amin(1),
    "product of columns": lambda v: (v * 0.01 + 1.0).prod(0),
    "squares of rows": lambda v: (v * v).sum(1),
}


def drawn(n, m, dtype):
    rng = np.random.default_rng(n + m)
    return [rng.normal(size=s).astype(dtype) for s in ((n,), (m,), (n, m))]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", SIZES)
def test_both_directions_have_the_bits_of_each_alone(shape, dtype):
    arrays = drawn(*shape, dtype)
    together = sg.compile(
        lambda x, y, w: [reduced(kernel_values(x, y, w)) for reduced in DIRECTIONS.values()]
    )
    results = together(*arrays)
    assert together.schedule().count(f"[{shape[0]}, {shape[1]}]") == 1
    for found, (name, reduced) in zip(results, DIRECTIONS.items(), strict=True):
        alone = sg.compile(lambda x, y, w, r=reduced: r(kernel_values(x, y, w)))(*arrays)
        np.testing.assert_array_equal(found, alone, err_msg=name)
    eager = [reduced(kernel_values(*map(sg.tensor, arrays))) for reduced in DIRECTIONS.values()]
    for found, value in zip(results, eager, strict=True):
        np.testing.assert_array_equal(found, value.numpy())


@pytest.mark.parametrize("shape", SIZES)
def test_both_directions_against_numpy(shape):
    x, y, w = drawn(*shape, np.float64)
    values = np.exp(-((x[:, None] - y[None, :]) ** 2)) * w + np.sin(w)
    f = sg.compile(lambda x, y, w: [r(kernel_values(x, y, w)) for r in DIRECTIONS.values()])
    expected = [
        values.sum(0), values.sum(1), values.max(0), values.min(1),
        (values * 0.01 + 1.0).prod(0), (values * values).sum(1),
    ]  # fmt: skip
    for found, value in zip(f(x, y, w), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-11, atol=1e-11)


def test_threads_and_phases_change_no_bits(monkeypatch):
    arrays = drawn(1700, 90, np.float64)

    def program(x, y, w):
        v = kernel_values(x, y, w)
        return v.sum(0), v.sum(1)

    before = pool.get_num_threads()
    first = sg.compile(program)(*arrays)
    try:
        pool.set_num_threads(1)
        alone = sg.compile(program)(*arrays)
    finally:
        pool.set_num_threads(before)
    monkeypatch.setattr(layout, "PARTS_BYTES", 1)
    monkeypatch.setattr(layout, "MAX_PARTS", 2)
    in_phases = sg.compile(program)(*arrays)
    for a, b, c in zip(first, alone, in_phases, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_values_of_pairs_that_are_asked_for_are_stored_in_the_same_pass():
    x, y, w = drawn(100, 130, np.float64)

    def program(x, y, w):
        v = kernel_values(x, y, w)
        return v, v.sum(0), v.sum(1)

    f = sg.compile(program)
    v, columns, rows = f(x, y, w)
    assert f.schedule().count("[100, 130]") == 1
    np.testing.assert_allclose(v, np.exp(-((x[:, None] - y) ** 2)) * w + np.sin(w), rtol=1e-13)
    np.testing.assert_array_equal(columns, sg.compile(lambda v: v.sum(0))(v))
    np.testing.assert_array_equal(rows, sg.compile(lambda v: v.sum(1))(v))


def test_signs_of_zero_and_nan_pass_through_both_directions():
    w = np.full((70, 90), -0.0)
    w[3, 5] = np.nan
    one = np.ones(70)

    def program(w, one):
        v = w / one[:, None] / one[:, None]
        return v.sum(0), v.sum(1), v.amax(0), v.amax(1)

    f = sg.compile(program)
    columns, rows, top, right = f(w, one)
    assert f.schedule().count("[70, 90]") == 1
    for found, place in ((columns, 5), (rows, 3), (top, 5), (right, 3)):
        assert np.isnan(found[place]) and np.isnan(found).sum() == 1
        assert np.signbit(np.delete(found, place)).all()


def test_cheap_values_and_short_axes_keep_nests_of_their_own():
    x = np.random.default_rng(0).normal(size=(300, 200))
    cheap = sg.compile(lambda x: ((x + 1.0).sum(0), (x + 1.0).sum(1)))
    cheap(x)
    assert cheap.schedule().count("[300, 200]") == 2
    short = sg.compile(lambda x: (sg.exp(sg.exp(x)).sum(0), sg.exp(sg.exp(x)).sum(1)))
    rows, columns = short(x[:, :20].copy())
    np.testing.assert_allclose(rows, np.exp(np.exp(x[:, :20])).sum(0), rtol=1e-13)
    np.testing.assert_allclose(columns, np.exp(np.exp(x[:, :20])).sum(1), rtol=1e-13)


def test_rows_that_no_cache_holds_keep_nests_of_their_own():
    x, y = np.linspace(-1.0, 1.0, 64), np.linspace(0.0, 1.0, 70_000)

    def program(x, y):
        v = sg.exp(-((x[:, None] - y) ** 2))
        return v.sum(0), v.sum(1)

    f = sg.compile(program)
    columns, rows = f(x, y)
    values = np.exp(-((x[:, None] - y) ** 2))
    np.testing.assert_allclose(columns, values.sum(0), rtol=1e-13)
    np.testing.assert_allclose(rows, values.sum(1), rtol=1e-13)
    assert f.schedule().count("[64, 70000]") == 2


def test_values_at_swapped_places_are_not_shared():
    """The transpose of what one sum takes has its elements elsewhere: two nests, each in its order."""
    n = 80
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=n), rng.normal(size=(n, n))

    def program(x, w):
        v = sg.exp(x[:, None] * w)
        return v.sum(1), v.permute(1, 0).sum(0), v.permute(1, 0).sum(1)

    f = sg.compile(program)
    values = np.exp(x[:, None] * w)
    for found, expected in zip(f(x, w), (values.sum(1), values.sum(1), values.sum(0)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert f.schedule().count("[80, 80]") == 2


@pytest.mark.parametrize("columns", [16, 100, 401, 800])
def test_differences_are_needed_before_and_after_a_division(columns):
    """The division of the next vector is begun early: what else it needs belongs to either vector."""
    rng = np.random.default_rng(columns)
    x, y = rng.normal(size=90), rng.normal(size=columns)

    def program(x, y):
        d = x[:, None] - y[None, :]
        v = d / (d * d + 1.0) * d / (y * y + d * d + 1.0)
        return (v * d).sum(0), (v * d).sum(1)

    d = x[:, None] - y
    v = d / (d * d + 1.0) * d / (y * y + d * d + 1.0) * d
    eager = program(sg.tensor(x), sg.tensor(y))
    for found, value, axis in zip(sg.compile(program)(x, y), eager, (0, 1), strict=True):
        np.testing.assert_allclose(found, v.sum(axis), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(found, value.numpy())
