"""Grad modes, in-place changes, views and accumulation, against values by hand."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import symgrad as sg


def leaf(values):
    return sg.tensor(values, dtype=sg.float64, requires_grad=True)


def agrees(t, wanted):
    np.testing.assert_allclose(t.detach().numpy(), wanted, rtol=1e-12, atol=1e-12)


# -- modes -------------------------------------------------------------------------------


def test_generator_runs_in_its_mode_and_its_caller_in_another():
    @sg.no_grad()
    def generator():
        sent = yield sg.is_grad_enabled()
        yield sent, sg.is_grad_enabled()

    g = generator()
    assert next(g) is False
    assert sg.is_grad_enabled()
    assert g.send(7) == (7, False)


def test_recursion_restores_the_mode_of_each_level():
    @sg.enable_grad()
    def f(n):
        assert sg.is_grad_enabled()
        if n:
            with sg.no_grad():
                f(n - 1)
                assert not sg.is_grad_enabled()

    f(4)


def test_modes_are_per_thread():
    seen = []
    with sg.no_grad(), sg.inference_mode():
        t = threading.Thread(
            target=lambda: seen.append((sg.is_grad_enabled(), sg.is_inference_mode_enabled()))
        )
        t.start()
        t.join()
    assert seen == [(True, False)]


def test_inference_tensors_are_told_apart():
    normal = sg.ones(4)
    with sg.inference_mode():
        made = sg.ones(4) * 2
        view = normal.view(2, 2)
        normal.add_(1)
        made.mul_(3)
        with sg.inference_mode(False):
            inner = sg.ones(1)
    assert made.is_inference()
    assert not any(t.is_inference() for t in (normal, view, inner, made.clone(), made + normal))
    agrees(made, [6.0] * 4)
    agrees(view, [[2.0, 2.0], [2.0, 2.0]])
    for refused in (lambda: made.add_(1), lambda: made[0].add_(1), made.requires_grad_):
        with pytest.raises(RuntimeError, match="inference tensor"):
            refused()


def test_loop_in_inference_mode_keeps_nothing():
    import gc
    import weakref

    with sg.inference_mode():
        t = sg.ones(3)
        made = []
        for _ in range(50):
            t = t + 1
            t.tolist()
            made.append(weakref.ref(t.expr()))
    gc.collect()
    assert sum(r() is not None for r in made[10:]) == 1


# -- in place ----------------------------------------------------------------------------


def test_overwriting_gives_zeros_to_the_old_and_all_to_the_new():
    for write in (lambda h, s: h.copy_(s), lambda h, s: h.__setitem__(slice(None), s)):
        x, s = leaf([1.0, 2.0]), leaf([5.0, 6.0])
        h = x * 2
        write(h, s)
        (h * h).sum().backward()
        agrees(s.grad, [10.0, 12.0])
    x = leaf([1.0, 2.0])
    h = x * 2
    h.zero_()
    h.sum().backward()
    agrees(x.grad, [0.0, 0.0])


def test_change_under_no_grad_keeps_the_history():
    x = leaf([1.0])
    y = x * 2
    node = y.grad_fn
    with sg.no_grad():
        y.mul_(10)
    assert y.grad_fn is node
    agrees(y, [20.0])
    y.sum().backward()
    agrees(x.grad, [2.0])


def test_writes_through_chains_of_views():
    point = np.arange(6.0).reshape(2, 3)
    x = leaf(point)
    h = x * 1
    h.t()[1:].mul_(10)
    wanted = point.copy()
    wanted.T[1:] *= 10
    agrees(h, wanted)
    (h * h).sum().backward()
    scale = np.ones((2, 3))
    scale.T[1:] = 10
    agrees(x.grad, 2 * point * scale**2)
    assert h.grad_fn.name() == "torch::autograd::CopySlices"


def test_second_derivative_through_a_written_view():
    x = leaf([2.0, 3.0])
    h = x * 1
    h[0].mul_(x[1] ** 2)
    (g,) = sg.autograd.grad(h.sum(), x, create_graph=True)
    agrees(g, [9.0, 13.0])
    agrees(sg.autograd.grad(g.sum(), x)[0], [6.0, 10.0])


def test_views_that_may_not_be_written():
    x = leaf([1.0, 2.0])
    h = x * 1
    with sg.no_grad():
        quiet = h.view(2)
    with pytest.raises(RuntimeError, match="created in no_grad mode"):
        quiet.mul_(2)
    with pytest.raises(RuntimeError, match="Output 1 of UnbindBackward0 is a view"):
        h.unbind()[1].add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        x[0].add_(1)
    with pytest.raises(RuntimeError, match="more than one element"):
        sg.ones(1).expand(3).add_(1)


def test_reshaping_copies_where_no_view_can_show_the_elements():
    t = sg.arange(6.0).view(2, 3)
    copied = t.t().reshape(6)
    copied.zero_()
    assert t.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    shown = t.reshape(3, 2)
    shown[0] = 9.0
    assert t.tolist() == [[9.0, 9.0, 2.0], [3.0, 4.0, 5.0]]
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        t.t().view(6)


def test_layout_is_numpys():
    array = np.arange(24.0).reshape(2, 3, 4)
    t = sg.tensor(array)
    pairs = [
        (t.permute(2, 0, 1), array.transpose(2, 0, 1)), (t[:, 1:, ::2], array[:, 1:, ::2]),
        (t.transpose(0, 2)[1], array.swapaxes(0, 2)[1]), (t[1].expand(5, 3, 4), np.broadcast_to(array[1], (5, 3, 4))),
    ]  # fmt: skip
    for ours, theirs in pairs:
        assert ours.stride() == tuple(s // 8 for s in theirs.strides)
        offset = theirs.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        assert ours.storage_offset() == offset // 8
        assert ours.data_ptr() == t.data_ptr() + offset
        assert ours._base is t


def test_memory_is_shared_with_numpy_both_ways():
    x = leaf([1.0, 2.0])
    seen = x.detach().numpy()
    seen[0] = 9.0
    agrees(x, [9.0, 2.0])
    with sg.no_grad():
        x.mul_(2)
    assert seen.tolist() == [18.0, 4.0]
    assert x._version == 1


# -- accumulation and copies -------------------------------------------------------------


def test_gradient_is_added_to_the_same_tensor():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    first, address = x.grad, x.grad.data_ptr()
    (x * x).sum().backward()
    assert x.grad is first and x.grad.data_ptr() == address
    agrees(first, [4.0, 8.0])


def test_gradients_that_are_equal_are_not_one():
    a, c = leaf([1.0]), leaf([2.0])
    (a + c).sum().backward()
    a.grad.mul_(5)
    agrees(c.grad, [1.0])


def test_inputs_may_be_intermediate():
    x = leaf(2.0)
    h = x * 3
    (h * h).backward(inputs=[h])
    agrees(h.grad, 12.0)
    assert x.grad is None


def test_leaf_travels_whole():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    for copied in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        agrees(copied, [1.0, 2.0])
        agrees(copied.grad, [2.0, 4.0])
        copied.grad.zero_()
        assert copied.requires_grad and copied.is_leaf
    agrees(x.grad, [2.0, 4.0])


def test_attribute_of_a_leaf_outlives_its_name():
    x = leaf(2.0)
    x.tag = "hello"
    y = x**2
    del x
    assert y.grad_fn._saved_self.tag == "hello"


def test_detached_factor_leaves_its_own_graph_usable():
    x = leaf([1.0, 2.0])
    y = x * x
    (y.detach() * x).sum().backward()
    y.sum().backward()
    agrees(x.grad, [1.0 + 2.0, 4.0 + 4.0])
