"""Complex tensors: values by NumPy and mpmath, gradients by differences in both directions, views, errors."""

import itertools
import pickle

import mpmath
import numpy as np
import pytest

import symgrad as sg
from symgrad import func
from symgrad.autograd import forward_ad, grad, gradcheck, gradgradcheck

RNG = np.random.default_rng(11)
FUNCTIONS = [
    "exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "reciprocal", "square", "expm1", "log1p",
    "log2", "log10", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh",
]  # fmt: skip
KINDS = {
    np.complex64: (sg.complex64, sg.float32, 2e-6),
    np.complex128: (sg.complex128, sg.float64, 4e-15),
}


def normal(*shape, kind=np.complex128):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(kind)


def leaf(values):
    return sg.tensor(np.array(values, np.complex128), requires_grad=True)


def by_differences(f, z, weights, h=1e-6):
    """torch's gradient of Re(conj(weights) f(z)): differences by the real part, i times those by the other."""

    def loss(values):
        return float(np.sum(np.real(np.conj(weights) * f(values))))

    g = np.zeros(z.shape, complex)
    for at in np.ndindex(z.shape):
        for turn in (1.0, 1j):
            step = np.zeros(z.shape, complex)
            step[at] = h * turn
            g[at] += turn * (loss(z + step) - loss(z - step)) / (2 * h)
    return g


# -- values -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", [*FUNCTIONS, "conj", "abs", "angle", "real", "imag", "sgn"])
def test_functions_have_numpys_values(name, kind):
    z = normal(40, kind=kind)
    complex_, real_, tolerance = KINDS[kind]
    made = getattr(sg, name)(sg.tensor(z))
    wanted = {"sgn": np.sign}.get(name, getattr(np, name, None))(z)
    assert made.dtype is (complex_ if np.iscomplexobj(wanted) else real_)
    np.testing.assert_allclose(made.resolve_conj().numpy(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "power"])
def test_binary_functions_have_numpys_values(name, kind):
    x, y = normal(5, 1, kind=kind), normal(7, kind=kind)
    made = getattr(sg, {"power": "pow"}.get(name, name))(sg.tensor(x), sg.tensor(y)).numpy()
    assert made.dtype == kind
    np.testing.assert_allclose(made, getattr(np, name)(x, y), rtol=20 * KINDS[kind][2])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, -1, -4, 0.5, -1.5, 2.5, 1 + 2j, 100])
def test_powers_with_a_number_as_exponent(exponent):
    z = normal(20) / 2
    np.testing.assert_allclose((sg.tensor(z) ** exponent).numpy(), z**exponent, rtol=1e-12)
    if exponent != 0:
        np.testing.assert_allclose(
            (exponent ** sg.tensor(z)).numpy(), np.power(complex(exponent), z), rtol=1e-12
        )


def test_powers_of_zero():
    z = sg.tensor([0j, 0j, 0j, 2 + 0j], dtype=sg.complex128)
    y = sg.tensor([0j, 2 + 1j, 1 + 0j, 0j], dtype=sg.complex128)
    np.testing.assert_array_equal((z**y).numpy(), [1, 0, 0, 1])


SIZES = [0.5, 1.0, 1 + 1e-9, 1e-310, 1e-170, 1e160, 1.7e308, 712.0, 30.0, 1e-9]
WIDE = np.array(
    [complex(a, b) for a, b in itertools.product([*SIZES, *[-s for s in SIZES]], repeat=2)]
)


def exactly(f, *operands):
    """Values with 60 digits, rounded; infinite parts where they are out of range."""
    with mpmath.workdps(60):
        return np.array(
            [complex(f(*[mpmath.mpc(v) for v in row])) for row in zip(*operands, strict=True)]
        )


def close_in_range(made, wanted, rounding):
    """Each number is close to the truth relative to its size, wherever that is a normal number."""
    with np.errstate(all="ignore"):
        size = np.hypot(wanted.real, wanted.imag)
        usual = np.isfinite(wanted) & (size > 1e-300) & np.isfinite(size)
        assert usual.sum() > 40
        apart = np.abs(made - wanted)[usual] / size[usual]
    assert apart.max() < rounding


@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "sinh", "cosh", "sin", "cos", "tanh", "tan", "expm1", "log1p"]
)
def test_functions_keep_their_range(name):
    with np.errstate(all="ignore"):
        made = getattr(sg, name)(sg.tensor(WIDE)).numpy()
    close_in_range(made, exactly(getattr(mpmath, name), WIDE), 2e-15)


@pytest.mark.parametrize("name", ["arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh"])
def test_inverse_functions_keep_their_range(name):
    made = getattr(sg, name)(sg.tensor(WIDE)).numpy()
    np.testing.assert_allclose(made, getattr(np, name)(WIDE), rtol=4e-15, atol=1e-320)


def test_quotients_keep_their_range():
    x, y = (a.ravel() for a in np.meshgrid(WIDE[::3], WIDE[::7]))
    made = (sg.tensor(x) / sg.tensor(y)).numpy()
    close_in_range(made, exactly(lambda a, b: a / b, x, y), 2e-15)


def test_magnitudes_keep_their_range():
    made = sg.abs(sg.tensor(WIDE)).numpy()
    np.testing.assert_allclose(made, np.abs(WIDE), rtol=4e-16)
    near_one = np.array([0.6 + 0.8000001j, 1 + 1e-8j, -1e-12 + 1j])
    np.testing.assert_allclose(
        sg.log(sg.tensor(near_one)).numpy().real, exactly(mpmath.log, near_one).real, rtol=1e-9
    )


INF, NAN = np.inf, np.nan
ANNEX_G = {
    "exp": [
        (-INF + 2j, 0),
        (complex(INF, 0), complex(INF, 0)),
        (complex(3, INF), complex(NAN, NAN)),
        (complex(NAN, 0), complex(NAN, 0)),
    ],
    "log": [
        (0j, complex(-INF, 0)),
        (complex(-INF, 1), complex(INF, np.pi)),
        (complex(NAN, INF), complex(INF, NAN)),
    ],
    "sqrt": [
        (complex(-INF, 1), complex(0, INF)),
        (complex(1, -INF), complex(INF, -INF)),
        (complex(-4, -0.0), -2j),
        (complex(INF, 1), complex(INF, 0)),
    ],
    "tanh": [(complex(INF, 1), 1), (complex(-INF, 1), -1), (0j, 0)],
    "sinh": [(complex(INF, 0), complex(INF, 0)), (complex(0, INF), complex(0, NAN))],
    "cosh": [(complex(INF, 0), complex(INF, 0))],
    "reciprocal": [
        (complex(INF, INF), 0),
        (complex(-INF, 2), 0),
        (complex(INF, 1), 0),
        (complex(1, INF), 0),
    ],
}


@pytest.mark.parametrize("name", ANNEX_G)
def test_values_at_infinity_are_those_of_c(name):
    for z, wanted in ANNEX_G[name]:
        made = getattr(sg, name)(sg.tensor(z, dtype=sg.complex128)).item()
        np.testing.assert_array_equal(
            [made.real, made.imag], [complex(wanted).real, complex(wanted).imag], f"{z}"
        )


def test_linear_families_act_on_both_parts():
    z, w = normal(3, 4), normal(4, 3)
    t, u = sg.tensor(z), sg.tensor(w)
    for made, wanted in [
        (t @ u, z @ w), (t.sum(), z.sum()), (t.sum(1), z.sum(1)), (t.mean(0, True), z.mean(0, keepdims=True)),
        (t.cumsum(1), z.cumsum(1)), (t.T, z.T), (t.H, z.conj().T), (t[1:, ::2], z[1:, ::2]),
        (t[[0, 2], [1, 3]], z[[0, 2], [1, 3]]), (t.flip(0), z[::-1]), (sg.cat([t, t * 2]), np.concatenate([z, 2 * z])),
        (sg.einsum("ij,kj->ik", t, u.T.conj()), np.einsum("ij,kj->ik", z, w.T.conj())),
        (sg.vdot(t[0], u[:, 0]), np.vdot(z[0], w[:, 0])), (sg.outer(t[0], u[0]), np.outer(z[0], w[0])),
        (t.prod(), z.prod()), (t.prod(0), z.prod(0)), (t.cumprod(1), z.cumprod(1)), (t[:0].prod(0), z[:0].prod(0)),
        (t.std(), z.std(ddof=1)), (t.var(0), z.var(0, ddof=1)), (t.norm(), np.linalg.norm(z)),
        (t.reshape(2, 6), z.reshape(2, 6)), (sg.where(t.real > 0, t, 1j), np.where(z.real > 0, z, 1j)),
        (sg.zeros(4, dtype=sg.complex128).index_add(0, sg.tensor([1, 1, 3]), u[:3, 0]), np.array([0, w[0, 0] + w[1, 0], 0, w[2, 0]])),
    ]:  # fmt: skip
        np.testing.assert_allclose(made.resolve_conj().numpy(), wanted, rtol=1e-13)


def test_comparisons_and_tests():
    z = sg.tensor([1 + 2j, complex(NAN, 1), complex(1, INF), 0j])
    assert z.isnan().tolist() == [False, True, False, False]
    assert z.isfinite().tolist() == [True, False, False, True]
    assert z.isinf().tolist() == [False, False, True, False]
    assert (z == z.clone()).tolist() == [True, False, True, True]
    assert (z != 1 + 2j).tolist() == [False, True, True, True]
    assert z.bool().tolist() == [True, True, True, False]
    assert sg.allclose(z[:1], sg.tensor([1.000001 + 2j]))


def test_systems_and_inverses_are_numpys():
    a, b = normal(2, 3, 3), normal(2, 3, 2)
    t, u = sg.tensor(a), sg.tensor(b)
    np.testing.assert_allclose(sg.linalg.solve(t, u).numpy(), np.linalg.solve(a, b), rtol=1e-11)
    np.testing.assert_allclose(sg.linalg.inv(t).numpy(), np.linalg.inv(a), rtol=1e-11)
    np.testing.assert_allclose(
        sg.linalg.solve(t[0], u[0, :, 0]).numpy(), np.linalg.solve(a[0], b[0, :, 0]), rtol=1e-11
    )
    right = sg.linalg.solve(t[0], u[0].T, left=False).numpy()
    np.testing.assert_allclose(right @ a[0], b[0].T, atol=1e-12)
    assert gradcheck(sg.linalg.solve, (leaf(a[0]), leaf(b[0])))
    assert gradgradcheck(sg.linalg.inv, (leaf(a[0]),))


# -- dtypes -----------------------------------------------------------------------------


def test_dtypes_and_promotion():
    assert sg.cfloat is sg.complex64
    assert sg.cdouble is sg.complex128
    assert sg.tensor([1 + 2j]).dtype is sg.complex64
    assert (sg.ones(2) * 1j).dtype is sg.complex64
    assert (sg.ones(2, dtype=sg.float64) * 1j).dtype is sg.complex128
    assert (sg.ones(2, dtype=sg.int64) + 1j).dtype is sg.complex64
    assert (sg.ones(2) * sg.tensor(1j, dtype=sg.complex128)).dtype is sg.complex64
    assert (sg.ones(2, dtype=sg.float64) + sg.ones(2, dtype=sg.complex64)).dtype is sg.complex128
    assert (sg.ones(2, dtype=sg.complex64) / 2).dtype is sg.complex64
    assert sg.promote_types(sg.complex64, sg.float64) is sg.complex128
    assert sg.promote_types(sg.complex64, sg.int64) is sg.complex64
    assert sg.tensor([1j]).is_complex()
    assert not sg.tensor([1j]).is_floating_point()


def test_python_numbers_printing_and_copies():
    z = sg.tensor(1 + 2j)
    assert z.item() == 1 + 2j
    assert complex(z) == 1 + 2j
    assert sg.tensor([[1j], [2 + 0j]]).tolist() == [[1j], [2 + 0j]]
    assert repr(sg.tensor([1 + 2j])) == "tensor([1.+2.j])"
    assert (
        repr(sg.tensor([1j], dtype=sg.complex128)) == "tensor([0.+1.j], dtype=symgrad.complex128)"
    )
    assert pickle.loads(pickle.dumps(z)).item() == 1 + 2j
    assert (2j - z).tolist() == -1
    assert (1j / z).item() == pytest.approx(1j / (1 + 2j))


def test_random_numbers():
    sg.manual_seed(0)
    z = sg.randn(2000, dtype=sg.complex128).numpy()
    assert z.dtype == np.complex128
    assert abs(np.mean(np.abs(z) ** 2) - 1) < 0.1
    assert abs(np.mean(z.real * z.imag)) < 0.05
    u = sg.rand(3, 500, dtype=sg.complex64).numpy()
    assert u.dtype == np.complex64
    assert u.real.min() >= 0
    assert 0.45 < u.imag.mean() < 0.55


def test_casts_to_real_say_what_they_lose():
    z = leaf([1 + 2j, 3 - 1j])
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        x = z.to(sg.float64)
    x.sum().backward()
    assert x.tolist() == [1.0, 3.0]
    assert z.grad.tolist() == [1, 1]


# -- gradients --------------------------------------------------------------------------

GRADIENTS = {
    **{name: (getattr(sg, name), getattr(np, name)) for name in FUNCTIONS},
    "conj": (sg.conj, np.conj),
    "abs": (sg.abs, np.abs),
    "angle": (sg.angle, np.angle),
    "sgn": (sg.sgn, np.sign),
    "real": (sg.real, np.real),
    "imag": (sg.imag, np.imag),
    "cube": (lambda z: z**3, lambda z: z**3),
    "root": (lambda z: z**-1.5, lambda z: z**-1.5),
    "own power": (lambda z: z**z, lambda z: z**z),
    "power of 2+i": (lambda z: (2 + 1j) ** z, lambda z: (2 + 1j) ** z),
    "quotient": (lambda z: (z + 1) / (z * z - 3j), lambda z: (z + 1) / (z * z - 3j)),
    "matmul": (
        lambda z: z.reshape(2, 2) @ z.reshape(2, 2).H,
        lambda z: z.reshape(2, 2) @ z.reshape(2, 2).conj().T,
    ),
    "sum": (lambda z: z.sum(0, True), lambda z: z.sum(0, keepdims=True)),
    "std": (lambda z: z.std(), lambda z: z.std(ddof=1)),
    "norm": (lambda z: z.norm(), np.linalg.norm),
    "where": (
        lambda z: sg.where(z.real > 0, z * z, z.conj()),
        lambda z: np.where(z.real > 0, z * z, z.conj()),
    ),
    "positions": (lambda z: z[[0, 1, 1, 3]] * 1j, lambda z: z[[0, 1, 1, 3]] * 1j),
    "as real": (sg.view_as_real, lambda z: np.stack([z.real, z.imag], -1)),
    "cumulative": (lambda z: z.cumsum(0), np.cumsum),
    "product": (lambda z: z.prod(), np.prod),
    "running products": (lambda z: z.cumprod(0), np.cumprod),
    "sigmoid": (sg.sigmoid, lambda z: 1 / (1 + np.exp(-z))),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_differences_in_both_directions(name):
    f, reference = GRADIENTS[name]
    values = np.array([0.7 + 0.4j, -0.6 + 1.1j, 0.3 - 0.8j, -0.4 - 0.9j])
    z = leaf(values)
    made = f(z)
    weights = normal(*made.shape)
    weights = weights if made.is_complex() else weights.real
    made.backward(sg.tensor(weights))
    np.testing.assert_allclose(
        z.grad.numpy(), by_differences(reference, values, weights), rtol=1e-7, atol=1e-8
    )


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_gradients_and_tangents(name):
    z = leaf([0.7 + 0.4j, -0.6 + 1.1j, 0.3 - 0.8j, -0.4 - 0.9j])
    assert gradgradcheck(GRADIENTS[name][0], (z,))
    assert gradcheck(GRADIENTS[name][0], (z,), check_forward_ad=True)


def test_second_derivative_of_the_squared_magnitude():
    z = leaf([3 + 4j])
    (g,) = grad((z * z.conj()).real.sum(), z, create_graph=True)
    assert g.tolist() == [6 + 8j]
    (h,) = grad(g, z, sg.tensor([1 + 1j], dtype=sg.complex128))
    assert h.tolist() == [2 + 2j]


def test_products_with_zeros_have_their_derivatives():
    z = leaf([0j, 2 + 1j, 0j])
    (g,) = grad(z.prod(), z, sg.tensor(1 + 0j, dtype=sg.complex128), create_graph=True)
    assert g.tolist() == [0, 0, 0]
    (h,) = grad(g[0], z, sg.tensor(1 + 0j, dtype=sg.complex128))
    # g[0] is conj(z1 z2), whose real part is that of z1 z2.
    assert h.tolist() == [0, 0, 2 - 1j]


def test_hessian_vector_product_is_the_difference_of_gradients():
    values, direction, h = np.array([0.7 + 0.4j, -0.6 + 1.1j]), np.array([1 - 2j, 0.5 + 1j]), 1e-6

    def gradient(at, **more):
        z = leaf(at)
        loss = ((z.exp() * z.sin()).abs() + (z / z.conj()).imag).sum()
        return z, grad(loss, z, **more)[0]

    z, g = gradient(values, create_graph=True)
    (found,) = grad(g, z, sg.tensor(direction))
    above, below = (gradient(values + s * h * direction)[1].numpy() for s in (1, -1))
    np.testing.assert_allclose(found.numpy(), (above - below) / (2 * h), rtol=1e-7)


def test_derivatives_do_not_remember_the_numbers_of_another_program():
    values = np.array([0.7 + 0.4j, -0.6 + 1.1j])
    for factor in (2.5, 0.3 - 1j, 7j):
        z = leaf(values)
        (g,) = grad((1 / (z * factor)).abs().sum(), z, create_graph=True)
        np.testing.assert_allclose(
            g.detach().numpy(),
            by_differences(lambda v, c=factor: np.abs(1 / (v * c)), values, 1.0),
            rtol=1e-7,
        )
        (h,) = grad(g.abs().sum(), z)
        wanted = by_differences(
            lambda v, c=factor: np.abs(1 / np.abs(c) / np.abs(v) ** 2), values, 1.0
        )
        np.testing.assert_allclose(h.numpy(), wanted, rtol=1e-6)


def test_gradients_at_kinks_and_extremes():
    z = leaf([0j, -1e-200 + 0j, 3 + 4j, 1e200 + 0j])
    z.abs().sum().backward()
    np.testing.assert_allclose(z.grad.numpy(), [0, -1, 0.6 + 0.8j, 1], rtol=1e-15)
    z = leaf([0j])
    (z.angle().sum() + z.sgn().real.sum()).backward()
    assert z.grad.tolist() == [0]
    z = leaf([400 + 1j, -400 - 1j])
    g = sg.tensor([1 + 0j, 1], dtype=sg.complex128)
    z.tanh().backward(g)
    wanted = exactly(lambda v: mpmath.conj(mpmath.sech(v) ** 2), z.detach().numpy())
    np.testing.assert_allclose(z.grad.numpy().real, wanted.real, rtol=1e-12)


def test_real_parameters_get_real_gradients():
    x = sg.tensor([2.0, -1.0], dtype=sg.float64, requires_grad=True)
    (x * sg.tensor([1 + 2j, 3j])).real.sum().backward()
    assert x.grad.dtype is sg.float64
    assert x.grad.tolist() == [1.0, 0.0]
    for f in (
        lambda x: sg.complex(x, x * x),
        lambda x: sg.polar(x, x * x),
        lambda x: (x * 1j).exp(),
    ):
        assert gradcheck(f, (x,))
        assert gradgradcheck(f, (x,))


def test_accumulation_and_several_uses():
    z = leaf([1 + 1j])
    (z * 2j).real.sum().backward()
    (z * 3).imag.sum().backward()
    assert z.grad.tolist() == [-2j + 3j]


# -- views ------------------------------------------------------------------------------


def test_writing_through_views_of_parts():
    z = sg.tensor([1 + 2j, 3 - 1j])
    z.real.mul_(10)
    z.imag[0] = 7
    assert z.tolist() == [10 + 7j, 30 - 1j]
    sg.view_as_real(z)[1, 0] = -5
    assert z.tolist() == [10 + 7j, -5 - 1j]
    z.conj().add_(2j)
    assert z.tolist() == [10 + 5j, -5 - 3j]
    x = sg.tensor([[1.0, 2.0]])
    sg.view_as_complex(x).mul_(1j)
    assert x.tolist() == [[-2.0, 1.0]]


def test_gradients_through_written_parts():
    z = leaf([1 + 2j, 3 - 1j])
    y = z * 1
    y.real.mul_(3)
    g = sg.tensor([1 + 1j, 2 - 1j], dtype=sg.complex128)
    y.backward(g)
    np.testing.assert_allclose(z.grad.numpy(), [3 + 1j, 6 - 1j])


def test_conjugates_share_memory_until_resolved():
    z = sg.tensor([1 + 2j])
    c = z.conj()
    assert c.is_conj()
    assert c.data_ptr() == z.data_ptr()
    assert c.tolist() == [1 - 2j]
    with pytest.raises(RuntimeError, match="conjugate bit"):
        c.numpy()
    assert c.resolve_conj().numpy() == 1 - 2j
    assert not c.resolve_conj().is_conj()
    z.mul_(2)
    assert c.tolist() == [2 - 4j]
    x = sg.tensor([1.0])
    assert x.real is x
    assert not x.conj().is_conj()


# -- compiled, batched, forward ------------------------------------------------------------


def program(z, w):
    p = (z * w).exp() / (w + 2)
    return (
        p.log() - z.sqrt(),
        (p @ w.H).abs().sum(),
        sg.view_as_real(z.tanh())[..., 1],
        z.conj() ** 3,
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_compiled_functions_have_the_bits_of_eager_ones(kind):
    z, w = normal(3, 4, kind=kind), normal(3, 4, kind=kind)
    eager = [r.resolve_conj().numpy() for r in program(sg.tensor(z), sg.tensor(w))]
    step_by_step = []
    for k in range(4):
        p = sg.tensor(z) * sg.tensor(w)
        p.look()
        step_by_step.append(program(sg.tensor(z), sg.tensor(w))[k].resolve_conj().numpy())
    compiled = sg.compile(program)
    for _ in range(2):
        for made, again, alone, arrays in zip(
            compiled(sg.tensor(z), sg.tensor(w)), eager, step_by_step, compiled(z, w), strict=True
        ):
            np.testing.assert_array_equal(made.numpy(), again)
            np.testing.assert_array_equal(alone, again)
            np.testing.assert_array_equal(np.asarray(arrays), again)


def test_complex_numbers_are_arguments_that_vary():
    f = sg.compile(lambda z, w: (z * w).exp())
    for z, w in [(1 + 2j, 0.5), (2j, 0.25), (np.complex64(1j), 3.0)]:
        assert f(z, w) == pytest.approx(np.exp(complex(z) * w), rel=1e-15)
    out = np.empty((), complex)
    assert f.into(out, 1j, 2.0) is out
    np.testing.assert_allclose(out, np.exp(2j), rtol=1e-15)
    assert f(np.array([1j, 2]), 2.0).tolist() == pytest.approx(np.exp(np.array([2j, 4])), rel=1e-15)


def test_values_looked_at_on_the_way_change_no_bit():
    z = normal(50)
    whole = ((sg.tensor(z) * 1.5).exp() - 1).log().numpy()
    a = sg.tensor(z) * 1.5
    a.look()
    b = a.exp()
    b.look()
    c = b - 1
    c.look()
    np.testing.assert_array_equal(c.log().numpy(), whole)


def test_derivatives_through_and_inside_compiled_functions():
    z = leaf([0.5 + 0.2j, -0.3 + 0.9j])
    loss = sg.compile(lambda z: (z.exp() * z.conj()).abs().sum())
    loss(z).backward()
    (wanted,) = grad((z.exp() * z.conj()).abs().sum(), z)
    np.testing.assert_array_equal(z.grad.numpy(), wanted.numpy())
    np.testing.assert_allclose(
        z.grad.numpy(),
        by_differences(lambda v: np.abs(np.exp(v) * v.conj()), z.detach().numpy(), 1.0),
        rtol=1e-7,
    )
    inside = sg.compile(func.grad(lambda z: (z * z.conj()).real.sum()))
    np.testing.assert_array_equal(inside(z.detach()).numpy(), 2 * z.detach().numpy())


def test_vmap_and_forward_mode():
    z, w = normal(5, 3), normal(3)
    made = func.vmap(lambda a: (a * sg.tensor(w)).exp().sum())(sg.tensor(z))
    np.testing.assert_allclose(made.numpy(), np.exp(z * w).sum(1), rtol=1e-14)
    made = func.vmap(
        lambda a: sg.view_as_real(a)[:, 1] + sg.view_as_complex(sg.view_as_real(a)).abs()
    )(sg.tensor(z))
    np.testing.assert_allclose(made.numpy(), z.imag + np.abs(z), rtol=1e-14)
    with forward_ad.dual_level():
        d = forward_ad.make_dual(
            sg.tensor(3 + 4j, dtype=sg.complex128), sg.tensor(1 + 0j, dtype=sg.complex128)
        )
        assert forward_ad.unpack_dual(d.abs()).tangent.item() == 0.6
        assert forward_ad.unpack_dual(d * d).tangent.item() == 6 + 8j
        assert forward_ad.unpack_dual((d * 1j).conj()).tangent.item() == -1j


def test_formulas():
    z = sg.tensor(1 + 2j, dtype=sg.complex128, requires_grad=True, name="z")
    assert (z * z.conj()).formula() == "z*conjugate(z)"
    for f, reference in [
        (lambda z: (z * 1j).exp() + 2, lambda z: np.exp(1j * z) + 2),
        (lambda z: z**3 / (2 - 1j), lambda z: z**3 / (2 - 1j)),
    ]:
        assert f(z).latex()
        value = eval(f(z).formula(), {"z": 0.3 + 0.4j, "exp": np.exp})
        np.testing.assert_allclose(value, reference(0.3 + 0.4j), rtol=1e-14)
        np.testing.assert_allclose(
            complex(sg.to_sympy(f(z)).subs("z", 0.3 + 0.4j)), reference(0.3 + 0.4j), rtol=1e-14
        )


# -- errors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda z: z > z, "not implemented for 'ComplexDouble'"),
        (lambda z: z.max(), "not implemented for 'ComplexDouble'"),
        (lambda z: z.sort(), "not implemented for 'ComplexDouble'"),
        (sg.sign, "not implemented for 'ComplexDouble'"),
        (sg.floor, "not implemented for 'ComplexDouble'"),
        (lambda z: sg.clamp(z, 0), "not implemented for 'ComplexDouble'"),
        (sg.erf, "not implemented for 'ComplexDouble'"),
        (lambda z: z.cummax(0), "not implemented for 'ComplexDouble'"),
        (lambda z: sg.nn.functional.mse_loss(z, z), "not implemented for 'ComplexDouble'"),
        (lambda z: z.logsumexp(0), "not implemented for 'ComplexDouble'"),
        (
            lambda z: (z * 2).sum().backward(),
            "only for real scalar outputs but got symgrad.complex128",
        ),
        (lambda z: sg.ones(1).imag, "imag is not implemented for tensors with non-complex dtypes"),
        (lambda z: sg.ones(1).add_(1j), "can't be cast to the desired output type Float"),
        (lambda z: (z * 2).backward(sg.ones(1)), "required to have the same dtype"),
        (lambda z: sg.view_as_complex(sg.ones(3)), "last dimension of size 2"),
        (
            lambda z: sg.complex(sg.ones(1), sg.ones(1, dtype=sg.float64)),
            "Expected object of scalar type",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(call, words):
    with pytest.raises(RuntimeError, match=words):
        call(leaf([1 + 2j]))


def test_views_of_real_tensors_say_nothing_of_complex_ones():
    flat, square = np.array([1 + 2j, 3 - 1j]), np.array([[1 + 2j, 3 - 1j], [2j, 5.0]])
    for dtype in (sg.int64, sg.float64):
        sg.ones(2, dtype=dtype).conj()
        sg.ones(2, dtype=dtype).real
        sg.ones(2, 2, dtype=dtype).adjoint()
        sg.ones(2, 2, dtype=dtype).mH
    for _ in range(2):
        np.testing.assert_array_equal(sg.tensor(flat).conj().tolist(), flat.conj())
        np.testing.assert_array_equal(sg.tensor(flat).real.tolist(), flat.real)
        np.testing.assert_array_equal(sg.tensor(square).adjoint().tolist(), square.conj().T)
        np.testing.assert_array_equal(sg.tensor(square).mH.tolist(), square.conj().T)
