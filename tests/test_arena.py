"""Places of temporaries: none meets another one in time and memory, and room is used again."""

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import plan
from symgrad.codegen.arena import ALIGN, PAGE, STAGGER, arranged


def drawn(seed):
    """Steps that make values and read earlier ones, with sizes, and heirs where sizes agree."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 60))
    sizes = {n: int(rng.choice([8, 64, 1000, 5000, 100_000])) for n in range(count)}
    uses, heirs = [], []
    for n in range(count):
        back = int(rng.integers(1, 8))
        reads = {int(k) for k in rng.integers(max(0, n - back), n, 2)} if n else set()
        uses.append({n, *reads})
        heirs.append({n: [k for k in sorted(reads) if sizes[k] == sizes[n]]})
    return uses, sizes, heirs


def room(size):
    padded = -(-size // ALIGN) * ALIGN
    return padded + STAGGER if padded >= PAGE else padded


@pytest.mark.parametrize("inherit", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_what_is_in_use_at_one_time_lies_apart(seed, inherit):
    uses, sizes, heirs = drawn(seed)
    places, top = arranged(uses, sizes, heirs if inherit else ())
    assert places.keys() == sizes.keys()
    first, last = {}, {}
    for place, used in enumerate(uses):
        for n in used:
            first.setdefault(n, place)
            last[n] = place
    for a in sizes:
        assert places[a] % ALIGN == 0
        assert places[a] + sizes[a] <= top
        for b in range(a + 1, len(sizes)):
            if places[a] + sizes[a] <= places[b] or places[b] + sizes[b] <= places[a]:
                continue
            # They share memory, so one begins after the other's end, or where it ends and inherits it.
            later, earlier = (a, b) if first[a] > first[b] else (b, a)
            passed_on = inherit and earlier in heirs[first[later]].get(later, ())
            assert last[earlier] < first[later] or (
                passed_on and last[earlier] == first[later] and places[a] == places[b]
            )


@pytest.mark.parametrize("seed", range(40))
def test_memory_is_little_more_than_what_is_in_use_at_one_time(seed):
    uses, sizes, _ = drawn(seed)
    _, top = arranged(uses, sizes)
    last = {n: place for place, used in enumerate(uses) for n in used}
    live, peak, begun = set(), 0, set()
    for place, used in enumerate(uses):
        live |= used - begun
        begun |= used
        peak = max(peak, sum(room(sizes[n]) for n in live))
        live = {n for n in live if last[n] > place}
    assert peak <= top <= 1.25 * peak


def test_a_chain_of_heirs_takes_one_place():
    uses = [{0}, {0, 1}, {1, 2}, {2, 3}]
    places, top = arranged(uses, dict.fromkeys(range(4), 5000), [{}, {1: [0]}, {2: [1]}, {3: [2]}])
    assert set(places.values()) == {0}
    assert top == room(5000)


def test_an_operand_that_is_read_later_keeps_its_place():
    uses = [{0}, {0, 1}, {0, 1, 2}]
    places, _ = arranged(uses, dict.fromkeys(range(3), 5000), [{}, {1: [0]}, {2: [0, 1]}])
    assert places[1] != places[0]
    assert places[2] == places[0]


# -- results in the place of operands ----------------------------------------------------


def softened(x, w):
    """A product, and values of its size made of it that a sum and a product read."""
    z = x @ w
    e = sg.exp(z - z.amax(1, keepdim=True))
    return (e / e.sum(1, keepdim=True)) @ w


def in_numpy(x, w):
    z = x @ w
    e = np.exp(z - z.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)) @ w


@pytest.mark.parametrize("columns", [64, 300, 301])
def test_elementwise_results_take_the_place_of_their_operands(columns):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(200, columns)), rng.normal(size=(columns, columns))
    f = sg.compile(softened)
    np.testing.assert_allclose(f(x, w), in_numpy(x, w), rtol=1e-12, atol=1e-12)
    # The scores and the weights take one place, beside a few values per row.
    assert f.memory().temporaries < 1.2 * 200 * columns * 8


def test_steps_run_again_where_no_result_takes_the_place_of_an_operand():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(200, 64)), rng.normal(size=(64, 64))
    f = sg.compile(softened)
    expected = f(x, w)
    program = f._latest().recipe.program
    for repeats in (True, False):
        table, _, slots = program.memory_for((x, w), repeats)
        for launches in program.step_launches():
            plan.run(plan.Plan(launches * 2, (program,)), slots)
        found = table[len(program.inputs)].reshape(expected.shape)
        assert np.array_equal(found, expected) == repeats
