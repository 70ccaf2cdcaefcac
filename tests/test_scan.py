"""Loops as nodes: values, derivatives, batches and errors of scan, cond and while_loop.

What a scan must equal is the same loop written in Python, or NumPy's, or differences.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import symgrad as sg
from symgrad.autograd import grad, gradcheck, gradgradcheck
from symgrad.codegen import emission
from symgrad.errors import TracedValueError

RNG = np.random.default_rng(7)


def tanh_cell(weight):
    def step(h, x):
        h = sg.tanh(weight @ h + x)
        return h, (h * h).sum()

    return step


def logistic_map(r):
    """x' = r x (1 - x), handing out x."""

    def step(x, _):
        return r * x * (1.0 - x), x

    return step


def lotka(p, h=0.05):
    """One step of Heun's method."""

    def rate(x, y):
        return p[0] * x - p[1] * x * y, p[2] * x * y - p[3] * y

    def step(state, _):
        x, y = state
        a, b = rate(x, y)
        c, d = rate(x + h * a, y + h * b)
        return (x + 0.5 * h * (a + c), y + 0.5 * h * (b + d)), None

    return step


def unrolled(step, init, rows, backward=False):
    """The same by a Python loop."""
    carry, found = init, []
    for r in reversed(rows) if backward else rows:
        carry, y = step(carry, r)
        found.append(y)
    return carry, found[::-1] if backward else found


def leaf(*shape, scale=1.0):
    return sg.tensor(scale * RNG.normal(size=shape), requires_grad=True)


@pytest.mark.parametrize("size", [3, 16, 17, 40])
@pytest.mark.parametrize("backward", [False, True])
def test_equals_the_loop_written_out(size, backward):
    """Values and gradients, for steps in registers (up to 16 elements) and steps that are programs."""
    weight, init, xs = leaf(size, size, scale=0.3), leaf(size), leaf(9, size)
    leaves = [weight, init, xs]
    last, ys = sg.scan(tanh_cell(weight), init, xs, reverse=backward)
    plain_last, plain_ys = unrolled(tanh_cell(weight), init, list(xs), backward)
    plain_ys = sg.stack(plain_ys)
    np.testing.assert_allclose(last.detach(), plain_last.detach(), rtol=1e-13)
    np.testing.assert_allclose(ys.detach(), plain_ys.detach(), rtol=1e-13)
    made = grad((ys * ys).sum() + last.sin().sum(), leaves)
    wanted = grad((plain_ys * plain_ys).sum() + plain_last.sin().sum(), leaves)
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_against_numpy():
    r, x, seen = 3.7, 0.3, []
    for _ in range(50):
        seen.append(x)
        x = r * x * (1.0 - x)
    last, ys = sg.scan(
        logistic_map(sg.tensor(r, dtype=sg.float64)), sg.tensor(0.3, dtype=sg.float64), length=50
    )
    assert last.item() == x
    np.testing.assert_array_equal(ys, seen)


@pytest.mark.parametrize("size", [2, 20])
def test_gradcheck_to_second_order(size):
    weight, init, xs = leaf(size, size, scale=0.3), leaf(size), leaf(4, size)

    def value(weight, init, xs):
        last, ys = sg.scan(tanh_cell(weight), init, xs)
        return last, ys

    assert gradcheck(value, (weight, init, xs), check_forward_ad=True)
    if size == 2:
        assert gradgradcheck(value, (weight, init, xs))


def test_few_numbers_go_forward():
    """The gradient of a long loop of scalars by few numbers: one loop of tangents, equal to differences."""
    p = sg.tensor([1.1, 0.4, 0.1, 0.4], dtype=sg.float64, requires_grad=True)
    start = sg.tensor([1.2, 0.8], dtype=sg.float64, requires_grad=True)

    def loss(start, p):
        (x, y), _ = sg.scan(lotka(p.unbind()), tuple(start.unbind()), length=100)
        return (x - 1.0) ** 2 + (y - 1.0) ** 2

    assert gradcheck(loss, (start, p), rtol=1e-6)
    program = sg.compile(
        lambda a, b: (loss(a.requires_grad_(), b.requires_grad_()), *grad(loss(a, b), (a, b)))
    )
    program(start.detach().numpy(), p.detach().numpy())
    assert program.schedule().count("loop of 100 steps") == 1


def test_forward_and_reverse_mode_agree():
    weight, init, xs = leaf(5, 5, scale=0.3), leaf(5), leaf(6, 5)

    def value(w):
        last, ys = sg.scan(tanh_cell(w), init, xs)
        return sg.cat([last, ys])

    forward = sg.func.jacfwd(value)(weight.detach())
    reverse = sg.func.jacrev(value)(weight.detach())
    np.testing.assert_allclose(forward.detach(), reverse.detach(), rtol=1e-11, atol=1e-13)


def test_hessian_of_a_loop():
    def value(r):
        return sg.scan(logistic_map(r), sg.tensor(0.3, dtype=sg.float64), length=5)[0]

    def exact(r, x=0.3):
        for _ in range(5):
            x = r * x * (1 - x)
        return x

    at, step = 2.5, 1e-4
    second = (exact(at + step) - 2 * exact(at) + exact(at - step)) / step**2
    made = sg.func.grad(sg.func.grad(value))(sg.tensor(at, dtype=sg.float64))
    assert made.item() == pytest.approx(second, rel=1e-5)


def test_vmap_of_a_scan_and_of_its_gradient():
    weight, xs = leaf(3, 3, scale=0.3), leaf(4, 3)
    inits = leaf(5, 3)

    def last(init):
        return sg.scan(tanh_cell(weight), init, xs)[1].sum()

    made = sg.vmap(last)(inits)
    np.testing.assert_allclose(made.detach(), [last(i).item() for i in inits], rtol=1e-13)
    rows = sg.vmap(sg.func.grad(last))(inits.detach())
    single = [sg.func.grad(last)(i).detach() for i in inits.detach()]
    np.testing.assert_allclose(rows.detach(), sg.stack(single), rtol=1e-12)
    many = sg.vmap(lambda x: sg.scan(tanh_cell(weight), inits[0], x)[1], in_dims=1, out_dims=1)(
        sg.stack([xs, 2 * xs], 1)
    )
    np.testing.assert_allclose(
        many[:, 1].detach(), sg.scan(tanh_cell(weight), inits[0], 2 * xs)[1].detach()
    )


@pytest.mark.parametrize("size", [3, 20])
def test_same_bits_eager_and_compiled(size):
    weight, init, xs = (leaf(*s).detach().numpy() for s in ((size, size), (size,), (7, size)))

    def program(weight, init, xs):
        leaves = [a.requires_grad_() for a in (weight, init, xs)]
        last, ys = sg.scan(tanh_cell(weight), init, xs)
        total = ys.sum() + last.sum()
        return total, ys, *grad(total, leaves)

    compiled = sg.compile(program)(weight, init, xs)
    eager = program(*[sg.tensor(a) for a in (weight, init, xs)])
    for a, b in zip(compiled, eager, strict=True):
        assert np.asarray(a).tobytes() == b.detach().numpy().tobytes()


def test_bodies_of_registers_know_all_small_kinds():
    """Slices, joins, matrix products, sums along either axis, comparisons, integers and bools."""
    rows = RNG.normal(size=(6, 2, 3))

    def step(c, r):
        m, flag, count = c
        product = m @ r.T
        taken = sg.where(product > 0, product, -product.flip(0))
        parts = sg.stack([taken.sum(0), taken.amax(1)])
        joined = sg.cat([parts[:, :1], r[:, 1:]], 1)
        return (sg.tanh(joined), flag ^ (joined.sum() > 0), count + 1), joined.T[1]

    init = (sg.tensor(rows[0]), sg.tensor(False), sg.tensor(0))
    (m, flag, count), ys = sg.scan(step, init, sg.tensor(rows))
    (plain_m, plain_flag, plain_count), plain_ys = unrolled(step, init, list(sg.tensor(rows)))
    np.testing.assert_array_equal(m, plain_m)
    np.testing.assert_array_equal(ys, sg.stack(plain_ys))
    assert (flag.item(), count.item()) == (plain_flag.item(), plain_count.item()) and count == 6


def test_carried_values_may_change_places():
    for size in (2, 30):
        a, b = sg.arange(size), sg.arange(size) + 100
        (x, y), _ = sg.scan(lambda c, _: ((c[1], c[0]), None), (a, b), length=3)
        np.testing.assert_array_equal(x, b)
        np.testing.assert_array_equal(y, a)


def test_nestings_numbers_and_lengths():
    carry, ys = sg.scan(
        lambda c, r: ({"n": c["n"] + 1, "s": c["s"] + r["x"].sum()}, (r["x"], None)),
        {"n": 0, "s": 0.0},
        {"x": sg.ones(4, 3, dtype=sg.float64)},
        length=4,
    )
    assert carry["n"].item() == 4 and carry["s"].item() == 12.0
    assert carry["s"].dtype is sg.float64
    assert tuple(ys[0].shape) == (4, 3) and ys[1] is None
    last, ys = sg.scan(lambda c, r: (c + r, c), sg.tensor(1.0), sg.zeros(0))
    assert last.item() == 1.0 and tuple(ys.shape) == (0,)
    along, _ = sg.scan(
        lambda c, r: (c + r, None),
        sg.zeros(2),
        sg.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        dim=1,
    )
    np.testing.assert_array_equal(along, [6.0, 15.0])


def test_scan_within_a_scan():
    xs = leaf(3, 4)

    def inner(c, x):
        return sg.sin(c) * x, None

    def outer(c, row):
        c, _ = sg.scan(inner, c, row)
        return c, c

    def value(xs):
        return sg.scan(outer, sg.tensor(0.7, dtype=sg.float64), xs)[1]

    c, seen = 0.7, []
    for row in xs.detach().numpy():
        for x in row:
            c = np.sin(c) * x
        seen.append(c)
    np.testing.assert_allclose(value(xs).detach(), seen, rtol=1e-13)
    assert gradcheck(value, (xs,))


def test_library_ops_in_the_body_and_their_errors():
    a = RNG.normal(size=(3, 4, 4))
    a = a @ a.transpose(0, 2, 1) + 4 * np.eye(4)

    def factors(a):
        return sg.scan(
            lambda c, m: (c + m, sg.linalg.cholesky(c + m)), sg.zeros(4, 4, dtype=sg.float64), a
        )[1]

    wanted = [np.linalg.cholesky(m) for m in np.cumsum(a, 0)]
    np.testing.assert_allclose(factors(sg.tensor(a)), wanted, rtol=1e-12, atol=1e-12)
    compiled = sg.compile(factors)
    np.testing.assert_allclose(compiled(a), wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(sg.linalg.LinAlgError, match="not positive-definite"):
        compiled(-a)
    with pytest.raises(sg.linalg.LinAlgError, match="not positive-definite"):
        factors(sg.tensor(-a))
    np.testing.assert_allclose(compiled(a), wanted, rtol=1e-12, atol=1e-12)


def test_a_long_loop_is_one_node():
    x = sg.tensor(0.3, dtype=sg.float64, requires_grad=True)
    last, _ = sg.scan(lambda c, _: (sg.cos(c), None), x, length=1_000_000)
    assert last.item() == pytest.approx(0.7390851332151607, rel=1e-15)
    assert abs(grad(last, x)[0].item()) < 1e-300


def test_new_lengths_compile_nothing():
    def value(x):
        return sg.scan(lambda c, r: (sg.tanh(c + r), None), sg.zeros(3), x)[0]

    compiled = sg.compile(value)
    compiled(np.ones((5, 3), np.float32))
    before = emission.compile_count()
    for steps in (6, 9, 30):
        compiled(np.ones((steps, 3), np.float32))
    assert emission.compile_count() == before


def test_graphs_with_loops_are_copied_and_pickled():
    weight, init, xs = leaf(3, 3), leaf(3), leaf(4, 3)
    _, ys = sg.scan(tanh_cell(weight), init, xs)
    body = ys.expr().attrs[0]
    assert pickle.loads(pickle.dumps(body)) is body
    assert copy.deepcopy(body) is body


def test_cond_takes_one_side():
    x = sg.tensor(-2.0, requires_grad=True)
    y = sg.cond(x > 0, sg.sqrt, lambda x: x * x, (x,))
    assert y.item() == 4.0 and grad(y, x)[0].item() == -4.0

    def program(x):
        x.requires_grad_()
        y = sg.cond(x > 0, sg.sqrt, lambda x: x * x, (x,))
        return y, *grad(y, x)

    compiled = sg.compile(program)
    assert compiled(-2.0) == (4.0, -4.0)
    assert compiled(4.0) == (2.0, 0.25)
    stepped, _ = sg.scan(
        lambda c, _: (sg.cond(c > 1, lambda c: c / 2, lambda c: c + 3, (c,)), None), 8.0, length=5
    )
    assert stepped.item() == 2.0


def test_while_loop_differentiates_the_steps_made():
    x = sg.tensor(3.0, requires_grad=True)
    (y,) = sg.while_loop(lambda v: v < 100.0, lambda v: (v * v,), (x,))
    assert y.item() == 6561.0
    assert grad(y, x)[0].item() == pytest.approx(8 * 3.0**7)


def newton(a, size):
    """The square root by Newton's method until it stands still, from 1."""

    def going(x, last, count):
        return ((x - last).abs() > 1e-15 * x.abs()).any() & (count < 100)

    def better(x, last, count):
        return 0.5 * (x + a / x), x, count + 1

    start = sg.ones(size, dtype=sg.float64) if size else sg.tensor(1.0, dtype=sg.float64)
    x, _, count = sg.while_loop(going, better, (start, 0.0 * start, 0))
    return x, count


@pytest.mark.parametrize("size", [(), (3,), (50,)])
def test_while_loop_in_a_compiled_function(size):
    a = RNG.uniform(0.5, 1e6, size)
    compiled = sg.compile(lambda a: newton(a, size))
    x, count = compiled(a)
    np.testing.assert_allclose(x, np.sqrt(a), rtol=1e-15)
    assert "loop until it ends" in compiled.schedule()
    plain, plain_count = newton(sg.tensor(a), size)
    assert np.asarray(x).tobytes() == plain.numpy().tobytes() and count == int(plain_count) > 5
    assert compiled(np.ones(size))[1] < count


def test_while_loop_that_makes_no_step():
    compiled = sg.compile(lambda x: sg.while_loop(lambda v: v < 100.0, lambda v: (v * v,), (x,)))
    assert compiled(3.0) == (6561.0,) and compiled(500.0) == (500.0,)
    many = sg.compile(lambda x: sg.while_loop(lambda v: v.sum() < 100.0, lambda v: (v * v,), (x,)))
    np.testing.assert_array_equal(many(np.full(20, 3.0))[0], np.full(20, 9.0))
    np.testing.assert_array_equal(many(np.full(20, 30.0))[0], np.full(20, 30.0))


def test_while_loop_in_forward_mode_and_under_vmap():
    def root(a):
        return newton(a, ())[0]

    compiled = sg.compile(lambda a: sg.func.jvp(root, (a,), (sg.ones((), dtype=sg.float64),)))
    x, slope = compiled(9.0)
    assert x == pytest.approx(3.0) and slope == pytest.approx(1.0 / 6.0)
    values = RNG.uniform(0.5, 1e6, 7)
    several = sg.compile(sg.vmap(lambda a: newton(a, ())))
    found, counts = several(values)
    single = [newton(sg.tensor(v, dtype=sg.float64), ()) for v in values]
    np.testing.assert_array_equal(found, [x.item() for x, _ in single])
    np.testing.assert_array_equal(counts, [int(n) for _, n in single])
    assert sg.compile(sg.func.grad(root))(9.0) == pytest.approx(1.0 / 6.0)


ERRORS = [
    (lambda: sg.scan(lambda c, r: (c, None), 1.0), ValueError, "neither xs nor length"),
    (lambda: sg.scan(lambda c, r: (c, None), 1.0, length=-1), ValueError, "at least 0"),
    (
        lambda: sg.scan(lambda c, r: c, sg.tensor(1.0), length=2),
        TypeError,
        r"must return a pair.*\(got Tensor\)",
    ),
    (
        lambda: sg.scan(lambda c, r: (c, [c, c], None), sg.tensor(1.0), length=2),
        TypeError,
        r"must return a pair.*\(got \(\*, \[\*, \*\], \*\), with a star",
    ),
    (
        lambda: sg.while_loop(lambda v: v > 0, lambda v: None, (1,)),
        TypeError,
        r"must return 1 carried values as a tuple \(got NoneType\)",
    ),
    (
        lambda: sg.while_loop(lambda v: v > 0, lambda v: (v, [v]), (1,)),
        TypeError,
        r"must return 1 carried values as a tuple \(got \(\*, \[\*\]\), with a star",
    ),
    (
        lambda: sg.scan(lambda c, r: ((c, c), None), sg.tensor(1.0), length=2),
        TypeError,
        "nested like init",
    ),
    (
        lambda: sg.scan(lambda c, r: (sg.ones(2), None), sg.tensor(1.0), length=2),
        RuntimeError,
        r"shape \(2,\)",
    ),
    (
        lambda: sg.scan(lambda c, r: (c.double(), None), sg.tensor(1.0), length=2),
        RuntimeError,
        "dtype",
    ),
    (
        lambda: sg.scan(lambda c, r: (c + r, None), 0.0, (sg.ones(2), sg.ones(3))),
        ValueError,
        r"\[2, 3\]",
    ),
    (lambda: sg.scan(lambda c, r: (c, None), 0.0, sg.tensor(1.0)), ValueError, "no axis"),
    (lambda: sg.scan(lambda c, r: (c, None), 0.0, [1.0]), TypeError, "tensors only"),
    (lambda: sg.scan(lambda c, r: (c, None), "a", length=1), TypeError, "got str"),
    (lambda: sg.scan(lambda c, r: (c, 3), 0.0, length=1), TypeError, "neither tensor nor None"),
    (lambda: sg.scan(lambda c, r: (c + sg.rand(()), None), 0.0, length=2), RuntimeError, "random"),
    (
        lambda: sg.scan(lambda c, r: (c if c > 0 else -c, None), sg.tensor(1.0), length=2),
        TracedValueError,
        "scan: the function looked at a value",
    ),
    (
        lambda: sg.compile(lambda x: sg.while_loop(lambda v: v > 0, lambda v: (v,), (x,)))(
            np.ones(2)
        ),
        RuntimeError,
        "one truth value",
    ),
    (lambda: sg.cond(sg.ones(2) > 0, abs, abs, (1,)), RuntimeError, "one element"),
    (lambda: sg.cond(1.0, abs, abs, (1,)), TypeError, "bool or a tensor"),
    (
        lambda: sg.while_loop(lambda x: True, lambda x: x, (sg.tensor(1.0),)),
        TypeError,
        "1 carried values",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors_say_what_to_do(number):
    call, kind, words = ERRORS[number]
    with pytest.raises(kind, match=words):
        call()


def test_writing_to_a_tensor_from_outside_is_refused():
    total = sg.zeros(())

    def step(c, r):
        total.add_(r)
        return c, None

    with pytest.raises(RuntimeError, match="writes to a tensor from outside"):
        sg.scan(step, 0.0, sg.ones(3))
    assert total.item() == 0.0


def test_a_loop_over_empty_values_writes_nothing():
    def f(c, xs):
        return sg.func.scan(lambda c, x: (sg.tanh(c + x), c * 2), c, xs)

    g = sg.compile(f)
    around = np.full(64, 77.0)
    out = around[:0], around[8:8].reshape(9, 0)
    for _ in range(3):
        g.into(out, np.ones(0), np.ones((9, 0)))
        assert (around == 77.0).all()
    last, rows = f(sg.ones(2, 0), sg.ones(9, 2, 0))
    assert last.shape == (2, 0) and rows.shape == (9, 2, 0) and rows.tolist() == [[[], []]] * 9


def test_steps_that_may_fail_share_no_code_with_those_that_cannot():
    def after_a_factorization(step):
        return sg.compile(
            lambda a, c: (
                sg.linalg.cholesky(a),
                sg.scan(lambda c, _: (step(c), None), c, length=3)[0],
            )
        )

    squares = after_a_factorization(lambda c: c @ c)
    factors = after_a_factorization(sg.linalg.cholesky)
    a, c = np.eye(20), np.diag(np.linspace(0.5, 1.5, 20))
    for _ in range(2):
        np.testing.assert_allclose(squares(a, c)[1], c**8, rtol=1e-13)
        np.testing.assert_allclose(factors(a, c)[1], c**0.125, rtol=1e-13)
    with pytest.raises(RuntimeError, match="leading minor"):
        factors(a, -c)
