"""Results written into given arrays: values next to NumPy's, natively and through Python, and what is refused."""

import numpy as np
import pytest

import symgrad as sg


def doubled(x):
    return x * 2 + 1


def test_an_array_is_written_and_returned():
    f = sg.compile(doubled)
    out = np.full((2, 3), np.nan)
    x = np.arange(6.0).reshape(2, 3)
    for k in range(3):
        assert f.into(out, x + k) is out
        np.testing.assert_array_equal(out, (x + k) * 2 + 1)


def test_nested_results_and_numbers():
    f = sg.compile(lambda x, y: {"sum": x + y, "rest": [x.sum(), (x > y, x.argmax())]})
    x, y = np.array([1.0, 5.0, 2.0]), np.array([2.0, 2.0, 2.0])
    out = {
        "rest": [np.empty(()), (np.empty(3, bool), np.empty((), np.int64))],
        "sum": np.empty(3),
    }
    for _ in range(3):
        assert f.into(out, x, y) is out
        np.testing.assert_array_equal(out["sum"], [3.0, 7.0, 4.0])
        assert out["rest"][0] == 8.0
        np.testing.assert_array_equal(out["rest"][1][0], [False, True, False])
        assert out["rest"][1][1] == 1
        x[2], out["rest"][0][...] = 2.0, 0.0


def test_the_native_function_is_used_after_the_first_call(monkeypatch):
    f = sg.compile(doubled)
    x, out = np.ones(4), np.empty(4)
    f.into(out, x)
    monkeypatch.setattr(f, "_trace", None)
    f.into(out, 3 * x)
    np.testing.assert_array_equal(out, [7.0] * 4)


def test_structures_in_turn():
    f = sg.compile(doubled)
    for _ in range(3):
        for dtype in (np.float64, np.float32):
            for n in (3, 5):
                out = np.empty(n, dtype)
                f.into(out, np.full(n, 2, dtype))
                np.testing.assert_array_equal(out, np.full(n, 5, dtype))


@pytest.mark.parametrize("place", [np.s_[:], np.s_[::-1], np.s_[1:4]])
def test_memory_shared_with_an_argument(place):
    f = sg.compile(lambda x: x.flip(0) + 1)
    for _ in range(2):
        memory = np.arange(5.0)
        view = memory[place]
        want = view[::-1] + 1
        f.into(view, view)
        np.testing.assert_array_equal(view, want)


def test_strided_arrays_are_written():
    f = sg.compile(doubled)
    memory = np.zeros((3, 4))
    for _ in range(2):
        f.into(memory[:, 1], np.array([1.0, 2.0, 3.0]))
        np.testing.assert_array_equal(memory[:, 1], [3.0, 5.0, 7.0])
        assert not memory[:, [0, 2, 3]].any()


def test_results_that_are_arguments_or_met_twice():
    def f(x, y):
        z = x * y
        return x, z, z, 7

    g = sg.compile(f)
    out = (np.empty(2), np.empty(2), np.empty(2), 7)
    for k in (1.0, 2.0):
        g.into(out, np.array([1.0, 2.0]), np.full(2, k))
        np.testing.assert_array_equal(out[:3], [[1.0, 2.0], [k, 2 * k], [k, 2 * k]])


def test_tensors_and_captured_tensors():
    w = sg.tensor([1.0, 2.0], dtype=sg.float64, requires_grad=True)
    f = sg.compile(lambda x: x * w)
    out = np.empty(2)
    f.into(out, np.array([3.0, 4.0]))
    np.testing.assert_array_equal(out, [3.0, 8.0])
    f.into(out, sg.tensor([5.0, 6.0], dtype=sg.float64))
    np.testing.assert_array_equal(out, [5.0, 12.0])


def test_changes_of_captured_tensors_happen_once_per_call():
    count = sg.zeros((), dtype=sg.float64)

    def f(x):
        count.add_(1)
        return x * count

    g, out = sg.compile(f), np.empty(())
    for k in (1.0, 2.0, 3.0):
        g.into(out, 2.0)
        assert out == 2 * k
    assert count.item() == 3.0


def test_complex_results():
    f = sg.compile(lambda z: z * z)
    out, z = np.empty(2, complex), np.array([1 + 2j, -3j])
    f.into(out, z)
    np.testing.assert_allclose(out, z * z, rtol=1e-15)


def read_only(n):
    a = np.empty(n)
    a.flags.writeable = False
    return a


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.empty(3), ValueError, r"wrong shape \(got \(3,\), the result has \(2,\)\)"),
        (np.empty((2, 1)), ValueError, r"wrong shape \(got \(2, 1\)"),
        (
            np.empty(2, np.float32),
            TypeError,
            r"wrong dtype \(got float32, the result has float64\)",
        ),
        (np.empty(2, ">f8"), TypeError, r"wrong dtype \(got >f8"),
        (read_only(2), ValueError, "read-only"),
        ([np.empty(2)], TypeError, r"is no array \(got list\)"),
        (None, TypeError, r"is no array \(got NoneType\)"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_an_array_that_does_not_fit_is_refused(out, error, words, warm):
    f, x = sg.compile(doubled), np.ones(2)
    if warm:
        f.into(np.empty(2), x)
    with pytest.raises(error, match=f"into: .*{words}"):
        f.into(out, x)


@pytest.mark.parametrize("warm", [False, True])
def test_a_nesting_that_differs_is_refused(warm):
    f, x, a = sg.compile(lambda x: (x + 1, {"b": x * 2})), np.ones(2), np.empty(2)
    if warm:
        f.into((np.empty(2), {"b": np.empty(2)}), x)
    for out in ([a, {"b": a}], (a, {"c": a}), (a,), (a, a), a):
        with pytest.raises(
            TypeError, match=r"into: `out` is not nested .*the result is \(\*, {'b': \*}\)"
        ):
            f.into(out, x)
    with pytest.raises(ValueError, match="array 1 of `out` shares memory with another one"):
        f.into((a, {"b": a}), x)


def test_arguments_that_are_results_may_change_places():
    f = sg.compile(lambda x, y: (y, x, x + y))
    for _ in range(3):
        a, b, total = np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.empty(2)
        f.into((a, b, total), a, b)
        np.testing.assert_array_equal([a, b, total], [[10.0, 20.0], [1.0, 2.0], [11.0, 22.0]])


def test_a_call_without_anything_says_what_to_pass():
    f = sg.compile(doubled)
    f.into(np.empty(2), np.ones(2))
    with pytest.raises(TypeError, match=r"into: got no arguments; pass `out`"):
        f.into()
