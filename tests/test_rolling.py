"""Loops written in Python: found in the graph and rolled, with the values and derivatives they had.

References are NumPy loops, differences, and `symgrad.scan` of the same step.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_stream import paths, paths_in_numpy, with_gradients

import symgrad as sg
from symgrad import runtime
from symgrad.autograd import grad
from symgrad.calculus import rolling
from symgrad.calculus.rolling import rolled
from symgrad.codegen import emission
from symgrad.expr import ancestors
from symgrad.ops.loop import loop

RNG = np.random.default_rng(11)


def loops_in(t):
    """Lengths of the loops that the graph behind a tensor is rolled into."""
    (root,) = rolled([t.expr()])
    return sorted({n.attrs[3] for n in ancestors([root], lambda n: True) if n.op is loop})


def step(x, v, k, force=0.0, h=0.01):
    """A damped oscillator, with enough nodes to a turn."""
    a = -k * sg.sin(x) - 0.3 * v + force
    x1, v1 = x + 0.5 * h * v, v + 0.5 * h * a
    b = -k * sg.sin(x1) - 0.3 * v1 + force
    return x + h * v1, v + h * b


def numpy_step(x, v, k, force=0.0, h=0.01):
    a = -k * np.sin(x) - 0.3 * v + force
    x1, v1 = x + 0.5 * h * v, v + 0.5 * h * a
    b = -k * np.sin(x1) - 0.3 * v1 + force
    return x + h * v1, v + h * b


def numpy_path(x, v, k, forces, h=0.01):
    seen = []
    for f in forces:
        x, v = numpy_step(x, v, k, f, h)
        seen.append(x)
    return np.array(seen)


def double(*values):
    return [sg.tensor(v, dtype=sg.float64, requires_grad=True) for v in values]


def test_value_and_gradient_of_a_python_loop():
    x, v, k = double(0.7, -0.2, 1.3)
    a, b = x, v
    for _ in range(60):
        a, b = step(a, b, k)
    assert loops_in(a) and loops_in(a)[0] >= 55
    assert a.item() == pytest.approx(numpy_path(0.7, -0.2, 1.3, np.zeros(60))[-1], rel=1e-14)
    made = [g.item() for g in grad(a, (x, v, k))]
    point, eps = np.array([0.7, -0.2, 1.3]), 1e-6
    for place, g in enumerate(made):
        move = eps * np.eye(3)[place]
        ends = [numpy_path(*(point + s * move), np.zeros(60))[-1] for s in (1, -1)]
        assert g == pytest.approx((ends[0] - ends[1]) / (2 * eps), rel=1e-7)


@pytest.mark.parametrize("source", ["index", "unbind", "numbers", "leaves", "backwards"])
def test_what_changes_from_turn_to_turn(source):
    """Rows of a tensor by index or taken apart, Python numbers, tensors of their own, rows backwards."""
    forces = RNG.normal(size=50)
    table = sg.tensor(forces, requires_grad=True)
    x, v, k = double(0.7, -0.2, 1.3)
    each = {
        "index": lambda: [table[t] for t in range(50)],
        "unbind": lambda: list(table),
        "numbers": forces.tolist,
        "leaves": lambda: [sg.tensor(f) for f in forces],
        "backwards": lambda: [table[49 - t] for t in range(50)],
    }[source]()
    given = forces[::-1] if source == "backwards" else forces
    a, b = x, v
    for t in range(50):
        a, b = step(a, b, k, table[t] if source == "index" else each[t])
    assert loops_in(a)
    assert a.item() == pytest.approx(numpy_path(0.7, -0.2, 1.3, given)[-1], rel=1e-14)
    if source in ("index", "unbind", "backwards"):
        (g,) = grad(a, table)
        eps = 1e-6
        for place in (0, 17, 49):
            move = eps * np.eye(50)[place]
            sides = [forces + move, forces - move]
            if source == "backwards":
                sides = [s[::-1] for s in sides]
            ends = [numpy_path(0.7, -0.2, 1.3, s)[-1] for s in sides]
            assert g[place].item() == pytest.approx(
                (ends[0] - ends[1]) / (2 * eps), rel=1e-6, abs=1e-9
            )


def test_values_that_are_kept_from_every_turn():
    x, v, k = double(0.7, -0.2, 1.3)
    a, b, kept = x, v, []
    for _ in range(40):
        a, b = step(a, b, k)
        kept.append(a)
    path = numpy_path(0.7, -0.2, 1.3, np.zeros(40))
    np.testing.assert_allclose([t.item() for t in kept], path, rtol=1e-14)
    total = sg.stack(kept).square().sum()
    assert loops_in(total)
    (g,) = grad(total, k)
    eps = 1e-6
    ends = [(numpy_path(0.7, -0.2, 1.3 + s * eps, np.zeros(40)) ** 2).sum() for s in (1, -1)]
    assert g.item() == pytest.approx((ends[0] - ends[1]) / (2 * eps), rel=1e-7)


def test_equals_a_scan_of_the_same_step():
    weight = sg.tensor(0.4 * RNG.normal(size=(4, 4)), requires_grad=True)
    xs = sg.tensor(RNG.normal(size=(40, 4)), requires_grad=True)

    def cell(h, x):
        h = sg.tanh((weight * h).sum(1) + x) * sg.sigmoid(h - x)
        return h, h.sum()

    h, total = sg.zeros(4, dtype=sg.float64), 0.0
    for t in range(40):
        h, y = cell(h, xs[t])
        total = total + y
    assert loops_in(total)
    last, ys = sg.scan(cell, sg.zeros(4, dtype=sg.float64), xs)
    np.testing.assert_allclose(h.detach(), last.detach(), rtol=1e-13)
    for a, b in zip(grad(total, (weight, xs)), grad(ys.sum(), (weight, xs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_derivatives_at_a_value_inside_the_loop():
    x, v, k = double(0.7, -0.2, 1.3)
    a, b = x, v
    for t in range(60):
        a, b = step(a, b, k)
        if t == 30:
            inside = a
    (g,) = grad(a, inside, retain_graph=True)
    eps = 1e-6

    def rest(move):
        p, q = 0.7, -0.2
        for t in range(60):
            p, q = numpy_step(p, q, 1.3)
            if t == 30:
                p += move
        return p

    assert g.item() == pytest.approx((rest(eps) - rest(-eps)) / (2 * eps), rel=1e-6, abs=1e-9)


def test_hooks_inside_the_loop_run():
    x, v, k = double(0.7, -0.2, 1.3)
    a, b, seen = x, v, []
    for _ in range(60):
        a, b = step(a, b, k)
        a.register_hook(lambda g: seen.append(g.item()))
    a.backward()
    assert len(seen) == 60 and seen[0] == 1.0


def test_second_derivatives_through_a_rolled_loop():
    def end(k):
        a, b = sg.tensor(0.7, dtype=sg.float64), sg.tensor(-0.2, dtype=sg.float64)
        for _ in range(50):
            a, b = step(a, b, k)
        return a

    (k,) = double(1.3)
    (first,) = grad(end(k), k, create_graph=True)
    (second,) = grad(first, k)
    eps = 1e-4
    ends = [numpy_path(0.7, -0.2, 1.3 + s * eps, np.zeros(50))[-1] for s in (1, 0, -1)]
    assert second.item() == pytest.approx((ends[0] - 2 * ends[1] + ends[2]) / eps**2, rel=1e-4)


def program(x, v, k, forces):
    x.requires_grad_(), v.requires_grad_(), k.requires_grad_()
    a, b = x, v
    for t in range(forces.shape[0]):
        a, b = step(a, b, k, forces[t])
    return a, *grad(a, (x, v, k))


def test_compiled_and_eager_have_the_same_bits():
    args = [np.array(0.7), np.array(-0.2), np.array(1.3), RNG.normal(size=80)]
    compiled = sg.compile(program)
    made = compiled(*args)
    assert "loop of" in compiled.schedule()
    eager = program(*[sg.tensor(a) for a in args])
    for a, b in zip(made, eager, strict=True):
        assert np.asarray(a).tobytes() == b.detach().numpy().tobytes()


def test_a_new_length_compiles_nothing():
    compiled = sg.compile(program)
    start = [np.array(0.7), np.array(-0.2), np.array(1.3)]
    compiled(*start, RNG.normal(size=60))
    before = emission.compile_count()
    forces = RNG.normal(size=75)
    made = compiled(*start, forces)
    assert emission.compile_count() == before
    assert made[0] == pytest.approx(numpy_path(0.7, -0.2, 1.3, forces)[-1], rel=1e-14)


def test_short_loops_and_large_arrays_stay_as_they_are():
    x, v, k = double(0.7, -0.2, 1.3)
    a, b = x, v
    for _ in range(6):
        a, b = step(a, b, k)
    assert loops_in(a) == []
    a, b = (sg.tensor(RNG.normal(size=1000), requires_grad=True) for _ in range(2))
    for _ in range(60):
        a, b = step(a, b, k)
    assert loops_in(a) == []


def test_long_eager_loops_run_in_pieces_that_are_alike():
    """A million nodes would not fit: pieces of whole turns are run on the way, by one program."""
    a, b = sg.tensor(0.7, dtype=sg.float64), sg.tensor(-0.2, dtype=sg.float64)
    k = sg.tensor(1.3, dtype=sg.float64)
    for _ in range(300):
        a, b = step(a, b, k)
    before = emission.compile_count()
    for _ in range(1500):
        a, b = step(a, b, k)
    assert a.item() == pytest.approx(numpy_path(0.7, -0.2, 1.3, np.zeros(1800))[-1], rel=1e-12)
    assert emission.compile_count() - before <= 4


UNARY = (
    sg.sin,
    sg.tanh,
    sg.sigmoid,
    lambda a: 0.5 * a,
    lambda a: 0.1 * a * a,
    lambda a: sg.where(a > 0.1, a, 0.3 * a),
    lambda a: 0.7 * a.abs(),
)
BINARY = (
    lambda a, b: a + 0.3 * b,
    lambda a, b: a * b,
    sg.maximum,
    lambda a, b: a / (2.0 + b * b),
)


def drawn_loop(rng):
    """A loop of drawn operations, with what it starts from: several values are carried, some of them from
    two turns before, rows come by index or one by one, some values are kept."""
    shape = [(), (3,), (2, 2)][rng.integers(3)]
    count, turns = int(rng.integers(1, 4)), int(rng.integers(30, 60))
    plan = [(rng.random() < 0.5, *rng.integers(0, 1000, 3)) for _ in range(rng.integers(8, 16))]
    taken = rng.integers(0, 4, count)
    two_back, kept, one_by_one, in_place, summed = rng.random(5) < (0.3, 0.4, 0.5, 0.2, 0.4)

    def function(weight, rows, *starts):
        carried = before = list(starts)
        each = list(rows) if one_by_one else rows
        found = 0.0
        for t in range(turns):
            values = [weight, each[t], *carried, *(before if two_back else ())]
            for single, which, a, b in plan:
                x, y = values[a % len(values)], values[b % len(values)]
                values.append(
                    UNARY[which % len(UNARY)](x) if single else BINARY[which % len(BINARY)](x, y)
                )
            before = carried
            carried = [
                sg.tanh(values[-1 - k] + 0.2 * c) for k, c in zip(taken, carried, strict=True)
            ]
            if summed:
                # Its cotangent is the same in all turns, and comes from the last value.
                carried[-1] = before[-1] + 0.1 * sg.sin(values[-1])
            if in_place:
                carried[0] = carried[0].clone()
                carried[0].mul_(0.9)
            if kept and t % 3 == 0:
                found = found + carried[-1].sum()
        return found + sum((c * c).sum() for c in carried)

    leaves = [rng.normal(size=s) for s in (shape, (turns, *shape), *[shape] * count)]
    return function, leaves


@pytest.mark.parametrize("seed", range(12))
def test_drawn_loops_are_what_they_were_before_rolling(seed, monkeypatch):
    function, arrays = drawn_loop(np.random.default_rng(seed))

    def value_and_gradients():
        leaves = [sg.tensor(a, requires_grad=True) for a in arrays]
        value = function(*leaves)
        made = [value, *grad(value, leaves, allow_unused=True)]
        return [None if g is None else g.detach().numpy() for g in made]

    found = value_and_gradients()
    monkeypatch.setattr(rolling, "LEAST_TURNS", 10**9)
    monkeypatch.setattr(runtime, "_RECIPES", {})
    monkeypatch.setattr(runtime, "_JOINTS", {})
    for a, b in zip(found, value_and_gradients(), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("seed", range(12, 24))
def test_any_of_the_loops_of_a_compiled_gradient_may_be_rolled(seed, monkeypatch):
    """Passes forward that stay as they are with passes backward in loops, and the other way round."""
    rng = np.random.default_rng(seed)
    function, arrays = drawn_loop(rng)

    def outputs(*leaves):
        for leaf in leaves:
            leaf.requires_grad_()
        value = function(*leaves)
        made = grad(value, leaves, allow_unused=True)
        return value, *[g for g in made if g is not None]

    monkeypatch.setattr(rolling.Stretch, "pays", lambda self: rng.random() < 0.5)
    found = sg.compile(outputs)(*arrays)
    monkeypatch.setattr(rolling, "LEAST_TURNS", 10**9)
    for a, b in zip(found, sg.compile(outputs)(*arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


def network(turns, width, batch, rng):
    """A recurrent network with gates, written as a loop, and what it takes."""

    def end(rows, inward, onward):
        h = sg.ones(batch, width, dtype=sg.float64)
        for t in range(turns):
            z = sg.sigmoid(rows[t] @ inward + h @ onward)
            h = h + z * (sg.tanh(h @ onward - 0.1) - h)
        return h.square().mean()

    scales = [(1.0, (turns, batch, width)), *[(0.3, (width, width))] * 2]
    return end, [scale * rng.normal(size=shape) for scale, shape in scales]


def numpy_network(rows, inward, onward):
    h = np.ones(rows.shape[1:])
    for row in rows:
        z = 1.0 / (1.0 + np.exp(-(row @ inward + h @ onward)))
        h = h + z * (np.tanh(h @ onward - 0.1) - h)
    return np.square(h).mean()


def test_recurrent_networks_are_rolled():
    """A hundred steps of a network are one turn to compile, eagerly and compiled, with the same bits."""
    end, arrays = network(100, 8, 5, np.random.default_rng(4))
    leaves = [sg.tensor(a, requires_grad=True) for a in arrays]
    value = end(*leaves)
    assert loops_in(value)
    made = grad(value, leaves)
    assert value.item() == pytest.approx(numpy_network(*arrays), rel=1e-13)
    for place in range(3):
        way = np.random.default_rng(place).normal(size=arrays[place].shape)
        ends = []
        for eps in (1e-5, -1e-5):
            moved = list(arrays)
            moved[place] = arrays[place] + eps * way
            ends.append(numpy_network(*moved))
        slope = (ends[0] - ends[1]) / 2e-5
        assert (made[place].numpy() * way).sum() == pytest.approx(slope, rel=1e-6)

    def program(*given):
        for g in given:
            g.requires_grad_()
        value = end(*given)
        return value, *grad(value, given)

    compiled = sg.compile(program)
    for a, b in zip(compiled(*arrays), (value, *made), strict=True):
        assert np.asarray(a).tobytes() == b.detach().numpy().tobytes()


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def test_cells_that_split_their_gates_are_rolled():
    """An LSTM cell step by step: its gates are results of one call."""
    rng = np.random.default_rng(7)
    cell = sg.nn.LSTMCell(3, 4, dtype=sg.float64)
    rows = rng.normal(size=(40, 2, 3))

    def end():
        h, c = sg.zeros(2, 4, dtype=sg.float64), sg.zeros(2, 4, dtype=sg.float64)
        for t in range(40):
            h, c = cell(sg.tensor(rows[t]), (h, c))
        return h.square().sum()

    def numpy_end(inward, onward, *offsets):
        h, c = np.zeros((2, 4)), np.zeros((2, 4))
        for row in rows:
            i, f, g, o = np.split(row @ inward.T + h @ onward.T + sum(offsets), 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        return np.square(h).sum()

    value = end()
    assert loops_in(value)
    arrays = [p.detach().numpy().copy() for p in cell.parameters()]
    value.backward()
    assert value.item() == pytest.approx(numpy_end(*arrays), rel=1e-13)
    for place, p in enumerate(cell.parameters()):
        way = rng.normal(size=p.shape)
        ends = []
        for eps in (1e-5, -1e-5):
            moved = list(arrays)
            moved[place] = arrays[place] + eps * way
            ends.append(numpy_end(*moved))
        slope = (ends[0] - ends[1]) / 2e-5
        assert (p.grad.numpy() * way).sum() == pytest.approx(slope, rel=1e-6)


def test_hooks_at_parts_inside_the_loop_run():
    """A hook at one of several results of a call gets the derivative at this one, once."""
    x = sg.tensor([0.4, 0.3], dtype=sg.float64, requires_grad=True)
    for hooked in (0, 1, 20):
        a, seen = x, []
        for t in range(60):
            p, q = a.chunk(2)
            if t == hooked:
                p.register_hook(seen.append)
            a = sg.cat([sg.sin(p) + 0.5 * q, sg.cos(q) * 0.9 + 0.1 * p * p])
        a.sum().backward()

        def rest(move, hooked=hooked):
            p, q = 0.4, 0.3
            for t in range(60):
                if t == hooked:
                    p += move
                p, q = np.sin(p) + 0.5 * q, np.cos(q) * 0.9 + 0.1 * p * p
            return p + q

        slope = (rest(1e-6) - rest(-1e-6)) / 2e-6
        assert [g.item() for g in seen] == [pytest.approx(slope, rel=1e-5, abs=1e-9)]


def test_large_tensors_of_their_own_are_not_laid_together():
    """To roll turns that each use a tensor of their own, all of them would be copied into one at each call."""
    rng = np.random.default_rng(5)

    def through(width):
        each = [sg.tensor(rng.normal(size=(width, width))) for _ in range(60)]
        w = sg.tensor(rng.normal(size=(20, 20)))
        h = sg.tensor(rng.normal(size=(20,)), requires_grad=True)
        for own in each:
            a = h
            for _ in range(6):
                a = sg.sin(a) + h
            h = sg.tanh(w @ a) + own[0, 0]
        return h

    assert loops_in(through(20))
    assert loops_in(through(200)) == []


def test_a_turn_that_uses_another_value_of_the_same_kind():
    """Turns of equal nodes are one loop only where these are connected alike."""
    x = sg.tensor(0.4, dtype=sg.float64, requires_grad=True)
    for odd in (None, 30, 57):
        a, want, slope = x, 0.4, 1.0
        for t in range(60):
            p, q = sg.sin(a), sg.sin(0.5 * a)
            a = sg.cos(q if t == odd else p) + 0.3 * a * (p + q)
            inner = 0.5 if t == odd else 1.0
            used = np.sin(inner * want)
            both = np.sin(want) + np.sin(0.5 * want)
            slope *= (
                -np.sin(used) * inner * np.cos(inner * want)
                + 0.3 * both
                + 0.3 * want * (np.cos(want) + 0.5 * np.cos(0.5 * want))
            )
            want = np.cos(used) + 0.3 * want * both
        (g,) = grad(a, x)
        assert a.item() == pytest.approx(want, rel=1e-12)
        assert g.item() == pytest.approx(slope, rel=1e-9, abs=1e-15)


def test_an_argument_that_stays_and_also_changes():
    """One tensor is what every turn uses, and in one turn it also stands where others change."""
    rng = np.random.default_rng(6)
    given = rng.normal(size=60)
    each = [sg.tensor(g) for g in given]
    x = sg.tensor(0.4, dtype=sg.float64, requires_grad=True)
    for which in (0, 1, 2, 3, 17):
        a, want, slope = x, 0.4, 1.0
        for t in range(60):
            a = sg.sin(a * each[which]) + 0.5 * sg.cos(a) + 0.1 * each[t]
            inner = want * given[which]
            slope *= np.cos(inner) * given[which] - 0.5 * np.sin(want)
            want = np.sin(inner) + 0.5 * np.cos(want) + 0.1 * given[t]
        (g,) = grad(a, x)
        assert a.item() == pytest.approx(want, rel=1e-12)
        assert g.item() == pytest.approx(slope, rel=1e-9, abs=1e-15)


def test_what_all_turns_use_may_come_from_what_changes(monkeypatch):
    """A backward pass in a loop behind a forward pass in none: the last value that all its turns use
    was made of the values that change from turn to turn."""

    def sums(self):
        return any(n.op.family == "reduce" for n in self.tape.nodes[self.start : self.stop])

    monkeypatch.setattr(rolling.Stretch, "pays", sums)
    noise = RNG.normal(size=(100, 20))
    f = sg.compile(with_gradients(paths, 2))
    np.testing.assert_allclose(f(0.4, 0.7, noise), paths_in_numpy(0.4, 0.7, noise), rtol=1e-12)
    assert "loop of" in f.schedule()
