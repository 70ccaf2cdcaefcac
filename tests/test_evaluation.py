"""What is computed when, what is kept, and that looking never changes a later bit."""

import gc
import sys
import weakref

import numpy as np
import pytest

import symgrad as sg
from symgrad import runtime
from symgrad.codegen import emission
from symgrad.schedule.steps import Loops


def resident_kib() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4


needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads resident memory from /proc"
)


def test_nothing_runs_before_a_look():
    x = sg.tensor([1.0, 2.0])
    y = sg.exp(x) * 2
    assert y.expr().value is None
    y.tolist()
    assert y.expr().value is not None


def test_a_value_held_by_the_user_is_stored_by_a_later_look():
    x = sg.tensor([0.1, 0.2], dtype=sg.float64)
    kept = sg.sin(x)
    total = (kept * kept).sum()
    total.item()
    assert kept.expr().value is not None
    np.testing.assert_array_equal(kept.expr().value, kept.numpy())


def test_n_squared_producers_are_not_stored():
    n = 300
    x = sg.tensor(np.random.default_rng(0).random(n), requires_grad=True)
    energy = ((x.reshape(n, 1) - x.reshape(1, n)) ** 2).sum()
    node = energy.expr()
    while node.size < n * n:
        node = node.args[0]
    pair = weakref.ref(node)
    del node
    energy.item()
    assert pair() is not None and pair().value is None


@needs_proc
def test_a_loop_without_grad_runs_in_constant_memory():
    with sg.no_grad():
        s = sg.zeros(4)
        for _ in range(3000):
            s = s + sg.sin(s) + 0.1
        before = resident_kib()
        for _ in range(20000):
            s = s + sg.sin(s) + 0.1
        s.tolist()
    assert resident_kib() - before < 20_000


def test_adam_with_a_changing_rate_and_early_looks_compiles_few_programs():
    rng = np.random.default_rng(0)
    x, target = sg.tensor(rng.random((64, 5))), sg.tensor(rng.random(64))
    p = sg.zeros(5, dtype=sg.float64, requires_grad=True)
    m, v = sg.zeros(5, dtype=sg.float64), sg.zeros(5, dtype=sg.float64)
    programs = runtime.recipe_count()
    for t in range(1, 201):
        if t == 15:
            compiles = emission.compile_count()
        loss = ((x @ p - target) ** 2).sum()
        if t % 7 == 3:
            loss.item()
        p.grad = None
        loss.backward()
        rate = 0.1 / (1 + 0.01 * t)
        with sg.no_grad():
            g = p.grad
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            p.sub_(rate * (m / (1 - 0.9**t)) / (sg.sqrt(v / (1 - 0.999**t)) + 1e-8))
    assert runtime.recipe_count() - programs <= 5
    assert emission.compile_count() == compiles
    want = np.linalg.lstsq(x.numpy(), target.numpy(), rcond=None)[0]
    assert float(loss.item()) < 1.5 * float(((x.numpy() @ want - target.numpy()) ** 2).sum()) + 1.0


def test_a_long_chain_builds_differentiates_and_is_freed_without_recursion():
    limit = sys.getrecursionlimit()
    x = sg.tensor(0.5, dtype=sg.float64, requires_grad=True)
    y = x
    for _ in range(20000):
        y = sg.sin(y) * 1.0001
    (g,) = sg.autograd.grad(y, x)
    at, slope = 0.5, 1.0
    for _ in range(20000):
        at, slope = np.sin(at) * 1.0001, slope * np.cos(at) * 1.0001
    assert y.item() == pytest.approx(at, rel=1e-11)
    assert g.item() == pytest.approx(slope, rel=1e-9)
    del y, g
    assert sys.getrecursionlimit() == limit


def test_a_look_does_not_change_later_bits():
    def program(x, look):
        a = sg.exp(-x * x)
        if look:
            a.tolist()
        b = (a * x).sum()
        if look:
            b.item()
        return sg.log1p(a) / (1 + b)

    values = np.random.default_rng(3).standard_normal(1000)
    plain = program(sg.tensor(values), False).numpy()
    looked = program(sg.tensor(values), True).numpy()
    np.testing.assert_array_equal(plain, looked)


def test_a_graph_is_freed_with_its_last_tensor():
    x = sg.tensor([0.3, 0.4], requires_grad=True)
    y = sg.tanh(x).sum()
    y.backward(create_graph=True)
    node = weakref.ref(y.expr())
    gc.disable()
    try:
        x.grad = None
        del y
        assert node() is None
    finally:
        gc.enable()


def test_losses_kept_in_a_list_do_not_keep_each_step_alive():
    x = sg.ones(3, requires_grad=True)
    losses = []
    for _ in range(5):
        loss = (x * x).sum()
        loss.backward()
        losses.append(loss)
        with sg.no_grad():
            x.sub_(0.1 * x.grad)
        x.grad = None
    assert [round(v.item(), 6) for v in losses] == [round(3 * 0.64**k, 6) for k in range(5)]


def test_an_operator_with_a_parameter_whose_memory_is_shared_runs_at_once():
    w = sg.nn.Parameter(sg.tensor([1.0]))
    a = w.detach().numpy()
    y = sg.tensor([1.0]) * w
    a[0] = 5.0
    assert y.item() == 1.0


def test_rows_and_batches_share_a_program():
    """Where a slice of known data begins decides no code."""
    table = sg.tensor(np.arange(400.0).reshape(100, 4))
    weight = sg.tensor(np.ones(4), requires_grad=True)
    before = runtime.recipe_count()
    for k in range(100):
        assert (table[k] * 2.0).sum().item() == 2.0 * (16 * k + 6)
    for k in range(0, 96, 8):
        ((table[k : k + 8] @ weight) ** 2).mean().backward()
    assert runtime.recipe_count() - before <= 4


def test_a_slice_keeps_its_value_when_its_source_is_written():
    source = sg.tensor(np.arange(6.0))
    row = source[2:4] * 1.0
    part = source[4:].clone()
    assert row.sum().item() == 5.0
    source.mul_(10.0)
    np.testing.assert_array_equal(row, [2.0, 3.0])
    np.testing.assert_array_equal(part, [4.0, 5.0])
    np.testing.assert_array_equal(source[2:4], [20.0, 30.0])


def test_training_in_batches_for_many_steps():
    """Adam on batches cut from the data, against the same in NumPy: values of old steps stay out of it."""
    rng = np.random.default_rng(3)
    data, target = rng.normal(size=(96, 5)), rng.normal(size=96)
    start = rng.normal(size=5)
    x, y = sg.tensor(data), sg.tensor(target)
    w = sg.tensor(start, requires_grad=True)
    optimizer = sg.optim.Adam([w], lr=0.01)
    plain, m, v = start.copy(), np.zeros(5), np.zeros(5)
    for step in range(120):
        k = 8 * (step % 12)
        optimizer.zero_grad()
        (sg.tanh(x[k : k + 8] @ w) - y[k : k + 8]).square().mean().backward()
        optimizer.step()
        a, b = data[k : k + 8], target[k : k + 8]
        t = np.tanh(a @ plain)
        g = a.T @ (2.0 * (t - b) * (1.0 - t * t)) / 8
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        scale = np.sqrt(1.0 - 0.999 ** (step + 1)) / (1.0 - 0.9 ** (step + 1))
        plain -= 0.01 * scale * m / (np.sqrt(v) + 1e-8 * np.sqrt(1.0 - 0.999 ** (step + 1)))
    np.testing.assert_allclose(w.detach(), plain, rtol=1e-9)


def training_step(optimizer, count=3):
    """A step of a two-layer network, never looked at, and its parameters, after some steps."""
    rng = np.random.default_rng(5)
    layers = [
        sg.tensor(0.1 * rng.normal(size=s), requires_grad=True) for s in ((64, 32), (32,), (32, 8))
    ]
    w, b, u = layers
    x = sg.tensor(rng.normal(size=(96, 64)))
    steps = optimizer(layers)

    def step():
        steps.zero_grad()
        ((sg.relu(x @ w + b) @ u) ** 2).mean().backward()
        steps.step()

    for _ in range(count):
        step()
    return step, layers


@pytest.fixture
def last_nests(monkeypatch):
    """The nests of the program that the last backward pass needed for the first time."""
    monkeypatch.setattr(runtime, "_JOINTS", {})
    return lambda: nests_of(list(runtime._JOINTS.values())[-1].recipe.program.schedule)


def nests_of(schedule):
    steps = [s for step in schedule.steps for s in getattr(step, "steps", [step])]
    return [s.build() for s in steps if isinstance(s, Loops)]


def test_an_update_that_nobody_looks_at_is_computed_once(last_nests):
    _, layers = training_step(lambda p: sg.optim.SGD(p, lr=0.01))
    insts = [i for nest in last_nests() for i in nest.insts if i.op is not None]
    assert sum(i.op.name == "sub" for i in insts) == len(layers)


def test_adam_changes_a_parameter_and_its_means_in_one_nest(last_nests):
    _, layers = training_step(lambda p: sg.optim.Adam(p, lr=0.01))
    nests = last_nests()
    insts = [i for nest in nests for i in nest.insts if i.op is not None]
    # A square root for each parameter, and one for the correction that they share.
    assert sum(i.op.name == "sqrt" for i in insts) == len(layers) + 1
    for p in layers:
        (nest,) = [
            n
            for n in nests
            if sum(o.target.shape == p.shape and o.axis < 0 for o in n.outputs) == 3
        ]
        loads = [i.node for i in nest.insts if i.kind == "load" and i.node.shape == p.shape]
        assert len(loads) == len(set(loads)) == 4


@pytest.mark.parametrize("optimizer", [sg.optim.SGD, sg.optim.Adam])
def test_steps_that_nobody_looks_at_leave_nothing_behind(optimizer):
    step, layers = training_step(lambda p: optimizer(p, lr=0.01), 5)
    gc.collect()
    before = len(gc.get_objects())
    old = weakref.ref(layers[0].expr())
    for _ in range(20):
        step()
    assert old() is None
    assert len(gc.get_objects()) - before < 50


@pytest.mark.parametrize("optimizer", [sg.optim.SGD, sg.optim.Adam])
def test_looks_between_steps_do_not_change_a_bit(optimizer):
    step, layers = training_step(lambda p: optimizer(p, lr=0.01), 0)
    other, looked = training_step(lambda p: optimizer(p, lr=0.01), 0)
    for _ in range(6):
        step()
        other()
        for p in looked:
            p.tolist()
    for p, q in zip(layers, looked, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
