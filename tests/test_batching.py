"""Graphs under a leading batch axis: against the ops' NumPy references, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import symgrad as sg
from symgrad import dtypes, runtime
from symgrad.calculus import pullback, pushforward
from symgrad.calculus.batching import batched, jacobian_columns, jacobian_rows, replaced
from symgrad.expr import Expr, ancestors
from symgrad.family import COMPOSITES
from symgrad.op import REGISTRY, STATE, grad_mode, input_node
from symgrad.ops.arithmetic import mul
from symgrad.ops.contract import batched_product
from symgrad.ops.positions import put_last, read
from symgrad.ops.transcendental import exp, log, sin
from symgrad.sample import Case, T

COUNT = 3
RNG = np.random.default_rng(20)


def leaf(array: Any, grad: bool = False) -> Expr:
    array = np.asarray(array)
    return input_node(array.shape, dtypes.from_numpy(array.dtype), array, grad)


def place(like: np.ndarray, grad: bool = False) -> Expr:
    return input_node(like.shape, dtypes.from_numpy(like.dtype), grad=grad)


def values(nodes: Sequence[Expr]) -> list[np.ndarray]:
    runtime.evaluate(list(nodes))
    return [runtime.array_of(n) for n in nodes]


def sampled() -> list[Any]:
    cases = []
    for function in [*REGISTRY.values(), *COMPOSITES.values()]:
        for case in function.samples:
            tensors = [k for k, a in enumerate(case.args) if isinstance(a, T)]
            plain = not any(isinstance(v, T) for v in case.attrs.values())
            nested = any(
                isinstance(a, list | tuple) and any(isinstance(v, T) for v in a) for a in case.args
            )
            if tensors and plain and not nested:
                which = {tuple(tensors), (tensors[0],), (tensors[-1],)}
                for some in sorted(which):
                    name = f"{function.name}-{case!r}-{','.join(map(str, some))}"
                    cases.append(pytest.param(function, case, some, id=name))
    return cases


@pytest.mark.parametrize(("function", "case", "some"), sampled())
def test_op_when_arguments_are_batched_then_each_element_is_the_reference(
    function: Any, case: Case, some: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(3)
    nodes: list[Any] = list(case.args)
    rows = [list(case.args) for _ in range(COUNT)]
    inputs, batches = [], []
    named = {k: leaf(v) if isinstance(v, np.ndarray) else v for k, v in case.attrs.items()}
    for k, a in enumerate(case.args):
        if isinstance(a, np.ndarray):
            nodes[k] = leaf(a)
        if not isinstance(a, T):
            continue
        draws = [a.draw(rng, np.dtype(np.float64)) for _ in range(COUNT if k in some else 1)]
        for row, own in zip(rows, draws * COUNT, strict=False):
            row[k] = own
        if k in some:
            nodes[k] = place(draws[0])
            inputs.append(nodes[k])
            batches.append(leaf(np.stack(draws)))
        else:
            nodes[k] = leaf(draws[0])
    before, STATE.tracing = STATE.tracing, True
    try:
        made = function(*nodes, **named)
    except RuntimeError as error:
        if "traced" not in str(error):
            raise
        pytest.skip("its shape depends on values")
    finally:
        STATE.tracing = before
    several = isinstance(made, list | tuple)
    outputs = list(made) if several else [made]
    results = batched(outputs, inputs, batches)
    tolerance = 1e-9 if all(y.dtype is not sg.float32 for y in outputs) else 1e-5
    for number, (y, result, array) in enumerate(
        zip(outputs, results, values(results), strict=True)
    ):
        for element in range(COUNT):
            with np.errstate(all="ignore"):
                want = function.ref(*rows[element], **case.attrs)
            want = want[number] if several else want
            own = array[element] if result.ndim > y.ndim else array
            np.testing.assert_allclose(own, want, rtol=tolerance, atol=tolerance)


def test_batched_when_output_is_independent_then_it_stays_the_same_node() -> None:
    x, w = place(np.zeros(2)), leaf([1.0, 2.0])
    outside = exp(w)
    both, alone = batched([mul(x, outside), outside], [x], [leaf(np.ones((4, 2)))])
    assert both.shape == (4, 2)
    assert alone is outside


def test_batched_when_an_input_is_shared_then_it_is_not_repeated() -> None:
    a, b = place(np.zeros(2)), place(np.zeros(2))
    x, y = RNG.normal(size=(5, 2)), RNG.normal(size=2)
    (made,) = batched([mul(a, b)], [a, b], [leaf(x), leaf(y)])
    np.testing.assert_array_equal(values([made])[0], x * y)


@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True)])
def test_product_when_batched_then_equals_einsum(flags: tuple[bool, bool]) -> None:
    shapes = [(2, 3, 4), (2, 4, 5)]
    arrays = [RNG.normal(size=(COUNT, *s) if f else s) for s, f in zip(shapes, flags, strict=True)]
    nodes = [place(np.zeros(s)) for s in shapes]
    (made,) = batched([batched_product(*nodes)], nodes, [leaf(a) for a in arrays])
    products = [n for n in ancestors([made], lambda n: True) if n.op is batched_product]
    assert len(products) == 1
    left, right = ("z" if f else "" for f in flags)
    want = np.einsum(f"{left}bmk,{right}bkn->zbmn", *arrays)
    np.testing.assert_allclose(values([made])[0], want, rtol=1e-13)


def test_read_when_positions_are_batched_then_each_element_reads_its_own() -> None:
    data, rows, columns = (
        RNG.normal(size=(COUNT, 4, 5, 2)),
        RNG.integers(0, 4, (COUNT, 6)),
        RNG.integers(0, 5, 6),
    )
    d, r = place(data[0]), place(rows[0])
    (made,) = batched([read(d, r, leaf(columns))], [d, r], [leaf(data), leaf(rows)])
    want = np.stack([data[k][rows[k], columns] for k in range(COUNT)])
    np.testing.assert_array_equal(values([made])[0], want)


def test_put_when_writes_collide_then_the_last_of_each_element_wins() -> None:
    base, new = RNG.normal(size=(COUNT, 4)), RNG.normal(size=(COUNT, 6))
    at = RNG.integers(0, 4, (COUNT, 6))
    x, i, v = place(base[0]), place(at[0]), place(new[0])
    (made,) = batched([put_last(x, [i], v)], [x, i, v], [leaf(base), leaf(at), leaf(new)])
    want = base.copy()
    for k in range(COUNT):
        for position, value in zip(at[k], new[k], strict=True):
            want[k, position] = value
    np.testing.assert_array_equal(values([made])[0], want)


def test_library_op_when_no_rule_fits_then_each_element_is_computed() -> None:
    from symgrad.family import Library
    from symgrad.op import record

    class Sorted(Library):
        """A routine that knows one vector only."""

        name = "sorted_once"
        nodiff = "test"
        differentiable = False

        @staticmethod
        def ref(x: np.ndarray) -> np.ndarray:
            assert x.ndim == 1
            return np.sort(x)

    x = RNG.normal(size=(COUNT, 5))
    node = place(x[0])
    made = record(Sorted(), (node,), (), (5,), node.dtype)
    (result,) = batched([made], [node], [leaf(x)])
    np.testing.assert_array_equal(values([result])[0], np.sort(x, axis=1))


def test_batched_when_batch_is_empty_then_shapes_are_kept() -> None:
    x = place(np.zeros((2, 2)))
    from symgrad.ops.reduce import sum_axis

    (made,) = batched([sum_axis(exp(x), dim=0)], [x], [leaf(np.zeros((0, 2, 2)))])
    assert values([made])[0].shape == (0, 2)


def test_batched_when_graph_is_deep_then_there_is_no_recursion() -> None:
    x = place(np.zeros(()))
    y = x
    for _ in range(20_000):
        y = y + 1.0
    (made,) = batched([y], [x], [leaf(np.arange(2.0))])
    np.testing.assert_array_equal(values([made])[0], [20_000.0, 20_001.0])


def test_batched_when_recorded_without_grad_then_no_derivative_flows() -> None:
    x = place(np.zeros(()), grad=True)
    with grad_mode(False):
        cut = x * x
    (made,) = batched([x * cut], [x], [leaf(np.array([2.0, 3.0]), grad=True)])
    source = next(n for n in ancestors([made], lambda n: True) if n.requires_grad and not n.args)
    (g,) = pullback([made], [leaf(np.ones(2))], [source])
    assert g is not None
    np.testing.assert_array_equal(values([g])[0], [4.0, 9.0])


def test_replaced_when_an_input_changes_then_history_is_decided_anew() -> None:
    x = leaf([0.5, 1.0], grad=True)
    constant = leaf([0.5, 1.0])
    y = sin(x) * 2.0
    assert y.requires_grad
    (made,) = replaced([y], [x], [constant])
    assert not made.requires_grad
    np.testing.assert_allclose(values([made])[0], 2 * np.sin([0.5, 1.0]), rtol=1e-15)


def test_jacobians_when_partial_is_undefined_then_other_entries_are_zero() -> None:
    x = leaf([0.5, -1.0, 2.0], grad=True)
    y = log(x)
    (rows,) = jacobian_rows(y, [x])
    (columns,) = jacobian_columns([y], x)
    assert rows is not None and columns is not None
    want = np.diag([2.0, -1.0, 0.5])
    np.testing.assert_array_equal(values([rows])[0], want)
    np.testing.assert_array_equal(values([columns])[0], want)
    root = exp(log(x) * 0.5)
    (rows,) = jacobian_rows(root, [x])
    assert rows is not None
    found = values([rows])[0]
    assert np.isnan(found[1, 1])
    assert np.count_nonzero(found) == 3


@pytest.mark.parametrize("chunk", [None, 1, 2, 5])
def test_jacobian_when_chunked_then_equals_the_analytic_one(chunk: int | None) -> None:
    a, x = RNG.normal(size=(1, 4, 3)), RNG.normal(size=(1, 3, 1))
    node = leaf(x, grad=True)
    y = sin(batched_product(leaf(a), node))
    (rows,) = jacobian_rows(y, [node], chunk)
    (columns,) = jacobian_columns([y], node, chunk)
    assert rows is not None and columns is not None
    want = (np.cos(a[0] @ x[0]) * a[0]).reshape(1, 4, 1, 1, 3, 1)
    np.testing.assert_allclose(values([rows])[0], want, rtol=1e-13)
    np.testing.assert_allclose(values([columns])[0], want, rtol=1e-13)


def test_derivatives_of_batched_graph_equal_batched_derivatives() -> None:
    w, x = RNG.normal(size=(2, 3)), RNG.normal(size=(COUNT, 3))
    row = place(x[0], grad=True)
    weights = leaf(w[None])
    from symgrad.ops.movement import reshape

    def value(v: Expr) -> Expr:
        return exp(reshape(batched_product(weights, reshape(v, (1, 3, 1))), (2,)))

    one = value(row)
    (g,) = pullback([one], [leaf(np.ones(2))], [row])
    assert g is not None
    whole = leaf(x, grad=True)
    (made,) = batched([g], [row], [whole])
    want = np.exp(x @ w.T) @ w
    np.testing.assert_allclose(values([made])[0], want, rtol=1e-13)
    (every,) = batched([one], [row], [whole])
    (t,) = pushforward([every], [whole], [leaf(np.ones((COUNT, 3)))])
    assert t is not None
    np.testing.assert_allclose(values([t])[0], np.exp(x @ w.T) * w.sum(1), rtol=1e-13)
