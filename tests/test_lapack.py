"""Library calls in compiled code: values, errors, threads, derivatives, what stays in Python."""

import math
import subprocess
import sys
import threading

import numpy as np
import pytest
import scipy.linalg

import symgrad as sg
from symgrad import dtypes
from symgrad.codegen import lapack, pool
from symgrad.errors import LinAlgError
from symgrad.ops import linalg
from symgrad.schedule.canonical import Node

SIZES = range(1, 21)
# Batches: none, few, none at all, and more than there are strips.
BATCHES = [(), (3,), (2, 0), (2, 17)]
DTYPES = [np.float64, np.float32]


def matrices(batch, rows, columns, dtype, seed=0):
    rng = np.random.default_rng([seed, rows, columns])
    return rng.uniform(-1, 1, (*batch, rows, columns)).astype(dtype)


def definite(batch, n, dtype):
    a = matrices(batch, n, n, np.float64)
    return (a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype(dtype)


def regular(batch, n, dtype):
    return (matrices(batch, n, n, np.float64) + 2 * math.sqrt(n) * np.eye(n)).astype(dtype)


def close(actual, expected, roundings=200.0):
    """Agreement relative to the largest element."""
    found = actual.numpy() if isinstance(actual, sg.Tensor) else np.asarray(actual)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    scale = np.abs(expected).max(initial=0.0)
    error = roundings * float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(found, expected, rtol=error, atol=error * scale)


def is_native(compiled):
    return compiled._latest().recipe.program.native


every = pytest.mark.parametrize(
    ("batch", "dtype"), [(b, d) for b in BATCHES for d in DTYPES], ids=str
)


@every
def test_cholesky(batch, dtype):
    for n in SIZES:
        a = definite(batch, n, dtype)
        close(sg.linalg.cholesky(sg.tensor(a)), np.linalg.cholesky(a))
        upper = sg.linalg.cholesky(sg.tensor(a), upper=True)
        close(upper, np.swapaxes(np.linalg.cholesky(a), -1, -2))


def test_cholesky_reads_the_lower_triangle_alone():
    a = definite((), 5, np.float64)
    low = np.tril(a) + np.triu(np.full((5, 5), np.nan), 1)
    close(sg.linalg.cholesky(sg.tensor(low)), np.linalg.cholesky(a))


@every
@pytest.mark.parametrize("columns", [1, 4])
def test_triangular_systems(batch, dtype, columns):
    for n in SIZES:
        a = regular(batch, n, dtype)
        b = matrices(batch, n, columns, dtype, 1)
        for upper in (False, True):
            m = np.triu(a) if upper else np.tril(a)
            x = sg.linalg.solve_triangular(sg.tensor(a), sg.tensor(b), upper=upper)
            close(x, np.linalg.solve(m, b))
        # Small off the diagonal, or the inverse of a unit triangle grows with the size.
        small = (a / (4 * n)).astype(dtype)
        unit = np.tril(small, -1) + np.eye(n, dtype=dtype)
        x = sg.linalg.solve_triangular(
            sg.tensor(small), sg.tensor(b), upper=False, unitriangular=True
        )
        close(x, np.linalg.solve(unit, b))


def test_a_zero_on_the_diagonal_gives_what_division_gives():
    a = np.array([[1.0, 0.0], [1.0, 0.0]])
    x = sg.linalg.solve_triangular(sg.tensor(a), sg.tensor(np.array([[1.0], [3.0]])), upper=False)
    np.testing.assert_array_equal(x.numpy(), [[1.0], [np.inf]])


@every
@pytest.mark.parametrize("columns", [1, 4])
def test_general_systems(batch, dtype, columns):
    for n in SIZES:
        a = regular(batch, n, dtype)
        b = matrices(batch, n, columns, dtype, 1)
        close(sg.linalg.solve(sg.tensor(a), sg.tensor(b)), np.linalg.solve(a, b))


def test_rows_are_exchanged():
    a = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 4.0], [8.0, 0.0, 0.0]])
    b = np.array([[2.0, 4.0], [4.0, 8.0], [8.0, 16.0]])
    expected = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    np.testing.assert_array_equal(sg.linalg.solve(sg.tensor(a), sg.tensor(b)).numpy(), expected)
    one = sg.linalg.solve(sg.tensor(a), sg.tensor(b[:, 0]))
    np.testing.assert_array_equal(one.numpy(), expected[:, 0])
    inverse = [[0.0, 0.0, 0.125], [0.5, 0.0, 0.0], [0.0, 0.25, 0.0]]
    np.testing.assert_array_equal(sg.linalg.inv(sg.tensor(a)).numpy(), inverse)
    assert sg.linalg.det(sg.tensor(a)).item() == 64.0
    assert sg.linalg.det(sg.tensor(a[[1, 0, 2]])).item() == -64.0


def test_columns_of_different_scale_keep_their_digits():
    # Pivots are sought along the columns of A, so scaling a column scales one unknown alone.
    a, b = regular((), 6, np.float64), matrices((), 6, 1, np.float64, 1)
    scale = 2.0 ** np.array([0, -300, 300, 20, -20, 100])
    plain = sg.linalg.solve(sg.tensor(a), sg.tensor(b)).numpy()
    scaled = sg.linalg.solve(sg.tensor(a * scale), sg.tensor(b)).numpy()
    np.testing.assert_allclose(scaled * scale[:, None], plain, rtol=1e-13)


@every
def test_inverse(batch, dtype):
    for n in SIZES:
        a = regular(batch, n, dtype)
        close(sg.linalg.inv(sg.tensor(a)), np.linalg.inv(a))


@every
def test_determinants(batch, dtype):
    for n in SIZES:
        a = matrices(batch, n, n, dtype)
        wide = a.astype(np.float64)
        close(sg.linalg.det(sg.tensor(a)), np.linalg.det(wide).astype(dtype), 1e4)
        sign, logarithm = sg.linalg.slogdet(sg.tensor(a))
        expected = np.linalg.slogdet(wide)
        np.testing.assert_array_equal(sign.numpy(), expected[0])
        close(logarithm, expected[1].astype(dtype), 1e4)


def test_determinants_of_singular_matrices():
    a = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert sg.linalg.det(sg.tensor(a)).item() == 0.0
    sign, logarithm = sg.linalg.slogdet(sg.tensor(a))
    assert (sign.item(), logarithm.item()) == (0.0, -math.inf)


def test_determinants_do_not_overflow_on_the_way():
    a = np.diag([1e200, 1e200, -1e-250, 1e-150])
    np.testing.assert_allclose(sg.linalg.det(sg.tensor(a)).item(), -1.0, rtol=1e-15)
    b = np.diag([1e-200, 1e-200, 1e250, 1e150])
    np.testing.assert_allclose(sg.linalg.det(sg.tensor(b)).item(), 1.0, rtol=1e-15)
    assert sg.linalg.det(sg.tensor(np.diag([1e200, -1e200]))).item() == -math.inf
    assert math.isnan(sg.linalg.det(sg.tensor(np.array([[np.nan, 1.0], [1.0, 2.0]]))).item())


@every
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvectors(batch, dtype, uplo):
    for n in SIZES:
        a = matrices(batch, n, n, dtype)
        values, vectors = (x.numpy() for x in sg.linalg.eigh(sg.tensor(a), UPLO=uplo))
        expected = np.linalg.eigvalsh(a, uplo)
        close(values, expected)
        inside = np.tril(a) if uplo == "L" else np.triu(a)
        whole = inside + np.swapaxes(inside, -1, -2) - inside * np.eye(n, dtype=dtype)
        across = np.swapaxes(vectors, -1, -2)
        close((vectors * values[..., None, :]) @ across, whole)
        close(across @ vectors, np.broadcast_to(np.eye(n, dtype=dtype), a.shape))


def test_eigenvectors_of_what_is_not_finite_are_unknown():
    a = np.stack([np.eye(3), np.eye(3), np.eye(3)])
    a[0, 0, 2], a[2, 1, 1] = np.inf, np.nan
    values, vectors = sg.linalg.eigh(sg.tensor(a))
    assert np.isnan(values.numpy()).all(axis=-1).tolist() == [True, False, True]
    assert np.isnan(vectors.numpy()).all(axis=(-1, -2)).tolist() == [True, False, True]
    np.testing.assert_array_equal(values.numpy()[1], np.ones(3))


@every
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr(batch, dtype, mode):
    for rows in (1, 2, 5, 13):
        for columns in (1, 2, 5, 13):
            a = matrices(batch, rows, columns, dtype)
            q, r = sg.linalg.qr(sg.tensor(a), mode=mode)
            expected = np.linalg.qr(a, mode)
            # Beyond the rank Q is any basis, and is compared through what it does.
            kept = min(rows, columns)
            close(q.numpy()[..., :kept], expected[0][..., :kept])
            close(r, expected[1])
            unit = np.eye(q.shape[-1], dtype=dtype)
            square = np.swapaxes(q.numpy(), -1, -2) @ q.numpy()
            close(square, np.broadcast_to(unit, square.shape))


@every
@pytest.mark.parametrize("full", [False, True])
def test_singular_values(batch, dtype, full):
    for rows in (1, 3, 12):
        for columns in (1, 3, 12):
            a = matrices(batch, rows, columns, dtype)
            parts = sg.linalg.svd(sg.tensor(a), full_matrices=full)
            u, s, vh = (x.numpy() for x in parts)
            close(s, np.linalg.svd(a, compute_uv=False))
            k = min(rows, columns)
            close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a)
            left, right = np.swapaxes(u, -1, -2) @ u, vh @ np.swapaxes(vh, -1, -2)
            close(left, np.broadcast_to(np.eye(u.shape[-1], dtype=dtype), left.shape))
            close(right, np.broadcast_to(np.eye(vh.shape[-2], dtype=dtype), right.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu(dtype):
    for shape in [(4, 4), (6, 3), (3, 6), (1, 5)]:
        a = matrices((), *shape, dtype)
        factors, pivots = sg.linalg.lu_factor(sg.tensor(a))
        expected = scipy.linalg.lapack.get_lapack_funcs("getrf", (a,))(a)
        close(factors, expected[0])
        np.testing.assert_array_equal(pivots.numpy(), expected[1] + 1)


def test_large_matrices():
    n = 150
    a, b = definite((), n, np.float64), matrices((), n, n, np.float64, 1)
    close(sg.linalg.cholesky(sg.tensor(a)), np.linalg.cholesky(a), 1e3)
    close(sg.linalg.solve(sg.tensor(a), sg.tensor(b)), np.linalg.solve(a, b), 1e3)
    q, r = sg.linalg.qr(sg.tensor(b))
    close((q @ r).numpy(), b, 1e3)


def test_scratch_memory_from_the_heap(monkeypatch):
    monkeypatch.setattr(lapack, "MAX_SCRATCH", 100)
    a, b = regular((20,), 7, np.float64), matrices((20,), 7, 3, np.float64, 1)
    f = sg.compile(lambda a, b: (sg.linalg.solve(a, b), sg.linalg.det(a)))
    for _ in range(2):
        solved, determinants = f(a, b)
        close(solved, np.linalg.solve(a, b))
        close(determinants, np.linalg.det(a))
    assert is_native(f)
    assert f._latest().recipe.program.arena_bytes < 7 * 7 * 8


# -- compiled functions -------------------------------------------------------------------


def evidence(scale, x, y):
    """Log density of y under a Gaussian process, but for a constant."""
    apart = x.reshape(-1, 1) - x.reshape(1, -1)
    k = sg.exp(-0.5 * apart * apart / scale**2) + 0.1 * sg.eye(8, dtype=sg.float64)
    low = sg.linalg.cholesky(k)
    solved = sg.cholesky_solve(y.reshape(-1, 1), low).reshape(-1)
    return -0.5 * (y * solved).sum() - sg.log(sg.diagonal(low)).sum()


def evidence_reference(scale, x, y):
    k = np.exp(-0.5 * (x[:, None] - x) ** 2 / scale**2) + 0.1 * np.eye(8)
    return -0.5 * y @ np.linalg.solve(k, y) - 0.5 * np.linalg.slogdet(k)[1]


X, Y = np.linspace(-1, 1, 8), np.sin(3 * np.linspace(-1, 1, 8))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: sg.linalg.solve(a, b).sum(),
        lambda a, b: sg.linalg.solve_triangular(a, b, upper=True),
        lambda a, b: sg.linalg.cholesky(a @ a.mT) @ b,
        lambda a, b: sg.linalg.inv(a) * 2.0,
        lambda a, b: (sg.linalg.det(a), sg.linalg.slogdet(a)[1]),
        lambda a, b: tuple(sg.linalg.eigh(a)),
        lambda a, b: tuple(sg.linalg.qr(a)),
        lambda a, b: tuple(sg.linalg.svd(a)),
    ],
)
def test_a_compiled_function_is_one_native_call_with_the_bits_of_eager(function):
    a, b = regular((), 5, np.float64), matrices((), 5, 2, np.float64, 1)
    f = sg.compile(function)
    for _ in range(2):
        found = f(a, b)
    assert is_native(f)
    eager = function(sg.tensor(a), sg.tensor(b))
    pairs = zip(found, eager, strict=True) if isinstance(found, tuple) else [(found, eager)]
    for one, other in pairs:
        np.testing.assert_array_equal(one, other.numpy())


def test_gaussian_process_is_one_native_call():
    f = sg.compile(evidence)
    for scale in (0.5, 0.7, 0.9):
        np.testing.assert_allclose(f(scale, X, Y), evidence_reference(scale, X, Y), rtol=1e-12)
    assert is_native(f)


def test_its_derivatives_agree_with_differences_to_second_order():
    def both(scale, x, y):
        scale.requires_grad_()
        value = evidence(scale, x, y)
        (first,) = sg.autograd.grad(value, scale, create_graph=True)
        (second,) = sg.autograd.grad(first, scale)
        return first, second

    f = sg.compile(both)
    step = 1e-4

    def reference(at):
        return evidence_reference(at, X, Y)

    first, second = f(0.6, X, Y)
    assert is_native(f)
    slope = (reference(0.6 + step) - reference(0.6 - step)) / (2 * step)
    np.testing.assert_allclose(first, slope, rtol=1e-6)
    bend = (f(0.6 + step, X, Y)[0] - f(0.6 - step, X, Y)[0]) / (2 * step)
    np.testing.assert_allclose(second, bend, rtol=1e-6)
    twice = (reference(0.6 + step) - 2 * reference(0.6) + reference(0.6 - step)) / step**2
    np.testing.assert_allclose(second, twice, rtol=1e-4)


@pytest.mark.parametrize("columns", [1, 3])
def test_derivatives_of_a_solve_agree_with_differences_to_second_order(columns):
    a, b = regular((2,), 4, np.float64), matrices((2,), 4, columns, np.float64, 1)
    v = matrices((2,), 4, 4, np.float64, 2)

    def product(a, b, v):
        a.requires_grad_()
        value = (sg.linalg.solve(a, b) ** 3).sum()
        (first,) = sg.autograd.grad(value, a, create_graph=True)
        (second,) = sg.autograd.grad((first * v).sum(), a)
        return first, second

    f = sg.compile(product)
    first, second = f(a, b, v)
    assert is_native(f)

    def value(m):
        return (np.linalg.solve(m, b) ** 3).sum()

    step = 1e-5
    slope = (value(a + step * v) - value(a - step * v)) / (2 * step)
    np.testing.assert_allclose((first * v).sum(), slope, rtol=1e-7)
    bend = (f(a + step * v, b, v)[0] - f(a - step * v, b, v)[0]) / (2 * step)
    np.testing.assert_allclose(second, bend, rtol=1e-6, atol=1e-8 * np.abs(bend).max())


# -- failures -----------------------------------------------------------------------------


FAILING = [
    (sg.linalg.cholesky, -np.eye(3), r"linalg\.cholesky: The factorization .* order 1 is not"),
    (sg.linalg.cholesky, np.diag([1.0, 1.0, -1.0]), r"order 3 is not positive-definite"),
    (
        sg.linalg.cholesky,
        np.stack([np.eye(2), np.diag([1.0, -1.0])]),
        r"\(Batch element 1\): .* order 2 is not",
    ),
    (
        lambda a: sg.linalg.solve(a, a),
        np.ones((2, 2)),
        r"linalg\.solve: The solver failed because the input matrix is singular",
    ),
    (
        lambda a: sg.linalg.solve(a, a[..., 0]),
        np.stack([np.eye(2), np.eye(2), np.zeros((2, 2))]),
        r"linalg\.solve: \(Batch element 2\): The solver failed",
    ),
    (sg.linalg.inv, np.ones((2, 2)), r"linalg\.inv: The diagonal element 2 is zero"),
    (sg.linalg.svd, np.full((2, 2), np.nan), r"linalg\.svd: .*non-finite"),
]


@pytest.mark.parametrize(("function", "bad", "words"), FAILING)
def test_failures_raise_the_same_error_eager_and_compiled(function, bad, words):
    with pytest.raises(LinAlgError, match=words):
        function(sg.tensor(bad))
    f = sg.compile(lambda a: function(a)[0] if function is sg.linalg.svd else function(a) + 1.0)
    good = np.broadcast_to(np.eye(bad.shape[-1]) * 2.0, bad.shape).copy()
    expected = f(good)
    for _ in range(3):
        with pytest.raises(LinAlgError, match=words):
            f(bad)
        np.testing.assert_array_equal(f(good), expected)
    assert is_native(f)


def test_failures_in_a_program_with_python_routines_raise_too():
    # Sorting keeps its routine, so this program is run step by step.
    f = sg.compile(lambda a: sg.sort(sg.linalg.cholesky(a).reshape(-1)).values)
    np.testing.assert_array_equal(f(np.eye(2)), [0.0, 0.0, 1.0, 1.0])
    assert not is_native(f)
    with pytest.raises(LinAlgError, match="order 2 is not positive-definite"):
        f(np.diag([1.0, -1.0]))
    np.testing.assert_array_equal(f(np.eye(2)), [0.0, 0.0, 1.0, 1.0])


def test_gradient_of_slogdet_at_a_singular_matrix_is_not_an_error():
    def slope(a):
        a.requires_grad_()
        return sg.autograd.grad(sg.linalg.slogdet(a)[1], a)[0]

    f = sg.compile(slope)
    a = regular((), 3, np.float64)
    close(f(a), np.linalg.inv(a).T)
    assert np.isinf(f(np.zeros((3, 3)))).all()
    assert is_native(f)


def slope_of_det(a):
    a.requires_grad_()
    return sg.autograd.grad(sg.linalg.det(a).sum(), a)[0]


@every
def test_gradient_of_the_determinant(batch, dtype):
    for n in SIZES:
        a = regular(batch, n, dtype)
        wide = a.astype(np.float64)
        inverse = np.swapaxes(np.linalg.inv(wide), -1, -2)
        expected = np.linalg.det(wide)[..., None, None] * inverse
        f = sg.compile(slope_of_det)
        close(f(a), expected.astype(dtype))
        assert is_native(f) or n == 1


def test_gradient_of_the_determinant_at_singular_matrices():
    f = sg.compile(slope_of_det)
    a = np.array([[1.0, 2.0], [2.0, 4.0]])
    b = np.array([[3.0, 1.0], [1.0, 2.0]])
    adjugates = np.array([[[4.0, -2.0], [-2.0, 1.0]], [[2.0, -1.0], [-1.0, 3.0]]])
    for _ in range(2):
        close(f(np.stack([a, b])), adjugates)
    assert is_native(f)
    close(sg.compile(slope_of_det)(np.zeros((1, 1))), np.ones((1, 1)))
    assert np.isnan(f(np.full((2, 2, 2), np.nan))).all()


def test_the_first_failure_is_the_one_reported():
    f = sg.compile(lambda a: sg.linalg.inv(sg.linalg.cholesky(a)))
    close(f(np.eye(3) * 4.0), np.eye(3) / 2.0)
    with pytest.raises(LinAlgError, match=r"^linalg\.cholesky: "):
        f(np.diag([0.0, -1.0, 1.0]))
    g = sg.compile(lambda a: sg.linalg.cholesky(sg.linalg.inv(a)))
    close(g(np.eye(3) / 4.0), np.eye(3) * 2.0)
    with pytest.raises(LinAlgError, match=r"^linalg\.inv: "):
        g(np.zeros((3, 3)))


def test_other_calls_stay_native_where_one_runs_in_python():
    # The gradient at a singular matrix comes from Python, the solution does not.
    def both(a, m, b):
        return sg.linalg.solve(m, b), slope_of_det(a)

    f = sg.compile(both)
    m, b = regular((), 30, np.float64), matrices((), 30, 4, np.float64, 1)
    first = f(np.eye(2), m, b)[0]
    second, slope = f(np.ones((2, 2)), m, b)
    np.testing.assert_array_equal(first, second)
    close(slope, np.array([[1.0, -1.0], [-1.0, 1.0]]))


# -- threads ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 120])
def test_threads_at_once_get_their_own_results_and_errors(n):
    f = sg.compile(lambda a, b: sg.linalg.solve(a, b) + sg.linalg.inv(a) @ b)
    eye = np.eye(n)
    f(eye, eye)
    assert is_native(f)
    threads, turns = 4, 8
    gate = threading.Barrier(threads)
    wrong = []

    def work(number):
        good = eye * 2.0**number
        gate.wait()
        for turn in range(turns):
            if number % 2 and turn % 2:
                try:
                    f(np.zeros((n, n)), eye)
                    wrong.append((number, turn, "no error"))
                except LinAlgError:
                    pass
            elif not np.array_equal(f(good, eye), 2 * eye / 2.0**number):
                wrong.append((number, turn))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_results_do_not_depend_on_the_number_of_threads():
    a, b = regular((300,), 12, np.float64), matrices((300,), 12, 12, np.float64, 1)
    f = sg.compile(sg.linalg.solve)
    before = pool.get_num_threads()
    try:
        pool.set_num_threads(1)
        alone = f(a, b)
        pool.set_num_threads(3)
        together = f(a, b)
    finally:
        pool.set_num_threads(before)
    np.testing.assert_array_equal(alone, together)
    close(alone, np.linalg.solve(a, b))


# -- what stays in Python -----------------------------------------------------------------


def node(op, shape, attrs=()):
    args = tuple(Node(sg.op.INPUT, (), (), shape, dtypes.float64, k) for k in range(1))
    return Node(op, args, attrs, shape, dtypes.float64, 1)


def test_sizes_beyond_32_bits_stay_with_the_routine():
    assert lapack.native_call(node(linalg.cholesky_factor, (40_000, 40_000))) is not None
    assert lapack.native_call(node(linalg.cholesky_factor, (50_000, 50_000))) is None


def test_work_space_beyond_32_bits_stays_with_the_routine():
    eigh = sg.ops.decompositions.eigh_packed
    assert lapack.native_call(node(eigh, (30_000, 30_000), ("L",))) is not None
    assert lapack.native_call(node(eigh, (33_000, 33_000), ("L",))) is None


def test_a_library_with_other_types_is_not_called(monkeypatch):
    monkeypatch.setattr(lapack, "_address", lambda routine, element: None)
    assert lapack.native_call(node(linalg.cholesky_factor, (3, 3))) is None


def test_matrices_without_elements():
    empty = sg.tensor(np.zeros((0, 0)))
    assert sg.linalg.det(empty).item() == 1.0
    assert sg.linalg.cholesky(empty).shape == (0, 0)
    q, r = sg.linalg.qr(sg.tensor(np.zeros((3, 0))), mode="complete")
    np.testing.assert_array_equal(q.numpy(), np.eye(3))
    assert r.shape == (3, 0)


def test_scipy_is_loaded_by_programs_with_library_calls_alone():
    code = (
        "import sys, numpy as np, symgrad as sg\n"
        "f = sg.compile(lambda x: sg.sin(x).sum())\n"
        "f(np.ones(3))\n"
        "assert 'scipy' not in sys.modules\n"
        "sg.linalg.cholesky(sg.eye(2))\n"
        "assert 'scipy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
