"""Square brackets: every kind of key against NumPy's, derivatives against index arithmetic, errors."""

import numpy as np
import pytest

import symgrad as sg
from symgrad import dtypes
from symgrad.op import Expr, input_node
from symgrad.ops.index import getitem

RNG = np.random.default_rng(7)
X = RNG.uniform(-2, 2, (3, 4, 5))
COLUMN = X[:, :, 0] > 0

KEYS = {
    "integer": 1,
    "negative integer": -1,
    "numpy integer": np.int32(2),
    "slice": slice(1, None),
    "slice beyond the end": slice(1, 99),
    "slice with a step": (slice(None), slice(None), slice(1, None, 3)),
    "empty slice": slice(2, 2),
    "slice and integer": (slice(None), 1),
    "ellipsis": (..., 2),
    "ellipsis that covers nothing": (0, 1, 2, ...),
    "new axes": (None, 0, None, slice(0, 4, 2)),
    "list": [0, 2],
    "repeated and negative positions": [0, -1, 0],
    "empty list": [],
    "two lists": ([0, 2], [1, 3]),
    "adjacent lists stay in place": (slice(None), [0, 2], [1, 3]),
    "separated lists come first": ([0, 1], slice(None), [1, 3]),
    "lists around a new axis come first": ([0, 1], None, [1, 2]),
    "broadcast arrays": (np.array([[0], [1]]), np.array([0, 3, 2])),
    "0-d array": np.array(2),
    "array of small integers": np.array([2, 0], np.int32),
    "mask of all elements": X > 0.5,
    "mask of leading axes": COLUMN,
    "mask of trailing axes": (slice(1, 3), X[0] > 0.5),
    "mask after an ellipsis": (..., X[0, 0] > 0),
    "mask and integers": (COLUMN[:, 0], slice(None), [0, 1, 4][: int(COLUMN[:, 0].sum())]),
    "mask without true": np.zeros((3, 4), bool),
    "True": True,
    "False": False,
}


def tensor(array, grad=False):
    return sg.tensor(array, dtype=sg.float64, requires_grad=grad)


def counted(key):
    """How often each element is read."""
    count = np.zeros(X.shape)
    np.add.at(count, key, 1.0)
    return count


@pytest.mark.parametrize("name", KEYS)
def test_reading_gives_numpys_elements(name):
    key = KEYS[name]
    found = tensor(X)[key]
    assert tuple(found.shape) == X[key].shape
    np.testing.assert_array_equal(found.numpy(), X[key])


@pytest.mark.parametrize("name", KEYS)
def test_writing_changes_numpys_elements(name):
    key = KEYS[name]
    if name == "repeated and negative positions":
        key = [1, 2]
    values = RNG.uniform(-1, 1, X[key].shape)
    for value in (values, 7.0):
        expected = X.copy()
        expected[key] = value
        x = tensor(X)
        x[key] = tensor(value) if isinstance(value, np.ndarray) else value
        np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("name", KEYS)
def test_derivative_of_reading_counts_the_reads(name):
    x = tensor(X, grad=True)
    (x[KEYS[name]] * 3.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 3.0 * counted(KEYS[name]))


def test_an_integer_beside_arrays_is_a_slice_taken_first():
    # torch's rule; NumPy would count the integer as an array and put the arrays' axes first.
    found = tensor(X)[0, :, [1, 3]]
    np.testing.assert_array_equal(found.numpy(), X[0][:, [1, 3]])


def test_indices_may_be_tensors_and_lists_of_tensors():
    x = tensor(X)
    one, rows = sg.tensor(1), sg.tensor([2, 0])
    np.testing.assert_array_equal(x[one].numpy(), X[1])
    np.testing.assert_array_equal(x[rows].numpy(), X[[2, 0]])
    np.testing.assert_array_equal(x[[one, one]].numpy(), X[[1, 1]])
    np.testing.assert_array_equal(x[x > 0].numpy(), X[X > 0])


def test_of_several_writes_the_last_wins_and_alone_has_a_derivative():
    x, v = tensor(np.zeros(3), grad=True), tensor([1.0, 2.0, 3.0], grad=True)
    y = x.clone()
    y[[1, 0, 1]] = v
    np.testing.assert_array_equal(y.detach().numpy(), [2.0, 3.0, 0.0])
    (y * tensor([10.0, 20.0, 30.0])).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.0, 0.0, 30.0])
    np.testing.assert_array_equal(v.grad.numpy(), [0.0, 10.0, 20.0])


def test_accumulating_puts_count_every_write():
    x, v = tensor(np.ones(3), grad=True), tensor([1.0, 2.0, 3.0], grad=True)
    y = sg.index_put(x, (sg.tensor([1, 0, 1]),), v, accumulate=True)
    np.testing.assert_array_equal(y.detach().numpy(), [3.0, 5.0, 1.0])
    (y * tensor([10.0, 20.0, 30.0])).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [10.0, 20.0, 30.0])
    np.testing.assert_array_equal(v.grad.numpy(), [20.0, 10.0, 20.0])


def test_elements_left_out_by_a_mask_stay_out_of_infinite_derivatives():
    x = tensor([0.0, 4.0], grad=True)
    sg.sqrt(x)[sg.tensor([False, True])].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.0, 0.25])


def test_a_false_condition_keeps_out_what_was_read_by_position():
    x = tensor([0.0, 4.0], grad=True)
    read = sg.sqrt(x)[sg.tensor([0, 1, 1])]
    sg.where(sg.tensor([False, True, True]), read, 0.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.0, 0.5])


def test_a_value_is_converted_to_what_it_is_written_into():
    x = sg.tensor([1, 2, 3])
    x[1] = 7.9
    assert x.tolist() == [1, 7, 3]


def test_second_derivatives_through_a_gather_with_repeats():
    x = tensor([1.0, 2.0, 3.0], grad=True)
    y = (x[[0, 2, 0]] ** 3).sum()
    (g,) = sg.autograd.grad(y, x, create_graph=True)
    (h,) = sg.autograd.grad(g.sum(), x)
    np.testing.assert_allclose(g.detach().numpy(), [6.0, 0.0, 27.0], rtol=1e-15)
    np.testing.assert_allclose(h.numpy(), [12.0, 0.0, 18.0], rtol=1e-15)


ERRORS = [
    (5, IndexError, "index 5 is out of bounds for dimension 0 with size 3"),
    ((0, -5), IndexError, "index -5 is out of bounds for dimension 1 with size 4"),
    ([0, 3], IndexError, "index 3 is out of bounds for dimension 0 with size 3"),
    ((0, 0, 0, 0), IndexError, "too many indices for tensor of dimension 3"),
    (slice(None, None, -1), ValueError, "step must be greater than zero"),
    (1.5, IndexError, "only integers, slices"),
    (np.array([1.0]), IndexError, "tensors used as indices must be long, int, byte or bool"),
    (np.array([True, False]), IndexError, r"shape of the mask \[2\] at index 0 does not match"),
    (([0, 1], [0, 1, 2]), IndexError, r"could not be broadcast together with shapes \[2\], \[3\]"),
]


@pytest.mark.parametrize("key, error, words", ERRORS)
def test_unusable_keys_are_refused_in_torchs_words(key, error, words):
    x = tensor(X)
    with pytest.raises(error, match=words):
        x[key]
    with pytest.raises(error, match=words):
        x[key] = 0.0


def test_values_that_do_not_fit_are_refused():
    x = tensor(X)
    with pytest.raises(RuntimeError, match=r"must match the existing size \(3\)"):
        x[0] = tensor(np.zeros(3))
    with pytest.raises(RuntimeError, match=r"shape \[3\] cannot be broadcast to indexing result"):
        x[[0, 1]] = tensor(np.zeros(3))
    with pytest.raises(IndexError, match="0-dim tensor"):
        sg.tensor(1.0)[0]


def test_compiled_positions_are_inputs_and_still_checked():
    f = sg.compile(lambda x, i: x[i] * 2.0)
    x = tensor(X)
    for rows in ([0, 2], [1, -1], [2, 2]):
        np.testing.assert_array_equal(f(x, sg.tensor(rows)).numpy(), X[rows] * 2.0)
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        f(x, sg.tensor([0, 3]))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1023, 1025, 20_000])
def test_compiled_positions_are_checked_without_python(count):
    f = sg.compile(lambda x, i: x[i] * 2.0)
    x = np.linspace(-1.0, 1.0, 37)
    i = np.random.default_rng(count).integers(-37, 37, count)
    np.testing.assert_array_equal(f(x, i), x[i] * 2.0)
    assert f.trace(x, i)._latest().native
    for bad in (37, -38, 2**62, -(2**63)):
        for place in {0, count // 2, count - 1} if count else ():
            wrong = i.copy()
            wrong[place] = bad
            words = f"index {bad} is out of bounds for dimension 0 with size 37"
            with pytest.raises(IndexError, match=words):
                f(x, wrong)
    np.testing.assert_array_equal(f(x, i), x[i] * 2.0)


def test_the_first_of_several_wrong_positions_is_named_in_whatever_thread():
    def f(x, i, j):
        y = x.clone()
        y[i] = 0.0
        return y, x[j]

    g = sg.compile(f)
    x = np.arange(40_000.0)
    good = np.arange(40_000)
    expected = x.copy()
    expected[good[::2]] = 0.0
    found = g(x, good[::2].copy(), good - 40_000)
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], x)
    wrong = good.copy()
    wrong[[100, 39_999]] = 40_007, -50_000
    for i, j in ((wrong, good), (good, wrong)):
        with pytest.raises(IndexError, match="index 40007 is out of bounds for dimension 0"):
            g(x, i, j)


def test_compiled_positions_in_an_empty_axis_are_refused():
    f = sg.compile(lambda x, i: x[i])
    with pytest.raises(IndexError, match="index 0 is out of bounds for dimension 0 with size 0"):
        f(np.zeros((0, 3)), np.array([0]))
    assert f(np.zeros((0, 3)), np.zeros(0, np.int64)).shape == (0, 3)


def test_compiled_masks_fill_but_do_not_select():
    def fill(x, mask):
        y = x.clone()
        y[mask] = 0.0
        return y

    f = sg.compile(fill)
    for bound in (0.0, 1.0):
        expected = np.where(bound < X, 0.0, X)
        np.testing.assert_array_equal(f(tensor(X), tensor(X) > bound).numpy(), expected)
    with pytest.raises(RuntimeError, match=r"depends on the values of a boolean mask.*use where"):
        sg.compile(lambda x, mask: x[mask])(tensor(X), tensor(X) > 0)


def test_basic_keys_are_views_and_arrays_are_one_gather():
    x = input_node(X.shape, dtypes.float64, X)

    def families(node: Expr) -> set[str]:
        found, stack = set(), [node]
        while stack:
            n = stack.pop()
            found.add(n.op.family)
            stack.extend(n.args)
        return found

    assert families(getitem(x, (1, slice(None, 2), None))) == {"movement", "leaf"}
    assert families(getitem(x, ([0, 1], [0, 1]))) == {"index", "leaf"}


@pytest.mark.parametrize("columns", [1, 3, 16, 26, 50])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_by_position_are_read_whole(columns, dtype):
    """Lanes along a row whose position is the same for all of them, tails and guards included."""
    rng = np.random.default_rng(5)
    table = rng.normal(size=(40, 3, columns)).astype(dtype)
    where = rng.integers(0, 40, 70)
    compiled = sg.compile(
        lambda t, w: (t[w] * 2, t[w, 1].sum(0), sg.nn.functional.pad(t[w], (2, 1)))
    )
    twice, total, padded = compiled(table, where)
    np.testing.assert_array_equal(twice, table[where] * 2)
    np.testing.assert_allclose(total, table[where, 1].astype(np.float64).sum(0), rtol=1e-4)
    np.testing.assert_array_equal(padded, np.pad(table[where], ((0, 0), (0, 0), (2, 1))))
    eager = sg.tensor(table)[sg.tensor(where)] * 2
    assert eager.numpy().tobytes() == twice.tobytes()


@pytest.mark.parametrize("columns", [1, 3, 4, 5, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_added_at_positions_in_order(columns, dtype):
    """Rows of any width, one after another to the same place, with functions computed on the way."""
    rng = np.random.default_rng(columns)
    rows = rng.integers(-8, 8, (70, columns)).astype(dtype)
    start = rng.integers(-8, 8, (5, columns)).astype(dtype)
    where = rng.integers(0, 5, 70)

    def added(s, w, r):
        return s.index_add(0, w, 3 * r), s.index_add(0, w, sg.sin(r))

    plain, bent = sg.compile(added)(start, where, rows)
    sums, sines = start.copy(), start.astype(np.float64)
    np.add.at(sums, where, 3 * rows)
    np.add.at(sines, where, np.sin(rows.astype(np.float64)))
    np.testing.assert_array_equal(plain, sums)
    np.testing.assert_allclose(bent, sines, rtol=1e-5, atol=1e-5)
    eager = added(sg.tensor(start), sg.tensor(where), sg.tensor(rows))
    for a, b in zip(eager, (plain, bent), strict=True):
        assert a.numpy().tobytes() == b.tobytes()
