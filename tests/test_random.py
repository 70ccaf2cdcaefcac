"""Random draws: the stream against the published algorithm, laws against theirs, states."""

import pickle

import numpy as np
import pytest
from scipy import stats

from symgrad import dtypes, random, runtime
from symgrad.ops.random import key_node, random_values

F64 = np.dtype(np.float64)
MASK = (1 << 64) - 1
LEVEL = 1e-6
"""A law is refuted below this probability of what was drawn; seeds are fixed, so nothing flickers."""


def philox(counter, key):
    """Philox 4x64-10 as Salmon et al. (SC 2011) publish it."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * c[2], 1 << 64)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def test_the_test_knows_the_algorithm():
    # The first known answer that Random123 ships for philox4x64-10.
    zero = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox([0] * 4, [0] * 2) == zero


@pytest.mark.parametrize("seed, offset", [(0, 0), (42, 7), (MASK, 123456789)])
def test_words_are_philox_of_seed_and_offset(seed, offset):
    blocks = [philox([n, offset, 0, 0], [seed, 0]) for n in (1, 2, 3)]
    assert random.words((seed, offset), 12).tolist() == [w for b in blocks for w in b]


def test_samplers_follow_their_laws():
    g = random.Generator().manual_seed(1)
    n = 20000
    assert stats.kstest(random.rand(g, (n,), F64), "uniform").pvalue > LEVEL
    assert stats.kstest(random.rand(g, (n,), np.dtype(np.float32)), "uniform").pvalue > LEVEL
    assert stats.kstest(random.randn(g, (n,), F64), "norm").pvalue > LEVEL
    shifted = random.normal(g, (n,), F64, 2.0, 3.0)
    assert stats.kstest(shifted, "norm", (2.0, 3.0)).pvalue > LEVEL
    assert stats.kstest(random.uniform(g, (n,), F64, -1.0, 3.0), "uniform", (-1, 4)).pvalue > LEVEL
    assert stats.kstest(random.exponential(g, (n,), F64, 2.0), "expon", (0, 0.5)).pvalue > LEVEL
    dice = np.bincount(random.randint(g, (n,), np.dtype(np.int64), 0, 6), minlength=6)
    assert stats.chisquare(dice).pvalue > LEVEL
    hits = int(random.bernoulli(g, 0.3, (n,), F64).sum())
    assert stats.binomtest(hits, n, 0.3).pvalue > LEVEL


def test_draws_in_a_row_are_independent():
    g = random.Generator().manual_seed(5)
    x, y = (random.randn(g, (20000,), F64) for _ in range(2))
    assert stats.pearsonr(x, y).pvalue > LEVEL
    assert stats.pearsonr(x[:-1], x[1:]).pvalue > LEVEL


def test_multinomial_draws_in_proportion_and_without_replacement_once():
    g = random.Generator().manual_seed(2)
    weights = np.array([1.0, 0.0, 3.0, 6.0])
    drawn = random.multinomial(g, weights, 20000, replacement=True)
    counts = np.bincount(drawn, minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]], np.array([0.1, 0.3, 0.6]) * 20000).pvalue > LEVEL
    rows = random.multinomial(g, np.tile(weights, (5000, 1)), 3)
    assert all(sorted(r) == [0, 2, 3] for r in rows.tolist())
    first = np.bincount(rows[:, 0], minlength=4)[[0, 2, 3]]
    assert stats.chisquare(first, np.array([0.1, 0.3, 0.6]) * 5000).pvalue > LEVEL


def test_a_permutation_has_each_number_once():
    g = random.Generator().manual_seed(3)
    order = random.randperm(g, 1000, np.dtype(np.int64))
    assert sorted(order.tolist()) == list(range(1000))
    assert order.tolist() != random.randperm(g, 1000, np.dtype(np.int64)).tolist()


def test_equal_seeds_give_equal_draws_and_states_go_on():
    g, h = random.Generator().manual_seed(9), random.Generator().manual_seed(9)
    a = random.randn(g, (5,), F64)
    state = g.get_state()
    b = random.randn(g, (5,), F64)
    assert np.array_equal(a, random.randn(h, (5,), F64))
    assert not np.array_equal(a, b)
    assert np.array_equal(random.randn(random.Generator().set_state(state), (5,), F64), b)
    g.set_state(state)
    copy = pickle.loads(pickle.dumps(g))
    assert np.array_equal(random.randn(copy, (5,), F64), b)
    assert g.initial_seed() == 9


def test_the_default_generator_is_seeded_saved_and_forked():
    random.manual_seed(11)
    state = random.get_rng_state()
    with random.fork_rng():
        a = random.rand(None, (3,), F64)
    assert np.array_equal(a, random.rand(None, (3,), F64))
    random.set_rng_state(state)
    assert np.array_equal(a, random.rand(None, (3,), F64))
    assert random.initial_seed() == 11
    random.manual_seed(-1)
    assert random.initial_seed() == MASK


def test_a_longer_draw_starts_with_the_shorter_one():
    short, long = (random.uniform_of((4, 0), (n,), F64) for n in (10, 1000))
    assert np.array_equal(short, long[:10])


def test_ranges_leave_out_their_end():
    g = random.Generator().manual_seed(6)
    x = random.uniform(g, (10000,), np.dtype(np.float32), 1.0, 1.0 + 2.0**-22)
    assert x.min() >= 1.0 and x.max() < np.float32(1.0 + 2.0**-22)
    whole = random.randint(g, (1000,), np.dtype(np.int64), -(1 << 63), (1 << 63) - 1)
    assert whole.min() < 0 < whole.max()


@pytest.mark.parametrize(
    "draw, words",
    [
        (
            lambda: random.randint(None, (1,), np.dtype(np.int64), 3, 3),
            "'from' to be less than 'to'",
        ),
        (lambda: random.uniform(None, (1,), F64, 2.0, 1.0), "found from=2.0 > to=1.0"),
        (lambda: random.normal(None, (1,), F64, 0.0, -1.0), "all elements of std >= 0.0"),
        (lambda: random.bernoulli(None, 1.5, (1,), F64), "Expected p_in >= 0 && p_in <= 1"),
        (lambda: random.randperm(None, -1, F64), "n must be non-negative"),
        (lambda: random.multinomial(None, np.ones(2), 3), "without replacement"),
        (lambda: random.multinomial(None, np.zeros(2), 1), "sum of probabilities <= 0"),
        (lambda: random.manual_seed(1 << 64), "must fit 64 bits"),
        (lambda: random.set_rng_state(np.zeros(3, np.uint8)), "RNG state is wrong size"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, words):
    with pytest.raises(RuntimeError, match=words):
        draw()


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_the_op_on_a_key_draws_what_the_eager_draw_with_it_does(kind):
    key = (13, 2)
    sampler = random.uniform_of if kind == "uniform" else random.normal_of
    for dtype in (dtypes.float32, dtypes.float64):
        node = random_values(key_node(key), kind=kind, size=(3, 4), dtype=dtype)
        runtime.evaluate([node])
        assert np.array_equal(node.value, sampler(key, (3, 4), dtype.numpy))
