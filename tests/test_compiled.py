"""`sg.compile`: structures of arguments, derivatives inside and through, captured tensors, errors."""

import copy
import gc
import math
import pickle
import threading
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import emission


def test_floats_in_floats_out():
    f = sg.compile(lambda x, y: x * y + sg.sin(x))
    for _ in range(3):
        assert f(1.5, 2.0) == 3.0 + math.sin(1.5)
    assert type(f(1.5, 2.0)) is float


def test_arrays_in_arrays_out():
    f = sg.compile(lambda x, y: (x * y, (x - y).sum()))
    x, y = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    for _ in range(3):
        product, total = f(x, y)
        np.testing.assert_array_equal(product, x * y)
        assert total == -9.0
    assert type(product) is np.ndarray


@pytest.mark.parametrize("make", [lambda a: a[::2], lambda a: a[::-1], np.asfortranarray])
def test_strided_arrays_are_read_right(make):
    f = sg.compile(lambda x: x * 2)
    a = make(np.arange(12.0).reshape(6, 2))
    np.testing.assert_array_equal(f(a), a * 2)
    np.testing.assert_array_equal(f(np.ascontiguousarray(a)), a * 2)
    np.testing.assert_array_equal(f(a), a * 2)


def test_nested_arguments_and_results():
    f = sg.compile(lambda p: {"sum": p["a"] + p["b"][0], "rest": [p["b"][1] * 2, 7, "name"]})
    for _ in range(2):
        r = f({"a": np.ones(2), "b": (np.full(2, 3.0), 4.0)})
        np.testing.assert_array_equal(r["sum"], [4.0, 4.0])
        assert r["rest"] == [8.0, 7, "name"]


class Stack(list):
    pass


Pair = namedtuple("Pair", "first second")


def test_containers_keep_their_types():
    f = sg.compile(
        lambda p: [type(p)([x * 2 for x in p]), OrderedDict(k=p[0]), Pair(p[1], p[0].shape)]
    )
    x, y = np.ones(2), np.full(2, 3.0)
    for given in (Stack([x, y]), [x, y], (x, y)):
        stack, table, pair = f(given)
        assert type(stack) is type(given) and type(table) is OrderedDict and type(pair) is Pair
        np.testing.assert_array_equal(stack, [2 * x, 2 * y])
        np.testing.assert_array_equal(table["k"], x)
        np.testing.assert_array_equal(pair.first, y)
        assert pair.second == (2,)


def test_keys_that_are_equal_and_not_the_same_are_compiled_each():
    f = sg.compile(lambda table: {k: k * v for k, v in table.items()})
    x = np.array([1, 2])
    for key in (1, 1.0, True, 0.0, -0.0, 0, False, 1):
        for _ in range(2):
            ((found, product),) = f({key: x}).items()
            assert repr(found) == repr(key)
            np.testing.assert_array_equal(product, key * x)
            np.testing.assert_array_equal(np.signbit(product), np.signbit(key * x))
            assert product.dtype.kind == (key * x).dtype.kind


def test_an_argument_that_is_no_value_is_refused():
    with pytest.raises(TypeError, match=r"argument of type set is neither .*; pass its parts"):
        sg.compile(lambda x, s: x)(1.0, {1})


def test_static_arguments_are_compiled_in():
    f = sg.compile(lambda x, n, mode: x**n if mode == "power" else x * n)
    assert f(3.0, 2, "power") == 9.0
    assert f(3.0, 3, "power") == 27.0
    assert f(3.0, 2, "times") == 6.0
    assert f(3.0, 2, mode="times") == 6.0


def test_derivatives_inside():
    def f(x):
        y = (sg.sin(x) * x**2).sum()
        (g,) = sg.autograd.grad(y, x, create_graph=True)
        (h,) = sg.autograd.grad(g.sum(), x)
        return y, g, h

    def traced(x):
        return f(x.requires_grad_())

    x = np.array([0.7, -1.3])
    y, g, h = sg.compile(traced)(x)
    assert y == pytest.approx((np.sin(x) * x**2).sum(), rel=1e-15)
    np.testing.assert_allclose(g, np.cos(x) * x**2 + 2 * x * np.sin(x), rtol=1e-15)
    np.testing.assert_allclose(h, -np.sin(x) * x**2 + 4 * x * np.cos(x) + 2 * np.sin(x), rtol=1e-14)


def test_derivatives_through_results():
    f = sg.compile(lambda x: sg.exp(-x * x).sum())
    x = sg.tensor([0.3, -0.4], dtype=sg.float64, requires_grad=True)
    f(x).backward()
    at = np.array([0.3, -0.4])
    np.testing.assert_allclose(x.grad.numpy(), -2 * at * np.exp(-(at**2)), rtol=1e-15)


def test_captured_tensors_are_read_at_each_call():
    w = sg.tensor([1.0, 2.0], dtype=sg.float64)
    f = sg.compile(lambda x: x * w)
    np.testing.assert_array_equal(f(np.ones(2)), [1.0, 2.0])
    w.mul_(10)
    np.testing.assert_array_equal(f(np.ones(2)), [10.0, 20.0])


def test_in_place_changes_of_captured_tensors_are_written_back():
    count = sg.zeros((), dtype=sg.float64)

    def f(x):
        count.add_(1)
        return x * count

    g = sg.compile(f)
    assert [g(2.0) for _ in range(3)] == [2.0, 4.0, 6.0]
    assert count.item() == 3.0


def test_a_compiled_training_step_moves_its_parameter():
    w = sg.tensor([1.0, -1.0], dtype=sg.float64, requires_grad=True)

    def step(x, rate):
        loss = ((w - x) ** 2).sum()
        (g,) = sg.autograd.grad(loss, w)
        with sg.no_grad():
            w.sub_(rate * g)
        return loss.detach()

    f = sg.compile(step)
    want = np.array([1.0, -1.0])
    x = np.array([3.0, 3.0])
    for k in range(5):
        rate = 0.1 / (k + 1)
        loss = f(x, rate)
        assert float(loss) == pytest.approx(((want - x) ** 2).sum(), rel=1e-15)
        want = want - rate * 2 * (want - x)
        np.testing.assert_allclose(w.detach().numpy(), want, rtol=1e-15)
    assert w.is_leaf and w.requires_grad


def test_a_branch_on_a_traced_value_names_the_line_and_where():
    def f(x):
        if x > 0:
            return x
        return -x

    with pytest.raises(RuntimeError, match=r"test_compiled\.py:\d+.*symgrad\.where"):
        sg.compile(f)(1.0)


def test_the_trace_leaves_no_mark_on_captured_tensors():
    w = sg.tensor([1.0], requires_grad=True)
    f = sg.compile(lambda x: w * x)
    f(np.ones(1, np.float32))
    assert w.is_leaf and w.item() == 1.0
    (w * 2).backward()
    assert w.grad.item() == 2.0


def test_a_hundred_batch_sizes_compile_what_ten_do():
    f = sg.compile(lambda a, w: sg.tanh(a @ w).mean())
    rng = np.random.default_rng(0)
    w = rng.random(20)
    for n in range(1, 101):
        a = rng.random((n, 20))
        assert f(a, w) == pytest.approx(np.tanh(a @ w).mean(), rel=1e-14)
        if n == 10:
            before = emission.compile_count()
    assert emission.compile_count() == before


def test_threads_compile_and_run_at_once():
    f = sg.compile(lambda x: (sg.cos(x) * x).sum())
    wrong = []

    def work(seed):
        for k in range(20):
            x = np.random.default_rng(seed * 100 + k).random(3 + (seed + k) % 4)
            if not math.isclose(f(x), (np.cos(x) * x).sum(), rel_tol=1e-14):
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_every_stage_can_be_read():
    f = sg.compile(lambda x, y: x * y + sg.sin(x))
    f(1.0, 2.0)
    assert f.formula() == "x*y + sin(x)"
    assert "loops" in f.schedule()
    assert "define" in f.llvm()
    assert len(f.asm()) > 100


def test_nothing_compiled_yet_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"call it once"):
        sg.compile(lambda x: x).schedule()


def test_a_draw_inside_is_new_at_each_call_and_follows_the_seed():
    f = sg.compile(lambda x: x + sg.rand(3, dtype=sg.float64))
    sg.manual_seed(5)
    first, second = f(np.zeros(3)), f(np.zeros(3))
    assert not np.array_equal(first, second)
    sg.manual_seed(5)
    np.testing.assert_array_equal(f(np.zeros(3)), first)
    sg.manual_seed(5)
    np.testing.assert_array_equal(sg.rand(3, dtype=sg.float64).numpy(), first)


def test_dropout_inside_draws_a_new_mask_at_each_call():
    f = sg.compile(lambda x: sg.nn.functional.dropout(x, 0.5))
    x = np.ones(64)
    masks = [f(x) for _ in range(3)]
    assert all(set(np.unique(m)) <= {0.0, 2.0} for m in masks)
    assert not np.array_equal(masks[0], masks[1]) or not np.array_equal(masks[1], masks[2])


def test_an_exception_inside_leaves_captured_tensors_as_they_were():
    weight = sg.tensor([1.0, 2.0])

    @sg.compile
    def failing(x):
        weight.mul_(x)
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        failing(sg.tensor(3.0))
    assert weight.tolist() == [1.0, 2.0]


def test_filled_tensors_made_inside_are_formulas_and_no_inputs():
    f = sg.compile(lambda x: x * sg.ones_like(x) + sg.zeros(3, dtype=sg.float64))
    np.testing.assert_array_equal(f(np.array([1.0, 2.0, 3.0])), [1.0, 2.0, 3.0])
    assert f.schedule().splitlines()[0] == "inputs: %0"


def test_a_tower_of_forward_derivatives_stays_small():
    def tower(x, order):
        if order == 0:
            return (sg.sin(x) * sg.exp(x),)
        below, tangents = sg.func.jvp(lambda x: tower(x, order - 1), (x,), (sg.ones_like(x),))
        return *below, tangents[-1]

    f = sg.compile(lambda x: tower(x, 8))
    x = np.array([0.1, 0.7])
    # The k-th derivative of Im exp((1 + i) x) is Im (1 + i)^k exp((1 + i) x).
    want = [np.imag((1 + 1j) ** k * np.exp((1 + 1j) * x)) for k in range(9)]
    np.testing.assert_allclose(f(x), want, rtol=1e-12)
    # Unmerged it would have some 3^8 operations.
    assert f.llvm().count(" fmul ") + f.llvm().count(" fadd ") < 1000


def test_the_collector_is_paused_while_compiling_and_as_before_afterwards():
    seen = []

    def function(x):
        seen.append(gc.isenabled())
        return x * 2

    assert gc.isenabled()
    assert sg.compile(function)(1.5) == 3.0
    assert seen == [False] and gc.isenabled()

    def refused(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sg.compile(refused)(1.5)
    assert gc.isenabled()
    gc.disable()
    try:
        assert sg.compile(lambda x: x * 3)(1.5) == 4.5
        assert not gc.isenabled()
    finally:
        gc.enable()


@sg.compile
def doubled(x):
    return x * 2


def tripled(x):
    return x * 3


class Scaled(sg.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = sg.nn.Parameter(sg.tensor([2.0], dtype=sg.float64))
        self.fast = sg.compile(self.forward)

    def forward(self, x):
        return self.factor * x


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]
)
def test_compiled_functions_are_copied_and_pickled_as_functions_are(copied):
    assert doubled(1.5) == 3.0
    assert copied(doubled) is doubled
    f = sg.compile(tripled)
    assert f(1.5) == 4.5
    assert copied(f)(2.0) == 6.0


def test_a_copied_module_compiles_its_own_method():
    first = Scaled()
    assert first.fast(np.ones(1)).item() == 2.0
    second = copy.deepcopy(first)
    with sg.no_grad():
        second.factor.fill_(5.0)
    assert second.fast(np.ones(1)).item() == 5.0
    assert first.fast(np.ones(1)).item() == 2.0


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"compile: .*no function \(got int\)"):
        sg.compile(3)


@pytest.mark.parametrize("use", [sg.tensor, sg.from_numpy, sg.sin, sg.compile(lambda x: x)])
def test_masked_arrays_are_refused(use):
    with pytest.raises(TypeError, match=r"masked array .*\(2,\).*filled"):
        use(np.ma.array([1.0, 2.0], mask=[False, True]))


def test_a_result_met_twice_beside_arguments_and_other_values():
    f = sg.compile(lambda x, y: [y, "word", x * 2, 7, x * 2, (x, x * 2)])
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for _ in range(3):
        got = f(x, y)
        assert got[1] == "word" and got[3] == 7
        np.testing.assert_array_equal(got[0], y)
        np.testing.assert_array_equal(got[5][0], x)
        for same in (got[2], got[4], got[5][1]):
            np.testing.assert_array_equal(same, 2 * x)
