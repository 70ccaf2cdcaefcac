"""Loops with complex values against NumPy: a driven quantum state, by scan and by Python loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad import func

RNG = np.random.default_rng(3)
STEPS = 40


def _hermitian(n: int) -> np.ndarray:
    a = RNG.normal(size=(n, n)) + 1j * RNG.normal(size=(n, n))
    return a + a.conj().T


H = _hermitian(3)
STATE = RNG.normal(size=3) + 1j * RNG.normal(size=3)
FIELD = RNG.normal(size=STEPS)


def evolved(h: Any, state: Any, field: Any) -> tuple[Any, Any]:
    """The last state, and the expectation of H before each step."""

    def step(c: Any, w: Any) -> tuple[Any, Any]:
        return c - 0.02j * w * (h @ c), (c.conj() @ (h @ c)).real

    return sg.scan(step, state, field)


def by_numpy(h: np.ndarray, state: np.ndarray, field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for w in field:
        found.append((state.conj() @ (h @ state)).real)
        state = state - 0.02j * w * (h @ state)
    return state, np.array(found)


def loss(h: Any, state: Any, field: Any, run: Any) -> Any:
    last, energies = run(h, state, field)
    return abs(last[0]) ** 2 + (energies * energies).sum() + last[1].imag


def tensors() -> list[sg.Tensor]:
    return [sg.tensor(a, requires_grad=True) for a in (H, STATE, FIELD)]


def test_values():
    last, energies = evolved(*tensors())
    wanted = by_numpy(H, STATE, FIELD)
    assert last.dtype is sg.complex128
    assert energies.dtype is sg.float64
    np.testing.assert_allclose(last.detach().numpy(), wanted[0], rtol=1e-13)
    np.testing.assert_allclose(energies.detach().numpy(), wanted[1], rtol=1e-12)


def test_gradients_by_differences_of_both_parts():
    given = [H, STATE, FIELD]
    inputs = tensors()
    found = sg.autograd.grad(loss(*inputs, evolved), inputs)
    for k, (g, x) in enumerate(zip(found, given, strict=True)):
        for unit in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
            direction = unit * RNG.normal(size=x.shape)

            def along(t: float, k: int = k, d: Any = direction) -> float:
                moved = [a + t * d if j == k else a for j, a in enumerate(given)]
                return float(loss(*moved, by_numpy))

            slope = (along(1e-5) - along(-1e-5)) / 2e-5
            # dL = Re(conj(g) dx)
            product = (g.numpy().conj() * direction).sum().real
            np.testing.assert_allclose(product, slope, rtol=1e-7)


def test_compiled_and_eager_have_the_same_bits():
    def both(h: Any, state: Any, field: Any) -> Any:
        for x in (h, state, field):
            x.requires_grad_()
        value = loss(h, state, field, evolved)
        return value, *sg.autograd.grad(value, (h, state, field))

    compiled = sg.compile(both)(*(sg.tensor(a) for a in (H, STATE, FIELD)))
    inputs = tensors()
    value = loss(*inputs, evolved)
    for a, b in zip(compiled, (value, *sg.autograd.grad(value, inputs)), strict=True):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy())


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_in_python(compiled):
    def turns(h: Any, state: Any) -> Any:
        h.requires_grad_()
        c = state
        for w in FIELD.tolist() * 5:
            c = c - 0.02j * w * (h @ c)
        value = abs(c[0]) ** 2
        return value, *sg.autograd.grad(value, h)

    run = sg.compile(turns) if compiled else turns
    value, g = run(sg.tensor(H), sg.tensor(STATE))

    def reference(h: np.ndarray) -> float:
        return float(abs(by_numpy(h, STATE, np.tile(FIELD, 5))[0][0]) ** 2)

    np.testing.assert_allclose(value.item(), reference(H), rtol=1e-11)
    d = RNG.normal(size=H.shape) + 1j * RNG.normal(size=H.shape)
    slope = (reference(H + 1e-6 * d) - reference(H - 1e-6 * d)) / 2e-6
    np.testing.assert_allclose((g.numpy().conj() * d).sum().real, slope, rtol=1e-6)


def test_tangents():
    d = RNG.normal(size=STATE.shape) + 1j * RNG.normal(size=STATE.shape)
    h, field = sg.tensor(H), sg.tensor(FIELD)
    (last, _), (moved, energies) = func.jvp(
        lambda state: evolved(h, state, field), (sg.tensor(STATE),), (sg.tensor(d),)
    )
    # The state's evolution is linear, the expectation quadratic.
    np.testing.assert_allclose(last.numpy(), by_numpy(H, STATE, FIELD)[0], rtol=1e-13)
    np.testing.assert_allclose(moved.numpy(), by_numpy(H, d, FIELD)[0], rtol=1e-12)
    ahead, behind = (by_numpy(H, STATE + t * d, FIELD)[1] for t in (1e-4, -1e-4))
    np.testing.assert_allclose(energies.numpy(), (ahead - behind) / 2e-4, rtol=1e-8)


def test_a_batch_of_states():
    states = RNG.normal(size=(4, 3)) + 1j * RNG.normal(size=(4, 3))
    h, field = sg.tensor(H), sg.tensor(FIELD)
    last, energies = func.vmap(lambda s: evolved(h, s, field))(sg.tensor(states))
    for k, s in enumerate(states):
        wanted = by_numpy(H, s, FIELD)
        np.testing.assert_allclose(last[k].numpy(), wanted[0], rtol=1e-13)
        np.testing.assert_allclose(energies[k].numpy(), wanted[1], rtol=1e-12)


def test_complex_values_between_real_ones():
    def step(c: Any, w: Any) -> tuple[Any, None]:
        return sg.exp(1j * w * c).imag + c, None

    angle = sg.tensor(0.3, dtype=sg.float64, requires_grad=True)
    last, _ = sg.scan(step, angle, sg.tensor(FIELD))
    (g,) = sg.autograd.grad(last, angle)
    c, slope = 0.3, 1.0
    for w in FIELD:
        c, slope = c + np.sin(w * c), slope * (1 + w * np.cos(w * c))
    np.testing.assert_allclose(last.item(), c, rtol=1e-12)
    np.testing.assert_allclose(g.item(), slope, rtol=1e-10)


def test_scalars_with_few_numbers():
    z = sg.tensor(0.2 + 0.1j, dtype=sg.complex128, requires_grad=True)
    last, path = sg.scan(lambda c, _: (c * c + z, c), 0j, length=12)
    value = last.real
    (g,) = sg.autograd.grad(value, z)
    c, slope = 0j, 0j
    for k in range(12):
        np.testing.assert_allclose(path[k].item(), c, rtol=1e-14, atol=1e-300)
        c, slope = c * c + (0.2 + 0.1j), 2 * c * slope + 1
    np.testing.assert_allclose(last.item(), c, rtol=1e-13)
    # The real part of a holomorphic function: the gradient is the conjugate of its derivative.
    np.testing.assert_allclose(g.item(), np.conj(slope), rtol=1e-12)


def test_from_the_last_row_and_inside_another_loop():
    rows = RNG.normal(size=(5, 3, 2)) + 1j * RNG.normal(size=(5, 3, 2))

    def outer(c: Any, block: Any) -> tuple[Any, Any]:
        inner, _ = sg.scan(lambda d, r: (d * 0.5j + r, None), c, block)
        return inner, inner.abs()

    last, sizes = sg.scan(outer, sg.zeros(2, dtype=sg.complex128), sg.tensor(rows), reverse=True)
    c = np.zeros(2, complex)
    wanted = np.empty((5, 2))
    for k in range(4, -1, -1):
        for r in rows[k]:
            c = c * 0.5j + r
        wanted[k] = abs(c)
    np.testing.assert_allclose(last.numpy(), c, rtol=1e-13)
    np.testing.assert_allclose(sizes.numpy(), wanted, rtol=1e-13)


def test_a_compiled_while_loop():
    def escape(z: Any) -> Any:
        return sg.while_loop(
            lambda c, n: (abs(c) < 2.0) & (n < 100), lambda c, n: (c * c + z, n + 1), (z, 0)
        )

    last, count = sg.compile(escape)(0.4 + 0.5j)
    c, n = 0.4 + 0.5j, 0
    while abs(c) < 2.0 and n < 100:
        c, n = c * c + (0.4 + 0.5j), n + 1
    assert int(count) == n > 3
    np.testing.assert_allclose(complex(last), c, rtol=1e-12)


def test_no_steps():
    last, rows = sg.scan(lambda c, r: (c * r, c), sg.tensor(1j), sg.zeros(0, dtype=sg.complex64))
    assert last.item() == 1j
    assert rows.shape == (0,)
    assert rows.dtype is sg.complex64


def test_float32_parts():
    last, _ = sg.scan(lambda c, _: (c * 1j, None), sg.tensor([1.0 + 2.0j]), length=3)
    assert last.dtype is sg.complex64
    np.testing.assert_array_equal(last.numpy(), [2.0 - 1.0j])
