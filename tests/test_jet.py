"""Taylor mode against mpmath's and NumPy's: every elementwise op by its SymPy form, maps by hand."""

from __future__ import annotations

import math
import warnings
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy
from numpy.polynomial import polynomial

import symgrad as sg
from symgrad import dtypes, func
from symgrad.calculus.taylor import taylor_series
from symgrad.expr import Expr
from symgrad.family import Elementwise
from symgrad.op import constant, input_node
from symgrad.testing import (
    Evaluator,
    along_symmetric,
    central_difference,
    derivative_mutants,
    draw,
    has_derivative,
    nodes,
    run,
    same_bits,
    subject,
    subjects,
)
from symgrad.testing.samples import call

ORDER = 8
RNG = np.random.default_rng(11)


def tensor(value: Any) -> Any:
    return sg.tensor(np.asarray(value, float), dtype=sg.float64)


def taylor(f: Any, x: float, order: int) -> list[float]:
    """Derivatives of orders 0 to `order` by mpmath, in 60 digits."""
    with mpmath.workdps(60):
        found = mpmath.taylor(f, mpmath.mpf(x), order)
        return [float(mpmath.re(c) * mpmath.factorial(k)) for k, c in enumerate(found)]


# -- every elementwise op, by its SymPy form ------------------------------------------------


def smooth_sample(s: Any) -> int | None:
    """The number of an op's first smooth sample that has elements."""
    for number in range(len(s.samples)):
        drawn = draw(s, number, dtypes.float64)
        if (
            has_derivative(s, number)
            and drawn.floating_places
            and all(a.size for a in drawn.arrays)
        ):
            return number
    return None


SMOOTH = [
    s
    for s in subjects()
    if isinstance(s.op, Elementwise)
    and s.op.accepts not in ("integer", "complex")
    and smooth_sample(s) is not None
]


def along_curve(s: Any) -> tuple[list[Expr], list[list[np.ndarray]], Any]:
    """An op's inputs, the coefficients of their curves, and the drawn sample."""
    drawn = draw(s, smooth_sample(s), dtypes.float64)
    rng = s.seed(90)
    leaves = nodes(drawn.arrays)
    terms = [
        [rng.uniform(-0.5, 0.5, a.shape) if k in drawn.floating_places else None for _ in range(2)]
        for k, a in enumerate(drawn.arrays)
    ]
    return leaves, terms, drawn


def computed(
    s: Any, leaves: list[Expr], terms: list[Any], drawn: Any, order: int
) -> list[np.ndarray]:
    """Taylor coefficients of orders 0 to `order` of the op's result."""
    (y,) = call(s, drawn, leaves)
    moving = [k for k, t in enumerate(terms) if t[0] is not None]
    series = [[input_node(t.shape, dtypes.float64, t) for t in terms[k]] for k in moving]
    (found,) = taylor_series([y], [leaves[k] for k in moving], series, order)
    zero = constant(0.0, dtypes.float64)
    values = run([y, *[zero if c is None else c for c in found]])
    return [np.broadcast_to(v, y.shape) for v in values]


def expected(s: Any, terms: list[Any], drawn: Any, order: int) -> list[np.ndarray]:
    """The same by mpmath from the op's SymPy form."""
    symbols = sympy.symbols(f"x:{len(drawn.arrays)}", real=True)
    conditions = s.op.conditions
    held = [sympy.Symbol(f"c{k}") for k in range(conditions)]
    args, attrs = drawn.arguments([*held, *symbols[conditions:]])
    args = [sympy.sympify(a) for a in args]
    form = s.op.sympy(sympy, *args, **attrs)
    arrays = np.broadcast_arrays(*drawn.arrays)
    moved = [
        [None if t is None else np.broadcast_to(t, arrays[0].shape) for t in ts] for ts in terms
    ]
    wanted = np.empty((order + 1, *arrays[0].shape))
    with warnings.catch_warnings(action="ignore"):
        for at in np.ndindex(arrays[0].shape):
            at_held = {c: bool(a[at]) for c, a in zip(held, arrays, strict=False)}
            here = form.subs({c: sympy.true if v else sympy.false for c, v in at_held.items()})
            f = sympy.lambdify(symbols[conditions:], here, "mpmath")

            def along(t: Any, at: Any = at, f: Any = f) -> Any:
                point = [
                    mpmath.mpf(float(a[at]))
                    + (0 if u is None else float(u[at]) * t + float(v[at]) * t * t)
                    for a, (u, v) in zip(arrays[conditions:], moved[conditions:], strict=True)
                ]
                return f(*point)

            found = taylor(along, 0.0, order)
            wanted[(slice(None), *at)] = [d / math.factorial(k) for k, d in enumerate(found)]
    return list(wanted)


def check_elementwise(s: Any, order: int) -> None:
    leaves, terms, drawn = along_curve(s)
    found = computed(s, leaves, terms, drawn, order)
    for k, (got, want) in enumerate(zip(found, expected(s, terms, drawn, order), strict=True)):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11, err_msg=f"order {k}")


@pytest.mark.parametrize("s", SMOOTH, ids=lambda s: s.name)
def test_elementwise_ops_have_the_series_of_their_formula(s: Any) -> None:
    check_elementwise(s, ORDER)


WRONG = ["mul", "exp", "sin", "tanh", "pow", "relu", "where", "atan2", "sigmoid"]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_caught(name: str) -> None:
    s = subject(name)
    places = [k for k, t in enumerate(along_curve(s)[1]) if t[0] is not None]
    for change, wrong in derivative_mutants(s, places):
        with pytest.raises(AssertionError):
            check_elementwise(wrong, 2)
            pytest.fail(f"{change} went unnoticed")


def test_a_wrong_ratio_is_caught() -> None:
    s = subject("div")
    kind = type(s.op)
    wrong = type("div", (kind,), {"ratio": staticmethod(lambda out, x, y: (x, y * 1.001))})()
    s.op = s.call = wrong
    with pytest.raises(AssertionError):
        check_elementwise(s, 1)


# -- all other ops, by differences --------------------------------------------------------

OTHERS = [
    s
    for s in subjects()
    if not isinstance(s.op, Elementwise) and s.op is not None and smooth_sample(s) is not None
]


def check_by_differences(s: Any, number: int, orders: int) -> int:
    """Each order against differences of the one before, along x(t) = x + u t + v t^2."""
    drawn = draw(s, number, dtypes.float64)
    rng = s.seed(91)
    leaves = nodes(drawn.arrays)
    moving = [leaves[k] for k in drawn.floating_places]
    outputs = [y for y in call(s, drawn, leaves) if y.requires_grad and y.dtype is dtypes.float64]
    if not outputs:
        return 0
    first = [input_node(x.shape, x.dtype, np.zeros(x.shape)) for x in moving]
    second = [input_node(x.shape, x.dtype, np.zeros(x.shape)) for x in moving]
    found = taylor_series(outputs, moving, list(zip(first, second, strict=True)), orders)
    zero = constant(0.0, dtypes.float64)
    flat = [n for y, terms in zip(outputs, found, strict=True) for n in [y, *terms]]
    evaluate = Evaluator([zero if n is None else n for n in flat], [*moving, *first, *second])
    u = [rng.uniform(-1, 1, x.shape) for x in moving]
    v = [rng.uniform(-1, 1, x.shape) for x in moving]
    weights = [rng.uniform(0.5, 1.5, y.shape) for y in outputs]

    def at(t: float) -> list[float]:
        place = [x.value + t * a + t * t * b for x, a, b in zip(moving, u, v, strict=True)]
        speed = [a + 2 * t * b for a, b in zip(u, v, strict=True)]
        values = evaluate([*place, *speed, *v])
        return [
            sum(float((w * values[i * (orders + 1) + k]).sum()) for i, w in enumerate(weights))
            for k in range(orders + 1)
        ]

    here = at(0.0)
    for k in range(1, orders + 1):
        difference = central_difference(lambda t, k=k: at(t)[k - 1], 3e-4)
        # d/dt of the coefficient of order k - 1 is k times that of order k.
        allowed = 2e-6 * (abs(difference.value) + abs(k * here[k])) + 1e-9 * (1 + abs(here[k - 1]))
        assert abs(k * here[k] - difference.value) <= allowed, (k, here, difference)
    return orders


@pytest.mark.parametrize("s", OTHERS, ids=lambda s: s.name)
def test_other_ops_agree_with_differences(s: Any) -> None:
    assert check_by_differences(s, smooth_sample(s), 3) == 3


def test_factorisations_agree_with_differences_along_symmetric_matrices() -> None:
    s = along_symmetric(subject("cholesky_factor"))
    assert check_by_differences(s, 0, 3) == 3


# -- what users call ----------------------------------------------------------------------


def univariate(xp: Any, x: Any) -> Any:
    return xp.exp(-x * x) * xp.sin(3.0 * x) / (1.0 + x * x)


def array(t: Any) -> np.ndarray:
    return np.asarray(t.detach())


def test_derivatives_of_a_function_of_one_variable() -> None:
    points = np.array([-1.7, -0.3, 0.1, 0.8, 2.0])
    found = func.derivatives(lambda x: univariate(sg, x), tensor(points), 8)
    assert len(found) == 9
    want = np.array([taylor(lambda x: univariate(mpmath, x), p, 8) for p in points]).T
    np.testing.assert_allclose([array(d) for d in found], want, rtol=2e-13)


COMPOSITIONS = {
    "tanh-exp-sin": lambda m, x: m.tanh(m.exp(m.sin(x))),
    "power of log": lambda m, x: m.log(1.0 + x**2) ** 3,
    "quotient of roots": lambda m, x: x**0.5 / (x + m.sqrt(x)),
    "powers in the exponent": lambda m, x: (2.0**x) ** x,
    "reciprocals": lambda m, x: 1.0 / (1.0 / x + x) - m.atan(x * x * x),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions(name: str) -> None:
    f = COMPOSITIONS[name]
    points = [0.3, 0.9, 1.6]
    found = func.derivatives(lambda x: f(sg, x), tensor(points), 8)
    want = np.array([taylor(lambda x: f(mpmath, x), p, 8) for p in points]).T
    np.testing.assert_allclose([array(d) for d in found], want, rtol=1e-11, atol=1e-10)


def curve(shape: tuple[int, ...], order: int) -> np.ndarray:
    """Derivatives of orders 0 to `order` along a random curve."""
    return RNG.uniform(-1, 1, (order + 1, *shape))


def series_of(*curves: np.ndarray) -> tuple[Any, Any]:
    """Primals and series of curves."""
    primals = tuple(tensor(c[0]) for c in curves)
    return primals, tuple([tensor(d) for d in c[1:]] for c in curves)


def test_products_of_matrices_follow_leibniz() -> None:
    a, b = curve((3, 4), 4), curve((4, 2), 4)
    value, series = func.jet(lambda a, b: a @ b, *series_of(a, b))
    want = [sum(math.comb(n, k) * a[k] @ b[n - k] for k in range(n + 1)) for n in range(5)]
    np.testing.assert_allclose([array(value), *map(array, series)], want, rtol=1e-13)


def test_sums_movements_and_broadcasts_act_on_each_order() -> None:
    a, b = curve((3, 1), 3), curve((4,), 3)
    value, series = func.jet(lambda a, b: (2 * (a - b).T[1:]).sum(0), *series_of(a, b))
    want = 2 * (a - b[:, None])[:, :, 1:].sum(2)
    np.testing.assert_allclose([array(value), *map(array, series)], want, rtol=1e-13)


def test_products_under_broadcasting_are_polynomials() -> None:
    a, b = curve((3, 1), 4), curve((4,), 4)
    scale = np.array([math.factorial(k) for k in range(5)])
    value, series = func.jet(lambda a, b: (a * b * a).sum(), *series_of(a, b))
    want = np.zeros(5)
    for i, j in np.ndindex(3, 4):
        p, q = a[:, i, 0] / scale, b[:, j] / scale
        want += polynomial.polymul(polynomial.polymul(p, q), p)[:5]
    np.testing.assert_allclose(
        [value.item(), *[t.item() for t in series]], want * scale, rtol=1e-12
    )


def test_solving_follows_from_the_equation_it_solves() -> None:
    a, b = curve((3, 3), 4), curve((3, 2), 4)
    a[0] += 4 * np.eye(3)
    value, series = func.jet(sg.linalg.solve, *series_of(a, b))
    x = [array(value), *map(array, series)]
    for n in range(5):
        left = sum(math.comb(n, k) * a[k] @ x[n - k] for k in range(n + 1))
        np.testing.assert_allclose(left, b[n], atol=1e-11)


def test_choices_take_the_chosen_branch() -> None:
    x = tensor([-1.5, 0.5, 2.0])
    found = func.derivatives(lambda x: sg.where(x > 1, x**3, sg.relu(x) * sg.abs(x)), x, 4)
    want = [[0, 0.25, 8], [0, 1, 12], [0, 2, 12], [0, 0, 6], [0, 0, 0]]
    np.testing.assert_allclose([array(d) for d in found], want, atol=1e-14)


def test_a_branch_not_taken_does_not_spoil_the_other() -> None:
    x = tensor([-1.0, 0.0, 4.0])
    found = func.derivatives(lambda x: sg.where(x > 0, sg.sqrt(x), 1.0) * x, x, 3)
    want = [[-1, 0, 8], [1, 1, 3], [0, 0, 3 / 8], [0, 0, -3 / 64]]
    np.testing.assert_allclose([array(d) for d in found], want)


def test_numbers_in_the_series_have_the_shape_of_the_result() -> None:
    found = func.derivatives(lambda x: (3 * x, x.sum(), sg.ones(2)), tensor([1.0, 2.0]), 2)
    assert [[array(t).tolist() for t in level] for level in found] == [
        [[3, 6], 3, [1, 1]],
        [[3, 3], 2, [0, 0]],
        [[0, 0], 0, [0, 0]],
    ]


def test_outputs_are_nested_as_the_functions() -> None:
    one = tensor(1.0)
    value, series = func.jet(
        lambda p: {"square": p["x"] ** 2, "rest": [p["x"] * 0.5]},
        ({"x": tensor(3.0)},),
        [[{"x": one}]],
    )
    assert value["square"].item() == 9 and value["rest"][0].item() == 1.5
    assert series["square"][0].item() == 6 and series["rest"][0][0].item() == 0.5


def test_order_zero_is_the_value() -> None:
    (value,) = func.derivatives(sg.sin, tensor(0.3), 0)
    assert value.item() == pytest.approx(math.sin(0.3), rel=1e-15)
    assert func.jet(sg.sin, (tensor(0.3),), ((),))[1] == []


def test_complex_functions_are_holomorphic() -> None:
    z = 0.3 + 0.7j
    found = func.derivatives(
        lambda z: sg.exp(z * z) / (z + 2.0), sg.tensor(z, dtype=sg.complex128), 5
    )
    with mpmath.workdps(50):
        c = mpmath.taylor(lambda z: mpmath.exp(z * z) / (z + 2), mpmath.mpc(z), 5)
        want = [complex(k * math.factorial(n)) for n, k in enumerate(c)]
    np.testing.assert_allclose([d.item() for d in found], want, rtol=1e-12)


def test_float32_stays_float32() -> None:
    found = func.derivatives(lambda x: sg.sin(2 * x), sg.tensor([0.4], dtype=sg.float32), 5)
    want = [2**k * math.sin(0.8 + k * math.pi / 2) for k in range(6)]
    assert all(d.dtype is sg.float32 for d in found)
    np.testing.assert_allclose([d.item() for d in found], want, rtol=1e-6)


def test_gradients_of_derivatives() -> None:
    w, x = tensor(1.3), tensor(0.4)
    third = lambda w: func.derivatives(lambda x: sg.sin(w * x), x, 3)[3]  # noqa: E731
    # d/dw of -w^3 cos(w x)
    want = -3 * 1.3**2 * math.cos(0.52) + 1.3**3 * 0.4 * math.sin(0.52)
    assert func.grad(third)(w).item() == pytest.approx(want, rel=1e-13)
    leaf = w.detach().requires_grad_()
    third(leaf).backward()
    assert leaf.grad.item() == pytest.approx(want, rel=1e-13)


def test_derivatives_of_gradients_and_of_derivatives() -> None:
    def inner(x: Any) -> Any:
        return func.grad(lambda x: (sg.exp(2 * x)).sum())(x)

    x = tensor([0.1, 0.2])
    found = func.derivatives(inner, x, 3)
    want = [2 ** (k + 1) * np.exp(2 * array(x)) for k in range(4)]
    np.testing.assert_allclose([array(d) for d in found], want, rtol=1e-13)
    twice = func.derivatives(lambda x: func.derivatives(lambda x: sg.exp(2 * x), x, 2)[2], x, 2)
    np.testing.assert_allclose([array(d) for d in twice], want[1:], rtol=1e-13)


def test_mapped_over_a_batch() -> None:
    points = np.array([0.2, 0.5, 0.9])
    found = func.vmap(lambda x: func.derivatives(sg.log, x, 3))(tensor(points))
    want = [np.log(points), 1 / points, -1 / points**2, 2 / points**3]
    np.testing.assert_allclose([array(d) for d in found], want, rtol=1e-14)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compiled_is_eager_to_the_bit(name: str) -> None:
    def f(x: Any) -> Any:
        factor = sg.full((), 1.7, dtype=sg.float64)
        return func.derivatives(lambda x: factor * COMPOSITIONS[name](sg, x), x, 8)

    x = RNG.uniform(0.1, 2, 1000)
    for got, want in zip(sg.compile(f)(x), f(tensor(x)), strict=True):
        assert same_bits(got, array(want))


def test_one_loop_nest_computes_all_orders() -> None:
    f = sg.compile(lambda x: func.derivatives(lambda x: univariate(sg, x), x, 8))
    f(np.linspace(-1, 1, 5000))
    assert len([line for line in f.schedule().splitlines() if "loops" in line]) == 1


def test_graphs_may_be_deep() -> None:
    def chain(x: Any) -> Any:
        for _ in range(5000):
            x = x + 0.001
        return x * x

    assert [d.item() for d in func.derivatives(chain, tensor(1.0), 2)] == pytest.approx([36, 12, 2])


# -- errors ---------------------------------------------------------------------------------

ONE = tensor(1.0)


@pytest.mark.parametrize(
    ("primals", "series", "error", "words"),
    [
        ([ONE], [[ONE]], RuntimeError, "expected primals to be a tuple"),
        ((ONE,), [], RuntimeError, "for each of 1 primals .got 0 series"),
        ((ONE,), ONE, RuntimeError, "for each of 1 primals .got Tensor"),
        ((ONE,), [ONE], RuntimeError, "series of primal 0 must be a tuple or list"),
        ((ONE, ONE), [[ONE], [ONE, ONE]], ValueError, r"inconsistent lengths .* .got \[1, 2\]"),
        ((ONE,), [[tensor([1.0])]], RuntimeError, "series of order 1 has a shape of .1,."),
        (
            (ONE,),
            [[ONE, ONE.to(sg.float32)]],
            RuntimeError,
            "dtype: series of order 2 has .*float32",
        ),
        ((ONE,), [[1.0]], RuntimeError, "series of order 1 to only contain Tensors"),
        ((sg.tensor(1),), [[ONE]], RuntimeError, "only Tensors of floating point"),
        ((1.0,), [[ONE]], ValueError, "must be Tensor, got <class 'float'>"),
    ],
)
def test_jet_refuses(primals: Any, series: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        func.jet(lambda *x: x[0] * 2, primals, series)


@pytest.mark.parametrize(
    ("f", "x", "order", "error", "words"),
    [
        (sg.sin, ONE, -1, ValueError, "order must be an integer of at least 0 .got -1"),
        (sg.sin, ONE, 2.0, ValueError, "order must be an integer"),
        (sg.sin, 1.0, 2, ValueError, "x must be a Tensor .got float"),
        (sg.sin, sg.tensor([1, 2]), 2, RuntimeError, "only Tensors of floating point"),
        (
            lambda x: x.argmax(),
            tensor([1.0, 2.0]),
            2,
            RuntimeError,
            "outputs of f must be floating.*int64",
        ),
        (lambda x: x.item(), ONE, 2, RuntimeError, "return only tensors"),
    ],
)
def test_derivatives_refuse(f: Any, x: Any, order: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        func.derivatives(f, x, order)


def test_a_derivative_that_is_code_is_refused() -> None:
    class Cube(sg.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    with pytest.raises(NotImplementedError, match="no Taylor coefficients"):
        func.derivatives(Cube.apply, ONE, 2)


@pytest.mark.parametrize("order", [1, 2])
def test_forward_modes_pass_a_value_whose_memory_was_changed(order):
    def quartic(x: Any) -> Any:
        y = x * x
        with sg.no_grad():
            y.data.mul_(1.0)
        return y * y

    x = sg.tensor([1.0, 2.0], dtype=sg.float64)
    wanted = {1: [4.0, 32.0], 2: [12.0, 48.0]}[order]
    np.testing.assert_allclose(func.derivatives(quartic, x, order)[order].numpy(), wanted)
    _, tangent = func.jvp(quartic, (x,), (sg.ones(2, dtype=sg.float64),))
    np.testing.assert_allclose(tangent.numpy(), [4.0, 32.0])
