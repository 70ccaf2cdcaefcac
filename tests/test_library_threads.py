"""Kernels that call the linear algebra library: one thread of its own, work split among ours."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import scipy.linalg

import symgrad as sg
from symgrad.codegen import lapack, library_threads, pool

reader = library_threads._function("get_num_threads")
setter = library_threads._function("set_num_threads")

pytestmark = pytest.mark.skipif(reader is None, reason="SciPy's library has no threads to set")


@pytest.fixture
def two_threads():
    before = reader()
    setter(2)
    yield
    setter(before)


def definite(n, seed=0):
    a = np.random.default_rng(seed).normal(size=(n, n))
    return a @ a.T + n * np.eye(n)


BITS = """
import hashlib
import numpy as np
import symgrad as sg

rng = np.random.default_rng(0)
digest = hashlib.sha256()
for n, k in ((60, 60), (200, 300)):
    a = rng.normal(size=(n, n))
    a = a @ a.T + n * np.eye(n)
    b = rng.normal(size=(n, k))
    many = np.stack([a, 2 * a, a + 1])

    def everything(a, b, many):
        low = sg.linalg.cholesky(a)
        values, vectors = sg.linalg.eigh(a)
        return (
            low,
            sg.linalg.solve_triangular(low, b, upper=False),
            sg.linalg.solve(a, b),
            sg.linalg.inv(many),
            sg.linalg.slogdet(many)[1],
            values,
            vectors,
            *sg.linalg.svd(b, full_matrices=False),
        )

    for f in (sg.compile(everything), lambda *x: everything(*map(sg.tensor, x))):
        for value in f(a, b, many):
            digest.update(np.asarray(value).tobytes())
print(digest.hexdigest())
"""


def test_bits_do_not_depend_on_the_threads_of_the_library():
    found = set()
    for count in ("1", "2"):
        for own in ("1", "3"):
            env = {**os.environ, "OPENBLAS_NUM_THREADS": count, "SYMGRAD_NUM_THREADS": own}
            run = [sys.executable, "-c", BITS]
            done = subprocess.run(run, env=env, capture_output=True, text=True, check=True)
            found.add(done.stdout)
    assert len(found) == 1


def test_the_library_gets_its_threads_back(two_threads):
    f = sg.compile(sg.linalg.cholesky)
    for n in (5, 60, lapack.LIBRARY_SPLITS):
        np.testing.assert_allclose(f(definite(n)), np.linalg.cholesky(definite(n)), atol=1e-10)
        assert reader() == 2
    with pytest.raises(sg.errors.LinAlgError):
        f(-definite(60))
    assert reader() == 2


def test_the_library_gets_its_threads_back_after_many_callers(two_threads):
    a = np.stack([definite(20, seed) for seed in range(40)])
    expected = np.linalg.inv(a)
    f = sg.compile(sg.linalg.inv)
    wrong = []

    def work():
        for _ in range(50):
            if not np.allclose(f(a), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert reader() == 2
    assert library_threads._STATE.users == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_forked_beside_a_call_can_call(two_threads):
    f = sg.compile(sg.linalg.cholesky)
    a = definite(30)
    f(a)
    state = library_threads._STATE
    # What the child finds if another thread was inside just then.
    state.lock, state.users, state.count = 1, 1, 2
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        right = False
        try:
            right = np.allclose(f(a), np.linalg.cholesky(a)) and reader() == 2
        finally:
            os._exit(0 if right else 1)
    state.lock = state.users = 0
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("columns", [2, 47, 48, 49, 130, 1000])
def test_right_hand_sides_are_split(columns, batch, dtype):
    rng = np.random.default_rng(columns)
    n = 70
    a = (rng.normal(size=(*batch, n, n)) + 20 * np.eye(n)).astype(dtype)
    b = rng.normal(size=(*batch, n, columns)).astype(dtype)
    error = 100 * float(np.finfo(dtype).eps)
    for upper in (False, True):
        f = sg.compile(lambda a, b, upper=upper: sg.linalg.solve_triangular(a, b, upper=upper))
        pairs = zip(a.reshape(-1, n, n), b.reshape(-1, n, columns), strict=True)
        expected = [scipy.linalg.solve_triangular(m, y, lower=not upper) for m, y in pairs]
        found = f(a, b)
        np.testing.assert_allclose(found, np.reshape(expected, b.shape), rtol=0, atol=error)


def test_one_matrix_is_solved_on_several_threads():
    call = lapack._triangular(
        lapack._Matrices([(300, 300), (300, 300)], "double", {"upper": False, "unit": False})
    )
    assert call.strips >= 4
    assert call.alone


def test_results_of_parts_do_not_depend_on_the_number_of_threads():
    a, b = np.tril(definite(200)), np.random.default_rng(1).normal(size=(200, 500))
    f = sg.compile(lambda a, b: sg.linalg.solve_triangular(a, b, upper=False))
    before = pool.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            pool.set_num_threads(count)
            found.append(f(a, b))
    finally:
        pool.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
