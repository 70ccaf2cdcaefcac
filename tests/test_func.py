"""Transforms of functions: against analytic derivatives, NumPy and differences."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad import func
from symgrad.errors import TracedValueError

RNG = np.random.default_rng(5)


def tensor(value: Any, grad: bool = False) -> Any:
    return sg.tensor(np.asarray(value, float), dtype=sg.float64, requires_grad=grad)


def array(t: Any) -> np.ndarray:
    return np.asarray(t.detach())


def differences(
    f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, step: float = 1e-6
) -> np.ndarray:
    """The Jacobian by central differences."""
    columns = []
    for k in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[k] = step
        columns.append((f(x + e) - f(x - e)) / (2 * step))
    return np.stack(columns, -1).reshape(*np.shape(columns[0]), *x.shape)


def network(w: Any, x: Any) -> Any:
    return sg.tanh(w @ x) * x.sum()


def network_numpy(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.tanh(w @ x) * x.sum()


# -- grad -------------------------------------------------------------------------------


def test_grad_when_nested_then_gives_each_order() -> None:
    x = tensor(0.7)
    want = [math.cos, lambda v: -math.sin(v), lambda v: -math.cos(v), math.sin, math.cos]
    f: Callable[..., Any] = sg.sin
    for derivative in want:
        f = func.grad(f)
        assert f(x).item() == pytest.approx(derivative(0.7), rel=1e-14)


def test_grad_when_levels_share_a_variable_then_they_are_not_confused() -> None:
    inner = lambda x: func.grad(lambda y: x * y * y)(tensor(3.0))  # noqa: E731
    assert func.grad(lambda x: x * inner(x))(tensor(2.0)).item() == 24.0
    same = func.grad(lambda x: func.grad(lambda y: x * y)(x) * x)
    assert same(tensor(5.0)).item() == 10.0


def test_grad_when_arguments_are_nested_then_so_is_the_result() -> None:
    pair = namedtuple("pair", "left right")
    tree = {"a": tensor([2.0]), "b": [tensor([3.0]), pair(tensor(1.0), tensor(4.0))]}
    f = lambda d: (d["a"] * d["b"][0]).sum() + d["b"][1].left * d["b"][1].right ** 2  # noqa: E731
    found = func.grad(f)(tree)
    assert array(found["a"]) == [3.0]
    assert array(found["b"][0]) == [2.0]
    assert isinstance(found["b"][1], pair)
    assert (found["b"][1].left.item(), found["b"][1].right.item()) == (16.0, 8.0)
    ordered = func.grad(lambda d: d["z"] * d["y"])(OrderedDict(z=tensor(2.0), y=tensor(3.0)))
    assert list(ordered) == ["z", "y"]


def test_grad_when_argnums_are_several_then_gives_a_tuple() -> None:
    f = lambda a, b, c: (a * b).sum() + c  # noqa: E731
    a, b, c = tensor([1.0, 2.0]), tensor([3.0, 4.0]), tensor(1.0)
    found = func.grad(f, argnums=(1, -1))(a, b, c)
    np.testing.assert_array_equal(array(found[0]), [1.0, 2.0])
    assert found[1].item() == 1.0
    for bad in (3, (0, 0), (), 1.0, (0, "a")):
        with pytest.raises(RuntimeError, match="argnum"):
            func.grad(f, argnums=bad)(a, b, c)  # type: ignore[arg-type]


def test_grad_when_aux_is_returned_then_it_has_no_trace_of_the_level() -> None:
    x = tensor([1.0, 2.0])
    g, aux = func.grad(lambda v: ((v**2).sum(), {"ten": v * 10, "word": "w"}), has_aux=True)(x)
    np.testing.assert_array_equal(array(g), [2.0, 4.0])
    np.testing.assert_array_equal(array(aux["ten"]), [10.0, 20.0])
    assert aux["word"] == "w" and not aux["ten"].requires_grad
    g, (value, aux) = func.grad_and_value(lambda v: ((v**2).sum(), v), has_aux=True)(x)
    assert value.item() == 5.0
    with pytest.raises(RuntimeError, match="tuple"):
        func.grad(lambda v: v.sum(), has_aux=True)(x)


def test_grad_when_input_records_then_result_is_differentiable() -> None:
    x = tensor([1.0, 2.0], grad=True)
    g = func.grad(lambda v: (v**3).sum())(x)
    assert g.requires_grad
    g.sum().backward()
    np.testing.assert_array_equal(array(x.grad), [6.0, 12.0])
    assert not func.grad(lambda v: (v**3).sum())(tensor([1.0])).requires_grad


def test_grad_when_function_closes_over_a_leaf_then_derivatives_reach_it() -> None:
    w = tensor(3.0, grad=True)
    g = func.grad(lambda v: w * v**2)(tensor(2.0))
    assert g.item() == 12.0
    (gw,) = sg.autograd.grad(g, w)
    assert gw.item() == 4.0
    assert w.grad is None


def test_grad_when_no_grad_is_inside_then_it_holds_and_outside_it_does_not() -> None:
    def f(v: Any) -> Any:
        with sg.no_grad():
            c = v**2
        return (v * c).sum()

    with sg.no_grad():
        np.testing.assert_array_equal(array(func.grad(f)(tensor([1.0, 2.0]))), [1.0, 4.0])


def test_grad_when_python_branches_on_values_then_they_are_there() -> None:
    f = lambda v: v**2 if v > 0 else -v  # noqa: E731
    assert func.grad(f)(tensor(3.0)).item() == 6.0
    assert func.grad(f)(tensor(-3.0)).item() == -1.0
    assert func.grad(func.grad(f))(tensor(3.0)).item() == 2.0


def test_grad_when_tensors_are_changed_in_place_then_only_own_ones_may_be() -> None:
    def own(v: Any) -> Any:
        y = v.clone()
        y.mul_(3)
        y[0] = v[1] ** 2
        return y.sum()

    np.testing.assert_array_equal(array(func.grad(own)(tensor([1.0, 2.0]))), [0.0, 7.0])
    outside = tensor([0.0, 0.0])
    with pytest.raises(RuntimeError, match="attempted to call in-place operation"):
        func.grad(lambda v: outside.add_(v).sum())(tensor([1.0, 2.0]))
    np.testing.assert_array_equal(array(outside), [0.0, 0.0])
    view = outside[0]
    with pytest.raises(RuntimeError, match="in-place"):
        func.grad(lambda v: view.add_(v) + v)(tensor(1.0))
    assert outside.tolist() == [0.0, 0.0]


def test_transforms_when_an_argument_is_changed_in_place_then_the_tensor_is() -> None:
    x = tensor([1.0, 2.0])
    _, moved = func.jvp(lambda v: (v.mul_(3) ** 2).sum(), (x,), (tensor([1.0, 0.0]),))
    assert moved.item() == 18.0 and x.tolist() == [3.0, 6.0]
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        func.grad(lambda v: (v.mul_(3) ** 2).sum())(tensor([1.0], grad=True))
    rows = tensor(np.ones((3, 2)))
    assert sg.vmap(lambda v: v.mul_(3).sum(), in_dims=1)(rows).tolist() == [9.0, 9.0]
    assert rows.tolist() == [[3.0, 3.0]] * 3


def test_grad_when_output_is_unfit_then_says_so() -> None:
    x = tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="scalar Tensor, got tensor with 1 dims"):
        func.grad(lambda v: v)(x)
    with pytest.raises(RuntimeError, match="return a Tensor"):
        func.grad(lambda v: 3.0)(x)
    with pytest.raises(ValueError, match="must be Tensor"):
        func.grad(lambda v: v)(3.0)
    with pytest.raises(RuntimeError, match="floating point"):
        func.grad(lambda v: v.sum())(sg.tensor([1, 2]))
    with pytest.raises(RuntimeError, match=r"requires_grad_\(\)"):
        func.grad(lambda v: v.requires_grad_().sum())(x)


def test_grad_when_argument_is_unused_then_gives_zeros() -> None:
    found = func.grad(lambda a, b: a.sum(), argnums=1)(tensor([1.0]), tensor([1.0, 2.0]))
    np.testing.assert_array_equal(array(found), [0.0, 0.0])


def test_grad_when_compiled_then_equals_the_eager_one() -> None:
    x = RNG.normal(size=4)
    step = sg.compile(func.grad(lambda u: (sg.sin(u) * u).sum()))
    np.testing.assert_allclose(step(x), np.cos(x) * x + np.sin(x), rtol=1e-14)
    inner = sg.compile(lambda u: (sg.sin(u) * u).sum())
    np.testing.assert_allclose(
        array(func.grad(inner)(tensor(x))), np.cos(x) * x + np.sin(x), rtol=1e-14
    )


def test_value_and_grad_gives_the_value_first() -> None:
    value, g = func.value_and_grad(lambda v: (v**2).sum())(tensor([1.0, 2.0]))
    assert value.item() == 5.0
    np.testing.assert_array_equal(array(g), [2.0, 4.0])


# -- vjp, jvp, linearize ----------------------------------------------------------------


def test_vjp_equals_the_transposed_jacobian_by_differences() -> None:
    w, x = RNG.normal(size=(3, 4)), RNG.normal(size=4)
    y, pull = func.vjp(network, tensor(w), tensor(x))
    np.testing.assert_allclose(array(y), network_numpy(w, x), rtol=1e-13)
    for _ in range(2):
        v = RNG.normal(size=3)
        gw, gx = pull(tensor(v))
        np.testing.assert_allclose(
            array(gx), v @ differences(lambda u: network_numpy(w, u), x), atol=1e-8
        )
        want = np.tensordot(v, differences(lambda u: network_numpy(u, x), w), 1)
        np.testing.assert_allclose(array(gw), want, atol=1e-8)


def test_vjp_when_cotangent_does_not_fit_then_says_so() -> None:
    y, pull, aux = func.vjp(
        lambda v: ({"a": v * 2, "b": v.sum()}, v * 3), tensor([1.0, 2.0]), has_aux=True
    )
    assert set(y) == {"a", "b"} and array(aux).tolist() == [3.0, 6.0]
    (g,) = pull({"a": tensor([1.0, 0.0]), "b": tensor(10.0)})
    np.testing.assert_array_equal(array(g), [12.0, 10.0])
    with pytest.raises(RuntimeError, match="structure"):
        pull((tensor([1.0, 0.0]), tensor(1.0)))
    with pytest.raises(RuntimeError, match="shape"):
        pull({"a": tensor([1.0]), "b": tensor(1.0)})


def test_jvp_equals_a_directional_difference() -> None:
    w, x, t = RNG.normal(size=(3, 4)), RNG.normal(size=4), RNG.normal(size=4)
    y, moved = func.jvp(lambda v: network(tensor(w), v), (tensor(x),), (tensor(t),))
    np.testing.assert_allclose(array(y), network_numpy(w, x), rtol=1e-13)
    want = (network_numpy(w, x + 1e-6 * t) - network_numpy(w, x - 1e-6 * t)) / 2e-6
    np.testing.assert_allclose(array(moved), want, atol=1e-8)


def test_jvp_when_called_wrongly_then_says_so() -> None:
    x = tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="Expected primals to be a tuple"):
        func.jvp(lambda v: v, x, x)
    with pytest.raises(RuntimeError, match="structure"):
        func.jvp(lambda v: v, (x,), (x, x))
    with pytest.raises(RuntimeError, match="independent"):
        func.jvp(lambda v: sg.ones(2), (x,), (x,), strict=True)
    np.testing.assert_array_equal(array(func.jvp(lambda v: sg.ones(2), (x,), (x,))[1]), [0.0, 0.0])


def test_jvp_of_grad_is_a_hessian_product() -> None:
    x, v = RNG.normal(size=3), RNG.normal(size=3)
    f = lambda u: (u[0] * u[1] ** 2 * sg.exp(u[2])).sum()  # noqa: E731
    _, product = func.jvp(func.grad(f), (tensor(x),), (tensor(v),))
    a, b, e = x[0], x[1], math.exp(x[2])
    hessian = np.array(
        [
            [0, 2 * b * e, b * b * e],
            [2 * b * e, 2 * a * e, 2 * a * b * e],
            [b * b * e, 2 * a * b * e, a * b * b * e],
        ]
    )
    np.testing.assert_allclose(array(product), hessian @ v, rtol=1e-12)


def test_linearize_gives_a_function_of_tangents() -> None:
    x = RNG.normal(size=3)
    y, move = func.linearize(lambda v: (v**3, v.sum()), tensor(x))
    np.testing.assert_allclose(array(y[0]), x**3, rtol=1e-14)
    for _ in range(2):
        t = RNG.normal(size=3)
        cube, total = move(tensor(t))
        np.testing.assert_allclose(array(cube), 3 * x * x * t, rtol=1e-14)
        assert total.item() == pytest.approx(t.sum())
    with pytest.raises(RuntimeError, match="structure"):
        move(tensor(x), tensor(x))


# -- Jacobians --------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [func.jacrev, func.jacfwd])
def test_jacobian_equals_differences(transform: Any) -> None:
    w, x = RNG.normal(size=(3, 4)), RNG.normal(size=4)
    jw, jx = transform(network, argnums=(0, 1))(tensor(w), tensor(x))
    np.testing.assert_allclose(array(jw), differences(lambda u: network_numpy(u, x), w), atol=1e-8)
    np.testing.assert_allclose(array(jx), differences(lambda u: network_numpy(w, u), x), atol=1e-8)
    chunked = transform(network, argnums=1, chunk_size=2)(tensor(w), tensor(x))
    np.testing.assert_allclose(array(chunked), array(jx), rtol=1e-13)
    with pytest.raises(ValueError, match="chunk_size"):
        transform(network, chunk_size=0)


@pytest.mark.parametrize("transform", [func.jacrev, func.jacfwd])
def test_jacobian_when_outputs_are_nested_then_so_is_the_result(transform: Any) -> None:
    x = {"u": tensor([1.0, 2.0]), "v": tensor(3.0)}

    def f(d: Any) -> Any:
        return {"s": d["u"].sum(), "p": d["u"] * d["v"], "c": sg.ones(2, dtype=sg.float64)}, "aux"

    found, aux = transform(f, has_aux=True)(x)
    assert aux == "aux"
    np.testing.assert_array_equal(array(found["s"]["u"]), [1.0, 1.0])
    assert found["s"]["v"].item() == 0.0
    np.testing.assert_array_equal(array(found["p"]["u"]), 3 * np.eye(2))
    np.testing.assert_array_equal(array(found["p"]["v"]), [1.0, 2.0])
    np.testing.assert_array_equal(array(found["c"]["u"]), np.zeros((2, 2)))


def test_jacobian_when_one_entry_is_undefined_then_others_are_zero() -> None:
    x = tensor([0.5, 2.0])
    j = array(func.jacrev(lambda v: v * sg.log(sg.cos(v)))(x))
    assert j[0, 0] == pytest.approx(math.log(math.cos(0.5)) - 0.5 * math.tan(0.5), rel=1e-13)
    assert (j[0, 1], j[1, 0]) == (0.0, 0.0)
    assert math.isnan(j[1, 1])


def test_hessian_equals_the_analytic_one() -> None:
    x = RNG.normal(size=5)
    rosenbrock = lambda v: (100 * (v[1:] - v[:-1] ** 2) ** 2 + (1 - v[:-1]) ** 2).sum()  # noqa: E731
    want = np.zeros((5, 5))
    for k in range(4):
        want[k, k] += 1200 * x[k] ** 2 - 400 * x[k + 1] + 2
        want[k, k + 1] = want[k + 1, k] = -400 * x[k]
        want[k + 1, k + 1] += 200
    np.testing.assert_allclose(
        array(func.hessian(rosenbrock)(tensor(x))), want, rtol=1e-11, atol=1e-10
    )
    twice = func.jacrev(func.jacrev(rosenbrock))(tensor(x))
    np.testing.assert_allclose(array(twice), want, rtol=1e-11, atol=1e-10)


def test_third_derivative_tensor_is_symmetric_and_right() -> None:
    x = RNG.normal(size=3)
    third = array(func.jacfwd(func.hessian(lambda v: v.prod() * v.sum()))(tensor(x)))
    assert third.shape == (3, 3, 3)
    np.testing.assert_allclose(third, third.transpose(2, 0, 1), rtol=1e-12)
    # d3/(da db dc) of abc(a+b+c) = 2(a+b+c); d3/(da da db) = 2c
    assert third[0, 1, 2] == pytest.approx(2 * x.sum(), rel=1e-12)
    assert third[0, 0, 1] == pytest.approx(2 * x[2], rel=1e-12)


# -- vmap -------------------------------------------------------------------------------


def test_vmap_when_axes_are_chosen_then_equals_numpy() -> None:
    a = RNG.normal(size=(2, 3, 4))
    f = lambda m: (m.sum(0), m * 2)  # noqa: E731
    first, second = sg.vmap(f, in_dims=2, out_dims=(0, -1))(tensor(a))
    np.testing.assert_allclose(array(first), a.sum(0).T, rtol=1e-14)
    np.testing.assert_array_equal(array(second), a * 2)
    outer = sg.vmap(sg.vmap(sg.mul, in_dims=(None, 0)), in_dims=(0, None))
    x, y = RNG.normal(size=3), RNG.normal(size=5)
    np.testing.assert_array_equal(array(outer(tensor(x), tensor(y))), np.multiply.outer(x, y))


def test_vmap_when_inputs_are_nested_then_in_dims_may_be_a_prefix() -> None:
    tree = {"a": tensor(RNG.normal(size=(4, 3))), "b": [tensor(RNG.normal(size=(4, 3))), 2]}
    f = lambda d, w: (d["a"] * d["b"][0] * d["b"][1]) @ w  # noqa: E731
    w = tensor(RNG.normal(size=3))
    dims = ({"a": 0, "b": [0, None]}, None)
    found = sg.vmap(f, in_dims=dims)(tree, w)
    want = (array(tree["a"]) * array(tree["b"][0]) * 2) @ array(w)
    np.testing.assert_allclose(array(found), want, rtol=1e-13)


def test_vmap_of_grad_gives_per_sample_gradients() -> None:
    w, x, y = RNG.normal(size=3), RNG.normal(size=(6, 3)), RNG.normal(size=6)
    loss = lambda w, x, y: (sg.tanh(w @ x) - y) ** 2  # noqa: E731
    found = sg.vmap(func.grad(loss), in_dims=(None, 0, 0))(tensor(w), tensor(x), tensor(y))
    p = np.tanh(x @ w)
    np.testing.assert_allclose(array(found), (2 * (p - y) * (1 - p * p))[:, None] * x, rtol=1e-12)
    chunked = sg.vmap(func.grad(loss), in_dims=(None, 0, 0), chunk_size=4)(
        tensor(w), tensor(x), tensor(y)
    )
    np.testing.assert_allclose(array(chunked), array(found), rtol=1e-13)


def test_grad_of_vmap_reaches_arguments_and_captured_leaves() -> None:
    w = tensor([1.0, 2.0], grad=True)
    x = tensor(RNG.normal(size=(4, 2)), grad=True)
    total = sg.vmap(lambda v: sg.sin(v @ w))(x).sum()
    gx, gw = sg.autograd.grad(total, (x, w))
    c = np.cos(array(x) @ array(w))
    np.testing.assert_allclose(array(gx), c[:, None] * array(w), rtol=1e-13)
    np.testing.assert_allclose(array(gw), c @ array(x), rtol=1e-13)


def test_vmap_when_function_differentiates_inside_then_it_is_batched_too() -> None:
    def slope(v: Any) -> Any:
        u = v.detach().requires_grad_()
        return sg.autograd.grad((u**3).sum(), u)[0]

    x = RNG.normal(size=(4, 2))
    np.testing.assert_allclose(array(sg.vmap(slope)(tensor(x))), 3 * x * x, rtol=1e-14)


def test_vmap_over_library_routines() -> None:
    a = RNG.normal(size=(5, 3, 3))
    spd = a @ a.transpose(0, 2, 1) + 3 * np.eye(3)
    found = sg.vmap(lambda m: sg.linalg.solve(m, sg.ones(3, dtype=sg.float64)))(tensor(spd))
    np.testing.assert_allclose(
        array(found), np.linalg.solve(spd, np.ones((5, 3, 1)))[..., 0], rtol=1e-10
    )


def test_vmap_inside_compile() -> None:
    step = sg.compile(sg.vmap(lambda r: (r * r).sum()))
    a = RNG.normal(size=(3, 4))
    np.testing.assert_allclose(step(a), (a * a).sum(1), rtol=1e-14)


def test_vmap_when_value_is_looked_at_then_says_so() -> None:
    x = sg.ones(2)
    with pytest.raises(TracedValueError, match="data-dependent control flow"):
        sg.vmap(lambda v: v if v > 0 else -v)(x)
    with pytest.raises(RuntimeError, match=r"\.item\(\)"):
        sg.vmap(lambda v: sg.tensor(v.item()))(x)
    with pytest.raises(RuntimeError, match="mask"):
        sg.vmap(lambda v: v[v > 0])(sg.ones(2, 3))


def test_vmap_when_outside_tensors_are_written_then_only_shared_values_may_be() -> None:
    z = sg.zeros(3)
    with pytest.raises(RuntimeError, match=r"doesn't match the broadcast shape \[2, 3\]"):
        sg.vmap(z.add_)(sg.ones(2, 3))
    assert z.tolist() == [0.0, 0.0, 0.0]
    calls = sg.zeros(())

    def counted(v: Any) -> Any:
        calls.add_(1)
        return v * 2

    assert sg.vmap(counted)(sg.ones(2)).tolist() == [2.0, 2.0]
    assert calls.item() == 1.0


@pytest.mark.parametrize(
    ("dims", "args", "words"),
    [
        (0, (sg.ones(2), sg.ones(3)), "same size in the mapped dimension"),
        ((None, None), (sg.ones(2), sg.ones(2)), "at least one Tensor"),
        ((0,), (sg.ones(2), sg.ones(2)), "not compatible with the structure"),
        (0, (sg.ones(2), 3.0), "cannot vmap over non-Tensor"),
        (0, (sg.tensor(1.0), sg.ones(2)), "dimensionality 0"),
        ((0, 1), (sg.ones(2), sg.ones(2)), "dimensionality 1"),
        ((0, "a"), (sg.ones(2), sg.ones(2)), "integer dimension or None"),
        (0, (), "no inputs"),
        ([0, 0], (sg.ones(2), sg.ones(2)), "expected `in_dims`"),
    ],
)
def test_vmap_when_inputs_do_not_fit_then_says_so(dims: Any, args: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sg.vmap(lambda a, b: a + b, in_dims=dims)(*args)


def test_vmap_when_outputs_do_not_fit_then_says_so() -> None:
    x = sg.ones(2)
    with pytest.raises(ValueError, match="must only return Tensors"):
        sg.vmap(lambda v: 3)(x)
    with pytest.raises(ValueError, match="out_dim is None"):
        sg.vmap(lambda v: v, out_dims=None)(x)
    with pytest.raises(ValueError, match="structure of `outputs`"):
        sg.vmap(lambda v: (v, v), out_dims=(0,))(x)
    with pytest.raises(IndexError, match="out of range"):
        sg.vmap(lambda v: v, out_dims=1)(x)
    with pytest.raises(ValueError, match="chunk_size"):
        sg.vmap(lambda v: v, chunk_size=0)
    with pytest.raises(RuntimeError, match="randomness"):
        sg.vmap(lambda v: v, randomness="never")
    same, outside = sg.vmap(lambda v: (v, sg.ones(3)), out_dims=(0, None))(x)
    assert same.shape == (2,) and outside.shape == (3,)


def test_vmap_when_function_draws_then_randomness_decides() -> None:
    x = tensor(np.zeros(5))
    draw = lambda v: v + sg.randn((), dtype=sg.float64)  # noqa: E731
    with pytest.raises(RuntimeError, match="randomness error mode"):
        sg.vmap(draw)(x)
    same = array(sg.vmap(draw, randomness="same")(x))
    assert len(set(same)) == 1
    sg.manual_seed(3)
    different = array(sg.vmap(draw, randomness="different")(x))
    assert len(set(different)) == 5
    sg.manual_seed(3)
    chunked = array(sg.vmap(draw, randomness="different", chunk_size=2)(x))
    np.testing.assert_array_equal(chunked, different)
    nested = sg.vmap(sg.vmap(draw, randomness="different"), randomness="different")
    assert len(set(array(nested(tensor(np.zeros((4, 5))))).ravel())) == 20
    many = array(sg.vmap(draw, randomness="different")(tensor(np.zeros(2000))))
    assert abs(many.mean()) < 0.1 and abs(many.std() - 1) < 0.1


def test_grad_when_function_draws_then_the_draw_is_a_constant() -> None:
    sg.manual_seed(7)
    noise = sg.randn(3, dtype=sg.float64)
    sg.manual_seed(7)
    g = func.grad(lambda v: (v**2 * sg.randn(3, dtype=sg.float64)).sum())(tensor([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(array(g), 2 * np.array([1.0, 2.0, 3.0]) * array(noise), rtol=1e-14)


def test_transforms_keep_the_function_name() -> None:
    def energy(v: Any) -> Any:
        """The energy."""
        return v.sum()

    for made in (func.grad(energy), func.jacrev(energy), sg.vmap(energy), func.hessian(energy)):
        assert made.__name__ == "energy"
        assert made.__doc__ == "The energy."
