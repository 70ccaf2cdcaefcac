"""torch.autograd.functional, forward_ad and batched gradients: against analytic derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad.autograd import forward_ad as fwd
from symgrad.autograd import functional

RNG = np.random.default_rng(6)


def tensor(value: Any, grad: bool = False) -> Any:
    return sg.tensor(np.asarray(value, float), dtype=sg.float64, requires_grad=grad)


def array(t: Any) -> np.ndarray:
    return np.asarray(t.detach())


def cubes(x: Any) -> Any:
    return (x**3).sum()


# -- functional -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}]
)
def test_jacobian_when_inputs_and_outputs_are_tuples_then_result_is_nested(options: Any) -> None:
    a, c = tensor([1.0, 2.0]), tensor(3.0)
    single = functional.jacobian(lambda a, c: a * c, (a, c), **options)
    np.testing.assert_array_equal(array(single[0]), 3 * np.eye(2))
    np.testing.assert_array_equal(array(single[1]), [1.0, 2.0])
    both = functional.jacobian(lambda a, c: (a * c, c), (a, c), **options)
    np.testing.assert_array_equal(array(both[1][0]), [0.0, 0.0])
    assert array(both[1][1]) == 1.0
    matrix = functional.jacobian(lambda x: x @ x, tensor([[1.0, 2.0], [3.0, 4.0]]), **options)
    m = np.array([[1.0, 2.0], [3.0, 4.0]])
    want = np.einsum("ik,lj->ijkl", np.eye(2), m) + np.einsum("ik,jl->ijkl", m, np.eye(2))
    np.testing.assert_array_equal(array(matrix), want)


def test_jacobian_when_create_graph_then_it_is_differentiable() -> None:
    x = tensor([1.0, 2.0], grad=True)
    assert not functional.jacobian(cubes, x).requires_grad
    j = functional.jacobian(cubes, x, create_graph=True)
    np.testing.assert_array_equal(array(sg.autograd.grad(j.sum(), x)[0]), [6.0, 12.0])
    with sg.no_grad():
        np.testing.assert_array_equal(
            array(functional.jacobian(cubes, tensor([1.0, 2.0]))), [3.0, 12.0]
        )


@pytest.mark.parametrize(
    "options", [{}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}]
)
def test_hessian_when_inputs_are_tuples_then_gives_blocks(options: Any) -> None:
    a, c = tensor([1.0, 2.0]), tensor(3.0)
    h = functional.hessian(lambda a, c: (a**2).sum() * c**2, (a, c), **options)
    np.testing.assert_array_equal(array(h[0][0]), 18 * np.eye(2))
    np.testing.assert_array_equal(array(h[0][1]), [12.0, 24.0])
    np.testing.assert_array_equal(array(h[1][0]), [12.0, 24.0])
    assert array(h[1][1]) == 10.0
    np.testing.assert_array_equal(
        array(functional.hessian(lambda x: x.sum(), a, **options)), np.zeros((2, 2))
    )


def test_products_equal_products_with_the_analytic_derivatives() -> None:
    x, v = RNG.normal(size=3), RNG.normal(size=3)
    quartic = lambda u: (u[0] * u[1] * u[2] ** 2).sum()  # noqa: E731
    a, b, c = x
    hessian = np.array(
        [[0, c * c, 2 * b * c], [c * c, 0, 2 * a * c], [2 * b * c, 2 * a * c, 2 * a * b]]
    )
    for product in (functional.vhp, functional.hvp):
        value, found = product(quartic, tensor(x), tensor(v))
        assert value.item() == pytest.approx(a * b * c * c)
        np.testing.assert_allclose(array(found), hessian @ v, rtol=1e-12)
        np.testing.assert_array_equal(
            array(product(lambda u: u.sum(), tensor(x), tensor(v))[1]), np.zeros(3)
        )
    y, pulled = functional.vjp(lambda u: u**2, tensor(x), tensor(v))
    np.testing.assert_allclose(array(y), x * x, rtol=1e-15)
    np.testing.assert_allclose(array(pulled), 2 * x * v, rtol=1e-15)
    _, moved = functional.jvp(lambda u: u**2, tensor(x), tensor(v))
    np.testing.assert_allclose(array(moved), 2 * x * v, rtol=1e-15)
    y, g = functional.vjp(cubes, tensor([1.0, 2.0], grad=True), create_graph=True)
    assert y.requires_grad and g.requires_grad


def test_functional_when_called_wrongly_then_says_so_in_words_of_torch() -> None:
    x = tensor([1.0, 2.0])
    square = lambda u: u**2  # noqa: E731
    with pytest.raises(
        TypeError, match="inputs given to jacobian must be either a Tensor or a tuple"
    ):
        functional.jacobian(cubes, 3.0)
    with pytest.raises(TypeError, match="outputs of the user-provided function given to vjp"):
        functional.vjp(lambda u: 3.0, x)
    with pytest.raises(RuntimeError, match="v can only be None if the user-provided function"):
        functional.vjp(square, x)
    with pytest.raises(RuntimeError, match="v can only be None if the input"):
        functional.hvp(cubes, x)
    with pytest.raises(
        RuntimeError, match=r"should be torch.Size\(\[2\]\) but got torch.Size\(\[3\]\)"
    ):
        functional.jvp(square, x, sg.ones(3))
    with pytest.raises(RuntimeError, match="should contain a single Tensor"):
        functional.vjp(square, x, (x, x))
    with pytest.raises(RuntimeError, match="invalid length"):
        functional.jvp(lambda a, b: a * b, (x, x), (x,))
    for product in (functional.vhp, functional.hvp):
        with pytest.raises(RuntimeError, match="single element"):
            product(square, x, x)
        with pytest.raises(RuntimeError, match="return a single Tensor"):
            product(lambda u: (u.sum(), u.sum()), x, x)
    with pytest.raises(NotImplementedError, match="vectorize"):
        functional.jacobian(square, x, strategy="forward-mode")
    with pytest.raises(RuntimeError, match="not supported together"):
        functional.jacobian(square, x, vectorize=True, strict=True)
    with pytest.raises(AssertionError, match="forward-mode"):
        functional.jacobian(square, x, strategy="sideways")


def test_functional_when_strict_then_refuses_missing_paths() -> None:
    x = tensor([1.0, 2.0])
    free = lambda u: sg.ones(2, dtype=sg.float64, requires_grad=True) * 2  # noqa: E731
    with pytest.raises(RuntimeError, match=r"Output 0 .* is independent of input 0.*strict mode"):
        functional.jacobian(free, x, strict=True)
    with pytest.raises(RuntimeError, match="does not require gradients"):
        functional.jacobian(lambda u: u.detach(), x, strict=True)
    with pytest.raises(
        RuntimeError, match=r"jacobian of the user-provided function .* independent of"
    ):
        functional.hessian(lambda u: u.sum(), x, strict=True)
    with pytest.raises(RuntimeError, match="independent of"):
        functional.jvp(free, x, x, strict=True)


# -- forward mode -----------------------------------------------------------------------


def test_dual_when_operations_follow_then_tangent_is_the_directional_derivative() -> None:
    x, v = RNG.normal(size=3), RNG.normal(size=3)
    with fwd.dual_level():
        d = fwd.make_dual(tensor(x), tensor(v))
        y = (d.sin() * d.exp()).sum()
        primal, tangent = fwd.unpack_dual(y)
        assert primal.item() == pytest.approx((np.sin(x) * np.exp(x)).sum())
        assert tangent is not None
        assert tangent.item() == pytest.approx(((np.cos(x) + np.sin(x)) * np.exp(x) * v).sum())
        assert not tangent.requires_grad and not primal.requires_grad
        both = fwd.make_dual(tensor(3.0), tensor(1.0)) * fwd.make_dual(tensor(5.0), tensor(2.0))
        found = fwd.unpack_dual(both).tangent
        assert found is not None and found.item() == 11.0
        assert fwd.unpack_dual(d > 0).tangent is None
        assert fwd.unpack_dual(d.detach()).tangent is None
    assert fwd.unpack_dual(y).tangent is None
    with fwd.dual_level():
        assert fwd.unpack_dual(y).tangent is None


def test_dual_when_written_in_place_then_tangent_follows() -> None:
    with fwd.dual_level():
        d = fwd.make_dual(tensor([2.0]).clone(), tensor([1.0]))
        d.mul_(3)
        z = sg.zeros(2, dtype=sg.float64)
        z[0] = fwd.make_dual(tensor(2.0), tensor(7.0))
        first, second = fwd.unpack_dual(d).tangent, fwd.unpack_dual(z).tangent
        assert first is not None and first.tolist() == [3.0]
        assert second is not None and second.tolist() == [7.0, 0.0]


def test_dual_over_reverse_and_reverse_over_dual() -> None:
    x = tensor(2.0, grad=True)
    with fwd.dual_level():
        tangent = fwd.unpack_dual(fwd.make_dual(x, tensor(1.0)) ** 3).tangent
        assert tangent is not None and tangent.item() == 12.0
        assert sg.autograd.grad(tangent, x)[0].item() == 12.0
        d = fwd.make_dual(tensor([1.0, 2.0]), tensor([1.0, 0.0])).requires_grad_()
        (g,) = sg.autograd.grad((d**3).sum(), d, create_graph=True)
        moved = fwd.unpack_dual(g).tangent
        assert moved is not None and moved.tolist() == [6.0, 0.0]


def test_dual_when_switched_off_then_carries_no_tangent() -> None:
    with fwd.dual_level():
        d = fwd.make_dual(tensor(2.0), tensor(1.0))
        with sg.no_grad():
            assert fwd.unpack_dual(d * 2).tangent is not None
        with fwd._set_fwd_grad_enabled(False):
            y = d * 2
            assert not fwd._is_fwd_grad_enabled()
        assert fwd.unpack_dual(y).tangent is None
        partly = fwd.unpack_dual(y * d).tangent
        assert partly is not None and partly.item() == 4.0


def test_dual_when_used_wrongly_then_says_so() -> None:
    x = tensor([0.0, 1.0])
    with pytest.raises(RuntimeError, match="no level exists"):
        fwd.make_dual(x, x)
    with pytest.raises(RuntimeError, match="must be a positive number"):
        fwd.exit_dual_level()
    assert fwd.unpack_dual(x).tangent is None
    assert fwd.enter_dual_level() == 0
    try:
        with pytest.raises(RuntimeError, match="Nested forward mode AD is not supported"):
            fwd.enter_dual_level()
        with pytest.raises(RuntimeError, match="not the last one"):
            fwd.exit_dual_level(level=3)
        with pytest.raises(RuntimeError, match="different size"):
            fwd.make_dual(x, tensor([1.0]))
        with pytest.raises(RuntimeError, match="another dtype"):
            fwd.make_dual(x, sg.ones(2))
        with pytest.raises(ValueError, match="Expected primal to be floating point"):
            fwd.make_dual(sg.tensor([1, 2]), x)
        with pytest.raises(ValueError, match="Expected tangent to be floating point"):
            fwd.make_dual(x, sg.tensor([1, 2]))
    finally:
        fwd.exit_dual_level(level=0)


# -- batched gradients ------------------------------------------------------------------


def test_grad_when_cotangents_are_batched_then_equals_the_jacobian() -> None:
    w, x = RNG.normal(size=(3, 4)), tensor(RNG.normal(size=4), grad=True)
    unused = tensor([1.0], grad=True)
    y = sg.tanh(tensor(w) @ x)
    jacobian, nothing = sg.autograd.grad(
        y,
        (x, unused),
        tensor(np.eye(3)),
        is_grads_batched=True,
        allow_unused=True,
        create_graph=True,
    )
    slope = np.cosh(w @ array(x)) ** -2
    np.testing.assert_allclose(array(jacobian), slope[:, None] * w, rtol=1e-13)
    assert nothing is None and jacobian.requires_grad
    with pytest.raises(RuntimeError, match="is_grads_batched"):
        sg.autograd.grad(y, x, tensor(np.ones(3)), is_grads_batched=True)
