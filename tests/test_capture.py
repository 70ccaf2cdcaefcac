"""What a compiled function does to tensors from outside, and what other threads see of it.

Values are worked out by hand or with NumPy on the plain formulas.
"""

import gc
import threading
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

import symgrad as sg
from symgrad.errors import TracedValueError
from symgrad.op import ACTIVE

DOUBLE = {"dtype": sg.float64}


@contextmanager
def while_tracing(function, *args):
    """Run the block while another thread is in the middle of `function`'s trace."""
    met, over = threading.Event(), threading.Event()
    failed = []

    def traced(*args):
        result = function(*args)
        met.set()
        assert over.wait(60)
        return result

    compiled = sg.compile(traced)

    def work():
        try:
            compiled(*args)
        except Exception as error:
            failed.append(error)
            met.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert met.wait(60)
    try:
        assert not failed
        assert ACTIVE
        yield
    finally:
        over.set()
        thread.join(60)
    assert not failed and not ACTIVE


# -- other threads ------------------------------------------------------------------------


def test_another_thread_sees_a_parameter_as_it_is():
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    v = w.detach()
    part = v[1:]
    with while_tracing(lambda x: (w * x + v + part).sum(), np.ones(2)):
        assert w.tolist() == [1.0, 2.0] and v.tolist() == [1.0, 2.0] and part.tolist() == [2.0]
        assert w.is_leaf and w.requires_grad and "requires_grad=True" in repr(w)
        (w * w).sum().backward()
        assert w.grad.tolist() == [2.0, 4.0]


def test_another_thread_does_not_see_what_a_trace_writes():
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    state = sg.zeros(2, **DOUBLE)
    row = state[:1]

    def step(x):
        (w * x).sum().backward()
        with sg.no_grad():
            w.sub_(w.grad)
        row.add_(5)
        state.mul_(x)

    with while_tracing(step, np.full(2, 3.0)):
        assert w.grad is None
        assert w.tolist() == [1.0, 2.0]
        assert state.tolist() == [0.0, 0.0] and row.tolist() == [0.0]
    assert w.grad.tolist() == [3.0, 3.0]
    assert w.tolist() == [-2.0, -1.0]
    assert state.tolist() == [15.0, 0.0] and row.tolist() == [15.0]


def test_what_another_thread_writes_while_a_trace_runs_is_kept():
    w = sg.tensor([1.0, 2.0], **DOUBLE)
    with while_tracing(w.add_, 1.0):
        w.mul_(10)
        assert w.tolist() == [10.0, 20.0]
    assert w.tolist() == [11.0, 21.0]


def test_two_threads_trace_over_one_parameter():
    w = sg.tensor([1.0, 2.0], **DOUBLE)
    f = sg.compile(lambda x: w * x)
    with while_tracing(w.add_, 1.0):
        # Had the traces one lock, this call would wait for the other's end for ever.
        np.testing.assert_array_equal(f(np.array([3.0, 5.0])), [3.0, 10.0])
    np.testing.assert_array_equal(f(np.array([3.0, 5.0])), [6.0, 15.0])


def test_a_parameter_written_by_another_thread_before_the_trace_meets_it_is_no_constant():
    w = sg.tensor([1.0], **DOUBLE)
    ready, written = threading.Event(), threading.Event()

    def other():
        assert ready.wait(60)
        w.add_(1)
        written.set()

    thread = threading.Thread(target=other)
    thread.start()

    def traced(x):
        ready.set()
        assert written.wait(60)
        return w * x

    f = sg.compile(traced)
    assert f(sg.tensor(1.0, **DOUBLE)).tolist() == [2.0]
    thread.join()
    w.add_(1)
    assert f(sg.tensor(1.0, **DOUBLE)).tolist() == [3.0]


def test_a_compiled_function_is_freed():
    f = sg.compile(lambda x: x * 2)
    assert f(1.0) == 2.0
    gone = weakref.ref(f._lock)
    del f
    gc.collect()
    assert gone() is None


# -- exceptions ---------------------------------------------------------------------------


def test_an_exception_while_tracing_leaves_all_as_it_was():
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    old = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    old.grad = sg.tensor([7.0, 7.0], **DOUBLE)
    kept = old.grad
    state = sg.zeros(2, **DOUBLE)
    row = state[1:]

    @sg.compile
    def failing(x):
        (w * old * x).sum().backward()
        row.add_(1)
        with sg.no_grad():
            w.zero_()
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        failing(2.0)
    assert not ACTIVE
    assert w.grad is None and old.grad is kept and kept.tolist() == [7.0, 7.0]
    assert w.tolist() == [1.0, 2.0] and w.requires_grad and w.is_leaf
    assert state.tolist() == [0.0, 0.0] and row.tolist() == [0.0] and state._version == 0
    if w[0] > 0:  # no longer tracing
        row.add_(1)
    assert state.tolist() == [0.0, 1.0]


# -- views and aliases --------------------------------------------------------------------


def test_a_view_that_was_stale_before_the_trace_is_read_at_each_call():
    base = sg.zeros(2, **DOUBLE)
    part = base[:1]
    base.add_(1)
    f = sg.compile(lambda x: part * x)
    assert f(np.ones(1)).tolist() == [1.0]
    base.add_(1)
    assert f(np.ones(1)).tolist() == [2.0]


def test_a_write_through_a_view_is_seen_by_its_base_inside():
    base = sg.tensor([1.0, 2.0, 3.0], **DOUBLE)
    part, alias = base[1:], base.detach()

    def f(x):
        part.mul_(x)
        seen = base * 1
        alias[0] = 9.0
        base.data = base.data + 1
        return seen, part * 1, base * 1, alias * 1

    got = sg.compile(f)(10.0)
    want = [1.0, 20.0, 30.0], [21.0, 31.0], [10.0, 21.0, 31.0], [10.0, 21.0, 31.0]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert base.tolist() == [10.0, 21.0, 31.0] and part.tolist() == [21.0, 31.0]


def test_a_detached_write_inside_keeps_a_leafs_history():
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    f = sg.compile(lambda x: w.detach().mul_(x))
    f(3.0)
    f(2.0)
    assert w.tolist() == [6.0, 12.0] and w.is_leaf and w.requires_grad
    (w * w).sum().backward()
    assert w.grad.tolist() == [12.0, 24.0]


def test_a_base_that_nobody_holds_is_written_through_its_view():
    row = sg.zeros(2, 3, **DOUBLE)[1]
    f = sg.compile(row.add_)
    f(2.0)
    f(np.array([1.0, 0.0, 3.0]))
    assert row.tolist() == [3.0, 2.0, 5.0]


# -- gradients ----------------------------------------------------------------------------


def test_backward_inside_adds_to_the_gradient_as_outside():
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    x = np.array([3.0, 5.0])

    @sg.compile
    def f(x):
        loss = ((w - x) ** 2).sum()
        loss.backward()
        return loss.detach()

    slope = 2 * (np.array([1.0, 2.0]) - x)
    for calls in (1, 2, 3):
        assert float(f(x)) == 13.0
        np.testing.assert_array_equal(w.grad.numpy(), calls * slope)
    w.grad = None
    f(x)
    np.testing.assert_array_equal(w.grad.numpy(), slope)
    w.grad = sg.tensor([100.0, 100.0], **DOUBLE)
    mine = w.grad
    f(x)
    np.testing.assert_array_equal(w.grad.numpy(), 100 + slope)
    assert w.grad is mine


def test_a_compiled_step_of_an_optimiser_leaves_the_gradient():
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    opt = sg.optim.SGD([w], lr=0.1)
    runs = []

    @sg.compile
    def step(x):
        runs.append(1)
        opt.zero_grad()
        ((w - x) ** 2).sum().backward()
        opt.step()

    want, x = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    for _ in range(4):
        step(x)
        slope = 2 * (want - x)
        want = want - 0.1 * slope
        np.testing.assert_allclose(w.grad.numpy(), slope, rtol=1e-15)
        np.testing.assert_allclose(w.detach().numpy(), want, rtol=1e-15)
    assert len(runs) == 1


def test_a_gradient_set_or_taken_away_inside():
    w = sg.tensor([1.0], requires_grad=True, **DOUBLE)
    other = sg.tensor([4.0], **DOUBLE)

    @sg.compile
    def swap(x):
        before = w.grad
        w.grad = other
        return x * (1 if before is None else before)

    assert swap(2.0) == 2.0 and w.grad is other
    assert swap(np.array([2.0])).tolist() == [8.0] and w.grad is other

    @sg.compile
    def forget(x):
        w.grad = None
        return x

    forget(1.0)
    assert w.grad is None
    w.grad = other
    forget(1.0)
    assert w.grad is None


def test_a_leaf_made_inside_has_a_gradient_inside():
    def f(x):
        t = x.detach().requires_grad_()
        (t**3).sum().backward()
        return t.grad

    np.testing.assert_array_equal(sg.compile(f)(np.array([1.0, 2.0])), [3.0, 12.0])


@pytest.mark.parametrize("place", ["argument", "history"])
def test_backward_that_would_lose_a_gradient_is_refused(place):
    x = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    y = x * 2
    with pytest.raises(RuntimeError, match=r"backward: .*shape \(2,\).*autograd\.grad"):
        if place == "argument":
            sg.compile(lambda x: (x * x).sum().backward())(x)
        else:
            sg.compile(lambda: (y * y).sum().backward())()
    assert x.grad is None


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_backward_inside_a_transform_is_refused(transform):
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)

    def f(x):
        y = (w * x).sum()
        y.backward()
        return y

    with pytest.raises(RuntimeError, match="inside a functorch transform"):
        getattr(sg.func, transform)(f)(sg.ones(2, **DOUBLE))
    assert w.grad is None


# -- tensors from outside that change between calls ---------------------------------------


def test_a_tensor_from_outside_may_change_its_kind_between_calls():
    w = sg.tensor([1.0, 2.0], **DOUBLE)
    f = sg.compile(lambda x: (w * x).sum())
    x = sg.tensor(3.0, **DOUBLE)
    assert f(x).item() == 9.0
    w.requires_grad_()
    f(x).backward()
    assert w.grad.tolist() == [3.0, 3.0]
    w.requires_grad_(False)
    assert not f(x).requires_grad
    w.data = sg.tensor([1.0, 2.0, 4.0], **DOUBLE)
    assert f(x).item() == 21.0


def test_a_first_call_under_no_grad_does_not_stop_later_derivatives():
    w = sg.tensor([1.0, 2.0], requires_grad=True, **DOUBLE)
    f = sg.compile(lambda x: (w * x).sum())
    x = np.array([3.0, 4.0])
    with sg.no_grad():
        f(x)
    f(x).backward()
    assert w.grad.tolist() == [3.0, 4.0]


def test_a_change_of_requires_grad_inside_is_refused():
    w = sg.tensor([1.0], **DOUBLE)
    with pytest.raises(RuntimeError, match=r"changes requires_grad.*\(1,\).*outside"):
        sg.compile(lambda x: w.requires_grad_() * x)(1.0)
    assert not w.requires_grad


def test_data_of_another_shape_inside_is_refused():
    w = sg.tensor([1.0], **DOUBLE)

    def f(x):
        w.data = sg.ones(2, **DOUBLE)
        return x

    with pytest.raises(RuntimeError, match=r"keeps its shape \(got \(2,\), it has \(1,\)\)"):
        sg.compile(f)(1.0)
    assert w.tolist() == [1.0]


def test_what_was_kept_of_a_trace_says_so():
    kept = []
    sg.compile(lambda x: kept.append(x * 2))(1.0)
    with pytest.raises(TracedValueError, match=r"was kept.*return it"):
        kept[0].item()
