"""Hooks, nodes and saved tensors, against values by hand."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

import symgrad as sg
from symgrad.autograd import graph
from symgrad.autograd.checkpoint import checkpoint, checkpoint_sequential


def leaf(values):
    return sg.tensor(values, dtype=sg.float64, requires_grad=True)


def agrees(t, wanted):
    np.testing.assert_allclose(t.detach().numpy(), wanted, rtol=1e-12, atol=1e-12)


def test_order_at_one_node():
    seen = []
    x = leaf(2.0)
    y = x * x
    y.grad_fn.register_prehook(lambda outputs: seen.append("before"))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append("after"))
    y.register_hook(lambda g: seen.append("tensor"))
    y.backward()
    assert seen == ["tensor", "before", "after"]


def test_hooks_on_a_node_replace_gradients():
    x, w = leaf(2.0), leaf(3.0)
    y = x * w
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 10,))
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1, None))
    y.backward()
    agrees(x.grad, 31.0)
    assert w.grad is None


def test_hook_takes_part_in_the_second_derivative():
    x = leaf(3.0)
    h = x * 1
    h.register_hook(lambda g: g * x)
    (first,) = sg.autograd.grad(h * h, x, create_graph=True)
    agrees(first, 18.0)
    # The first derivative is 2 h x, and each way to h is scaled by x once more.
    agrees(sg.autograd.grad(first, x)[0], 24.0)


def test_leaf_that_changed_its_value_within_a_graph_has_one_gradient():
    x = leaf(2.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.item()))
    y = x * 3
    with sg.no_grad():
        x.add_(1)
    (y + x * x).backward()
    assert seen == [9.0]
    agrees(x.grad, 9.0)


def test_hook_that_holds_for_several_tensors():
    a, b, unused = leaf(2.0), leaf(3.0), leaf(4.0)
    seen = []
    handle = graph.register_multi_grad_hook(
        (a, b, unused), lambda gs: seen.append([None if g is None else g.item() for g in gs])
    )
    (a * b).backward()
    (a * a).backward()
    assert seen == [[3.0, 2.0, None], [4.0, None, None]]
    handle.remove()
    (a * b).backward()
    assert len(seen) == 2


def test_optimizer_in_the_backward_pass():
    weights = [leaf([1.0, 2.0]), leaf([3.0])]

    def step(w):
        with sg.no_grad():
            w -= 0.5 * w.grad
        w.grad = None

    for w in weights:
        w.register_post_accumulate_grad_hook(step)
    sum((w * w).sum() for w in weights).backward()
    agrees(weights[0], [0.0, 0.0])
    agrees(weights[1], [0.0])
    assert weights[0].grad is None


def test_backward_within_a_hook():
    x, z = leaf(2.0), leaf(5.0)
    y = x * x

    def other(g):
        with sg.enable_grad():
            (z * z).backward()

    y.register_hook(other)
    y.backward()
    agrees(z.grad, 10.0)
    agrees(x.grad, 4.0)


def test_retained_gradient_is_that_of_the_present_value():
    x = leaf([1.0, 2.0])
    h = x * 1
    h.retain_grad()
    h.mul_(5)
    (h * h).sum().backward()
    agrees(h.grad, [10.0, 20.0])
    agrees(x.grad, [50.0, 100.0])


def test_edges_stand_for_tensors():
    x = leaf(2.0)
    h = x * x
    y = h * 3
    edge = graph.get_gradient_edge(h)
    agrees(sg.autograd.grad(y, edge, retain_graph=True)[0], 3.0)
    agrees(
        sg.autograd.grad(graph.get_gradient_edge(y), x, sg.tensor(1.0, dtype=sg.float64))[0], 12.0
    )


def test_walk_through_the_graph_reaches_the_leaves():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    stack, leaves = [((x * w).exp().sum()).grad_fn], []
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack += [n for n, _ in node.next_functions if n is not None]
    assert {id(t) for t in leaves} == {id(x), id(w)}


def test_nodes_carry_formulas():
    x = sg.tensor(3.0, requires_grad=True, name="x")
    assert (x * x.sin()).grad_fn.formula() == "x*sin(x)"


# -- saved tensors -----------------------------------------------------------------------


def test_packed_as_numbers_and_back():
    x = leaf([1.0, 2.0])
    with graph.saved_tensors_hooks(lambda t: t.tolist(), lambda v: sg.tensor(v, dtype=sg.float64)):
        y = (x.exp() * x.sin()).sum()
    y.backward()
    v = np.array([1.0, 2.0])
    agrees(x.grad, np.exp(v) * (np.sin(v) + np.cos(v)))


def test_unpacked_value_is_what_the_derivative_reads():
    x = leaf(3.0)
    with graph.saved_tensors_hooks(lambda t: t, lambda t: t * 10):
        y = x**2
    y.backward()
    agrees(x.grad, 60.0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_calls_again_and_has_the_gradient_of_the_plain_run(reentrant):
    calls = []
    w = leaf([2.0, 3.0])

    def layer(t):
        calls.append(1)
        return (t * w).sin() * t

    x = leaf([0.5, 0.7])
    made = checkpoint(layer, x, use_reentrant=reentrant)
    made.sum().backward()
    assert len(calls) == 2
    a, b = np.array([0.5, 0.7]), np.array([2.0, 3.0])
    agrees(x.grad, np.sin(a * b) + a * b * np.cos(a * b))
    agrees(w.grad, a * a * np.cos(a * b))


def test_second_derivative_through_a_checkpoint():
    x = leaf(0.5)
    y = checkpoint(lambda t: t.sin() * t, x, use_reentrant=False)
    (first,) = sg.autograd.grad(y, x, create_graph=True)
    agrees(sg.autograd.grad(first, x)[0], 2 * np.cos(0.5) - 0.5 * np.sin(0.5))


def test_checkpoints_in_sequence():
    layers = [sg.sin, sg.exp, lambda t: t * t, sg.cos]
    x = leaf(0.5)
    checkpoint_sequential(layers, 2, x, use_reentrant=False).backward()
    inner = np.exp(np.sin(0.5))
    agrees(x.grad, -np.sin(inner**2) * 2 * inner**2 * np.cos(0.5))


def test_random_numbers_are_the_same_when_called_again():
    def noisy(t):
        return t * sg.rand(3, dtype=sg.float64)

    sg.manual_seed(3)
    x = leaf([1.0, 1.0, 1.0])
    y = checkpoint(noisy, x, use_reentrant=False)
    y.sum().backward()
    agrees(x.grad, y.detach().numpy())


# -- anomaly mode, threads ---------------------------------------------------------------


def test_nan_names_the_operation_and_the_line():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with sg.autograd.detect_anomaly():
            x = leaf(0.0)
            y = x.sqrt() * 0.0  # the line that is looked for
            with pytest.raises(
                RuntimeError, match="'SqrtBackward0' returned nan values in its 0th output"
            ):
                y.backward()
    texts = [str(w.message) for w in seen]
    assert any("Error detected in SqrtBackward0" in t and "y = x.sqrt() * 0.0" in t for t in texts)


def test_threads_lose_no_gradient():
    x = leaf([1.0, 2.0])

    def work():
        for k in range(100):
            (x * (k % 3)).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    agrees(x.grad, np.full(2, 8.0 * sum(k % 3 for k in range(100))))


def test_profile_shows_operations_and_kernels(tmp_path):
    from symgrad.autograd.profiler import profile, record_function

    with profile(record_shapes=True) as p, record_function("block"):
        x = leaf([[1.0, 2.0], [3.0, 4.0]])
        (x @ x).sum().backward()
        x.grad.tolist()
    keys = {e.key for e in p.key_averages()}
    assert {"aten::mm", "block"} <= keys
    assert any("MmBackward0" in k for k in keys)
    assert any(k.startswith("kernels") for k in keys)
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    assert "traceEvents" in (tmp_path / "trace.json").read_text()


def test_hook_inside_a_compiled_function():
    def f(x):
        h = x * 2
        h.register_hook(lambda g: g * 10)
        return (h * h).sum()

    compiled = sg.compile(f)
    for point in ([1.0, 2.0], [3.0, 5.0]):
        x = leaf(point)
        compiled(x).backward()
        agrees(x.grad, 80 * np.array(point))


def test_views_and_writes_inside_a_compiled_function():
    def f(x):
        h = x * 1
        h[0].mul_(10)
        h[1:].add_(1)
        return (h * h).sum()

    compiled = sg.compile(f)
    x = leaf([1.0, 2.0])
    compiled(x).backward()
    agrees(x.grad, [200.0, 6.0])


def test_copied_leaf_is_an_operation_of_its_own():
    s = leaf([1.0, 2.0])
    t = sg.zeros(2, dtype=sg.float64)
    t.copy_(s)
    assert t.grad_fn is not None and not t.is_leaf
    (t * 3).sum().backward()
    agrees(s.grad, [3.0, 3.0])
